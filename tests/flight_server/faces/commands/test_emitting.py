"""`statflight emit`: documents for data catalogs, printed or sent over loopback."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from flight_server.faces.present.profiles import Profile, datahub, openlineage, openmetadata
from store.model.format_facts import FormatFacts
from tests.flight_server.fake_server import FakeServer
from tests.http_receiver import receiving

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 7}
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
COLUMNS = [
    KEY
    | {
        "column_id": 1,
        "column_name": "id",
        "logical_type": "INT",
        "row_count": 10,
        "null_count": 2,
        "ndv": 8.0,
        "min": "0",
        "max": "9",
        "mean": 4.5,
        "stddev": 3.0,
        "max_width_bytes": 8,
    },
    KEY
    | {
        "column_id": 2,
        "column_name": "name",
        "logical_type": "STRING",
        "row_count": 10,
        "null_count": None,
        "ndv": None,
        "min": "a",
        "max": "z",
        "max_width_bytes": 12,
        "mean": None,
        "stddev": None,
    },
    KEY
    | {
        "column_id": 3,
        "column_name": "ratio",
        "logical_type": "DOUBLE",
        "row_count": 10,
        "null_count": 0,
        "ndv": 3.2,
        "min": "-Infinity",
        "max": "1.5",
        "max_width_bytes": 8,
        "mean": None,
        "stddev": None,
    },
]
FACTS = json.dumps(FormatFacts(platform="delta-lake").as_property)
TABLE = KEY | {"format": "delta", "location": "s3://bucket/lake/t", "properties": FACTS}
RECORD = KEY | {"row_count": 10, "data_file_count": 2, "total_size_bytes": 99}
BUCKETS = [
    KEY
    | {"column_id": 1, "column_name": "id", "bucket": i, "lower": str(i * 5), "upper": str(i * 5 + 4), "row_count": 4.0}
    for i in range(2)
]
COMMON = [KEY | {"column_id": 2, "column_name": "name", "rank": 1, "value": "secret", "count": 5}]


def profile(**changed) -> Profile:
    parts = {
        "table": TABLE,
        "record": RECORD,
        "columns": COLUMNS,
        "quantiles": {1: {0.25: "2", 0.5: "4"}},
        "histograms": {1: BUCKETS},
    }
    return Profile(**(parts | changed))


def test_openlineage_document_has_numbers_only():
    event = openlineage(profile(), NOW)
    assert event["eventTime"] == "2026-01-02T03:04:05.678Z"
    dataset = event["dataset"]
    assert (dataset["namespace"], dataset["name"]) == ("s3://bucket", "lake/t")
    facet = dataset["facets"]["dataQualityMetrics"]
    assert (facet["rowCount"], facet["bytes"], facet["fileCount"]) == (10, 99, 2)
    assert facet["columnMetrics"] == {
        "id": {"nullCount": 2, "distinctCount": 8, "count": 10, "min": 0, "max": 9, "quantiles": {"0.25": 2, "0.5": 4}},
        "name": {"count": 10},
        "ratio": {"nullCount": 0, "distinctCount": 3, "count": 10, "max": 1.5},
    }
    assert dataset["facets"]["version"]["datasetVersion"] == "7"
    assert event["producer"] == "urn:statflight"  # no address that nobody answers at
    local = openlineage(profile(table=TABLE | {"location": "/lake/t"}), NOW)["dataset"]
    assert (local["namespace"], local["name"]) == ("file", "/lake/t")


def test_datahub_document_has_all_statistics_and_values_on_request():
    proposal = datahub(profile(), NOW)["proposal"]
    assert proposal["entityUrn"] == "urn:li:dataset:(urn:li:dataPlatform:delta-lake,lake.s.t,PROD)"
    plain = datahub(profile(table=TABLE | {"properties": None}), NOW)["proposal"]
    assert plain["entityUrn"] == "urn:li:dataset:(urn:li:dataPlatform:delta,lake.s.t,PROD)"
    value = json.loads(proposal["aspect"]["value"])
    assert (value["rowCount"], value["columnCount"], value["sizeInBytes"]) == (10, 3, 99)
    first, second, _ = value["fieldProfiles"]
    assert first == {
        "fieldPath": "id",
        "uniqueCount": 8,
        "uniqueProportion": 0.8,
        "nullCount": 2,
        "nullProportion": 0.2,
        "min": "0",
        "max": "9",
        "mean": "4.5",
        "stdev": "3.0",
        "median": "4",
        "quantiles": [{"quantile": "0.25", "value": "2"}, {"quantile": "0.5", "value": "4"}],
        "histogram": {"boundaries": ["0", "4", "9"], "heights": [4.0, 4.0]},
    }
    assert second == {"fieldPath": "name", "min": "a", "max": "z"}
    with_values = json.loads(datahub(profile(common={2: COMMON}), NOW)["proposal"]["aspect"]["value"])
    assert with_values["fieldProfiles"][1]["distinctValueFrequencies"] == [{"value": "secret", "frequency": 5}]


def test_openmetadata_document_has_known_keys_only():
    body = openmetadata(profile(), NOW)
    at = int(NOW.timestamp() * 1000)
    assert body["tableProfile"] == {"timestamp": at, "rowCount": 10, "columnCount": 3, "sizeInByte": 99}
    known = {
        "name",
        "timestamp",
        "valuesCount",
        "nullCount",
        "nullProportion",
        "distinctCount",
        "distinctProportion",
        "min",
        "max",
        "minLength",
        "maxLength",
        "mean",
        "median",
        "firstQuartile",
        "thirdQuartile",
        "histogram",
    }
    assert all(set(column) <= known and column["timestamp"] == at for column in body["columnProfile"])
    first, second, third = body["columnProfile"]
    assert (first["min"], first["max"], first["median"], first["firstQuartile"]) == (0, 9, 4, 2)
    assert "min" not in second and second["maxLength"] == 12 and "min" not in third and third["max"] == 1.5


@pytest.fixture
def server():
    with FakeServer() as found:
        found.rows("information_schema.tables", {k: KEY[k] for k in KEY if k != "snapshot_id"} | {"table_type": "B"})
        found.rows("sys.tables", TABLE)
        found.rows("stats.tables", RECORD)
        found.rows("stats.columns", *COLUMNS)
        found.rows("stats.quantiles", KEY | {"column_id": 1, "column_name": "id", "quantile": 0.5, "value": "4"})
        found.rows("stats.most_common_values", *COMMON)
        yield found


@pytest.fixture
def catalog():
    """A data catalog over loopback, which knows every table."""
    with receiving(lambda _: (200, b'{"id": "4711"}')) as server:
        yield server


def test_emit_without_a_url_prints_the_document(run):
    status, out, _ = run("emit", "lake.s.t", "--to", "openlineage")
    assert status == 0 and json.loads(out)["dataset"]["facets"]["dataQualityMetrics"]["rowCount"] == 10
    assert "secret" not in run("emit", "lake.s.t", "--to", "datahub")[1]
    assert "secret" in run("emit", "lake.s.t", "--to", "datahub", "--with-values")[1]


@pytest.mark.parametrize(
    ("to", "calls"),
    [
        ("openlineage", [("POST", "/api/v1/lineage")]),
        ("datahub", [("POST", "/aspects?action=ingestProposal")]),
        ("openmetadata", [("GET", "/api/v1/tables/name/lake.s.t"), ("PUT", "/api/v1/tables/4711/tableProfile")]),
    ],
)
def test_emit_with_a_url_sends_the_document(run, catalog, monkeypatch, to, calls):
    monkeypatch.setenv("STATFLIGHT_EMIT_TOKEN", "hush")
    status, out, err = run("emit", "lake.s.t", "--to", to, "--url", catalog.url)
    assert (status, out) == (0, "") and "lake.s.t: sent" in err
    assert [(call.method, call.path) for call in catalog.requests] == calls
    assert all(call.headers["Authorization"] == "Bearer hush" for call in catalog.requests)


def test_emit_fails_when_the_catalog_rejects_or_is_unreachable(run, catalog):
    catalog.answer = lambda _: (403, b'{"error": "no"}')
    status, _, err = run("emit", "lake.s.t", "--to", "datahub", "--url", catalog.url)
    assert status == 1 and "answered 403" in err and "Traceback" not in err
    assert "cannot be reached" in run("emit", "lake.s.t", "--to", "datahub", "--url", "http://127.0.0.1:1")[2]


@pytest.mark.parametrize(
    "flags",
    [["--to", "elsewhere"], ["--to", "datahub", "--url", "ftp://x"], ["--to", "openlineage", "--with-values"], []],
    ids=str,
)
def test_usage_error_is_status_2(run, flags):
    assert run("emit", "lake.s.t", *flags)[0] == 2


def test_emit_without_statistics_suggests_capture(run, server):
    server.rows("stats.columns")
    status, _, err = run("emit", "lake.s.t", "--to", "datahub")
    assert status == 1 and "capture it first" in err
