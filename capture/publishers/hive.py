"""Home `hive`: column statistics in a Hive metastore, for Trino, Hive and Impala, over its Thrift interface.

A first call writes row count and size, which are parameters of the table; a second one writes all columns in one
transaction of the metastore. Spark does not read these columns; its home is `spark`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from capture.connectors.options import timeout_of
from capture.publishers.hive_types import (
    CHANGED_AT,
    DATE,
    DECIMAL,
    HiveColumn,
    HivePublisherBase,
    changed_at,
    unscaled,
    with_counts,
    without_null,
)
from capture.publishers.spi import ColumnStatistics, Draft, HomeStatistics, LostRace, TableStatistics
from store.model.errors import InvalidArgument, InvalidField, UpstreamError

DEFAULT_PORT: Final = 9083
_FIELDS: Final = {
    "LONG": "longStats",
    "DOUBLE": "doubleStats",
    "DECIMAL": "decimalStats",
    "DATE": "dateStats",
    "STRING": "stringStats",
    "BINARY": "binaryStats",
}
_VALUES: Final = {
    "nulls": "numNulls",
    "distinct": "numDVs",
    "low": "lowValue",
    "high": "highValue",
    "greatest_bytes": "maxColLen",
    "average_bytes": "avgColLen",
}


class HivePublisher(HivePublisherBase):
    """Column statistics and row counts in a Hive metastore."""

    home: ClassVar[str] = "hive"
    options: ClassVar[frozenset[str]] = frozenset({"uri", "database", "table", "catalog"})

    def write(self, draft: Draft) -> int | None:
        from pymetastore.hive_metastore import ttypes

        database, table = self.place
        about = ttypes.ColumnStatisticsDesc(
            isTblLevel=True,
            dbName=database,
            tableName=table,
            lastAnalyzed=int(time.time()),
            catName=self.destination.options.get("catalog"),
        )
        with self._opened() as client:
            before = self._write_counts(client, self.statistics)
            try:
                client.update_table_column_statistics(
                    ttypes.ColumnStatistics(statsDesc=about, statsObj=[_item(column) for column in draft.content])
                )
            except Exception:
                if before is not None:
                    self._alter(client, before)
                raise
        if withdrawn := self.withdrawn(draft):
            self.delete(withdrawn)
        return None

    def stored(self, names: Sequence[str]) -> Iterable[tuple[str, int | None, datetime | None]]:
        from pymetastore.hive_metastore import ttypes

        database, table = self.place
        request = ttypes.TableStatsRequest(
            dbName=database,
            tblName=table,
            colNames=list(names),
            catName=self.destination.options.get("catalog"),
        )
        with self._opened() as client:
            for item in client.get_table_statistics_req(request).tableStats or ():
                data = next(filter(None, (getattr(item.statsData, field) for field in _FIELDS.values())), None)
                yield item.colName, without_null(getattr(data, "numDVs", None), getattr(data, "numNulls", None)), None

    def delete(self, names: Sequence[str]) -> None:
        with self._opened() as client:
            for name in names:
                client.delete_table_column_statistics(*self.place, name)

    def parameters(self) -> tuple[Mapping[str, str], datetime | None]:
        with self._opened() as client:
            parameters = client.get_table(*self.place).parameters or {}
        return parameters, changed_at(parameters)

    def analyzed_at(self, stored: HomeStatistics) -> Mapping[str, datetime]:
        times = {}
        with self._opened() as client:
            for name in stored.distinct:
                about = client.get_table_column_statistics(*self.place, name.lower()).statsDesc
                if about.lastAnalyzed:
                    times[name] = datetime.fromtimestamp(about.lastAnalyzed, UTC)
        return times

    def write_counts(self, statistics: TableStatistics | None) -> None:
        with self._opened() as client:
            self._write_counts(client, statistics)

    def _write_counts(self, client: Any, statistics: TableStatistics | None) -> Any:
        """`write_counts`; returns the former entry, None if nothing was written."""
        import copy

        from pymetastore.hive_metastore import ttypes

        before = client.get_table(*self.place)
        parameters = with_counts(before.parameters or {}, statistics)
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
        client.alter_table_with_environment_context(*self.place, table, ttypes.EnvironmentContext(properties=request))

    def columns(self) -> Iterable[tuple[str, str]]:
        return ((column.name, column.type) for column in self._entry.sd.cols or ())

    def refusal(self, column: ColumnStatistics) -> str:
        if any(key.name == column.name.lower() for key in self._entry.partitionKeys or ()):
            return "is a partition column, and a metastore refuses statistics of it"
        return super().refusal(column)

    @cached_property
    def _entry(self) -> Any:
        """The table's entry in the metastore."""
        with self._opened() as client:
            return client.get_table(*self.place)

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
            raise self.unknown_table() from None
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
            expected = f"an address such as thrift://host:{DEFAULT_PORT}"
            raise InvalidField("options.uri", "must be that of a metastore", expected=expected, actual=uri or None)
        return address.hostname, address.port or DEFAULT_PORT


def _is_denied(refusal: Any) -> bool:
    text = str(refusal.message).lower()
    return "permission denied" in text or "not authorized" in text


def _item(column: HiveColumn) -> Any:
    from pymetastore.hive_metastore import ttypes

    counts = column.values(_VALUES, partial(_value, column.kind))
    make = {
        "LONG": ttypes.LongColumnStatsData,
        "DOUBLE": ttypes.DoubleColumnStatsData,
        "DECIMAL": ttypes.DecimalColumnStatsData,
        "DATE": ttypes.DateColumnStatsData,
        "STRING": ttypes.StringColumnStatsData,
        "BINARY": ttypes.BinaryColumnStatsData,
    }[column.kind]
    data = ttypes.ColumnStatisticsData(**{_FIELDS[column.kind]: make(**counts)})
    return ttypes.ColumnStatisticsObj(colName=column.name, colType=column.hive_type, statsData=data)


def _value(kind: str, value: Any) -> Any:
    from pymetastore.hive_metastore import ttypes

    if kind == DATE:
        return ttypes.Date(daysSinceEpoch=value)
    if kind == DECIMAL:
        number, scale = unscaled(value)
        return ttypes.Decimal(scale=scale, unscaled=number)
    return value
