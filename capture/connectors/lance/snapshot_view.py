"""A Lance dataset at one version: native statistics and scan tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from capture.connectors.lance.statistics import Fragment, analyzed_columns, analyzed_version, refused, zone_map_rows
from capture.connectors.spi import (
    FILE_SCHEMA,
    Column,
    ColumnIds,
    EarlierColumns,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
)
from store.model.logical_types import from_arrow


class SnapshotView:
    """One version of a dataset.

    Args:
        ids: Column key → id.
        column_names: Names or keys of columns; None for all.
    """

    def __init__(self, dataset: Any, ids: ColumnIds, column_names: frozenset[str] | None):
        self._dataset, self._ids = dataset, ids
        schema = to_schema(dataset.schema)
        self._leaves, self._scanned = schema.leaves(column_names), schema.scanned(column_names)

    def native_stats(self, reading: Callable[[], Any]) -> NativeStats:
        """Statistics from fragments, zone maps and Spark's ANALYZE; file columns are read lazily.

        Args:
            reading: Creates a context that translates errors.
        """
        dataset = self._dataset
        fragments = [Fragment(dataset, fragment) for fragment in dataset.get_fragments()]
        files = pa.Table.from_pylist([row for f in fragments for row in f.rows()], FILE_SCHEMA)
        remarks: list[str] = []
        analyzed = _analyzed(dataset, self._leaves, self._ids, remarks)

        def file_columns() -> Iterator[pa.Table]:
            with reading():
                yield from zone_map_rows(dataset, fragments, self._leaves, self._ids)

        return NativeStats(
            int(dataset.count_rows()),
            files.num_rows,
            sum(files["size_bytes"].to_pylist()),
            files,
            file_columns,
            analyzed.columns if analyzed and analyzed.snapshot_id == dataset.version else None,
            row_deletes=any(f.deleted for f in fragments),
            earlier=[analyzed] if analyzed and analyzed.snapshot_id < dataset.version else (),
            remarks=remarks,
        )

    def tasks(self, storage: Mapping[str, str]) -> Iterator[ScanTask]:
        """Yields one scan task per fragment."""
        columns = tuple(
            ScanColumn(column_id, column.name, column.logical_type, column.key)
            for column in self._scanned
            if (column_id := column.id_in(self._ids)) is not None
        )
        for lance_fragment in self._dataset.get_fragments():
            fragment = Fragment(self._dataset, lance_fragment)
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


def _analyzed(dataset: Any, leaves: list[Column], ids: ColumnIds, remarks: list[str]) -> EarlierColumns | None:
    """Statistics in a version's config, with the version they were computed at, since later versions inherit it. The
    reason for which they are refused becomes a remark."""
    config = dataset.config()
    version = analyzed_version(config)
    if version is None or version > dataset.version:
        return None
    try:
        at_version = dataset if version == dataset.version else dataset.checkout_version(version)
    except (ValueError, OSError):
        return None  # the version was cleaned up
    rows = int(at_version.count_rows())
    if reason := refused(config, rows, at_version.schema):
        remarks.append(f"the statistics in the config are refused: {reason}")
        return None
    columns = analyzed_columns(config, rows, leaves, ids)
    return columns and EarlierColumns(version, to_schema(at_version.schema).hash, columns)


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
