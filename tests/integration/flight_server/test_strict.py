"""Strict reads over the wire: requests that they reject, and requests that they do not."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from flight_server.client import StatsClient
from store.model.sketches import kll

NAME = "strict.s.t"
ROW = {"table_catalog": "strict", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "column_id": 1}


@pytest.fixture(scope="module", autouse=True)
def stored(live_server):
    rows = [
        ROW
        | {
            "column_id": i,
            "column_name": f"c{i}",
            "row_count": i,
            "producer": "ENGINE_COMPUTED",
            "completeness": "COMPLETE",
            "capture_mode": "SYNC",
            "logical_type": "STRING" if i % 2 else "INT",
        }
        for i in range(1, 5)
    ]
    sketch = ROW | {
        "column_id": 2,
        "target_kind": "COLUMN",
        "role": "QUANTILES",
        "sketch_type": "apache-datasketches-kll-doubles-v1",
        "data": kll(np.array([1.0, 2.0])),
    }
    with live_server.connect() as client:
        client.put("stats.columns", pa.Table.from_pylist(rows))
        client.put("stats.sketches", pa.Table.from_pylist([sketch]))


INVALID = [
    ({"columns": ["ndv", "colum_name"]}, "UNKNOWN_COLUMN"),
    ({"filter": {"not": {"column": "row_cuont", "op": "IS_NULL"}}}, "UNKNOWN_COLUMN"),
    ({"predicates": [{"column": "captured_at", "op": "GT", "values": ["yesterday"]}]}, "BAD_LITERAL"),
]


@pytest.mark.parametrize(("part", "code"), INVALID)
def test_strict_read_rejects_unknown_columns_and_bad_literals(live_client, part, code):
    for call in (live_client.get, live_client.info):
        with pytest.raises(pa.ArrowInvalid, match=rf"^\[{code}\] "):
            call({"table": "stats.columns", "strict": True} | part)
    assert live_client.get({"table": "stats.columns", "limit": 0} | part).num_rows == 0


def test_strict_must_be_true_or_false(live_client):
    with pytest.raises(pa.ArrowInvalid, match="strict: must be true or false"):
        live_client.get({"table": "stats.columns", "strict": 1})


BY_VALUE = [
    (["EQ", 1.0], {1}),
    (["LT", "1.5"], {1}),
    (["EQ", 1.5], set()),
    (["IN", 1.0, 2.5, "3.0"], {1, 3}),
    (["NEQ", "1e0"], {2, 3, 4}),
    (["BETWEEN", 0.5, 2.5], {1, 2}),
]


@pytest.mark.parametrize(("condition", "ids"), BY_VALUE)
def test_numbers_compare_by_value_in_duckdb_and_in_slices(live_client, condition, ids):
    leaf = {"column": "column_id", "op": condition[0], "values": condition[1:]}
    named = [{"column": c, "op": "EQ", "values": [ROW[c]]} for c in ("table_catalog", "table_schema", "table_name")]
    for _, snapshot in product(range(3), (None, "current")):  # the third read is served from the cache
        command = {"table": "stats.columns", "predicates": [*named, leaf], "snapshot": snapshot, "strict": True}
        assert set(live_client.get(command)["column_id"].to_pylist()) == ids


def test_client_raises_for_an_unknown_table(live_server):
    with StatsClient(live_server.uri) as client:
        assert client.files(NAME).num_rows == 0
        with pytest.raises(
            pa.ArrowKeyError, match=r'\[UNKNOWN_TABLE\] no table "strict.s.tt"; did you mean "strict.s.t"'
        ):
            client.columns("strict.s.tt")


def test_resolve_of_a_histogram_fails_for_a_text_column(live_client):
    requests = [
        {
            "table": NAME,
            "snapshot": 1,
            "target": {"kind": "COLUMN", "column_id": i},
            "kinds": ["HISTOGRAM"],
            "mode": "SYNC",
        }
        for i in (1, 2)
    ]
    text, number = live_client.act("resolve", {"requests": requests})
    assert text["outcome"] == "FAILED" and number["outcome"] == "HIT"
    assert text["detail"] == "a value of type STRING has no HISTOGRAM; ask without it"


def test_merge_sketches_by_partition_fails_without_stored_files(live_client):
    request = {"table": NAME, "snapshot": 1, "column": "c1", "partitions": [json.dumps({"day": "2026-01-01"})]}
    with pytest.raises(pa.ArrowKeyError, match=r"no files of .* are stored.*; capture the table"):
        live_client.act("merge_sketches", request)
