"""Commits that name a writer which is not known: bounds in the log are in doubt."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.capture.connectors.delta.lakes import connector, ids_of

REASON = "writer ACME 1.0 is not known for INT"


@pytest.fixture
def root(tmp_path) -> Path:
    for value in (1, 2, 3):
        rows = pa.table({"v": pa.array([value, None], pa.int64()), "p": pa.array([value, value], pa.int64())})
        deltalake.write_deltalake(str(tmp_path / "lake/t"), rows, mode="append", partition_by=["p"])
    return tmp_path / "lake"


def rename_writer(root: Path, version: int, engine: str | None) -> None:
    path = root / f"t/_delta_log/{version:020}.json"
    actions = list(map(json.loads, path.read_text().splitlines()))
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"].pop("engineInfo", None)
            action["commitInfo"] |= {} if engine is None else {"engineInfo": engine}
    path.write_text("\n".join(map(json.dumps, actions)))


def doubts(root: Path) -> dict[tuple[str, int], str | None]:
    """Column name and value of the partition → the doubt."""
    found = connector(root)
    native = found.capture_snapshot_target_stats("default", "t", 2, ids_of(found, "t"))
    rows = pa.concat_tables(native.file_columns()).to_pylist()
    found.close()
    return {(row["column_name"], int(row["file_path"].split("p=")[1].split("/")[0])): row["doubt"] for row in rows}


def test_files_of_a_commit_have_the_doubt_about_its_writer(root):
    assert not any(doubts(root).values())
    rename_writer(root, 1, "ACME/1.0")
    found = doubts(root)
    assert {place: reason for place, reason in found.items() if reason} == {("v", 2): REASON}
    assert ("p", 2) in found  # the value of the partition is sure


def test_a_commit_that_names_no_writer_is_known(root):
    rename_writer(root, 1, None)
    assert not any(doubts(root).values())


def test_an_unknown_writer_may_have_written_what_a_checkpoint_lists(root):
    deltalake.DeltaTable(str(root / "t"), version=1).create_checkpoint()
    assert not any(doubts(root).values())
    rename_writer(root, 2, "ACME/1.0")
    assert {place for place, reason in doubts(root).items() if reason} == {("v", 1), ("v", 2), ("v", 3)}
