"""Commands about the database: backup, upgrade, restore, replicas, expire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from flight_server.faces.commands.common import Answer, AnswerFormat
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import misuse, say, tell, tell_json
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.targets import complete_table, find_table, known_name


def backup(
    path: Annotated[Path, argument(metavar="PATH", help="A new file, on the server's machine.")],
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Copy the database to a file while the server serves; `serve --db` opens the copy."""
    # relative to the directory in which the command is called
    target = str(path.expanduser().absolute())
    with connect(connection) as client:
        (written,) = client.actions.call("backup", {"path": target})
    say(f"{target}: {written['bytes'] / 1e6:.1f} MB in {written['elapsed_ms'] / 1000:.1f} s")


def upgrade(
    db: Annotated[Path, option(metavar="PATH", help="The DuckDB file; no server may run on it.")],
    dry_run: Annotated[
        bool, option("--dry-run", help="Only say what would happen, and how much room it takes.")
    ] = False,
) -> None:
    """Bring a database of an older release to the layout of this one, as `serve` does first. The old file stays beside
    it as PATH.before-N, N being the old layout."""
    from store.duckdb.layout import VERSION
    from store.duckdb.opening import planned_upgrade
    from store.duckdb.opening import upgrade as run
    from store.model.errors import InvalidArgument
    from store.model.units import bytes_text
    from store.replication.followed_database import note_of

    path = db.expanduser()
    if note_of(path.resolve()).exists():
        raise InvalidArgument(
            f'database "{path.name}": it is the copy of a follower',
            code="DATABASE",
            hint="upgrade its writer, the follower fetches what that ships",
        )
    plan = planned_upgrade(path) if dry_run else run(path)
    if plan is None:
        tell(f"{path}: it has layout {VERSION} already")
    elif not dry_run:
        tell(f"{path}: upgraded from layout {plan.found} to {VERSION}; the old file is {plan.before.name}")
    else:
        tell(f"{path}: would be upgraded from layout {plan.found} to {VERSION}")
        tell(f"{plan.before.name}: would be the old file, {bytes_text(plan.size_bytes)}")
        tell(f"room: at most {bytes_text(plan.needed_bytes)} is needed, {bytes_text(plan.free_bytes)} is free")
        plan.check()


_Url = Annotated[str, argument(metavar="URL", help="A directory, s3://, gs:// or abfss://.")]


def restore(
    url: _Url,
    path: Annotated[Path, argument(metavar="PATH", help="A new file.")],
    at: Annotated[
        str | None, option(metavar="TIME|GENERATION", help="ISO 8601, or digits.", show_default="the newest")
    ] = None,
) -> None:
    """Make a database of a replica; `serve --db` opens it. Secrets of lakes are not in a replica."""
    from store.model.errors import InvalidArgument
    from store.places import open_place
    from store.replication.log import Log, iso
    from store.replication.restore import NEWEST, At
    from store.replication.restore import restore as run

    try:
        wanted = NEWEST if at is None else At.parse(at)
    except InvalidArgument as error:
        misuse(f"--at: {error}")
    state = run(Log(open_place(url)), path.expanduser().absolute(), wanted)
    say(f"{path}: generation {state.generation} of {iso(state.commit.micros)}")


def replicas(url: _Url) -> None:
    """List what can be restored of a replica: the newest first, a line for each base and what follows it."""
    from store.places import open_place
    from store.replication import lease
    from store.replication.log import Damaged, Log, iso
    from store.replication.restore import spans

    log = Log(open_place(url))
    log.existing()
    tell("epoch\tcheckpoint\tgenerations\tfrom\tto\tsegments")
    damage: list[Damaged] = []
    for span in spans(log, damage):
        tell(
            f"{span.base.position.epoch}\t{span.base.position.checkpoint}\t{span.base.generation}-{span.generation}"
            f"\t{iso(span.base.micros)}\t{iso(span.micros)}\t{span.segments}"
        )
    if damage:
        raise damage[0]
    if (found := lease.newest(log.place)) is not None:
        say(f"epoch {found.epoch} is {'not written now' if found.released else f'written by {found.writer}'}")


def expire(
    table: Annotated[
        str | None, argument(metavar="TABLE", help="Only this one.", shell_complete=complete_table)
    ] = None,
    dry_run: Annotated[bool, option("--dry-run/--no-dry-run", help="Only list what would be deleted.")] = True,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Delete statistics of snapshots that the lake itself has expired."""
    if table is not None:
        known_name(table)
    with connect(connection) as client:
        body: dict[str, Any] = {"dry_run": dry_run} | ({} if table is None else {"table": find_table(client, table)})
        expired = client.actions.call("expire", body)
    if format is Answer.JSON:
        tell_json(expired)
    else:
        for gone in expired:
            tell("  ".join(f"{key}={value}" for key, value in gone.items() if value is not None))
    if dry_run:
        say("nothing was deleted; --no-dry-run deletes")
