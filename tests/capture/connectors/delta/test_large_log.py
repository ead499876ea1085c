"""Large logs: read in slices of Parquet, they agree with deltalake."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.capture.connectors.delta.lakes import LAKES, connector, ids_of, needs_lakes

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def in_slices(monkeypatch):
    """Turns on reading in slices of four files; the returned list has an entry for each source read."""
    from capture.connectors.delta import large_log, log_files
    from capture.connectors.storage import immutable_cache

    read = []
    real = large_log.adds_of

    def slices(source, paths, **named):
        read.append(source.place.stem)
        return real(source, paths, **named)

    def turn_on():
        immutable_cache.FILES.clear()
        monkeypatch.setattr(large_log, "adds_of", slices)
        monkeypatch.setattr(large_log, "LARGE", 0)
        monkeypatch.setattr(log_files, "SLICE", 4)
        monkeypatch.setattr(log_files, "_ROWS", 4)
        return read

    return turn_on


def content(path, name: str, version: int):
    """Counts, files, columns, tasks and parts of one version."""
    found = connector(path)
    ids = ids_of(found, name)
    native = found.capture_snapshot_target_stats("default", name, version, ids)
    rows = [row for part in native.file_columns() for row in part.to_pylist()]
    tasks = found.plan_files("default", name, version, ids)
    facts = (native.row_count, native.data_file_count, native.total_size_bytes, native.row_deletes)
    return facts, in_order(native.files.to_pylist()), in_order(rows), in_order(map(_facts, tasks)), native.parts


def _facts(task):
    gone = None if task.deleted_rows is None else task.deleted_rows.to_pylist()
    columns = [(c.column_id, c.path, c.constant and c.constant.to_pylist()) for c in task.columns]
    return {"file_path": task.file_path, "rows": task.row_count, "fingerprint": task.fingerprint, "gone": gone,
            "columns": columns, "size": task.size_bytes}  # fmt: skip


def in_order(rows):
    return sorted(rows, key=lambda row: (row["file_path"], row.get("column_name", "")))


@needs_lakes
@pytest.mark.parametrize("name", sorted(p.name for p in LAKES.glob("*") if (p / "_delta_log").is_dir()))
def test_logs_of_other_writers_in_slices_agree_with_deltalake(name, in_slices):
    listing = connector(LAKES).enumerate_snapshots("default", name)
    versions = sorted(listing.live_snapshot_ids)[-3:]
    gone = name == "COVID-19_NYT" or "type-widening" in name  # tables without some of their files
    whole = [content(LAKES, name, version)[:3] if gone else content(LAKES, name, version)[:4] for version in versions]
    in_slices()
    sliced = [content(LAKES, name, version) for version in versions]
    assert [facts[: 3 if gone else 4] for facts in sliced] == whole
    # deltalake reads tables that have only struct statistics, or no files
    assert sliced[-1][4] or name in ("delta-1.2.1-only-struct-stats", "delta-0.8-empty")


@pytest.fixture
def log(tmp_path):
    """Twelve files in a checkpoint, one of which is deleted after it, and one more file."""
    path = tmp_path / "t"
    for i in range(12):
        rows = pa.table({"id": [i, i + 1], "part": [f"p {i % 2}"] * 2, "s": ["x" * 40, None]})
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["part"])
    deltalake.DeltaTable(path).create_checkpoint()
    deltalake.DeltaTable(path).delete("id = 3")
    deltalake.write_deltalake(path, pa.table({"id": [99], "part": ["p9"], "s": ["z"]}), mode="append")
    return path


def test_log_in_slices_agrees_with_deltalake(log, in_slices):
    whole = content(log, "t", 13)
    assert whole[0][0] == 23 and not whole[4]
    read = in_slices()
    sliced = content(log, "t", 13)
    assert sliced[:4] == whole[:4]
    assert read[0] == f"{13:020}.json" and len(sliced[4]) >= 4  # two commits, slices of a checkpoint


def test_new_version_reads_only_its_commit(log, in_slices):
    read = in_slices()
    before = content(log, "t", 13)
    deltalake.write_deltalake(log, pa.table({"id": [100], "part": ["p9"], "s": ["z"]}), mode="append")
    deltalake.DeltaTable(log).create_checkpoint()  # must not be read
    read.clear()
    found = connector(log)
    after = found.capture_snapshot_target_stats("default", "t", 14, ids_of(found, "t"))
    assert read == [f"{14:020}.json"]
    assert after.row_count == before[0][0] + 1
    assert {part.key for part in before[4]} < {part.key for part in after.parts}
    again = found.capture_snapshot_target_stats("default", "t", 14, ids_of(found, "t"))
    assert [part.key for part in again.parts] == [part.key for part in after.parts]
    assert read == [f"{14:020}.json"]


def test_slice_with_a_removed_file_is_a_new_part(log, in_slices):
    in_slices()
    before = content(log, "t", 13)[4]
    deltalake.DeltaTable(log).delete("id = 99")
    after = content(log, "t", 14)[4]
    assert len({part.key for part in before} - {part.key for part in after}) == 1
    assert sum(part.files.num_rows for part in after) == sum(part.files.num_rows for part in before) - 1
