"""The objects of a replica: their names, their bytes, and what they say.

| object | what |
|---|---|
| `replica.json` | the id of the database |
| `lease/<number>` | who writes, see `lease.py` |
| `blocks/<xx>/<sha256>` | a block of a database file, by content |
| `log/<epoch>/<checkpoint>/00000000` | a base: the blocks of the file as of a checkpoint |
| `log/<epoch>/<checkpoint>/<n>` | a segment: the bytes that some commits appended to DuckDB's log since |

Bases and segments begin with a line that is the SHA-256 of the rest, then a line of JSON; a segment's bytes follow.
A generation is the number of a commit. The first base of an epoch has a greater generation than any segment before it
that counts. It names the position that it follows: later segments of lower epochs are ignored, because their writer had
lost the lease.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from store.model.errors import InvalidArgument, StatflightError
from store.places import IDENTITY, Place

LOG: Final = "log"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BLOCK_BYTES: Final = 1 << 20  # four blocks of DuckDB
FORMAT: Final = 1


class Damaged(StatflightError):
    """An object of a replica is missing or not what was written."""

    code = "DAMAGED"
    status = "UNAVAILABLE"


class Position(NamedTuple):
    """The place of a base (number 0) or segment in the log; greater ones are later."""

    epoch: int
    checkpoint: int
    number: int = 0

    @property
    def name(self) -> str:
        """The object's name."""
        return f"{LOG}/{self.epoch:08}/{self.checkpoint:08}/{self.number:08}"

    @classmethod
    def of(cls, name: str) -> Position:
        """The position of an object's name.

        Raises:
            ValueError: It is not the name of a base or segment.
        """
        log, epoch, checkpoint, number = name.split("/")
        position = cls(int(epoch), int(checkpoint), int(number))
        if log != LOG or position.name != name:
            raise ValueError(name)
        return position


class Commit(NamedTuple):
    """A commit in a segment.

    Attributes:
        micros: Time of the commit in microseconds since 1970, never less than that of an earlier commit.
        end: Number of the segment's bytes up to its end.
    """

    generation: int
    micros: int
    end: int


@dataclass(frozen=True)
class Base:
    """A database file as of a checkpoint: `size` bytes in `blocks` (SHA-256 of each).

    The first base of an epoch `follows` a position: what lower epochs have after it does not count.
    """

    position: Position
    generation: int
    micros: int
    size: int
    blocks: Sequence[str]
    follows: Position | None = None

    def encode(self) -> bytes:
        """The object's bytes."""
        return _sealed(
            {
                "generation": self.generation,
                "micros": self.micros,
                "size": self.size,
                "blocks": self.blocks,
                "follows": self.follows,
            }
        )

    @classmethod
    def decode(cls, position: Position, data: bytes) -> Base:
        """Reads a base; raises Damaged."""
        fields, _ = _unsealed(position.name, data)
        follows = None if fields["follows"] is None else Position(*fields["follows"])
        return cls(position, fields["generation"], fields["micros"], fields["size"], fields["blocks"], follows)


@dataclass(frozen=True)
class Segment:
    """Bytes of DuckDB's log from `offset`, of one or more commits."""

    position: Position
    offset: int
    commits: Sequence[Commit]
    data: bytes

    def encode(self) -> bytes:
        """The object's bytes."""
        return _sealed({"offset": self.offset, "commits": self.commits}, self.data)

    @classmethod
    def decode(cls, position: Position, data: bytes) -> Segment:
        """Reads a segment; raises Damaged."""
        fields, rest = _unsealed(position.name, data)
        return cls(position, fields["offset"], [Commit(*commit) for commit in fields["commits"]], rest)


def _sealed(fields: dict[str, Any], data: bytes = b"") -> bytes:
    rest = json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode() + b"\n" + data
    return digest(rest).encode() + b"\n" + rest


def _unsealed(name: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    said, _, rest = data.partition(b"\n")
    if digest(rest).encode() != said:
        raise Damaged(f'"{name}" is damaged')
    header, _, tail = rest.partition(b"\n")
    fields: dict[str, Any] = json.loads(header)
    if fields["format"] != FORMAT:
        raise Damaged(f'"{name}" was written by a newer statflight (format {fields["format"]})')
    return fields, tail


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def block_name(sha256: str) -> str:
    """Name of a block."""
    return f"blocks/{sha256[:2]}/{sha256}"


class Log:
    """The bases and segments at a place."""

    def __init__(self, place: Place):
        self.place = place

    def identity(self) -> str | None:
        """The id of the database; None at an empty place.

        Raises:
            InvalidArgument: There is something else at the place.
            Damaged: The object that tells is damaged.
        """
        if (data := self.place.read(IDENTITY)) is not None:
            try:
                return str(json.loads(data)["database"])
            except (ValueError, LookupError, TypeError):
                raise Damaged(f'replica "{self.place.url}": "{IDENTITY}" is damaged') from None
        if not self.place.is_empty():
            raise InvalidArgument(
                f'"{self.place.url}" is not a replica, and not empty', code="REPLICA", hint="name another place"
            )
        return None

    def existing(self) -> str:
        """The id of the database.

        Raises:
            InvalidArgument: There is no replica at the place.
        """
        if (found := self.identity()) is None:
            raise InvalidArgument(
                f'there is no replica at "{self.place.url}"',
                code="REPLICA",
                hint="serve --replicate-to makes one",
            )
        return found

    def require(self, identity: str, hint: str) -> None:
        """Raises InvalidArgument if the place has become the replica of another database."""
        if self.existing() != identity:
            raise InvalidArgument(
                f'"{self.place.url}" has become the replica of another database', code="REPLICA", hint=hint
            )

    def base(self, position: Position) -> Base | None:
        """A base; None if it is not there."""
        data = self.place.read(position.name)
        return None if data is None else Base.decode(position, data)

    def segment(self, position: Position) -> Segment:
        """A segment; raises Damaged if it is missing."""
        data = self.place.read(position.name)
        if data is None:
            raise Damaged(f'"{position.name}" is missing')
        return Segment.decode(position, data)

    def after(self, position: Position | None) -> list[Position]:
        """The bases and segments after a position, in order."""
        return _positions(self.place.names(LOG, "" if position is None else position.name))

    def bases(self) -> Iterator[Base | Damaged]:
        """All bases, the newest first; in place of one that is damaged, or missing before its segments, the error."""
        for epoch in reversed(self.place.folders(LOG)):
            for checkpoint in reversed(self.place.folders(f"{LOG}/{epoch}")):
                position = Position(int(epoch), int(checkpoint))
                try:
                    found: Base | Damaged | None = self.base(position)
                except Damaged as error:
                    found = error
                if found is None and self.segments(position):
                    found = Damaged(f'"{position.name}" is missing')
                if found is not None:
                    yield found

    def segments(self, base: Position) -> list[Position]:
        """The segments after a base and before the next one, in order."""
        return _positions(self.place.names(base.name.rpartition("/")[0], base.name))


def _positions(names: Sequence[str]) -> list[Position]:
    found = []
    for name in names:
        try:
            found.append(Position.of(name))
        except ValueError:  # of a later version
            continue
    return found


def iso(micros: int) -> str:
    """A time as text, in UTC and to the microsecond, so that it names the same commit again."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")
