"""Statistics as a Spark data source: `spark.read.format("statflight")`, batches of Arrow straight into Spark.

    from statflight import StatflightDataSource
    spark.dataSource.register(StatflightDataSource)
    columns = spark.read.format("statflight").option("uri", "grpc://…").option("flight", "stats.columns").load()

Options: `flight`, and optionally `uri` (that of STATFLIGHT_SERVER, where the driver runs), `columns` (names with commas
between them), `where` (a condition in SQL, which needs the extra `client`), `snapshot` (`current` or an id),
`allow_stale`, `partitions` (endpoints that tasks read in parallel, 4), `token`, `tls_roots` (a PEM file). Needs pyspark
and pyarrow; executors need pyarrow alone, since this code goes to them with the query.

The server applies `where`, and Spark the filters of queries. The reader takes none of those (`pushFilters`): all
queries of a loaded DataFrame share one reader in Spark 4.3, the last to take filters, and so got the rows of another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from flight_server.client import connection, errors, unreachable
from flight_server.client.conditions import exact_json
from flight_server.client.connection import Connection

DEFAULT_PARTITIONS: Final = 4
for _module in (sys.modules[__name__], connection, errors, unreachable, exact_json):
    cloudpickle.register_pickle_by_value(_module)


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


def _server(options: Mapping[str, str]) -> _Server:
    roots = options.get("tls_roots")
    uri, token = options.get("uri"), options.get("token")
    if not uri and (uri := os.environ.get("STATFLIGHT_SERVER")):
        token = token or os.environ.get("STATFLIGHT_TOKEN")
    if not uri:
        uri = _given(options, "uri", " or set STATFLIGHT_SERVER where the driver runs")
    return _Server(uri, token, Path(roots).read_bytes() if roots else None)


def _command(options: Mapping[str, str]) -> dict[str, Any]:
    command: dict[str, Any] = {"table": _given(options, "flight"), "strict": True}
    if columns := options.get("columns"):
        command["columns"] = [name.strip() for name in columns.split(",")]
    if where := options.get("where"):
        connection.require("sqlglot", "a condition written as SQL")
        from flight_server.client.conditions.sql import parse_where

        command["filter"] = parse_where(where)
    if (snapshot := options.get("snapshot")) is not None:
        command["snapshot"] = snapshot if snapshot == "current" else int(snapshot)
    if options.get("allow_stale", "false").lower() == "true":
        command["allow_stale"] = True
    return command


def _given(options: Mapping[str, str], name: str, more: str = "") -> str:
    value = options.get(name)
    if not value:
        raise ValueError(f'the option "{name}" is missing: spark.read.format("statflight").option("{name}", …){more}')
    return value
