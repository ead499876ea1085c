"""The common part of Hive's metastore and AWS Glue: column statistics whose kind depends on the Hive type, and the base
of both publishers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from capture.connectors.metadata.analyzed import count
from capture.publishers.external_values import number
from capture.publishers.spi import ColumnStatistics, Draft, HomeStatistics, Publisher, TableStatistics
from store.model.errors import NotFound
from store.model.logical_types import Kind, parse

LONG, DOUBLE, DECIMAL, DATE, STRING, BINARY = "LONG", "DOUBLE", "DECIMAL", "DATE", "STRING", "BINARY"
_KINDS: Final = {
    "tinyint": LONG,
    "smallint": LONG,
    "int": LONG,
    "integer": LONG,
    "bigint": LONG,
    "timestamp": LONG,
    "float": DOUBLE,
    "double": DOUBLE,
    "decimal": DECIMAL,
    "date": DATE,
    "string": STRING,
    "varchar": STRING,
    "char": STRING,
    "binary": BINARY,
}
_FITTING: Final = {
    LONG: (Kind.INT, Kind.TIMESTAMP, Kind.TIMESTAMPTZ),
    DOUBLE: (Kind.FLOAT, Kind.DOUBLE),
    DECIMAL: (Kind.DECIMAL,),
    DATE: (Kind.DATE,),
    STRING: (Kind.STRING,),
    BINARY: (Kind.BINARY,),
}
ROWS, SIZE, CHANGED_AT = "numRows", "totalSize", "transient_lastDdlTime"
_KEEP: Final = {"STATS_GENERATED_VIA_STATS_TASK": "true"}  # prevents a metastore from recounting the files
_SPARK: Final = "spark.sql.statistics."  # parameters that Spark's ANALYZE writes
_SPARK_COLUMN: Final = f"{_SPARK}colStats."


@dataclass(frozen=True, slots=True)
class HiveColumn:
    """Statistics of one column in the form of both catalogs.

    Attributes:
        low, high: Bounds: int for LONG, float for DOUBLE, Decimal for DECIMAL, days since the epoch for DATE; None if
            unknown, and for timestamps, because engines use different units.
    """

    name: str
    hive_type: str
    kind: str
    nulls: int
    distinct: int
    low: Any = None
    high: Any = None
    average_bytes: float = 0.0
    greatest_bytes: int = 0

    def values(self, names: Mapping[str, str], bound: Callable[[Any], Any]) -> dict[str, Any]:
        """The values that statistics of this kind have and that are known.

        Args:
            names: Attribute → the catalog's name of it.
            bound: Converts a bound to the catalog's type.
        """
        known: dict[str, Any] = {"nulls": self.nulls}
        if self.kind != BINARY:
            known["distinct"] = self.distinct + (self.nulls > 0)  # Trino and Presto count null, and subtract it
        if self.kind in (STRING, BINARY):
            known |= {"greatest_bytes": self.greatest_bytes, "average_bytes": self.average_bytes}
        else:
            bounds = {"low": self.low, "high": self.high}
            known |= {side: bound(value) for side, value in bounds.items() if value is not None}
        return {names[name]: value for name, value in known.items()}


def without_null(distinct: int | None, nulls: int | None) -> int | None:
    """The number of distinct values, of one that counts null among them."""
    return distinct - 1 if distinct and nulls else distinct


class HivePublisherBase(Publisher):
    """A publisher to a catalog with Hive's column statistics."""

    def prepare(self) -> Draft:
        self.check_current()
        columns, left_out = self.storable(self.refusal)
        distinct = {column.name: column.distinct for column in columns}
        return Draft(self.statistics.snapshot_id, self.name, distinct, left_out, list(map(self._as_hive, columns)))

    def refusal(self, column: ColumnStatistics) -> str:
        """The reason why the catalog cannot store a column's statistics; empty if it can."""
        _, hive_type = self.types.get(column.name.lower(), (None, None))
        kind = _kind(hive_type or "")
        if hive_type is None:
            return "is not a column of the catalog's table"
        if kind is None or parse(column.logical_type).kind not in _FITTING[kind]:
            return f"{hive_type} cannot have statistics of {column.logical_type}"
        if column.null_count is None or column.distinct is None:
            missing = "nulls" if column.null_count is None else "distinct values"
            return f"the number of {missing} is not known, and the catalog cannot store an unknown one"
        if kind in (STRING, BINARY) and None in column.widths:
            return "the width is not known, and the catalog cannot store an unknown one"
        return ""

    def _as_hive(self, column: ColumnStatistics) -> HiveColumn:
        name, hive_type = self.types[column.name.lower()]
        has_bounds = parse(column.logical_type).kind not in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
        average, widest = column.widths
        low, high = (number(side if has_bounds else None, column.logical_type) for side in column.sides)
        return HiveColumn(
            name,
            hive_type,
            _kind(hive_type) or "",
            column.null_count or 0,
            column.distinct or 0,
            low,
            high,
            average or 0.0,
            widest or 0,
        )

    def read(self) -> HomeStatistics | None:
        columns = self.statistics.columns
        ours = {column.name.lower(): column.name for column in columns if column.name.lower() in self.types}
        distinct: dict[str, int | None] = {}
        times = {}
        for given, ndv, at in self.stored([self.types[name][0] for name in ours]):
            name = ours.get(given.lower(), given)
            distinct[name] = ndv
            if at is not None:
                times[name] = at
        return HomeStatistics(None, self.name, distinct, analyzed_at=times) if distinct else None

    def withdraw(self) -> bool:
        stored = [name for name, _, _ in self.stored([name for name, _ in self.types.values()])]
        if stored:
            self.write_counts(None)  # first: a lost race is tried again
            self.delete(stored)
        return bool(stored)

    def withdrawn(self, draft: Draft) -> list[str]:
        """Columns with statistics of an earlier publication that no longer hold: those left out of this one, and those
        that only the catalog's table still has."""
        described = self.destination.connector.describe(self.statistics.namespace, self.statistics.name)
        held = {*draft.distinct, *(column.name for column in described.schema.columns)} - draft.left_out.keys()
        valid = {name.lower() for name in held}
        names = [name for lower, (name, type) in self.types.items() if lower not in valid and _kind(type)]
        return [name for name, _, _ in self.stored(names)] if names else []

    def unknown_table(self) -> NotFound:
        """The error for a table that the catalog does not have."""
        return NotFound(
            f"{self.home}: {self.name} does not exist in the catalog",
            code="UNKNOWN_TABLE",
            hint="name it with the options database and table",
        )

    def read_all(self) -> Sequence[HomeStatistics]:
        """Column statistics of the catalog, and those of Spark in the table's parameters."""
        stored = self.read()
        parameters, changed = self.parameters()
        of_catalog = []
        if stored is not None:
            analyzed_at = self.analyzed_at(stored)
            of_catalog.append(replace(stored, row_count=count(parameters.get(ROWS)), analyzed_at=analyzed_at))
        names = {column.name.lower(): column.name for column in self.statistics.columns}
        of_spark = spark_statistics(parameters, f"Spark's ANALYZE of {self.name}", names, changed)
        return of_catalog if of_spark is None else [*of_catalog, of_spark]

    def analyzed_at(self, stored: HomeStatistics) -> Mapping[str, datetime]:
        """Column → time at which its statistics were written, if the catalog records it."""
        return stored.analyzed_at

    @property
    def place(self) -> tuple[str, str]:
        """Database and table in the catalog."""
        options = self.destination.options
        return options.get("database", self.statistics.namespace), options.get("table", self.statistics.name)

    @property
    def name(self) -> str:
        """Name of the table in the catalog."""
        return ".".join(self.place)

    @cached_property
    def types(self) -> dict[str, tuple[str, str]]:
        """Column name, lower case → name in the catalog and Hive type."""
        return {name.lower(): (name, type) for name, type in self.columns()}

    @abstractmethod
    def stored(self, names: Sequence[str]) -> Iterable[tuple[str, int | None, datetime | None]]:
        """Name, distinct values and time of the statistics of these columns, named as in the catalog, that it has."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Deletes the statistics of these columns."""

    @abstractmethod
    def write_counts(self, statistics: TableStatistics | None) -> Any:
        """Writes row count and size into the table's entry, if they differ (`with_counts`).

        Raises:
            LostRace: Another writer changed the entry meanwhile.
        """

    @abstractmethod
    def columns(self) -> Iterable[tuple[str, str]]:
        """Name and Hive type of each column of the catalog's table that it may have statistics of."""

    @abstractmethod
    def parameters(self) -> tuple[Mapping[str, str], datetime | None]:
        """Parameters of the table's entry, and the time of its last change."""


def _kind(hive_type: str) -> str | None:
    return _KINDS.get(hive_type.partition("(")[0].strip().lower())


def with_counts(parameters: Mapping[str, str], statistics: TableStatistics | None) -> dict[str, str] | None:
    """Sets row count and size in a table's parameters, under Hive's names; an unknown size removes the stored one.

    Args:
        statistics: The statistics; None to remove both.

    Returns:
        All parameters; None if nothing changes, the row count is unknown, or the table is an Iceberg table, whose
        commits change the same entry and whose metadata has the row count.
    """
    if parameters.get("table_type", "").upper() == "ICEBERG":
        return None
    counted = {name: value for name, value in parameters.items() if name not in (ROWS, SIZE)}
    if statistics is None:
        return None if counted == parameters else {name: counted[name] for name in counted.keys() - _KEEP.keys()}
    if statistics.row_count is None:
        return None
    counted[ROWS] = str(statistics.row_count)
    if statistics.total_size_bytes is not None:
        counted[SIZE] = str(statistics.total_size_bytes)
    return None if counted == parameters else counted | _KEEP


def changed_at(parameters: Mapping[str, str]) -> datetime | None:
    """Time of the last change of a table's entry, an upper limit for the age of its parameters; None if unknown."""
    seconds = count(parameters.get(CHANGED_AT))
    return None if seconds is None or seconds > 2**36 else datetime.fromtimestamp(seconds, UTC)


def spark_statistics(
    parameters: Mapping[str, str], location: str, names: Mapping[str, str], changed: datetime | None
) -> HomeStatistics | None:
    """Reads the statistics of Spark's ANALYZE in a table's parameters; None if there are none.

    Args:
        location: `location` of the result.
        names: Lower-case column name → our name.
        changed: Time of the last change of the table's entry.
    """
    distinct: dict[str, int | None] = {}
    for key in parameters:
        name = key.removeprefix(_SPARK_COLUMN).removesuffix(".distinctCount")
        if key == f"{_SPARK_COLUMN}{name}.distinctCount" and name.lower() in names:
            distinct[names[name.lower()]] = count(parameters.get(key))
    if not distinct:
        return None
    rows, size = count(parameters.get(f"{_SPARK}numRows")), count(parameters.get(f"{_SPARK}totalSize"))
    return HomeStatistics(None, location, distinct, rows, size, dict.fromkeys(distinct, changed) if changed else {})


def unscaled(value: Decimal) -> tuple[bytes, int]:
    """A decimal as minimal big-endian two's complement bytes, and its scale."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True), max(-exponent, 0)
