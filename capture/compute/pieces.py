"""Scan of one task, large files in pieces: consecutive row groups, so that one file can be many tasks.

The pieces depend on the file alone, not on who scans it or for which columns, and their results are merged in order: a
file has the same statistics wherever it is scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow.compute as pc

from capture.compute import file_scan
from capture.compute.file_scan import LOCAL, Answer, Numbered, Work
from capture.compute.fold import TUPLES, Fold
from capture.compute.partial import Partial
from capture.connectors.spi import ScanTask
from capture.connectors.task_readers import footer
from store.model import logical_types

PIECE_ROWS: Final = 1 << 20
"""Rows of a piece at most, unless one row group has more. Default size of row groups of pyarrow."""


def scan(number: int, task: ScanTask, work: Work) -> list[Answer]:
    """`file_scan.scan` of one task, piece by piece."""
    pieces = divided(task)
    answers = [file_scan.scan(number, piece, work) for piece in pieces]
    return answers[0] if len(answers) == 1 else _merged(number, task, answers)


def divided(task: ScanTask) -> list[ScanTask]:
    """Tasks of consecutive row groups of a large Parquet file, or of some of its row groups; the task itself if it is
    small, has one row group, or cannot be opened."""
    if task.row_count <= PIECE_ROWS or (of_file := footer(task)) is None:
        return [task]
    metadata = of_file.metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    pieces: list[list[int]] = []
    size = 0
    for group in task.arguments.get("row_groups", range(len(rows))):
        if not pieces or size + rows[group] > PIECE_ROWS:
            pieces.append([])
            size = 0
        pieces[-1].append(group)
        size += rows[group]
    return [_piece(task, groups, rows) for groups in pieces] if len(pieces) > 1 else [task]


class Pieces:
    """The pieces of some tasks, as tasks with indexes of their own.

    Attributes:
        tasks: The pieces in order.
    """

    def __init__(self, tasks: Iterable[Numbered]):
        self.tasks: list[Numbered] = []
        self._whole: list[Numbered] = []  # task of each piece
        self._count: dict[int, int] = {}  # task index → number of pieces
        for number, task in tasks:
            pieces = divided(task)
            self.tasks += enumerate(pieces, len(self.tasks))
            self._whole += [(number, task)] * len(pieces)
            self._count[number] = len(pieces)

    def joined(self, waves: Iterable[Sequence[Answer]]) -> Iterator[list[Answer]]:
        """Merges the answers of the pieces into answers of their tasks.

        Args:
            waves: Answers of the pieces, all those of a piece in one wave.

        Yields:
            For each wave the answers of the tasks that are complete with it.
        """
        waiting: dict[int, dict[int, list[Answer]]] = {}  # task index → piece → answers
        for wave in waves:
            for answer in wave:
                number, _ = self._whole[answer.task]
                waiting.setdefault(number, {}).setdefault(answer.task, []).append(answer)
            complete: list[Answer] = []
            for number in [n for n, pieces in waiting.items() if len(pieces) == self._count[n]]:
                pieces = waiting.pop(number)
                _, task = self._whole[min(pieces)]
                complete += _merged(number, task, [pieces[piece] for piece in sorted(pieces)])
            yield complete


def _piece(task: ScanTask, groups: list[int], rows: list[int]) -> ScanTask:
    count, deleted = sum(rows[group] for group in groups), task.deleted_rows
    if deleted is not None:  # an executor gets only what lies within
        first, end = sum(rows[: groups[0]]), sum(rows[: groups[-1] + 1])
        deleted = deleted.filter(pc.and_(pc.greater_equal(deleted, first), pc.less(deleted, end)))
    return replace(
        task,
        row_count=count,
        size_bytes=task.size_bytes * count // max(sum(rows), 1),
        deleted_rows=deleted,
        arguments={**task.arguments, "row_groups": groups},
    )


def _merged(number: int, task: ScanTask, pieces: Sequence[Sequence[Answer]]) -> list[Answer]:
    """The answers of a task from those of its pieces, in their order."""
    if len(pieces) == 1:
        return [answer if answer.task == number else replace(answer, task=number) for answer in pieces[0]]
    types = {column.column_id: column.logical_type for column in task.columns}
    merged = []
    for (column_id, column_ids), answers in _by_target(pieces).items():
        if len(answers) < len(pieces):  # a member of a group that has an error in another piece
            continue
        engine_id = next((answer.engine_id for answer in answers if answer.engine_id != LOCAL), LOCAL)
        size, groups = (sum(getattr(answer, name) for answer in answers) for name in ("size_bytes", "row_groups"))
        error = next((answer.error for answer in answers if answer.error), "")
        partial = None if error else _folded(answers, None if column_id is None else types[column_id])
        merged.append(Answer(number, column_id, column_ids, error, size, groups, partial, engine_id))
    return merged


def _by_target(pieces: Sequence[Sequence[Answer]]) -> dict[tuple[int | None, tuple[int, ...]], list[Answer]]:
    """The answers of pieces by column or group, in the order of the pieces."""
    by_target: dict[tuple[int | None, tuple[int, ...]], list[Answer]] = {}
    for piece in pieces:
        for answer in piece:
            by_target.setdefault((answer.column_id, answer.column_ids), []).append(answer)
    return by_target


def _folded(answers: Sequence[Answer], logical_type: str | None) -> Partial:
    """The statistics of all pieces, none of which has an error; without a type, those of tuples of columns."""
    fold = Fold(TUPLES if logical_type is None else logical_types.parse(logical_type))
    for answer in answers:
        assert answer.partial is not None
        fold.add(answer.partial)
    return fold.result()
