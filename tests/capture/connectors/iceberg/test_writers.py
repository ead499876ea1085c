"""Snapshots whose summary names a writer that is not known: bounds in manifests are in doubt."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import directory, home, stats


def doubts(table, edit) -> list[str]:
    """The doubts about the files, after an edit of the metadata."""
    folder = home(table) / "metadata"
    document = json.loads(built.latest(folder).read_text())
    edit(document)
    built.write_metadata(folder, document)
    rows = pa.concat_tables(stats(directory(home(table))).file_columns())
    return sorted(set(rows["doubt"].drop_null().to_pylist()))


@pytest.mark.parametrize(
    ("summary", "named"),
    [
        ({}, None),
        ({"iceberg-version": "Apache Iceberg 1.8.1 (commit 9ce0)", "engine-name": "acme"}, None),
        ({"iceberg-version": "iceberg-acme 0.3"}, "iceberg-acme 0.3"),
        ({"engine-name": "acme", "engine-version": "7.1"}, "acme 7.1"),
        ({"iceberg-version": "Apache Iceberg 2.0.0"}, "Apache Iceberg 2.0.0"),
    ],
)
def test_files_have_the_doubt_about_the_writer_of_their_snapshot(table, summary, named):
    def edit(document):
        for snapshot in document["snapshots"]:
            snapshot["summary"] |= summary

    found = doubts(table, edit)
    assert all(reason.startswith(f"writer {named} is not known for ") for reason in found)
    assert bool(found) == (named is not None)


def test_files_of_expired_snapshots_are_in_doubt_if_a_writer_is_not_known(table):
    def edit(document):
        *_, newest = document["snapshots"]
        newest["summary"] |= {"engine-name": "acme"}
        document["snapshots"] = [newest]
        document["snapshot-log"], document["statistics"] = [], []

    assert doubts(table, edit)


def test_bounds_that_were_converted_from_a_delta_log_are_in_doubt(table):
    found = doubts(table, lambda document: document["properties"].update({"delta-version": "5"}))
    assert found and all(reason.startswith("writer Delta UniForm is not known for ") for reason in found)
