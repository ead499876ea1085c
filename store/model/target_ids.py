"""Storage ids in Arrow columns of sketches, by the rules of `store.model.targets`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from store.model import targets
from store.model.bounds.java_floats import by_distinct
from store.model.schemas import FLIGHTS

PATTERN: Final = r"^(?s:table|column-[0-9]{19}|(?:file|expression-.+|composite)-[0-9a-f]{64})$"
_KIND_OF: Final = {
    "table": targets.TargetKind.TABLE,
    "column": targets.TargetKind.COLUMN,
    "file": targets.TargetKind.FILE,
    "expression": targets.TargetKind.EXPRESSION,
    "composite": targets.TargetKind.COLUMN_GROUP,
}
NAMED_BY: Final = {  # kind → the column that identifies a sketch's target if storage_id is null
    targets.TargetKind.COLUMN: "column_id",
    targets.TargetKind.FILE: "file_path",
    targets.TargetKind.EXPRESSION: "storage_id",
    targets.TargetKind.COLUMN_GROUP: "storage_id",
}


def with_storage_ids(sketches: pa.Table) -> pa.Table:
    """Rows of `stats.sketches` with the storage id of their target, and target_kind and column_id filled in from it.

    Args:
        sketches: Rows as `store.history.validation.prepare` returns them.
    """
    batches = sketches.to_batches() or [pa.RecordBatch.from_pylist([], sketches.schema)]
    return pa.Table.from_batches(map(_with_storage_ids, batches))


def _with_storage_ids(sketches: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(sketches.schema.names, sketches.columns, strict=True))
    size, none = sketches.num_rows, pa.scalar(None, pa.string())
    kinds = columns.get("target_kind", pa.nulls(size, pa.string()))
    ids = columns.get("storage_id", pa.nulls(size, pa.string()))
    column_ids = columns.get("column_id", pa.nulls(size, pa.int64()))
    paths = columns.get("file_path", pa.nulls(size, pa.string()))
    derived = pc.if_else(pc.equal(kinds, "TABLE"), "table", none)
    derived = pc.coalesce(derived, pc.if_else(pc.equal(kinds, "COLUMN"), of_columns(column_ids), none))
    derived = pc.coalesce(derived, pc.if_else(pc.equal(kinds, "FILE"), of_files(paths), none))
    ids = pc.coalesce(ids, derived)
    digits = pc.if_else(pc.starts_with(ids, "column-"), pc.utf8_slice_codeunits(ids, len("column-")), none)
    columns |= {
        "storage_id": ids,
        "target_kind": pc.coalesce(kinds, kinds_of(ids)),
        "column_id": pc.coalesce(column_ids, digits.cast(pa.int64())),
    }
    schema = pa.schema([field for field in FLIGHTS["stats.sketches"].schema if field.name in columns])
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def of_column(column_id: int) -> str:
    """The storage id of one column."""
    return targets.Target.column(column_id).storage_id


def of_columns(ids: pa.Array) -> pa.Array:
    """Storage ids of columns, by id (int64)."""
    return pc.binary_join_element_wise("column", pc.utf8_lpad(ids.cast(pa.string()), 19, "0"), "-")


def of_files(paths: pa.Array) -> pa.Array:
    """Storage ids of files, by path."""
    return by_distinct(paths, lambda path: targets.Target.file(path).storage_id, pa.string())


def kinds_of(storage_ids: pa.Array) -> pa.Array:
    """The target kinds (utf8) of valid storage ids."""
    words = pc.list_element(pc.split_pattern(storage_ids, "-", max_splits=1), 0)
    kinds = pa.array([str(kind) for kind in _KIND_OF.values()])
    return kinds.take(pc.index_in(words, pa.array(list(_KIND_OF))))
