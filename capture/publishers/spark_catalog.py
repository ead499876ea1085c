"""Home `spark`: statistics in Spark's session catalog, where its cost-based optimizer looks for them.

Like Spark's ANALYZE TABLE, this calls `SessionCatalog.alterTableStats`, once for the table's size, row count and all
columns. It needs the JVM of a classic session (py4j) and does not work with Spark Connect. The table is the one
registered at the same location, or the one in the option `table`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from capture.publishers.external_values import average_width, catalog_entries, spark_bound
from capture.publishers.spark_histograms import bins, serialized
from capture.publishers.spi import ColumnStatistics, Draft, HomeStatistics, Publisher
from capture.spark.session_catalog import (
    SessionCatalog,
    changed_at,
    failure,
    name_of,
    row_count_of,
    statistics_of,
)
from store.model.errors import InvalidArgument, NotFound
from store.model.logical_types import Kind, parse

_ROW_OVERHEAD_BYTES: Final = 8  # per row, in Spark's size estimate
_TEXT_OVERHEAD_BYTES: Final = 12  # per string or binary value, in Spark's size estimate
_DISCRETE: Final = frozenset({"tinyint", "smallint", "int", "bigint", "date"})
# Without timestamp_ntz: Spark cannot plan a filter on such a column if it has statistics.
_FITTING: Final = {
    Kind.BOOLEAN: {"boolean"},
    Kind.INT: {"tinyint", "smallint", "int", "bigint"},
    Kind.FLOAT: {"float"},
    Kind.DOUBLE: {"double"},
    Kind.DECIMAL: {"decimal"},
    Kind.DATE: {"date"},
    Kind.TIMESTAMPTZ: {"timestamp"},
    Kind.STRING: {"string"},
    Kind.BINARY: {"binary"},
}
_JOINED_WITHOUT_BOUNDS: Final = frozenset({"float", "double", "string", "binary"})
_WITH_HISTOGRAM: Final = frozenset(
    {"tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date", "timestamp"}
)


class SparkCatalogPublisher(Publisher):
    """Statistics in Spark's session catalog."""

    home: ClassVar[str] = "spark"
    sketches: ClassVar[frozenset[str]] = frozenset({"QUANTILES"})
    options: ClassVar[frozenset[str]] = frozenset({"table"})

    def prepare(self) -> Draft:
        self.check_current()
        statistics = self.statistics
        if statistics.total_size_bytes is None:
            raise InvalidArgument(
                f'spark: the size of "{statistics.full_name}" at snapshot {statistics.snapshot_id} is not known, and '
                "the catalog cannot store an unknown one",
                code="NOT_PUBLISHABLE",
                hint="capture the table, not columns alone",
            )
        table = self._table
        types = {
            field["name"].lower(): (field["name"], field["type"]) for field in json.loads(self._schema.json())["fields"]
        }

        def refusal(column: ColumnStatistics) -> str:
            name, type = types.get(column.name.lower(), (None, None))
            if name is None:
                return "is not a top-level column of the registered table"
            if isinstance(type, str) and _base(type) in _FITTING.get(parse(column.logical_type).kind, ()):
                return ""
            return f"{_type_name(type)} in Spark cannot have statistics of {column.logical_type}"

        columns, left_out = self.storable(refusal)
        named = [(*types[column.name.lower()], column) for column in columns]  # as the catalog has them
        return Draft(
            statistics.snapshot_id,
            name_of(table),
            {column.name: column.distinct for column in columns},
            left_out,
            [(name, _base(type), column) for name, type, column in named],
            detail=self._warning(columns),
        )

    def write(self, draft: Draft) -> int | None:
        statistics, catalog, identifier = self.statistics, self._catalog, self._table.identifier()
        entries = {name: self._entries(type, column) for name, type, column in draft.content}
        assert statistics.total_size_bytes is not None
        new = catalog.new_statistics(name_of(self._table), statistics.total_size_bytes, statistics.row_count, entries)
        try:
            catalog.check(new, self._schema)
            catalog.put(identifier, new)
        except Exception as error:
            raise failure(error) from None
        return None

    def read(self) -> HomeStatistics | None:
        table = self._catalog.fresh(self._table)
        statistics = statistics_of(table)
        distinct = self._catalog.distinct(statistics) if statistics is not None else {}
        if statistics is None or not distinct:
            return None
        ours = {column.name.lower(): column.name for column in self.statistics.columns}
        by_name = {ours.get(name.lower(), name): count for name, count in distinct.items()}
        changed = changed_at(table)
        return HomeStatistics(
            None,
            name_of(table),
            by_name,
            row_count_of(statistics),
            int(str(statistics.sizeInBytes())),
            dict.fromkeys(by_name, changed) if changed else {},
        )

    def withdraw(self) -> bool:
        if statistics_of(self._catalog.fresh(self._table)) is None:
            return False
        self._catalog.put(self._table.identifier(), None)
        return True

    def _entries(self, type: str, column: ColumnStatistics) -> dict[str, object]:
        """Entries of Spark's `CatalogColumnStat` for one column.

        Without a distinct count if the bounds of values are not known: Spark takes such a column for one of nulls, and
        estimates joins by it at 0 rows.
        """
        entries = catalog_entries(column, spark_bound)
        if type not in _JOINED_WITHOUT_BOUNDS and column.distinct and not {"min", "max"} <= entries.keys():
            del entries["distinctCount"]
        if type in _WITH_HISTOGRAM and (histogram := bins(column, type in _DISCRETE)):
            rows = max((column.row_count or 0) - (column.null_count or 0), 0)
            entries["histogram"] = self._catalog.histogram(serialized(histogram, rows))
        return entries

    def _warning(self, columns: Sequence[ColumnStatistics]) -> str:
        """A warning if the statistics raise Spark's size estimate above the broadcast threshold; else empty."""
        statistics = self.statistics
        size, limit = estimated_bytes(statistics.row_count, columns), self._catalog.broadcast_bytes
        if size is None or statistics.total_size_bytes is None or not statistics.total_size_bytes <= limit < size:
            return ""
        return (
            f"Spark will estimate {size} bytes for the whole table instead of {statistics.total_size_bytes}: above the "
            f"broadcast threshold of {limit}"
        )

    @cached_property
    def _catalog(self) -> SessionCatalog:
        if self.destination.spark is None:
            raise InvalidArgument("spark: this worker has no Spark session")
        return SessionCatalog.of(self.destination.spark())

    @cached_property
    def _schema(self) -> Any:
        return self._catalog.schema(self._table)

    @cached_property
    def _table(self) -> Any:
        """Spark's `CatalogTable`: the one in the option `table`, or the one registered at the same location."""
        if named := self.destination.options.get("table"):
            return self._catalog.by_name(named)
        registered = self._catalog.by_location(self.table_location)
        if registered is None:
            raise NotFound(
                f'table "{self.statistics.full_name}" is not registered in Spark\'s session catalog by its location',
                code="UNKNOWN_TABLE",
                hint="register it (CREATE TABLE … USING … LOCATION …), or name it with the option table=db.name",
            )
        return registered


def estimated_bytes(rows: int | None, columns: Sequence[ColumnStatistics]) -> int | None:
    """Spark's size estimate of a table in bytes: rows times the widths of its columns; None if `rows` is unknown."""
    if rows is None:
        return None
    width = _ROW_OVERHEAD_BYTES
    for column in columns:
        text = parse(column.logical_type).kind in (Kind.STRING, Kind.BINARY)
        width += (average_width(column) or _ROW_OVERHEAD_BYTES) + (_TEXT_OVERHEAD_BYTES if text else 0)
    return rows * width


_SHORT: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def _base(type: str) -> str:
    """SQL name, without parameters, of a type in Spark's JSON schema."""
    plain = type.partition("(")[0].strip()
    return _SHORT.get(plain, "string" if plain in ("char", "varchar") else plain)


def _type_name(type: Any) -> str:
    return type if isinstance(type, str) else str((type or {}).get("type", "this type"))
