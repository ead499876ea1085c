"""The start of a writer: whose replica it is, and whether this file may go on with it.

The file records the replica's id, the holder of its lease, and its own inode: a copy of the file has another one. So
the one file that was written last may go on at once, even if its server was killed and its lease has not ended. Any
other file would lose what was acknowledged since it was made.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from store.duckdb.backup import REPLICA_SETTING
from store.duckdb.database import Connection, Database
from store.model.errors import InvalidArgument
from store.places import IDENTITY, open_place
from store.replication import lease as leases
from store.replication.followed_database import FollowedDatabase, note_of
from store.replication.follower import Follower
from store.replication.log import Log, Position
from store.replication.restore import bases
from store.replication.writer import Writer
from store.role import Role

GENERATION_GAP: Final = 1000  # between epochs, for commits of the former that were not shipped


@dataclass(frozen=True)
class Plan:
    """A server's part in the replication of its database.

    Attributes:
        interval: Seconds between two segments, and between two looks of a follower.
        durable: Acknowledge writes only once they are shipped.
        keep: Seconds for which generations stay restorable.
    """

    url: str
    interval: float = 1.0
    durable: bool = False
    lease_seconds: float = 10.0
    keep: float = 7 * 86_400.0


def join(plan: Plan, path: Path, *, follow: bool = False, standby: bool = False) -> tuple[Database, Role]:
    """Opens the database of a server that takes part in replication.

    Args:
        follow: Serve what the writer ships.
        standby: Do so until the writer's lease has ended, then take over. A file that has taken over goes on as the
            writer's, so that a standby that is killed after it has taken over starts again by the same command.

    Raises:
        InvalidArgument: The place or the file is not suited; names the place, and the writer.
        UpstreamError: The place is out of reach.
    """
    if follow or (standby and not _is_own(plan, path)):
        return _followed(plan, path, standby)
    check_file(plan, path)
    database = Database(path)
    try:
        return database, start_writer(plan, database)
    except BaseException:
        database.close()
        raise


def _is_own(plan: Plan, path: Path) -> bool:
    """True for a database that is no follower's copy; whether it may be written is checked by `start_writer`.

    Raises:
        InvalidArgument: There is no replica.
    """
    Log(open_place(plan.url)).existing()
    return path.exists() and not note_of(path.resolve()).exists()


def _followed(plan: Plan, path: Path, standby: bool) -> tuple[Database, Role]:
    log = Log(open_place(plan.url))
    identity = log.existing()
    database = FollowedDatabase(path)

    def take_over(follower: Follower, ended: leases.Lease) -> Writer | None:
        holder = uuid.uuid4().hex
        try:
            keeper = take(plan, log, holder, ended)
        except InvalidArgument:
            return None
        known, _ = _newest(log)
        generation, position = follower.promote()  # from here on the place is not needed
        _record(database, identity, holder, ended.holder)
        return _begun(plan, database, log, keeper, max(generation, known, ended.generation), position)

    try:
        return database, Follower(database, log, plan.interval, take_over if standby else None)
    except BaseException:
        database.close()
        raise


def check_file(plan: Plan, path: Path) -> None:
    """Refuses a new file for a replica that has a database, before the file is made.

    Raises:
        InvalidArgument: See `start_writer`.
        UpstreamError: The place is out of reach.
    """
    log = Log(open_place(plan.url))
    if log.identity() is not None and not path.exists():
        raise _not_this(log, leases.newest(log.place), "it is that of another database")


def start_writer(plan: Plan, database: Database) -> Writer:
    """Makes the server of a database the writer of its replica, in the next epoch.

    Raises:
        InvalidArgument: Another server writes, or the file is not the newest of this replica; names the writer.
        UpstreamError: The place is out of reach.
    """
    log = Log(open_place(plan.url))
    own = _recorded(database)
    found = log.identity()
    lease = None if found is None else leases.newest(log.place)
    inode = Path(database.path).stat().st_ino
    if found is not None:
        if found != own.get("database"):
            raise _not_this(log, lease, "it is that of another database")
        if lease is not None and lease.holder not in (own["holder"], own["before"]):
            raise _not_this(log, lease, f"its epoch is {lease.epoch}, which this file has not seen")
        if lease is not None and inode != own["inode"]:
            raise _not_this(log, lease, "this file is a copy of the one that was written last")
    identity = found or own.get("database") or uuid.uuid4().hex
    if found is None and not log.place.create(IDENTITY, json.dumps({"format": 1, "database": identity}).encode()):
        raise _not_this(log, lease, "it is that of another database")
    holder = uuid.uuid4().hex
    _record(database, identity, holder, None if lease is None else lease.holder)
    keeper = take(plan, log, holder, lease)
    generation, position = _newest(log)
    return _begun(plan, database, log, keeper, max(generation, 0 if lease is None else lease.generation), position)


def _begun(
    plan: Plan, database: Database, log: Log, keeper: leases.Keeper, generation: int, follows: Position | None
) -> Writer:
    """Begins an epoch after a generation, the greatest that is known."""
    return Writer(
        database,
        log,
        keeper,
        generation + (GENERATION_GAP if generation else 1),
        follows,
        interval=plan.interval,
        durable=plan.durable,
        keep=plan.keep,
    )


def take(plan: Plan, log: Log, holder: str, lease: leases.Lease | None) -> leases.Keeper:
    """Takes the lease with the next epoch.

    Args:
        lease: The newest lease, which has ended or is one's own.

    Raises:
        InvalidArgument: Another server was faster.
    """
    number, epoch = (1, 1) if lease is None else (lease.number + 1, lease.epoch + 1)
    new = leases.Lease(number, epoch, holder, "", plan.lease_seconds, 0 if lease is None else lease.generation)
    until = leases.create(log.place, new)
    if until is None:
        raise _not_this(log, leases.newest(log.place), "another server was faster")
    return leases.Keeper(log.place, new, until)


def _newest(log: Log) -> tuple[int, Position | None]:
    """The newest generation at the place, and where it is; 0 and None at a new one."""
    for base, segments in bases(log):
        if not segments:
            return base.generation, base.position
        return log.segment(segments[-1]).commits[-1].generation, segments[-1]
    return 0, None


def _recorded(database: Database) -> dict[str, Any]:
    rows = database.rows("SELECT value FROM settings WHERE name = ?", REPLICA_SETTING)
    return dict(json.loads(rows[0][0])) if rows else {}


def _record(database: Database, identity: str, holder: str, before: str | None) -> None:
    """Writes to the file whose it is, its holder of the lease, and the holder before."""
    record = json.dumps(
        {
            "database": identity,
            "holder": holder,
            "before": before,
            "inode": Path(database.path).stat().st_ino,
        }
    )

    def run(connection: Connection) -> None:
        connection.execute("DELETE FROM settings WHERE name = ?", [REPLICA_SETTING])
        connection.execute("INSERT INTO settings VALUES (?, ?)", [REPLICA_SETTING, record])

    database.write(run)


def _not_this(log: Log, lease: leases.Lease | None, reason: str) -> InvalidArgument:
    writes = f"; {lease.writer} writes it" if lease is not None and not lease.released else ""
    return InvalidArgument(
        f'replica "{log.place.url}": {reason}{writes}',
        code="REPLICA",
        hint="name another place, or take part with --standby or --follow and a new --db",
    )
