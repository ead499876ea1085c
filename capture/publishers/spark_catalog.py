"""`spark`: table and column statistics of Spark's session catalog, where its cost-based optimizer looks for them.

Spark's own ANALYZE TABLE ends in `SessionCatalog.alterTableStats`, and so does this: one call for the table's size, row
count and all columns. The catalog is reached through the JVM of a classic session (py4j), so not over Spark Connect. A
table is the one registered at the location of ours, or the one that the option `table` names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from capture.publishers.external_values import average_width, greatest_width, spark_bound
from capture.publishers.spi import ColumnStatistics, Draft, Held, Publisher, moved_on
from store import sketches
from store.errors import InvalidArgument, NotFound, UpstreamError
from store.logical_types import Kind, parse

VERSION: Final = "2"  # of Spark's CatalogColumnStat
BINS: Final = 254  # Spark's own default, spark.sql.statistics.histogram.numBins
EVEN_WITHIN: Final = 0.05  # share of the range by which a quantile of evenly spread values may be off
FREQUENT_ABOVE: Final = 4.0  # times the rows of an average value
_ROW_OVERHEAD_BYTES: Final = 8  # of a row in Spark's size estimate, and of a text
_TEXT_OVERHEAD_BYTES: Final = 12
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DISCRETE: Final = frozenset({"tinyint", "smallint", "int", "bigint", "date"})
# Not timestamp_ntz: Spark fails to plan a filter on such a column once it has any statistics.
_FITTING: Final = {
    Kind.BOOLEAN: {"boolean"}, Kind.INT: {"tinyint", "smallint", "int", "bigint"}, Kind.FLOAT: {"float"},
    Kind.DOUBLE: {"double"}, Kind.DECIMAL: {"decimal"}, Kind.DATE: {"date"}, Kind.TIMESTAMPTZ: {"timestamp"},
    Kind.STRING: {"string"}, Kind.BINARY: {"binary"},
}  # fmt: skip
_WITH_HISTOGRAM: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "date",
                                    "timestamp"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of an equi-height histogram: bounds, and distinct values in it."""

    low: float
    high: float
    ndv: int


class SparkCatalogPublisher(Publisher):
    home: ClassVar[str] = "spark"
    sketches: ClassVar[frozenset[str]] = frozenset({"QUANTILES"})
    options: ClassVar[frozenset[str]] = frozenset({"table"})

    def prepare(self) -> Draft:
        of = self.statistics
        newest = self.newest_snapshot()
        if newest != of.snapshot_id:
            raise moved_on(of, f"snapshot {newest}")
        table = self._table
        types = {field["name"].lower(): (field["name"], field["type"]) for field in _fields(table)}
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
            of.snapshot_id, _name(table), {column.name: column.distinct for _, _, column in columns}, left_out,
            columns, detail=self._warning([column for _, _, column in columns]),
        )  # fmt: skip

    def write(self, draft: Draft) -> int | None:
        jvm, of = self._session._jvm, self.statistics
        stats = jvm.java.util.HashMap()
        for name, type, column in draft.content:
            stats.put(name, self._column(name, type, column))
        held = self._current()
        try:
            size = of.total_size_bytes if of.total_size_bytes is not None else (held and str(held.sizeInBytes()))
            whole = self._whole(int(size or 0), stats)
            self._catalog.alterTableStats(self._identifier, self._option(whole))
        except Exception as trouble:
            raise self._failure(trouble) from None
        self._check_planning(held)
        return None

    def _check_planning(self, before: Any) -> None:
        """Has Spark plan a scan with the new statistics; puts the former ones back when it cannot."""
        name = ".".join(f"`{part}`" for part in _name(self._table).split(".")[-2:])
        try:
            self._session.table(name)._jdf.queryExecution().optimizedPlan().stats()
        except Exception as trouble:
            self._catalog.alterTableStats(self._identifier, self._option(before))
            raise self._failure(trouble) from None

    def read(self) -> Held | None:
        held = self._current()
        if held is None:
            return None
        found = self._session._jvm.scala.jdk.javaapi.CollectionConverters.asJava(held.colStats())
        if not found:
            return None
        ours = {column.name.lower(): column.name for column in self.statistics.columns}
        distinct: dict[str, int | None] = {}
        for name in found:
            count = found[name].distinctCount()
            distinct[ours.get(name.lower(), name)] = int(str(count.get())) if count.isDefined() else None
        return Held(None, _name(self._table), distinct)

    def withdraw(self) -> bool:
        if self._current() is None:
            return False
        self._catalog.alterTableStats(self._identifier, self._option(None))
        return True

    def _whole(self, size: int, columns: Any) -> Any:
        """Spark's `CatalogStatistics`, made by reflection: py4j would turn a BigInt into a number of Python's, which
        the constructor does not take."""
        jvm = self._session._jvm
        arguments = jvm.java.util.ArrayList()
        arguments.addAll(jvm.scala.jdk.javaapi.CollectionConverters.asJava(self._big(size).toList()))
        arguments.add(self._option(None) if self.statistics.row_count is None else self._big(self.statistics.row_count))
        arguments.add(jvm.PythonUtils.toScalaMap(columns))
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        name = "org.apache.spark.sql.catalyst.catalog.CatalogStatistics"
        (constructor,) = jvm.java.lang.Class.forName(name, True, loader).getConstructors()
        return constructor.newInstance(arguments.toArray())

    def _big(self, number: int) -> Any:
        """`Option[BigInt]` that never leaves the JVM."""
        jvm = self._session._jvm
        properties = jvm.java.util.HashMap()
        properties.put("x.version", VERSION)
        properties.put("x.distinctCount", str(number))
        stat = jvm.org.apache.spark.sql.catalyst.catalog.CatalogColumnStat
        return stat.fromMap("t", "x", jvm.PythonUtils.toScalaMap(properties)).get().distinctCount()

    def _column(self, name: str, type: str, column: ColumnStatistics) -> Any:
        """Spark's `CatalogColumnStat` of one column."""
        jvm = self._session._jvm
        values = {
            "version": VERSION, "distinctCount": column.distinct, "nullCount": column.null_count,
            "avgLen": average_width(column), "maxLen": greatest_width(column),
            "min": spark_bound(column.min, column.logical_type),
            "max": spark_bound(column.max, column.logical_type),
        }  # fmt: skip
        properties = jvm.java.util.HashMap()
        for key, value in values.items():
            if value is not None:
                properties.put(f"{name}.{key}", str(value))
        if type in _WITH_HISTOGRAM and (found := bins(column, type in _DISCRETE)):
            rows = max((column.row_count or 0) - (column.null_count or 0), 0)
            properties.put(f"{name}.histogram", self._histogram(found, rows))
        parsed = jvm.org.apache.spark.sql.catalyst.catalog.CatalogColumnStat.fromMap(
            _name(self._table), name, jvm.PythonUtils.toScalaMap(properties)
        )
        return parsed.get()

    def _histogram(self, found: Sequence[Bin], rows: int) -> str:
        """Spark's serialized form of an equi-height histogram."""
        jvm = self._session._jvm
        logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        array = self._session.sparkContext._gateway.new_array(logical.HistogramBin, len(found))
        for at, item in enumerate(found):
            array[at] = logical.HistogramBin(item.low, item.high, item.ndv)
        return str(logical.HistogramSerializer.serialize(logical.Histogram(rows / len(found), array)))

    def _warning(self, columns: Sequence[ColumnStatistics]) -> str:
        """Spark's estimate of the whole table, where it now exceeds the size up to which it is broadcast."""
        of = self.statistics
        threshold = self._session.conf.get("spark.sql.autoBroadcastJoinThreshold")
        limit = self._session._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(str(threshold))
        size = estimated_bytes(of.row_count, columns)
        if size is None or of.total_size_bytes is None or not of.total_size_bytes <= limit < size:
            return ""
        return (
            f"Spark will estimate {size} bytes for the whole table instead of {of.total_size_bytes}: above the "
            f"broadcast threshold of {limit}"
        )

    # The registered table.

    @cached_property
    def _session(self) -> Any:
        if self.destination.spark is None:
            raise InvalidArgument("spark: this worker has no Spark session")
        session = self.destination.spark()
        if not hasattr(session, "_jsparkSession"):
            raise InvalidArgument(
                "spark: a session of Spark Connect cannot reach the catalog's statistics",
                hint="run a worker with a classic session: --spark-master local[*], or that of a cluster",
            )
        return session

    @cached_property
    def _catalog(self) -> Any:
        return self._session._jsparkSession.sessionState().catalog()

    @cached_property
    def _table(self) -> Any:
        """Spark's `CatalogTable`."""
        named = self.destination.options.get("table")
        return self._by_name(named) if named else self._by_location()

    @property
    def _identifier(self) -> Any:
        return self._table.identifier()

    def _by_name(self, name: str) -> Any:
        try:
            identifier = self._session._jsparkSession.sessionState().sqlParser().parseTableIdentifier(name)
            return self._catalog.getTableMetadata(identifier)
        except Exception:  # py4j wraps whatever Spark says
            raise NotFound(
                f'options.table: Spark\'s session catalog has no table "{name}"', code="UNKNOWN_TABLE",
                hint="name it as db.table; a name with a dot is quoted by `", params={"field": "options.table"},
            ) from None  # fmt: skip

    def _by_location(self) -> Any:
        described = self.destination.connector.describe(self.statistics.namespace, self.statistics.name)
        wanted = plain_location(described.location)
        for table in self._registered():
            where = table.storage().locationUri()
            if where.isDefined() and plain_location(where.get().toString()) == wanted:
                return table
        raise NotFound(
            f'table "{self.statistics.full_name}" is not registered in Spark\'s session catalog by its location',
            code="UNKNOWN_TABLE", hint="register it (CREATE TABLE … USING … LOCATION …), or name it with the option "
            "table=db.name",
        )  # fmt: skip

    def _registered(self) -> Any:
        convert = self._session._jvm.scala.jdk.javaapi.CollectionConverters.asJava
        for database in convert(self._catalog.listDatabases()):
            for identifier in convert(self._catalog.listTables(database)):
                try:
                    yield self._catalog.getTableMetadata(identifier)
                except Exception:  # noqa: S112  a temporary view, or a table dropped just now
                    continue

    def _current(self) -> Any:
        """Spark's `CatalogStatistics` now, None when there are none."""
        try:
            found = self._catalog.getTableMetadata(self._identifier).stats()
        except Exception as trouble:
            raise self._failure(trouble) from None
        return found.get() if found.isDefined() else None

    def _option(self, value: Any) -> Any:
        return self._session._jvm.scala.Option.apply(value)

    def _failure(self, trouble: Exception) -> Exception:
        text = str(trouble)
        if type(trouble).__module__.partition(".")[0] not in ("py4j", "pyspark"):
            return trouble
        if "Permission denied" in text or "AccessControlException" in text or "read-only" in text.lower():
            return PermissionError()
        line = next((part for part in text.splitlines() if "Exception: " in part), text.splitlines()[0])
        return UpstreamError(f"spark: the session catalog refused: {line.rpartition('Exception: ')[2][:200]}")


def bins(column: ColumnStatistics, discrete: bool) -> list[Bin]:
    """Equi-height bins from the column's quantiles; empty where none are known, or values are spread evenly.

    Of evenly spread values bounds and distinct count say as much, and a histogram does harm: Spark estimates a join of
    two columns that have histograms from these alone, without the filters that came before.
    They span just the column's bounds: Spark refuses to plan a query over a histogram that does not. Distinct values
    are spread over the bins by their widths; a bin of one value has one.

    Args:
        column: With a KLL sketch, bounds and a number of distinct values.
        discrete: Values are whole numbers or days.
    """
    low, high = (_number(bound, column.logical_type) for bound in (column.min, column.max))
    if column.quantiles is None or not column.distinct or low is None or high is None:
        return []
    count = min(BINS, max(column.row_count or 0, column.distinct))
    inner = sketches.quantiles(column.quantiles, [i / count for i in range(1, count)])
    if count > 1 and not inner:
        return []
    edges = [low, *(min(max(edge, low), high) for edge in inner), high]
    if not _is_skewed(edges, column.distinct):
        return []
    pairs = list(pairwise(edges))
    spread = max(column.distinct - sum(lower == upper for lower, upper in pairs), 0)
    found = []
    for lower, upper in pairs:
        ndv = 1 if lower == upper else max(round(spread * ((upper - lower) / (high - low))), 1)
        found.append(Bin(lower, upper, min(ndv, int(upper - lower) + 1) if discrete else ndv))
    return found


def _is_skewed(edges: Sequence[float], distinct: int) -> bool:
    """True if values are spread unevenly between the bounds, or a few of them are in most rows.

    Args:
        edges: Quantiles at even ranks, ascending, the bounds included.
        distinct: Number of distinct values.
    """
    low, high, count = edges[0], edges[-1], len(edges) - 1
    if low == high:
        return False
    off = max(abs((edge - low) / (high - low) - rank / count) for rank, edge in enumerate(edges))
    most = max(len(list(same)) - 1 for _, same in groupby(edges)) / count  # share of the most frequent value
    return off > EVEN_WITHIN + 1 / distinct or most > FREQUENT_ABOVE * max(1 / distinct, 1 / count)


def _number(bound: str | None, logical_type: str) -> float | None:
    """A bound as the double that Spark's histograms compare: days of a date, microseconds of an instant."""
    if bound is None:
        return None
    match parse(logical_type).kind:
        case Kind.INT | Kind.FLOAT | Kind.DOUBLE | Kind.DECIMAL:
            value = float(Decimal(bound)) if "n" not in bound.lower() else math.nan
            return value if math.isfinite(value) else None
        case Kind.DATE:
            return float(date.fromisoformat(bound).toordinal() - _EPOCH) if _is_plain_year(bound) else None
        case Kind.TIMESTAMPTZ:
            if not _is_plain_year(bound):
                return None
            since = datetime.fromisoformat(bound) - datetime(1970, 1, 1, tzinfo=UTC)
            return float(since // timedelta(microseconds=1))
    return None


def _is_plain_year(bound: str) -> bool:
    """True if Python's dates support the year."""
    return re.match(r"\d{4}-", bound) is not None and not bound.startswith("0000")


def estimated_bytes(rows: int | None, columns: Sequence[ColumnStatistics]) -> int | None:
    """Spark's size estimate of a table: rows times the widths of its columns."""
    if rows is None:
        return None
    width = _ROW_OVERHEAD_BYTES
    for column in columns:
        text = parse(column.logical_type).kind in (Kind.STRING, Kind.BINARY)
        width += (average_width(column) or _ROW_OVERHEAD_BYTES) + (_TEXT_OVERHEAD_BYTES if text else 0)
    return rows * width


def plain_location(uri: str) -> str:
    """A location in the form that two spellings of it share: no `file:`, no trailing slash, nothing encoded."""
    found = urlsplit(uri)
    if found.scheme in ("", "file"):
        return unquote(found.path).rstrip("/")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(found.scheme, found.scheme)
    return f"{scheme}://{found.netloc}{unquote(found.path)}".rstrip("/")


def _fields(table: Any) -> list[dict[str, Any]]:
    import json

    fields: list[dict[str, Any]] = json.loads(table.schema().json())["fields"]
    return fields


_SHORT: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def _base(type: str) -> str:
    """Spark's SQL name of a JSON type, without parameters."""
    plain = type.partition("(")[0].strip()
    return _SHORT.get(plain, "string" if plain in ("char", "varchar") else plain)


def _said(type: Any) -> str:
    return type if isinstance(type, str) else str((type or {}).get("type", "this type"))


def _name(table: Any) -> str:
    return str(table.identifier().unquotedString())
