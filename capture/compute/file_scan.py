"""Scan of one task (file): returns a small Arrow batch of partial statistics, from this process or a Spark executor.

A row holds the statistics of one column (`column_id`), or the sketch of distinct tuples of a group (`column_ids`). Each
member of a group also gets a row as a group of its own, in which null counts as a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capture.compute import kernels
from capture.compute.partial import ALL, FIELD_TYPES, Partial, SketchSelection
from capture.compute.readers import tasks
from capture.compute.shared_steps import FAILURES
from capture.connectors import task_readers as base
from capture.connectors.spi import ScanColumn, ScanTask
from capture.spi import Writing
from store.duckdb.segment_files import Written
from store.model import logical_types, sketches
from store.model.errors import StatflightError
from store.model.sketches import murmur3

PARTIAL_SCHEMA: Final = pa.schema(
    [
        ("task", pa.int64()),
        ("column_id", pa.int64()),
        ("column_ids", pa.list_(pa.int64())),
        ("error", pa.string()),
        ("size_bytes", pa.int64()),
        ("row_groups", pa.int64()),
        ("files", pa.int64()),
        ("is_written", pa.bool_()),
        ("written", pa.string()),
        *FIELD_TYPES.items(),
    ]
)
"""`task` is the index of the task in its job; a row with an `error` has no statistics; `written` is JSON."""

LOCAL: Final = "local"
"""Engine id of results computed in this process."""

Numbered: TypeAlias = tuple[int, ScanTask]
"""A task and its index in the job."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work for each task of a job: columns and groups by column id, and sketches.

    Attributes:
        writing: How executors write the rows of files, where they can; None if all are made of the answers.
    """

    column_ids: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    wanted: SketchSelection = ALL
    writing: Writing | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of PARTIAL_SCHEMA, for a column or for a group (then `column_id` is None).

    Attributes:
        files: Number of consecutive tasks that it is of, `task` the first of them.
        is_written: The rows of these files are in a segment.
        written: The segments that were written with it, as (flight, file).
    """

    task: int
    column_id: int | None
    column_ids: tuple[int, ...] = ()
    error: str = ""
    size_bytes: int = 0
    row_groups: int = 0
    partial: Partial | None = field(default=None)
    engine_id: str = LOCAL
    files: int = 1
    is_written: bool = False
    written: tuple[tuple[str, Written], ...] = ()


def scan(number: int, task: ScanTask, work: Work) -> list[Answer]:
    """Computes the statistics of one task, its file as a whole; `pieces.scan` bounds the rows read at once.

    Args:
        number: Index of the task in its job, copied to every answer.
        work: Columns, groups and sketches to compute.

    Returns:
        One answer per column and group of the work, and one per member of each group. Errors of the file or a column
        are in the `error` of its answers and are never raised.
    """
    requested = [*((i, ()) for i in work.column_ids), *((None, group) for group in work.groups)]
    needed = {*work.column_ids, *chain.from_iterable(work.groups)}
    if len(needed) < len(task.columns):  # a part of a wide file, whose other columns readers need not look at
        task = replace(task, columns=tuple(column for column in task.columns if column.column_id in needed))
    try:
        reader = tasks.open_task(task)
    except StatflightError as error:
        return [Answer(number, column_id, group, str(error)) for column_id, group in requested]
    try:
        columns = {column.column_id: column for column in task.columns}
        answers = list(_columns(number, task, reader, columns, work))
        for group in work.groups:
            answers += _group(number, task, reader, columns, group)
        return answers
    finally:
        reader.close()


def to_batch(answers: Sequence[Answer]) -> pa.RecordBatch:
    """Encodes answers of any tasks, each as a row of PARTIAL_SCHEMA."""
    rows: dict[str, list[Any]] = {name: [] for name in PARTIAL_SCHEMA.names}
    for answer in answers:
        for name in ("task", "column_id", "size_bytes", "row_groups", "files", "is_written"):
            rows[name].append(getattr(answer, name))
        rows["written"].append(json.dumps(answer.written) if answer.written else None)
        rows["column_ids"].append(list(answer.column_ids))
        rows["error"].append(answer.error or None)
        for name in FIELD_TYPES:
            rows[name].append(getattr(answer.partial, name) if answer.partial else None)
    return pa.RecordBatch.from_arrays([pa.array(rows[f.name], f.type) for f in PARTIAL_SCHEMA], schema=PARTIAL_SCHEMA)


def from_batch(batch: pa.RecordBatch | pa.Table, engine_id: str = LOCAL) -> list[Answer]:
    """Decodes rows of PARTIAL_SCHEMA in their order; the inverse of `to_batch`."""
    answers = []
    for row in batch.to_pylist():
        partial = None if row["error"] else Partial(**{name: row[name] for name in FIELD_TYPES})
        place = (row["task"], row["column_id"], tuple(row["column_ids"]))
        size = row["size_bytes"], row["row_groups"]
        answer = Answer(*place, row["error"] or "", *size, partial, engine_id, row["files"], row["is_written"])
        if row["written"]:
            written = tuple((flight, Written(*file)) for flight, file in json.loads(row["written"]))
            answer = replace(answer, written=written)
        answers.append(answer)
    return answers


def _columns(
    number: int, task: ScanTask, reader: base.TaskReader, columns: dict[int, ScanColumn], work: Work
) -> Iterator[Answer]:
    for column_id in work.column_ids:
        if column_id not in columns:
            yield Answer(number, column_id, (), f'file "{task.file_path}": column {column_id} was not planned')

    wanted = [columns[i] for i in work.column_ids if i in columns]
    for some in _together(reader.columns(wanted)):
        for found, partial, error in _summarised(some, work.wanted):
            size, text = found.size_bytes, _named(error, task, found.column)
            yield Answer(number, found.column.column_id, (), text, size, reader.row_groups, partial)


_CELLS: Final = 1 << 18  # values that kernels have in memory together, of several columns if they are short
_TOGETHER_BYTES: Final = 4 << 20  # of these columns in the file


def _together(read: Iterable[base.ColumnValues]) -> Iterator[list[base.ColumnValues]]:
    """Columns in groups whose statistics are computed together; a large column is alone."""
    group: list[base.ColumnValues] = []
    cells = size = 0
    for found in read:
        count = 0 if found.values is None else len(found.values)
        if group and (cells + count > _CELLS or size + found.size_bytes > _TOGETHER_BYTES):
            yield group
            group, cells, size = [], 0, 0
        group.append(found)
        cells, size = cells + count, size + found.size_bytes
    if group:
        yield group


def _summarised(
    read: Sequence[base.ColumnValues], wanted: SketchSelection
) -> Iterator[tuple[base.ColumnValues, Partial | None, BaseException | str]]:
    """The statistics of columns, or None and the error, which is empty if there is none."""
    values = [
        kernels.Values(found.values, logical_types.parse(found.column.logical_type), found.times)
        for found in read
        if found.values is not None
    ]
    results = iter(kernels.summarise_each(values, wanted))
    for found in read:
        result = next(results) if found.values is not None else None
        if isinstance(result, Exception):
            yield found, None, result
        else:
            width_bytes = found.column.width_bytes
            yield found, None if result is None else _with_width(result, width_bytes), found.error


def _named(error: BaseException | str, task: ScanTask, column: ScanColumn) -> str:
    """The error of a column with the names of its file and column; empty if there is none."""
    text = base.error_text(error, task) if isinstance(error, BaseException) else error
    return f'file "{task.file_path}", column "{column.name}": {text}' if text else ""


def _with_width(partial: Partial, width_bytes: int | None) -> Partial:
    """Replaces the widths of the file's type by the width of the table's type, if given."""
    if width_bytes is None or partial.width_max is None:
        return partial
    count = partial.row_count - partial.null_count
    return replace(partial, width_sum=width_bytes * count, width_max=width_bytes)


def _group(
    number: int, task: ScanTask, reader: base.TaskReader, columns: dict[int, ScanColumn], group: tuple[int, ...]
) -> list[Answer]:
    """Answers for a group and for each of its columns, or one answer with the error."""
    if missing := [i for i in group if i not in columns]:
        return [Answer(number, None, group, f'file "{task.file_path}": column {missing[0]} was not planned')]

    hashes, size = {}, 0
    for found in reader.columns([columns[i] for i in group]):
        error: BaseException | str = found.error
        if found.values is not None:
            try:
                lt = logical_types.parse(found.column.logical_type)
                hashes[found.column.column_id] = kernels.row_hashes(base.materialised(found), lt)
            except FAILURES as cause:
                error = cause
        if text := _named(error, task, found.column):
            return [Answer(number, None, group, text)]
        size += found.size_bytes
    of_group = [(group, _tuples([hashes[i] for i in group])), *(((i,), _tuples([hashes[i]])) for i in group)]
    return [Answer(number, None, ids, "", size, reader.row_groups, partial) for ids, partial in of_group]


def _tuples(parts: Sequence[tuple[murmur3.Hashes, npt.NDArray[np.bool_] | None]]) -> Partial:
    """Counts rows and all-null rows and sketches the distinct tuples; input is hashes and null mask of each column."""
    nulls = [null for _, null in parts]
    combined = murmur3.combine([hashes for hashes, _ in parts], nulls)
    theta = sketches.ThetaBuilder()
    theta.update(combined)
    whole = 0 if any(n is None for n in nulls) else int(np.count_nonzero(np.logical_and.reduce(nulls)))
    return Partial(len(combined), whole, theta=theta.serialize())
