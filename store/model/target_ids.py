"""Storage ids of Arrow columns of targets, by the rules of `store.model.targets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.model import targets
from store.model.schemas import Flight

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


def with_storage_ids(flight: Flight, table: pa.Table) -> pa.Table:
    """The rows with the storage id of their target in an additional last column `storage_id` (utf8).

    A row of `stats.columns` that has a name but no id yet gets null. Rows of `stats.file_columns` get the id of their
    file. In `stats.sketches` the column keeps its position, and target_kind and column_id are filled in from it.

    Args:
        table: Rows as `store.history.validation.prepare` returns them.
    """
    parts = [_with_storage_ids(flight, batch) for batch in table.to_batches()]
    if parts:
        return pa.Table.from_batches(parts)
    return pa.Table.from_batches([_with_storage_ids(flight, pa.RecordBatch.from_pylist([], table.schema))])


def _with_storage_ids(flight: Flight, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    size = batch.num_rows
    match flight.name:
        case "stats.tables":
            ids = pa.repeat(pa.scalar("table", pa.string()), size)
        case "stats.columns":
            ids = of_columns(columns.get("column_id", pa.nulls(size, pa.int64())))
        case "stats.files" | "stats.file_columns":
            ids = of_files(columns["file_path"])
        case "stats.expressions":
            ids = _of_expressions(columns["engine_kind"], columns["engine_expression_key"])
        case "stats.column_groups":
            ids = _of_groups(columns["column_ids"])
        case "stats.sketches":
            return _with_sketch_targets(flight, columns, size)
        case _:
            raise ValueError(f"{flight.name} has no targets")
    return batch.append_column(pa.field("storage_id", pa.string()), ids)


def of_column(column_id: int) -> str:
    """The storage id of one column."""
    return targets.Target.column(column_id).storage_id


def of_columns(ids: pa.Array) -> pa.Array:
    """Storage ids of columns, by id (int64)."""
    return pc.binary_join_element_wise("column", pc.utf8_lpad(ids.cast(pa.string()), 19, "0"), "-")


def of_files(paths: pa.Array) -> pa.Array:
    """Storage ids of files, by path."""
    return _by_distinct(paths, lambda path: targets.Target.file(path).storage_id)


def _of_groups(groups: pa.Array) -> pa.Array:
    texts = pc.binary_join(groups.cast(pa.list_(pa.string())), ",")
    return _by_distinct(texts, lambda text: targets.Target.column_group([*map(int, text.split(","))]).storage_id)


def _of_expressions(kinds: pa.Array, keys: pa.Array) -> pa.Array:
    kinds, keys = kinds.dictionary_encode(), keys.dictionary_encode()
    names, texts = kinds.dictionary.to_pylist(), keys.dictionary.to_pylist()
    pairs = kinds.indices.to_numpy().astype(np.int64) * max(len(texts), 1) + keys.indices.to_numpy()
    distinct, places = np.unique(pairs, return_inverse=True)
    ids = [targets.Target.expression(names[p // len(texts)], texts[p % len(texts)]).storage_id for p in distinct]
    return pa.array(ids, pa.string()).take(pa.array(places))


def _by_distinct(column: pa.Array, how: Callable[[str], str]) -> pa.Array:
    coded = column.dictionary_encode()
    return pa.array(map(how, coded.dictionary.to_pylist()), pa.string()).take(coded.indices)


def kinds_of(storage_ids: pa.Array) -> pa.Array:
    """The target kinds (utf8) of valid storage ids."""
    words = pc.list_element(pc.split_pattern(storage_ids, "-", max_splits=1), 0)
    kinds = pa.array([str(kind) for kind in _KIND_OF.values()])
    return kinds.take(pc.index_in(words, pa.array(list(_KIND_OF))))


def _with_sketch_targets(flight: Flight, columns: dict[str, pa.Array], size: int) -> pa.RecordBatch:
    kinds = columns.get("target_kind", pa.nulls(size, pa.string()))
    ids = columns.get("storage_id", pa.nulls(size, pa.string()))
    column_ids = columns.get("column_id", pa.nulls(size, pa.int64()))
    paths = columns.get("file_path", pa.nulls(size, pa.string()))
    none = pa.scalar(None, pa.string())
    derived = pc.if_else(pc.equal(kinds, "TABLE"), "table", none)
    derived = pc.coalesce(derived, pc.if_else(pc.equal(kinds, "COLUMN"), of_columns(column_ids), none))
    derived = pc.coalesce(derived, pc.if_else(pc.equal(kinds, "FILE"), of_files(paths), none))
    ids = pc.coalesce(ids, derived)
    digits = pc.if_else(pc.starts_with(ids, "column-"), pc.utf8_slice_codeunits(ids, len("column-")), none)
    filled = columns | {
        "storage_id": ids,
        "target_kind": pc.coalesce(kinds, kinds_of(ids)),
        "column_id": pc.coalesce(column_ids, digits.cast(pa.int64())),
    }
    fields = [field for field in flight.schema if field.name in filled]
    return pa.RecordBatch.from_arrays([filled[field.name] for field in fields], schema=pa.schema(fields))
