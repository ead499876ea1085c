"""Statistics as a Spark data source: `spark.read.format("statflight")`, batches of Arrow straight into Spark.

    from statflight import StatflightDataSource
    spark.dataSource.register(StatflightDataSource)
    columns = spark.read.format("statflight").option("uri", "grpc://…").option("flight", "stats.columns").load()

Options: `uri`, `flight`, and optionally `columns` (names separated by commas), `snapshot` (`current` or an id),
`allow_stale`, `partitions` (endpoints that tasks read in parallel, 4), `token`, `tls_roots` (a PEM file). With
`spark.sql.python.filterPushdown.enabled` the server applies filters, without it Spark does. Needs pyspark and pyarrow;
executors need pyarrow alone, since this code goes to them with the query.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from flight_server.client import connection, errors
from flight_server.client.connection import Connection
from flight_server.conditions import exact_json

DEFAULT_PARTITIONS: Final = 4
for _module in (sys.modules[__name__], connection, errors, exact_json):
    cloudpickle.register_pickle_by_value(_module)
_COMPARES: Final[dict[type, str]] = {
    EqualTo: "EQ", GreaterThan: "GT", GreaterThanOrEqual: "GTE", LessThan: "LT", LessThanOrEqual: "LTE",
}  # fmt: skip


@dataclass(frozen=True)
class _Server:
    """The server's address and credentials; executors get these, since a connection cannot be pickled."""

    uri: str
    token: str | None
    tls_roots: bytes | None

    def connect(self) -> Connection:
        return Connection(self.uri, self.token, self.tls_roots)


class StatflightDataSource(DataSource):
    """A flight of a statflight server."""

    @classmethod
    def name(cls) -> str:
        """Names the format."""
        return "statflight"

    def schema(self) -> StructType:
        """Asks the server for the schema of the flight, in Spark's types.

        Raises:
            ValueError: The option `uri` or `flight` is missing.
        """
        server, command = _server(self.options), _command(self.options)
        with server.connect() as opened:
            return from_arrow_schema(opened.schema(command))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Makes the reader of a query for the columns that Spark wants; nothing is read yet."""
        return StatflightReader(_server(self.options), _command(self.options), schema, self.options.get("partitions"))


class StatflightReader(DataSourceReader):
    """Reads a flight in shares, one task each.

    Args:
        partitions: The option's number of shares; None means DEFAULT_PARTITIONS.
    """

    def __init__(self, server: _Server, command: dict[str, Any], schema: StructType, partitions: str | None):
        self._server, self._command = server, command | {"columns": schema.names}
        self._partitions = int(partitions or DEFAULT_PARTITIONS)
        self.pushFilters = _Push(self)

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Adds the filters that the server applies to the command.

        Args:
            filters: The query's filters, all of which must hold.

        Yields:
            The filters that Spark has to apply.
        """
        pushed = []
        for each in filters:
            condition = _condition(each)
            if condition is None:
                yield each
            else:
                pushed.append(condition)
        if pushed:
            self._command = self._command | {"predicates": pushed}

    def partitions(self) -> Sequence[InputPartition]:
        """Asks the server for the tickets of the shares, one for each partition."""
        command = self._command | {"partitions": self._partitions}
        with self._server.connect() as opened:
            return [InputPartition(ticket) for ticket in opened.tickets(command)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads a share, one of `partitions`; runs in a task.

        Yields:
            Its batches.
        """
        with self._server.connect() as opened:
            yield from opened.get(partition.value, stream=True)


class _Push:
    """The reader's `pushFilters`, which Spark calls when its setting allows it.

    With the setting off, which is the default, Spark refuses any reader that overrides the method, and checks
    `__func__` for that. This object passes the check, and is still called when the setting is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StatflightReader):
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


def _server(options: Mapping[str, str]) -> _Server:
    roots = options.get("tls_roots")
    return _Server(_given(options, "uri"), options.get("token"), Path(roots).read_bytes() if roots else None)


def _command(options: Mapping[str, str]) -> dict[str, Any]:
    command: dict[str, Any] = {"table": _given(options, "flight")}
    if columns := options.get("columns"):
        command["columns"] = [name.strip() for name in columns.split(",")]
    if (snapshot := options.get("snapshot")) is not None:
        command["snapshot"] = snapshot if snapshot == "current" else int(snapshot)
    if options.get("allow_stale", "false").lower() == "true":
        command["allow_stale"] = True
    return command


def _given(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ValueError(f'the option "{name}" is missing: spark.read.format("statflight").option("{name}", …)')
    return value


def _condition(asked: Filter) -> dict[str, Any] | None:
    """The filter as a condition of a JSON command; None when Spark and the server would evaluate it differently.

    In Spark NaN equals itself and is above every number; on the server it equals nothing and has no order. So for
    floating-point columns only filters that are false for NaN on both sides are pushed. Instants depend on the
    session's time zone.
    """
    if isinstance(asked, Not):
        inner = None if _has_fraction(asked.child) else _condition(asked.child)
        return None if inner is None else {"not": inner}
    attribute = getattr(asked, "attribute", None)
    if not isinstance(attribute, tuple) or len(attribute) != 1:
        return None  # a field of a struct
    if isinstance(asked, IsNull | IsNotNull):
        return {"column": attribute[0], "op": "IS_NULL" if isinstance(asked, IsNull) else "IS_NOT_NULL"}
    if attribute[0].lower() in ("min", "max"):
        return None  # text in Spark; the server compares them in the row's logical type
    op = "IN" if isinstance(asked, In) else _COMPARES.get(type(asked))
    values = _values(asked)
    if op is None or not values or not all(isinstance(value, bool | int | float | str) for value in values):
        return None
    if _has_fraction(asked) and (op in ("GT", "GTE") or not all(map(isfinite, values))):
        return None
    return {"column": attribute[0], "op": op, "values": values}


def _values(asked: Filter) -> list[Any]:
    value = getattr(asked, "value", None)
    return list(value) if isinstance(asked, In) and isinstance(value, tuple | list) else [value]


def _has_fraction(asked: Filter) -> bool:
    return any(isinstance(value, float) for value in _values(asked))
