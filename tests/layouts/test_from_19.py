"""The step from layout 19: which bounds lose their confidence."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from capture.connectors.metadata.known_writers import (
    DELTA,
    ENGINE_INFO,
    ICEBERG,
    ICEBERG_VERSION,
    UNNAMED,
    WriterName,
    doubt,
)
from store.duckdb.upgrades.from_19 import KNOWN, is_known
from store.replication.segment_files import digests
from tests.layouts import expected, readings, serving, unpack

FLIGHTS = ["stats.columns", "stats.file_columns"]


@pytest.mark.parametrize("name", ["apache-spark/4.0.0 x/3", "delta-rs:py-1.6.6", "Databricks-Runtime/16.4.x-photon"])
def test_known_writers_of_logs(name):
    assert is_known(json.dumps({"engineInfo": name}))
    assert not doubt(DELTA, WriterName.of(name, ENGINE_INFO), "INT")


@pytest.mark.parametrize("name", ["Trino/481", "Kernel-4.0.0/DEFAULT", "apache-spark/2.4", "delta-rs:2.0.0", "me"])
def test_unknown_writers_of_logs(name):
    assert not is_known(json.dumps({"engineInfo": name}))
    assert doubt(DELTA, WriterName.of(name, ENGINE_INFO), "INT")


def test_writers_of_manifests():
    known = "Apache Iceberg 1.10.0 (commit 2114bf6)"
    assert is_known(json.dumps({"iceberg-version": known, "engine-name": "spark", "engine-version": "4.0"}))
    assert not doubt(ICEBERG, WriterName.of(known, ICEBERG_VERSION), "INT")
    assert not is_known(json.dumps({"iceberg-version": "Apache Iceberg 2.0.0"}))
    assert not is_known(json.dumps({"engine-name": "duckdb", "engine-version": "1.4"}))
    assert is_known(json.dumps({"operation": "append"}))


@pytest.mark.parametrize("summary", ["{", "[]", '{"engineInfo": ""}', '{"engineInfo": null}', "{}"])
def test_a_summary_that_names_no_writer_changes_nothing(summary):
    assert is_known(summary)


def test_an_older_database_has_no_segments(tmp_path):
    """A replica that an older release has written can be restored."""
    with duckdb.connect(str(unpack(19, tmp_path))) as connection:
        assert digests(connection) == {}


def test_the_names_are_those_that_captures_know():
    of_captures = {of.name for of in (*DELTA, *ICEBERG)} - {UNNAMED}
    assert KNOWN.keys() == of_captures


def test_bounds_of_an_unknown_writer_plan_and_all_else_stays(tmp_path):
    path = unpack(19, tmp_path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "UPDATE snapshots SET summary = replace(summary, 'delta-rs:py-1.6.6', 'Trino/481')"
            " WHERE table_key = (SELECT table_key FROM tables WHERE table_catalog = 'lake') AND snapshot_id = 4"
        )
    with serving(path) as app:
        found = readings(app, FLIGHTS)
    changed = 0
    for name in found:
        before = sorted(expected(19)[name], key=_place)
        after = sorted(found[name], key=_place)
        for old, new in zip(before, after, strict=True):
            if _is_doubted(old):
                changed += 1
                lowered = {
                    "confidence_level": 0.5,
                    "min_is_exact": None,
                    "max_is_exact": None,
                    "usable_for": "PLANNING",
                }
                assert new == old | lowered
            else:
                assert new == old
    assert changed > 0


def _is_doubted(row: dict[str, Any]) -> bool:
    is_of_metadata = row["producer"] == "UPSTREAM_METADATA_DERIVED" and row["min"] is not None
    return row["table_name"] == "events" and row["snapshot_id"] == 4 and is_of_metadata


def _place(row: dict[str, Any]) -> str:
    return repr([row.get(name) for name in ("table_catalog", "table_name", "snapshot_id", "file_path", "column_id")])
