"""The `glue` home against a small fake of the API over loopback: moto has none of these calls."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import replace
from decimal import Decimal
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from capture.publishers.hive_types import unscaled
from capture.publishers.publishing import publish, withdraw
from capture.publishers.spi import ColumnStatistics
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import Table, known_columns, rows
from tests.capture.publishers.metastore_contract import MetastoreContract

TYPES = {
    "id": "bigint",
    "label": "string",
    "price": "decimal(10,2)",
    "day": "date",
    "raw": "binary",
    "at": "timestamp",
    "ratio": "double",
    "flag": "boolean",
    "list": "array<int>",
}


class Glue(BaseHTTPRequestHandler):
    """Column statistics of the tables `default.t` and `default.wide`, kept in memory."""

    stored: dict[str, dict[str, Any]]
    calls: list[tuple[str, int]]
    faults: list[dict[str, Any]]  # responses to the next updates
    entry: dict[str, Any]  # of the tables, besides their columns
    columns: ClassVar[dict[str, str]] = {f"c{i}": "bigint" for i in range(60)}  # of `wide`

    def do_POST(self) -> None:
        method = self.headers["X-Amz-Target"].partition(".")[2]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self._answer(method, body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, method: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        stored = self.stored
        if method == "GetTable":
            if body["DatabaseName"] != "default" or body["Name"] not in ("t", "wide"):
                return 400, {"__type": "EntityNotFoundException", "Message": "no such table"}
            names = TYPES if body["Name"] == "t" else self.columns
            columns = [{"Name": name, "Type": type} for name, type in names.items()]
            table = {"Name": body["Name"], "StorageDescriptor": {"Columns": columns}, "CreatedBy": "x"} | self.entry
            return 200, {"Table": table}
        if method == "UpdateTable":
            if body["VersionId"] != self.entry["VersionId"]:
                return 400, {"__type": "ConcurrentModificationException", "Message": "not the newest"}
            if denied := self.entry.get("Description") == "denied":
                return 400, {"__type": "AccessDeniedException", "Message": f"denied: {denied}"}
            given = body["TableInput"]
            assert body["SkipArchive"] and given["StorageDescriptor"]["Columns"] and "CreatedBy" not in given
            self.entry |= {"Parameters": given["Parameters"], "VersionId": str(int(body["VersionId"]) + 1)}
            return 200, {}
        if method == "UpdateColumnStatisticsForTable":
            items = body["ColumnStatisticsList"]
            self.calls.append((method, len(items)))
            assert len(items) <= 25
            if self.faults and (fault := self.faults.pop(0)):
                return fault["status"], fault["answer"]
            for item in items:
                stored[item["ColumnName"]] = item
            return 200, {"Errors": []}
        if method == "GetColumnStatisticsForTable":
            assert len(body["ColumnNames"]) <= 100
            return 200, {"ColumnStatisticsList": [stored[n] for n in body["ColumnNames"] if n in stored], "Errors": []}
        assert method == "DeleteColumnStatisticsForTable"
        stored.pop(body["ColumnName"], None)
        return 200, {}

    def log_message(self, *_: object) -> None: ...


@cache
def running() -> ThreadingHTTPServer:
    """One server, and so one client, for all tests of this process; it ends with the process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Glue)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def glue():
    handler = type(
        "Handler",
        (Glue,),
        {
            "stored": {},
            "calls": [],
            "faults": [],
            "entry": {"VersionId": "7", "Parameters": {"classification": "parquet"}},
        },
    )
    server = running()
    server.RequestHandlerClass = handler
    return handler, f"http://127.0.0.1:{server.server_port}"


def options(url: str, **more: str) -> dict[str, str]:
    return {"endpoint_url": url, "region": "us-east-1", "access_key_id": "key", "secret_access_key": "hush"} | more


class TestContract(MetastoreContract):
    @pytest.fixture
    def table(self, tmp_path: Path, glue) -> Table:
        return parquet_tables.built("glue", tmp_path, rows(0, 150), **options(glue[1]))

    @pytest.fixture
    def home(self, glue):
        return glue[0]


def test_column_statistics_of_each_type(tmp_path, glue):
    handler, url = glue
    table = parquet_tables.built("glue", tmp_path, rows(0, 150), **options(url))
    facts = [
        ("id", "INT", "-3", "9"),
        ("label", "STRING", "a", "z"),
        ("price", "DECIMAL(10,2)", "-1.5", "2.25"),
        ("day", "DATE", "1970-01-03", "1970-01-04"),
        ("raw", "BINARY", None, None),
        ("at", "TIMESTAMPTZ", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("ratio", "DOUBLE", "0", "1.0E7"),
        ("flag", "BOOLEAN", "false", "true"),
        ("list", "ARRAY", None, None),
        ("gone", "INT", "1", "2"),
    ]
    columns = known_columns(*facts)
    publication = publish(table.publisher(table.statistics(columns=columns)))
    assert set(publication.left_out) == {"flag", "list", "gone"}
    counts = {"NumberOfNulls": 7, "NumberOfDistinctValues": 6}  # null is one, as Athena takes it
    stored = {name: item["StatisticsData"] for name, item in handler.stored.items()}
    assert stored["id"] == {
        "Type": "LONG",
        "LongColumnStatisticsData": counts | {"MinimumValue": -3, "MaximumValue": 9},
    }
    assert stored["label"] == {
        "Type": "STRING",
        "StringColumnStatisticsData": counts | {"MaximumLength": 9, "AverageLength": 2.5},
    }
    price = stored["price"]["DecimalColumnStatisticsData"]
    assert price["MinimumValue"] == {"UnscaledValue": base64.b64encode(b"\xf1").decode(), "Scale": 1}
    assert price["MaximumValue"] == {"UnscaledValue": base64.b64encode(b"\x00\xe1").decode(), "Scale": 2}
    assert stored["day"]["DateColumnStatisticsData"]["MinimumValue"] == 2 * 86400
    assert stored["raw"] == {
        "Type": "BINARY",
        "BinaryColumnStatisticsData": {"NumberOfNulls": 7, "MaximumLength": 9, "AverageLength": 2.5},
    }
    assert stored["at"] == {"Type": "LONG", "LongColumnStatisticsData": counts}
    assert handler.stored["price"]["ColumnType"] == "decimal(10,2)"


def test_columns_with_unknown_required_values_are_left_out(tmp_path, glue):
    table = parquet_tables.built("glue", tmp_path, rows(0, 150), **options(glue[1]))
    columns = (
        ColumnStatistics(1, "id", "INT", 150, None, ndv=5.0),
        ColumnStatistics(2, "ratio", "DOUBLE", 150, 0),
        ColumnStatistics(3, "label", "STRING", 150, 0, ndv=5.0),
        ColumnStatistics(4, "day", "DATE", 150, 0, ndv=5.0),
    )
    publication = publish(table.publisher(table.statistics(columns=columns)))
    assert publication.columns == ("day",)
    assert {name: why.partition(" is not known")[0] for name, why in publication.left_out.items()} == {
        "id": "the number of nulls",
        "ratio": "the number of distinct values",
        "label": "the width",
    }


def wide(tmp_path: Path, url: str) -> Table:
    names = {f"c{i}": pa.array(range(10), pa.int64()) for i in range(60)}
    return parquet_tables.built("glue", tmp_path, pa.table(names), **options(url, table="wide"))


def test_update_calls_have_at_most_25_columns(tmp_path, glue):
    handler, url = glue
    publish(wide(tmp_path, url).publisher())
    assert [size for _, size in handler.calls] == [25, 25, 10] and len(handler.stored) == 60


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 400, "answer": {"__type": "InvalidInputException", "Message": "no"}},
        {
            "status": 200,
            "answer": {
                "Errors": [
                    {"ColumnStatistics": {"ColumnName": f"c{i}"}, "Error": {"ErrorCode": "X", "ErrorMessage": "no"}}
                    for i in range(25, 50)
                ]
            },
        },
    ],
    ids=["refused", "errors"],
)
def test_failure_of_a_later_call_leaves_the_old_state(tmp_path, glue, fault):
    handler, url = glue
    table = wide(tmp_path, url)
    statistics = table.statistics()
    publish(table.publisher(table.statistics(columns=statistics.columns[:3])))
    before = {name: item["StatisticsData"] for name, item in handler.stored.items()}
    handler.faults += [{}, fault]
    with pytest.raises(UpstreamError, match="glue"):
        publish(table.publisher(statistics))
    assert {name: item["StatisticsData"] for name, item in handler.stored.items()} == before


def test_concurrent_modification_is_retried(tmp_path, glue):
    handler, url = glue
    table = parquet_tables.built("glue", tmp_path, rows(0, 150), **options(url))
    handler.faults += [{"status": 400, "answer": {"__type": "ConcurrentModificationException", "Message": "x"}}]
    assert publish(table.publisher(), pause=lambda _: None).columns == ("id", "label")


def test_missing_table_and_denied_access_are_errors(tmp_path, glue):
    handler, url = glue
    table = parquet_tables.built("glue", tmp_path, rows(0, 150), **options(url, database="nowhere"))
    with pytest.raises(NotFound, match=r"nowhere\.t does not exist"):
        publish(table.publisher())
    handler.faults += [{"status": 400, "answer": {"__type": "AccessDeniedException", "Message": "no"}}]
    with pytest.raises(InvalidArgument, match="permission denied") as refusal:
        publish(Table(**{**vars(table), "options": options(url)}).publisher())
    assert refusal.value.code == "READ_ONLY" and "hush" not in str(refusal.value)


@pytest.mark.parametrize("text", ["0", "-1", "127.5", "128", "-128.25", "1E+3", "99999999999999999999.99"])
def test_unscaled_decimals_have_the_fewest_bytes(text):
    number, scale = unscaled(Decimal(text))
    assert Decimal(int.from_bytes(number, "big", signed=True)).scaleb(-scale) == Decimal(text)
    assert len(number) == 1 or number[:1] not in (b"\x00", b"\xff") or (number[0] ^ number[1]) & 0x80


def test_columns_are_named_as_in_the_catalog(tmp_path, glue):
    """Readers ask for the statistics of the catalog's columns, which are mostly in lower case."""
    handler, url = glue
    table = parquet_tables.built("glue", tmp_path, rows(0, 150).rename_columns(["ID", "Label"]), **options(url))
    assert publish(table.publisher()).columns == ("ID", "Label") and set(handler.stored) == {"id", "label"}
    first, second = table.statistics().columns
    publish(table.publisher(table.statistics(columns=(first, replace(second, null_count=None)))))
    assert set(handler.stored) == {"id"}
    assert withdraw(table.publisher()) and not handler.stored


def test_row_count_and_size_are_parameters_of_the_table(tmp_path, glue):
    handler, url = glue
    table = parquet_tables.built("glue", tmp_path, rows(0, 150), **options(url))
    publish(table.publisher())
    stored = handler.entry["Parameters"]
    assert (stored["numRows"], stored["totalSize"], stored["classification"]) == ("150", "4000", "parquet")
    publish(table.publisher())
    assert handler.entry["VersionId"] == "8"  # unchanged
    assert withdraw(table.publisher()) and handler.entry["Parameters"] == {"classification": "parquet"}
    publish(table.publisher())
    handler.entry |= {"Parameters": {"table_type": "ICEBERG"}}
    publish(table.publisher())
    assert handler.entry["VersionId"] == "10"  # commits of Iceberg change the entry
    handler.entry |= {"Parameters": {}, "Description": "denied"}
    publication = publish(table.publisher())
    assert publication.columns == ("id", "label") and "row count left out" in publication.detail
