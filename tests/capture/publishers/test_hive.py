"""The `hive` home against a Thrift server over loopback that keeps column statistics in memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.server.TServer import TThreadedServer
from thrift.transport.TSocket import TServerSocket, TSocket
from thrift.transport.TTransport import TBufferedTransportFactory

from capture.publishers.publishing import publish, withdraw
from capture.publishers.spi import LostRace
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import Table, known_columns, rows
from tests.capture.publishers.metastore_contract import MetastoreContract

TYPES = {"id": "bigint", "label": "string", "price": "decimal(10,2)", "day": "date", "raw": "binary", "ratio": "double"}


class Metastore:
    """The calls that the publisher makes, of one table `default.t`."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.described: Any = None
        self.faults: list[Exception] = []
        self.parameters = {"transient_lastDdlTime": "1700000000", "owner": "somebody"}
        self.altered: list[dict[str, str]] = []  # properties of each change of the entry
        self.refusal: Exception | None = None  # raised by changes of the entry

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        if (dbname, tbl_name) != ("default", "t"):
            raise ttypes.NoSuchObjectException(message="no such table")
        columns = [ttypes.FieldSchema(name=name, type=type) for name, type in TYPES.items()]
        described = ttypes.StorageDescriptor(cols=columns)
        return ttypes.Table(dbName=dbname, tableName=tbl_name, sd=described, parameters=dict(self.parameters))

    def alter_table_with_environment_context(self, dbname: str, tbl_name: str, new: Any, context: Any) -> None:
        if self.refusal:
            raise self.refusal
        properties = context.properties
        if self.parameters.get(properties["expected_parameter_key"]) != properties["expected_parameter_value"]:
            raise ttypes.MetaException(message="The table has been modified.")
        assert len(new.sd.cols) == len(TYPES)
        self.altered.append(properties)
        self.parameters = dict(new.parameters)

    def get_table_column_statistics(self, db_name: str, tbl_name: str, col_name: str) -> Any:
        about = ttypes.ColumnStatisticsDesc(True, db_name, tbl_name, lastAnalyzed=self.described.lastAnalyzed)
        return ttypes.ColumnStatistics(statsDesc=about, statsObj=[self.stored[col_name]])

    def update_table_column_statistics(self, stats_obj: Any) -> bool:
        if self.faults:
            raise self.faults.pop(0)
        self.described = stats_obj.statsDesc
        self.stored |= {item.colName: item for item in stats_obj.statsObj}
        return True

    def get_table_statistics_req(self, request: Any) -> Any:
        found = [self.stored[name] for name in request.colNames if name in self.stored]
        return ttypes.TableStatsResult(tableStats=found)

    def delete_table_column_statistics(self, db_name: str, tbl_name: str, col_name: str) -> bool:
        del self.stored[col_name]
        return True


@pytest.fixture
def metastore():
    store = Metastore()
    socket = TServerSocket("127.0.0.1", 0)
    server = TThreadedServer(
        ThriftHiveMetastore.Processor(store), socket, TBufferedTransportFactory(), TBinaryProtocolFactory(), daemon=True
    )
    socket.listen()
    port = socket.handle.getsockname()[1]
    socket.listen = lambda: None
    running = threading.Event()

    def serve() -> None:
        running.set()
        while not stopped.is_set():
            client = socket.accept()
            if client is not None and not stopped.is_set():
                server.handle(client)
            elif client is not None:
                client.close()

    stopped = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    running.wait()
    yield store, f"thrift://127.0.0.1:{port}"
    stopped.set()
    last = TSocket("127.0.0.1", port)
    last.open()  # wakes up the waiting accept
    last.close()
    thread.join()
    socket.close()


class TestContract(MetastoreContract):
    @pytest.fixture
    def table(self, tmp_path: Path, metastore) -> Table:
        return parquet_tables.built("hive", tmp_path, rows(0, 150), uri=metastore[1])

    @pytest.fixture
    def home(self, metastore):
        return metastore[0]


def test_column_statistics_of_each_type(tmp_path, metastore):
    store, uri = metastore
    table = parquet_tables.built("hive", tmp_path, rows(0, 150), uri=uri)
    facts = [
        ("id", "INT", "-3", "9"),
        ("label", "STRING", "a", "z"),
        ("price", "DECIMAL(10,2)", "-1.5", "2.25"),
        ("day", "DATE", "1969-12-31", "1970-01-04"),
        ("raw", "BINARY", None, None),
        ("ratio", "DOUBLE", "0", "1.0E7"),
    ]
    columns = known_columns(*facts)
    assert len(publish(table.publisher(table.statistics(columns=columns))).columns) == 6
    about = store.described
    assert (about.isTblLevel, about.dbName, about.tableName) == (True, "default", "t") and about.lastAnalyzed > 0
    stored = {name: item.statsData for name, item in store.stored.items()}
    assert stored["id"].longStats == ttypes.LongColumnStatsData(lowValue=-3, highValue=9, numNulls=7, numDVs=6)
    assert stored["label"].stringStats == ttypes.StringColumnStatsData(maxColLen=9, avgColLen=2.5, numNulls=7, numDVs=6)
    assert stored["price"].decimalStats.lowValue == ttypes.Decimal(scale=1, unscaled=b"\xf1")
    assert stored["day"].dateStats.lowValue == ttypes.Date(daysSinceEpoch=-1)
    assert stored["raw"].binaryStats == ttypes.BinaryColumnStatsData(maxColLen=9, avgColLen=2.5, numNulls=7)
    assert stored["ratio"].doubleStats.highValue == 1e7
    assert store.stored["price"].colType == "decimal(10,2)"


def test_refusals_of_the_metastore_are_errors_and_races_are_retried(tmp_path, metastore):
    store, uri = metastore
    table = parquet_tables.built("hive", tmp_path, rows(0, 150), uri=uri)

    def other(**options: str) -> Table:
        return Table(**{**vars(table), "options": {"uri": uri} | options})

    with pytest.raises(NotFound, match=r"default\.u does not exist"):
        publish(other(table="u").publisher())
    with pytest.raises(InvalidArgument, match=r"thrift://host:9083"):
        publish(other(uri="http://x").publisher())
    with pytest.raises(UpstreamError, match="cannot be reached"):
        publish(other(uri="thrift://127.0.0.1:1").publisher())
    store.faults.append(ttypes.MetaException(message="Permission denied: user=x"))
    with pytest.raises(InvalidArgument, match="permission denied"):
        publish(table.publisher())
    store.faults.append(ttypes.InvalidInputException(message="Column id doesn't exist"))
    with pytest.raises(InvalidArgument, match="Column id"):
        publish(table.publisher())
    store.faults.append(ttypes.MetaException(message="Concurrent modification"))
    assert publish(table.publisher(), pause=lambda _: None).columns == ("id", "label")


def test_row_count_and_size_are_parameters_of_the_table(tmp_path, metastore):
    store, uri = metastore
    table = parquet_tables.built("hive", tmp_path, rows(0, 150), uri=uri)
    publish(table.publisher())
    assert (store.parameters["numRows"], store.parameters["totalSize"]) == ("150", "4000")
    assert store.parameters["owner"] == "somebody" and store.altered[0]["DO_NOT_UPDATE_STATS"] == "true"
    publish(table.publisher())
    assert len(store.altered) == 1  # unchanged
    publish(table.publisher(table.statistics(total_size_bytes=None)))
    assert store.parameters["numRows"] == "150" and "totalSize" not in store.parameters
    publish(table.publisher())
    assert withdraw(table.publisher()) and store.parameters.keys().isdisjoint({"numRows", "totalSize"})
    assert store.parameters["owner"] == "somebody"
    publish(table.publisher())
    store.parameters |= {"table_type": "ICEBERG", "numRows": "1"}
    publish(table.publisher())
    assert store.parameters["numRows"] == "1"  # commits of Iceberg change the entry


def test_entry_is_restored_when_the_columns_are_refused(tmp_path, metastore):
    store, uri = metastore
    table, before = parquet_tables.built("hive", tmp_path, rows(0, 150), uri=uri), dict(store.parameters)
    store.faults.append(ttypes.InvalidInputException(message="no"))
    with pytest.raises(InvalidArgument):
        publish(table.publisher())
    assert (store.parameters, store.stored) == (before, {})


def test_denied_entry_is_left_out_and_a_modified_entry_loses_the_race(tmp_path, metastore):
    store, uri = metastore
    table = parquet_tables.built("hive", tmp_path, rows(0, 150), uri=uri)
    store.refusal = ttypes.MetaException(message="User x is not authorized")
    publication = publish(table.publisher())
    assert publication.columns == ("id", "label") and "row count left out" in publication.detail
    store.refusal = ttypes.MetaException(message="The table has been modified.")
    with pytest.raises(LostRace, match="another writer"):
        publish(table.publisher(), pause=lambda _: None)
