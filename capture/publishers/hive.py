"""Home `hive`: column statistics in a Hive metastore, for Trino, Hive and Impala, over its Thrift interface.

A first call writes row count and size, which are parameters of the table; a second one writes all columns in one
transaction of the metastore. Spark does not read these columns; its home is `spark`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from capture.connectors.options import timeout_of
from capture.publishers.hive_types import (
    BINARY,
    CHANGED_AT,
    DATE,
    DECIMAL,
    DOUBLE,
    LONG,
    ROWS,
    HiveColumn,
    changed_at,
    count,
    hive_columns,
    spark_statistics,
    unscaled,
    with_counts,
)  # fmt: skip
from capture.publishers.spi import Draft, HomeStatistics, LostRace, Publisher
from store.errors import InvalidArgument, NotFound, UpstreamError

DEFAULT_PORT: Final = 9083
_FIELDS: Final = {"LONG": "longStats", "DOUBLE": "doubleStats", "DECIMAL": "decimalStats", "DATE": "dateStats",
                  "STRING": "stringStats", "BINARY": "binaryStats"}  # fmt: skip


class HivePublisher(Publisher):
    """Column statistics and row counts in a Hive metastore."""

    home: ClassVar[str] = "hive"
    options: ClassVar[frozenset[str]] = frozenset({"uri", "database", "table", "catalog"})

    def prepare(self) -> Draft:
        self.check_current()
        statistics = self.statistics
        left_out = dict(statistics.left_out)
        columns = hive_columns(statistics.columns, self._types, left_out)
        return Draft(
            statistics.snapshot_id, self._name, {column.name: column.distinct for column in columns}, left_out, columns
        )

    def write(self, draft: Draft) -> int | None:
        from pymetastore.hive_metastore import ttypes

        database, table = self._table
        about = ttypes.ColumnStatisticsDesc(
            isTblLevel=True, dbName=database, tableName=table, lastAnalyzed=int(time.time()),
            catName=self.destination.options.get("catalog"),
        )  # fmt: skip
        withdrawn = [name.lower() for name in self.statistics.left_out if name.lower() in self._types]
        request = ttypes.TableStatsRequest(dbName=database, tblName=table, colNames=withdrawn, catName=about.catName)
        with self._opened() as client:
            before = self._write_counts(client)
            try:
                client.update_table_column_statistics(
                    ttypes.ColumnStatistics(statsDesc=about, statsObj=[_item(column) for column in draft.content])
                )
            except Exception:
                if before is not None:
                    self._alter(client, before)
                raise
            # delete statistics of an earlier publication that may no longer be published
            for item in (client.get_table_statistics_req(request).tableStats or ()) if withdrawn else ():
                client.delete_table_column_statistics(database, table, item.colName)
        return None

    def read(self) -> HomeStatistics | None:
        from pymetastore.hive_metastore import ttypes

        database, table = self._table
        ours = {column.name.lower(): column.name for column in self.statistics.columns}
        names = [name for name in ours if name in self._types]
        request = ttypes.TableStatsRequest(
            dbName=database, tblName=table, colNames=names, catName=self.destination.options.get("catalog")
        )
        with self._opened() as client:
            stored = client.get_table_statistics_req(request).tableStats or []
        distinct = {}
        for item in stored:
            statistics = next(
                (data for field in _FIELDS.values() if (data := getattr(item.statsData, field)) is not None), None
            )
            distinct[ours.get(item.colName.lower(), item.colName)] = getattr(statistics, "numDVs", None)
        return HomeStatistics(None, self._name, distinct) if distinct else None

    def read_all(self) -> Sequence[HomeStatistics]:
        """Column statistics of the metastore, and those of Spark in the table's parameters."""
        stored = self.read()
        with self._opened() as client:
            parameters: Mapping[str, str] = client.get_table(*self._table).parameters or {}
            analyzed = {} if stored is None else {name: self._analyzed_at(client, name) for name in stored.distinct}
        of_metastore = []
        if stored is not None:
            known = {name: at for name, at in analyzed.items() if at is not None}
            of_metastore.append(replace(stored, row_count=count(parameters, ROWS), analyzed_at=known))
        names = {column.name.lower(): column.name for column in self.statistics.columns}
        of_spark = spark_statistics(parameters, f"Spark's ANALYZE of {self._name}", names, changed_at(parameters))
        return of_metastore if of_spark is None else [*of_metastore, of_spark]

    def _analyzed_at(self, client: Any, column: str) -> datetime | None:
        """Time at which a column's statistics were written; None if unknown."""
        statistics = client.get_table_column_statistics(*self._table, column.lower())
        seconds = statistics.statsDesc.lastAnalyzed
        return datetime.fromtimestamp(seconds, UTC) if seconds else None

    def _write_counts(self, client: Any) -> Any:
        """Writes row count and size into the table's entry; returns the former entry, None if nothing was written."""
        import copy

        from pymetastore.hive_metastore import ttypes

        before = client.get_table(*self._table)
        parameters = with_counts(before.parameters or {}, self.statistics)
        if parameters is None:
            return None
        table = copy.copy(before)
        table.parameters = parameters
        try:
            self._alter(client, table)
        except ttypes.MetaException as refusal:
            if not _is_denied(refusal):
                raise
            self.remarks.append("row count left out: the table's entry may not be changed")
            return None
        return before

    def _alter(self, client: Any, table: Any) -> None:
        """Replaces the table's entry; newer metastores reject this if the entry changed meanwhile."""
        from pymetastore.hive_metastore import ttypes

        request = {"DO_NOT_UPDATE_STATS": "true"}
        if (changed := (table.parameters or {}).get(CHANGED_AT)) is not None:
            request |= {"expected_parameter_key": CHANGED_AT, "expected_parameter_value": changed}
        client.alter_table_with_environment_context(*self._table, table, ttypes.EnvironmentContext(properties=request))

    def withdraw(self) -> bool:
        stored = self.read()
        with self._opened() as client:
            for column in () if stored is None else stored.distinct:
                client.delete_table_column_statistics(*self._table, column.lower())
        return stored is not None

    @cached_property
    def _types(self) -> dict[str, str]:
        with self._opened() as client:
            table = client.get_table(*self._table)
        columns = [*(table.sd.cols or ()), *(table.partitionKeys or ())]
        return {column.name.lower(): column.type for column in columns}

    @property
    def _table(self) -> tuple[str, str]:
        options = self.destination.options
        return options.get("database", self.statistics.namespace), options.get("table", self.statistics.name)

    @property
    def _name(self) -> str:
        return ".".join(self._table)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Opens a client of the metastore and translates its errors."""
        from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.Thrift import TException
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

        host, port = self._address
        socket = TSocket(host, port)
        socket.setTimeout(timeout_of(self.destination.config.options) * 1000)
        transport = TBufferedTransport(socket)
        try:
            transport.open()
            yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        except ttypes.NoSuchObjectException:
            raise NotFound(
                f"hive: {self._name} does not exist in the metastore", code="UNKNOWN_TABLE",
                hint="name it with the options database and table",
            ) from None  # fmt: skip
        except ttypes.MetaException as refusal:
            text = str(refusal.message or "no reason given")
            if _is_denied(refusal):
                raise PermissionError from None
            if any(word in text.lower() for word in ("concurrent", "deadlock", "has been modified")):
                raise LostRace("hive: the metastore is being changed by another writer") from None
            raise UpstreamError(f"hive: the metastore refused ({text[:200]})") from None
        except (ttypes.InvalidInputException, ttypes.InvalidOperationException) as refusal:
            raise InvalidArgument(f"hive: the metastore refused ({str(refusal.message)[:200]})") from None
        except (TException, OSError) as error:
            raise UpstreamError(f"hive: {host}:{port} cannot be reached ({type(error).__name__})") from None
        finally:
            transport.close()

    @cached_property
    def _address(self) -> tuple[str, int]:
        uri = self.destination.options.get("uri", "")
        address = urlsplit(uri)
        if address.scheme != "thrift" or not address.hostname:
            raise InvalidArgument(
                f"options.uri: must be the address of a metastore, such as thrift://host:{DEFAULT_PORT}; "
                + (f"got {uri!r}" if uri else "it is missing"),
                params={"field": "options.uri"},
            )
        return address.hostname, address.port or DEFAULT_PORT


def _is_denied(refusal: Any) -> bool:
    text = str(refusal.message).lower()
    return "permission denied" in text or "not authorized" in text


def _item(column: HiveColumn) -> Any:
    from pymetastore.hive_metastore import ttypes

    counts: dict[str, Any] = {"numNulls": column.nulls}
    if column.kind != BINARY:
        counts["numDVs"] = column.distinct
    if column.kind in (LONG, DOUBLE, DATE, DECIMAL):
        bounds = (("lowValue", column.low), ("highValue", column.high))
        counts |= {side: _value(value, column.kind) for side, value in bounds if value is not None}
    else:
        counts |= {"maxColLen": column.greatest_bytes, "avgColLen": column.average_bytes}
    make = {"LONG": ttypes.LongColumnStatsData, "DOUBLE": ttypes.DoubleColumnStatsData,
            "DECIMAL": ttypes.DecimalColumnStatsData, "DATE": ttypes.DateColumnStatsData,
            "STRING": ttypes.StringColumnStatsData, "BINARY": ttypes.BinaryColumnStatsData}[column.kind]  # fmt: skip
    data = ttypes.ColumnStatisticsData(**{_FIELDS[column.kind]: make(**counts)})
    return ttypes.ColumnStatisticsObj(colName=column.name.lower(), colType=column.hive_type, statsData=data)


def _value(value: Any, kind: str) -> Any:
    from pymetastore.hive_metastore import ttypes

    if kind == DATE:
        return ttypes.Date(daysSinceEpoch=value)
    if kind == DECIMAL:
        number, scale = unscaled(value)
        return ttypes.Decimal(scale=scale, unscaled=number)
    return value
