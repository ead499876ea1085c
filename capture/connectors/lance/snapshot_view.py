"""A Lance dataset at one version: native statistics and scan tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from capture.connectors.lance.statistics import PREFIX, Fragment, analyzed, field_names, zone_map_rows
from capture.connectors.spi import FILE_SCHEMA, Column, ColumnIds, EarlierColumns, NativeStats, ScanTask, Schema
from store.model.logical_types import from_arrow


class SnapshotView:
    """One version of a dataset.

    Args:
        ids: Column key → id.
        column_names: Names or keys of columns; None for all.
    """

    def __init__(self, dataset: Any, ids: ColumnIds, column_names: frozenset[str] | None):
        self._dataset, self._ids = dataset, ids
        self._schema, self._names = to_schema(dataset.schema), column_names

    def native_stats(self, reading: Callable[[], Any]) -> NativeStats:
        """Statistics from fragments, zone maps and Spark's ANALYZE; file columns are read lazily.

        Args:
            reading: Creates a context that translates errors.
        """
        dataset, leaves = self._dataset, self._schema.leaves(self._names)
        names = field_names(dataset)
        fragments = [Fragment(dataset, fragment, names) for fragment in dataset.get_fragments()]
        files = pa.Table.from_pylist([row for f in fragments for row in f.rows()], FILE_SCHEMA)
        remarks: list[str] = []
        columns, earlier = None, []
        if (found := analyzed(dataset, leaves, self._ids, remarks)) is not None:
            then, columns = found
            if then.version != dataset.version:
                earlier, columns = [EarlierColumns(then.version, to_schema(then.schema).hash, columns)], None

        def file_columns() -> Iterator[pa.Table]:
            with reading():
                yield from zone_map_rows(dataset, fragments, leaves, self._ids)

        return NativeStats(
            int(dataset.count_rows()),
            files.num_rows,
            sum(files["size_bytes"].to_pylist()),
            files,
            file_columns,
            columns,
            row_deletes=any(f.deleted for f in fragments),
            earlier=earlier,
            remarks=remarks,
            sources=() if found is None else (f"{PREFIX}* of version {found[0].version}",),
        )

    def tasks(self, storage: Mapping[str, str]) -> Iterator[ScanTask]:
        """Yields one scan task per fragment."""
        columns, names = self._schema.sources(self._names, self._ids), field_names(self._dataset)
        for lance_fragment in self._dataset.get_fragments():
            fragment = Fragment(self._dataset, lance_fragment, names)
            yield ScanTask(
                "lance",
                fragment.paths[0],
                str(self._dataset.uri),
                fragment.live,
                sum(fragment.sizes),
                columns,
                fragment.fingerprint,
                storage,
                arguments={"version": int(self._dataset.version), "fragment_id": fragment.id},
            )


def to_schema(schema: pa.Schema) -> Schema:
    """All columns of a Lance dataset in depth-first order, containers before their leaves."""
    return Schema(tuple(_walk(schema, (), False)))


def _walk(fields: Any, above: tuple[str, ...], nullable: bool) -> Iterator[Column]:
    for field in fields:
        path, optional = (*above, field.name), nullable or field.nullable
        kind = from_arrow(field.type)
        yield Column(".".join(path), kind.text if kind else "VARIANT", optional, path=path)
        if pa.types.is_struct(field.type):
            yield from _walk(field.type, path, optional)
