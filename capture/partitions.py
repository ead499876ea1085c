"""Captures limited to partitions: finds the files in the given partitions.

A partition is given by values of some or all partition fields, named and written as in `partition_data_json` of
`stats.files`. Only statistics of files are captured: part of a table does not give a record of the table or a column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import NativeStats, ScanTask
from capture.spec import Partition, value_text
from capture.spi import TableHandle
from store.model import bounds, logical_types
from store.model.errors import InvalidArgument, NotFound, nearest
from store.model.logical_types import LogicalType
from store.model.names import join_name

_SHOWN: Final = 5  # partitions or fields listed in an error

Texts: TypeAlias = tuple[str | None, ...]


def detail(files: int, total: int) -> str:
    """Detail of the outcome of a capture limited to partitions: how many of all data files were captured."""
    return f"statistics of {files} of {total} files; the records of the whole are left as they are"


def files_of(table: TableHandle, native: NativeStats, wanted: Sequence[Partition]) -> pa.Array:
    """Paths of the data files of a snapshot in any of the partitions; raises as `paths_in`."""
    types = {c.name: logical_types.parse(c.logical_type) for c in table.columns.columns if c.is_leaf}
    return paths_in(native.files, wanted, types, join_name(table.catalog, table.schema, table.name))


def within(table: TableHandle, tasks: Sequence[ScanTask], wanted: Sequence[Partition]) -> list[ScanTask]:
    """The scan tasks whose files are in any of the partitions; raises as `paths_in`."""
    paths = set(files_of(table, table.native_stats(frozenset()), wanted).to_pylist())
    return [task for task in tasks if task.file_path in paths]


def paths_in(files: pa.Table, wanted: Sequence[Partition], types: Mapping[str, LogicalType], table: str) -> pa.Array:
    """Paths of the data files in any of the partitions.

    Args:
        files: Rows of `stats.files` of one snapshot, with file_path, file_content and partition_data_json.
        types: Column name → logical type. Values of these fields are compared as of that type, others as text.
        table: Full name of the table, for errors.

    Raises:
        InvalidArgument: The table is not partitioned, or not by a given field.
        NotFound: No file is in any of the partitions.
    """
    data = files.filter(pc.equal(files["file_content"], "DATA"))
    if not data.num_rows:
        raise NotFound(f'"{table}" has no data file at this snapshot', code="UNKNOWN_PARTITION")
    coded = data["partition_data_json"].combine_chunks().dictionary_encode()
    partitions_found: list[dict[str, Any]] = [json.loads(text) for text in coded.dictionary.to_pylist()]
    fields = list(dict.fromkeys(name for partition in partitions_found for name in partition))
    if not fields:
        raise InvalidArgument(f'"{table}" is not partitioned', code="NOT_PARTITIONED", hint="leave partitions out")
    for name in dict.fromkeys(name for partition in wanted for name, _ in partition):
        if name not in fields:
            hint = nearest(name, fields) or f"its fields are {', '.join(fields[:_SHOWN])}"
            raise InvalidArgument(f'"{table}" is not partitioned by "{name}"', code="NOT_PARTITIONED", hint=hint)
    shapes: dict[tuple[str, ...], set[Texts]] = {}
    for partition in wanted:
        values = tuple(_canonical(value, types.get(name)) for name, value in partition)
        shapes.setdefault(tuple(name for name, _ in partition), set()).add(values)
    within = pa.array([_is_in(partition, shapes, types) for partition in partitions_found], pa.bool_())
    paths = data["file_path"].combine_chunks().filter(pc.fill_null(within.take(coded.indices), False))
    if not len(paths):
        shown = ", ".join(json.dumps(partition, ensure_ascii=False) for partition in partitions_found[:_SHOWN])
        more = f" and {len(partitions_found) - _SHOWN} more" if len(partitions_found) > _SHOWN else ""
        raise NotFound(
            f'no file of "{table}" is in {json.dumps([dict(each) for each in wanted[:_SHOWN]], ensure_ascii=False)}',
            code="UNKNOWN_PARTITION",
            hint=f"its partitions are {shown}{more}",
        )
    return paths


def _is_in(
    partition: Mapping[str, Any], shapes: Mapping[tuple[str, ...], set[Texts]], types: Mapping[str, LogicalType]
) -> bool:
    own = {name: _canonical(value_text(value), types.get(name)) for name, value in partition.items()}
    return any(
        all(name in own for name in names) and tuple(own[name] for name in names) in values
        for names, values in shapes.items()
    )


def _canonical(text: str | None, lt: LogicalType | None) -> str | None:
    if text is None or lt is None:
        return text
    try:
        return bounds.canonical(text, lt)
    except ValueError:  # not a value of the type; equals only the same text
        return text
