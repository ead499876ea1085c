"""Rows of files that an executor writes itself, as segments in a directory that the server shares with it.

An executor that reaches the directory writes what it reads of its files, and answers with the names of what it has
written. Of a whole block of files it answers with one part for each column: nobody needs those of the files any more.
One that does not reach it answers as if there were none. Whoever asked adds the files that it was told of; those of a
task that was killed, or ran twice, are told to nobody, and the server deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from capture.compute import pieces
from capture.compute.file_scan import Answer, Numbered, Work
from capture.compute.fold import FAN_IN, TUPLES, merged_block
from capture.compute.stat_rows import Rows
from capture.spi import Writing
from store.duckdb.segment_files import Written
from store.model import logical_types
from store.model.logical_types import LogicalType

if TYPE_CHECKING:
    from store.segment_making import SegmentMaker

_FLUSH_ROWS: Final = 4000  # rows that are kept as Python's objects
_FILE_ROWS: Final = 1 << 18
_FILE_BYTES: Final = 128 << 20


def scanned(tasks: Sequence[Numbered], work: Work, engine_id: str) -> list[Answer]:
    """Computes tasks, and writes the rows of their files if this process reaches the place for them.

    Args:
        tasks: Tasks in order.
        work: Work with `writing`.
        engine_id: The engine of the rows.

    Raises:
        StatflightError: There is no room for a file.
    """
    assert work.writing is not None
    maker = _maker(work.writing)
    if maker is None:
        return [answer for number, task in tasks for answer in pieces.scan(number, task, work)]
    rows = _FileRows(maker, work.writing, engine_id)
    try:
        answers = list(_written(tasks, work, rows))
        written = rows.finish()
    except BaseException:
        rows.discard()
        raise
    if written:
        answers[0] = replace(answers[0], written=written)
    return answers


def _maker(writing: Writing) -> SegmentMaker | None:
    try:
        from store.segment_making import SegmentMaker
    except ImportError:  # executors need no more libraries than those that compute
        return None
    return SegmentMaker.open(writing.place.directory, writing.place.owner)


def _written(tasks: Sequence[Numbered], work: Work, rows: _FileRows) -> Iterator[Answer]:
    """Computes tasks and writes their rows; yields the answers of whole blocks merged."""
    types = {i: logical_types.parse(rows.writing.types[i]) for i in work.column_ids}
    block: list[list[Answer]] = []
    for number, task in tasks:
        if block and block[0][0].task // FAN_IN != number // FAN_IN:
            yield from _of_block(block, types)
            block = []
        of_file = pieces.scan(number, task, work)
        for answer in of_file:
            if answer.partial is not None and answer.column_id is not None:
                rows.add(task.file_path, task.fingerprint, types[answer.column_id], answer)
        block.append([replace(answer, is_written=True) for answer in of_file])
    yield from _of_block(block, types)


def _of_block(block: Sequence[Sequence[Answer]], types: Mapping[int, LogicalType]) -> Iterable[Answer]:
    """One answer for each column and group of a whole block; else all answers as they are."""
    answers = [answer for of_file in block for answer in of_file]
    if len(block) < FAN_IN or any(answer.partial is None for answer in answers):
        return answers
    return [_merged(of_target, types) for of_target in zip(*block, strict=True)]


def _merged(answers: Sequence[Answer], types: Mapping[int, LogicalType]) -> Answer:
    first, parts = answers[0], [answer.partial for answer in answers if answer.partial is not None]
    assert len({(answer.column_id, answer.column_ids) for answer in answers}) == 1
    return replace(
        first,
        size_bytes=sum(answer.size_bytes for answer in answers),
        row_groups=sum(max(answer.row_groups, 1) for answer in answers),
        partial=merged_block(parts, TUPLES if first.column_id is None else types[first.column_id]),
        files=len(answers),
    )


class _FileRows:
    """The rows of files of one task of an executor."""

    def __init__(self, maker: SegmentMaker, writing: Writing, engine_id: str):
        self.writing, self._maker, self._engine_id = writing, maker, engine_id
        self._rows = Rows(writing.table, engine_id, writing.mode, writing.now)
        self._parts: dict[str, list[pa.Table]] = {}
        self._size = self._count = 0
        self._files: list[tuple[str, Written]] = []

    def add(self, path: str, fingerprint: str, lt: LogicalType, answer: Answer) -> None:
        """Adds the rows about a column of a file."""
        assert answer.partial is not None
        assert answer.column_id is not None
        kept = self.writing.kept.of(answer.column_id, answer.partial, answer.size_bytes, path)
        own = replace(answer, engine_id=self._engine_id)
        self._rows.file_column(path, fingerprint, lt, own, kept)
        if self._rows.pending >= _FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for flight, rows in self._rows.tables().items():
            self._parts.setdefault(flight, []).append(rows)
            self._count += rows.num_rows
            self._size += rows.get_total_buffer_size()
        if self._count >= _FILE_ROWS or self._size >= _FILE_BYTES:
            self._write()

    def _write(self) -> None:
        parts, self._parts, self._count, self._size = self._parts, {}, 0, 0
        for flight, tables in parts.items():
            made = self._maker.make(flight, pa.concat_tables(tables), checked=True)
            assert not made.repeated.num_rows, "a file was read twice"
            if made.written is not None:
                self._files.append((flight, made.written))

    def finish(self) -> tuple[tuple[str, Written], ...]:
        """Writes the last rows; returns the flights and files of all."""
        self._flush()
        self._write()
        return tuple(self._files)

    def discard(self) -> None:
        """Deletes what was written."""
        for _, written in self._files:
            self._maker.discard(written)
