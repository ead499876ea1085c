"""A database made of a replica: the newest state, that of a generation, or that of a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import duckdb

from store.duckdb.backup import settle, wal
from store.duckdb.opening import locked
from store.duckdb.segment_files import SegmentFiles
from store.duckdb.segment_location import beside
from store.model.errors import InvalidArgument, NotFound
from store.replication.log import (
    BLOCK_BYTES,
    EPOCH,
    Base,
    Commit,
    Damaged,
    Log,
    Position,
    Segment,
    block_name,
    digest,
    iso,
)
from store.replication.segment_files import fetch

DOWNLOADS: Final = 8


@dataclass(frozen=True)
class At:
    """A point of the past: a generation or a time in microseconds since 1970."""

    generation: int | None = None
    micros: int | None = None

    @classmethod
    def parse(cls, text: str) -> At:
        """Reads `--at`: digits alone are a generation, all else is ISO 8601, in UTC if it has no zone.

        Raises:
            InvalidArgument: It is neither.
        """
        try:
            if text.isdecimal():
                return cls(generation=int(text))
            time = datetime.fromisoformat(text)
            zoned = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):  # the latter of a zone at the ends of time
            raise InvalidArgument(
                f'"{text[:50]}" is neither a generation nor a time', hint="such as 1234 or 2026-05-01T12:00:00Z"
            ) from None
        return cls(micros=(zoned - EPOCH) // timedelta(microseconds=1))

    def covers(self, generation: int, micros: int) -> bool:
        """True if a state is not later."""
        if self.generation is not None:
            return generation <= self.generation
        return self.micros is None or micros <= self.micros

    def __str__(self) -> str:
        return f"generation {self.generation}" if self.generation is not None else iso(self.micros or 0)


class State(NamedTuple):
    """A restorable state: a base, and what DuckDB's log has after it."""

    base: Base
    log: bytes
    commit: Commit  # the last one

    @property
    def generation(self) -> int:
        """Number of the last commit."""
        return self.commit.generation


NEWEST: Final = At()


def bases(log: Log, damage: list[Damaged] | None = None) -> Iterator[tuple[Base, list[Position]]]:
    """The bases that count, the newest first, each with the positions of its segments that count.

    Args:
        damage: A list that takes the errors of those that cannot be read; None to raise them.

    Raises:
        Damaged: A base cannot be read; names the replica.
    """
    end: Position | None = None
    for base in log.bases():
        if isinstance(base, Damaged):
            error = Damaged(f'replica "{log.place.url}": {base.message}')
            if damage is None:
                raise error
            damage.append(error)
            continue
        if end is not None and base.position > end:
            continue
        yield base, [position for position in log.segments(base.position) if end is None or position <= end]
        end = base.follows if base.follows is not None else end


class Span(NamedTuple):
    """A base and the segments after it: generations from the base's to `generation`, at `micros`."""

    base: Base
    generation: int
    micros: int
    segments: int


def spans(log: Log, damage: list[Damaged] | None = None) -> Iterator[Span]:
    """Generations that can be restored, the newest first; of segments only the last one is read. `damage` is that of
    `bases`."""
    for base, segments in bases(log, damage):
        yield _span(log, base, segments)


def _span(log: Log, base: Base, segments: Sequence[Position]) -> Span:
    last = Commit(base.generation, base.micros, 0) if not segments else log.segment(segments[-1]).commits[-1]
    return Span(base, last.generation, last.micros, len(segments))


def find(log: Log, at: At = NEWEST) -> State:
    """Reads a state.

    Raises:
        NotFound: There is none of that generation or time.
        Damaged: A segment is missing or damaged; the message names the newest generation before it.
    """
    damage: list[Damaged] = []
    for base, segments in bases(log, damage):
        if not at.covers(base.generation, base.micros):
            continue
        state = _read(log, base, segments, at)
        if damage and at.generation != state.generation == _span(log, base, segments).generation:
            raise _damaged(damage[0].message, state.commit)  # what was asked for may be in what is damaged
        if at.generation not in (None, state.generation):
            raise NotFound(f'"{log.place.url}" has no generation {at.generation}; before it is {state.generation}')
        return state
    if damage:
        raise damage[0]
    raise NotFound(f'"{log.place.url}" has nothing as old as {at}' if at != NEWEST else f'"{log.place.url}" is empty')


def _read(log: Log, base: Base, segments: Sequence[Position], at: At) -> State:
    data, last, number = bytearray(), Commit(base.generation, base.micros, 0), 0
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        for position, found in zip(segments, pool.map(lambda p: _segment(log, p), segments), strict=True):
            if at.generation == last.generation:
                break
            number += 1
            if position.number != number:
                missing = base.position._replace(number=number).name
                raise _damaged(f'replica "{log.place.url}": "{missing}" is missing', last)
            if isinstance(found, Damaged):
                raise _damaged(f'replica "{log.place.url}": {found.message}', last)
            commits = list(takewhile(lambda commit: at.covers(commit.generation, commit.micros), found.commits))
            if commits:
                last = commits[-1]
                data += found.data[: last.end]
            if len(commits) < len(found.commits):
                break
    return State(base, bytes(data), last)


def _segment(log: Log, position: Position) -> Segment | Damaged:
    try:
        return log.segment(position)
    except Damaged as error:
        return error


def _damaged(what: str, last: Commit | Span) -> Damaged:
    newest = f"the newest consistent generation is {last.generation} of {iso(last.micros)}"
    return Damaged(f"{what}; {newest}", hint=f"restore it with --at {last.generation}")


def write_base(log: Log, base: Base, path: Path, old: Base | None = None, old_path: Path | None = None) -> None:
    """Writes the database file of a base, and syncs it.

    Args:
        path: A new file.
        old: An earlier base whose file is there; equal blocks are copied from it.

    Raises:
        Damaged: A block is missing or damaged.
    """
    offsets = {} if old is None else {block: at * BLOCK_BYTES for at, block in enumerate(old.blocks)}
    path.unlink(missing_ok=True)
    with path.open("xb") as file, ThreadPoolExecutor(DOWNLOADS) as pool:
        path.chmod(0o600)
        file.truncate(base.size)
        source = None if old_path is None else old_path.open("rb")
        try:
            list(
                pool.map(
                    lambda each: _write_block(log, file, each[0], each[1], offsets, source), enumerate(base.blocks)
                )
            )
        finally:
            if source is not None:
                source.close()
        os.fsync(file.fileno())


def _write_block(
    log: Log, file: BinaryIO, at: int, block: str, offsets: dict[str, int], source: BinaryIO | None
) -> None:
    data: bytes | None = None
    if source is not None and block in offsets:
        data = os.pread(source.fileno(), BLOCK_BYTES, offsets[block])
    if data is None or digest(data) != block:
        data = log.place.read(block_name(block))
    if data is None or digest(data) != block:
        raise Damaged(f'replica "{log.place.url}": block {block} is {"missing" if data is None else "damaged"}')
    os.pwrite(file.fileno(), data, at * BLOCK_BYTES)


def _is_whole(log: Log, base: Base, path: Path) -> bool:
    try:
        write_base(log, base, path)
    except Damaged:
        return False
    return True


def restore(log: Log, path: Path, at: At = NEWEST) -> State:
    """Makes a database of a replica. It is one of its own: it may be served alone, or replicated to another place.

    Args:
        path: A new file.

    Returns:
        The state that was restored.

    Raises:
        InvalidArgument: The file exists, or there is no replica.
        NotFound: There is no such state.
        Damaged: The replica lacks a part of it.
    """
    with locked(path):  # two at once would write the same partial file
        for taken in (path, wal(path)):
            if os.path.lexists(taken):
                raise InvalidArgument(f'"{taken}" exists', hint="name a new file")
        log.existing()
        return _restored(log, path, find(log, at))


def _restored(log: Log, path: Path, state: State) -> State:
    """Writes a state to a new file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        try:
            write_base(log, state.base, partial)
        except Damaged as error:
            older = (span for span in spans(log, []) if span.base.generation < state.base.generation)
            whole = next((span for span in older if _is_whole(log, span.base, partial)), None)
            raise error if whole is None else _damaged(error.message, whole) from None
        wal(partial).write_bytes(state.log)
        try:
            settle(partial)
        except duckdb.Error as error:
            raise Damaged(f'replica "{log.place.url}": DuckDB cannot open it: {str(error).splitlines()[0]}') from None
        with duckdb.connect(str(partial), read_only=True) as connection:
            fetch(log, connection, SegmentFiles(beside(path)))
        partial.replace(path)
    finally:
        for left in (partial, wal(partial)):
            left.unlink(missing_ok=True)
    return state
