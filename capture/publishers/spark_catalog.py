"""`spark`: table and column statistics of Spark's session catalog, where its cost-based optimizer looks for them.

Spark's own ANALYZE TABLE ends in `SessionCatalog.alterTableStats`, and so does this: one call for the table's size, row
count and all columns. The catalog is reached through the JVM of a classic session (py4j), so not over Spark Connect. A
table is the one registered at the location of ours, or the one that the option `table` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from capture.publishers.external_values import average_width, greatest_width, spark_bound
from capture.publishers.spark_histograms import bins, serialized
from capture.publishers.spark_session import (
    SessionCatalog,
    changed_at,
    failure,
    fields_of,
    name_of,
    row_count_of,
    statistics_of,
)  # fmt: skip
from capture.publishers.spi import ColumnStatistics, Draft, Held, Publisher, moved_on
from store.errors import InvalidArgument, NotFound
from store.logical_types import Kind, parse

_ROW_OVERHEAD_BYTES: Final = 8  # of a row in Spark's size estimate, and of a text
_TEXT_OVERHEAD_BYTES: Final = 12
_DISCRETE: Final = frozenset({"tinyint", "smallint", "int", "bigint", "date"})
# Not timestamp_ntz: Spark fails to plan a filter on such a column once it has any statistics.
_FITTING: Final = {
    Kind.BOOLEAN: {"boolean"}, Kind.INT: {"tinyint", "smallint", "int", "bigint"}, Kind.FLOAT: {"float"},
    Kind.DOUBLE: {"double"}, Kind.DECIMAL: {"decimal"}, Kind.DATE: {"date"}, Kind.TIMESTAMPTZ: {"timestamp"},
    Kind.STRING: {"string"}, Kind.BINARY: {"binary"},
}  # fmt: skip
_WITH_HISTOGRAM: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date",
                                    "timestamp"})  # fmt: skip


class SparkCatalogPublisher(Publisher):
    """Statistics in the session catalog of Spark, for its cost-based optimizer."""

    home: ClassVar[str] = "spark"
    sketches: ClassVar[frozenset[str]] = frozenset({"QUANTILES"})
    options: ClassVar[frozenset[str]] = frozenset({"table"})

    def prepare(self) -> Draft:
        of = self.statistics
        newest = self.newest_snapshot()
        if newest != of.snapshot_id:
            raise moved_on(of, f"snapshot {newest}")
        table = self._table
        types = {field["name"].lower(): (field["name"], field["type"]) for field in fields_of(table)}
        columns, left_out = [], dict(of.left_out)
        for column in of.columns:
            name, type = types.get(column.name.lower(), (None, None))
            kind = parse(column.logical_type).kind
            if name is None:
                left_out[column.name] = "is not a top-level column of the registered table"
            elif not isinstance(type, str) or _base(type) not in _FITTING.get(kind, ()):
                left_out[column.name] = f"Spark has no statistics of {_said(type)} from {column.logical_type}"
            else:
                columns.append((name, _base(type), column))
        return Draft(
            of.snapshot_id, name_of(table), {column.name: column.distinct for _, _, column in columns}, left_out,
            columns, detail=self._warning([column for _, _, column in columns]),
        )  # fmt: skip

    def write(self, draft: Draft) -> int | None:
        of, catalog, identifier = self.statistics, self._catalog, self._table.identifier()
        entries = {name: self._entries(type, column) for name, type, column in draft.content}
        before = statistics_of(catalog.fresh(self._table))
        size = of.total_size_bytes if of.total_size_bytes is not None else (before and str(before.sizeInBytes()))
        try:
            catalog.put(identifier, catalog.new_statistics(name_of(self._table), int(size or 0), of.row_count, entries))
        except Exception as trouble:
            raise failure(trouble) from None
        try:
            catalog.check_planning(".".join(f"`{part}`" for part in name_of(self._table).split(".")[-2:]))
        except Exception:
            catalog.put(identifier, before)
            raise
        return None

    def read(self) -> Held | None:
        table = self._catalog.fresh(self._table)
        statistics = statistics_of(table)
        distinct = self._catalog.distinct(statistics) if statistics is not None else {}
        if statistics is None or not distinct:
            return None
        ours = {column.name.lower(): column.name for column in self.statistics.columns}
        by_name = {ours.get(name.lower(), name): count for name, count in distinct.items()}
        changed = changed_at(table)
        return Held(
            None, name_of(table), by_name, row_count_of(statistics), int(str(statistics.sizeInBytes())),
            dict.fromkeys(by_name, changed) if changed else {},
        )  # fmt: skip

    def withdraw(self) -> bool:
        if statistics_of(self._catalog.fresh(self._table)) is None:
            return False
        self._catalog.put(self._table.identifier(), None)
        return True

    def _entries(self, type: str, column: ColumnStatistics) -> dict[str, object]:
        """Entries of Spark's `CatalogColumnStat` of one column; None is unknown."""
        entries: dict[str, object] = {
            "distinctCount": column.distinct, "nullCount": column.null_count,
            "avgLen": average_width(column), "maxLen": greatest_width(column),
            "min": spark_bound(column.min, column.logical_type),
            "max": spark_bound(column.max, column.logical_type),
        }  # fmt: skip
        if type in _WITH_HISTOGRAM and (histogram := bins(column, type in _DISCRETE)):
            rows = max((column.row_count or 0) - (column.null_count or 0), 0)
            entries["histogram"] = self._catalog.histogram(serialized(histogram, rows))
        return entries

    def _warning(self, columns: Sequence[ColumnStatistics]) -> str:
        """Spark's estimate of the whole table, where it now exceeds the size up to which it is broadcast."""
        of = self.statistics
        size, limit = estimated_bytes(of.row_count, columns), self._catalog.broadcast_bytes
        if size is None or of.total_size_bytes is None or not of.total_size_bytes <= limit < size:
            return ""
        return (
            f"Spark will estimate {size} bytes for the whole table instead of {of.total_size_bytes}: above the "
            f"broadcast threshold of {limit}"
        )

    @cached_property
    def _catalog(self) -> SessionCatalog:
        if self.destination.spark is None:
            raise InvalidArgument("spark: this worker has no Spark session")
        return SessionCatalog.of(self.destination.spark())

    @cached_property
    def _table(self) -> Any:
        """Spark's `CatalogTable`: the one named, or the one registered at the location of ours."""
        if named := self.destination.options.get("table"):
            return self._catalog.by_name(named)
        described = self.destination.connector.describe(self.statistics.namespace, self.statistics.name)
        registered = self._catalog.by_location(described.location)
        if registered is None:
            raise NotFound(
                f'table "{self.statistics.full_name}" is not registered in Spark\'s session catalog by its location',
                code="UNKNOWN_TABLE", hint="register it (CREATE TABLE … USING … LOCATION …), or name it with the "
                "option table=db.name",
            )  # fmt: skip
        return registered


def estimated_bytes(rows: int | None, columns: Sequence[ColumnStatistics]) -> int | None:
    """Spark's size estimate of a table: rows times the widths of its columns.

    Args:
        rows: Its row count; None is unknown, and so is the size then.
        columns: All of its columns.
    """
    if rows is None:
        return None
    width = _ROW_OVERHEAD_BYTES
    for column in columns:
        text = parse(column.logical_type).kind in (Kind.STRING, Kind.BINARY)
        width += (average_width(column) or _ROW_OVERHEAD_BYTES) + (_TEXT_OVERHEAD_BYTES if text else 0)
    return rows * width


_SHORT: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def _base(type: str) -> str:
    """Spark's SQL name of a JSON type, without parameters."""
    plain = type.partition("(")[0].strip()
    return _SHORT.get(plain, "string" if plain in ("char", "varchar") else plain)


def _said(type: Any) -> str:
    return type if isinstance(type, str) else str((type or {}).get("type", "this type"))
