"""Tables by their paths, captured in this process."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.faces.local.tables import LocalTables
from store.model.errors import StatflightError


@contextmanager
def opened(db=None):
    tables = LocalTables(db, lambda _: None)
    try:
        yield tables
    finally:
        tables.close()


def ids(start, stop):
    return pa.table({"id": list(range(start, stop))})


def ndv(tables, name, **at):
    (row,) = tables.client.columns(name, snapshot="current", **at).to_pylist()
    return row["row_count"], row["ndv"], row["freshness"]


def test_a_table_is_captured_as_a_whole_and_read(tmp_path):
    write_deltalake(tmp_path / "t", ids(0, 30))
    with opened() as tables:
        name = tables.add(str(tmp_path / "t"))
        assert ndv(tables, name) == (30, 30.0, "EXACT")
        assert tables.client.scan(name, where="id >= 40").summary["files"]["kept"] == 0
        assert tables.client.sql("SELECT count(*) AS n FROM stats.columns")["n"].to_pylist() == [1]
        assert tables.client.unique(name, 1) and tables.failed() == []
        (found,) = tables.client.act("answer", {"sql": f"SELECT max(id) FROM {name}"})
        assert found["exact"]


def test_snapshots_are_captured_as_they_are_wanted(tmp_path):
    for start in (0, 10, 20):
        write_deltalake(tmp_path / "t", ids(start, start + 10), mode="append")
    with opened() as tables:
        name = tables.add(str(tmp_path / "t"), ["previous", "current"])
        captured = tables.client.read_table("sys.snapshots", name).filter(pa.compute.field("captured"))
        assert captured["snapshot_id"].to_pylist() == [1, 2]
        assert snapshot_at(tables.client, name, "previous") == 1


def test_tables_of_one_last_part_are_told_apart(tmp_path):
    for name, rows in (("a", 5), ("b", 9)):
        write_deltalake(tmp_path / f"{name}/lake/t", ids(0, rows))
    with opened() as tables:
        names = [tables.add(str(tmp_path / name / "lake/t")) for name in "ab"]
        assert names == ["lake.default.t", "lake-2.default.t"]
        assert [ndv(tables, name)[0] for name in names] == [5, 9]


def test_what_is_kept_is_not_read_again(tmp_path, monkeypatch):
    write_deltalake(tmp_path / "t", ids(0, 30))
    for captures in (1, 0):
        with opened(tmp_path / "kept.duckdb") as tables:
            captured = []
            whole = tables._local.capture_known
            monkeypatch.setattr(
                tables._local, "capture_known", lambda *a, whole=whole, to=captured, **k: to.append(a) or whole(*a, **k)
            )
            name = tables.add(str(tmp_path / "t"))
            assert len(captured) == captures and ndv(tables, name) == (30, 30.0, "EXACT")


def test_errors_begin_with_the_path(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"?" * 100 + b"PAR1")
    pq.write_table(ids(0, 3), tmp_path / "good.parquet")
    with opened() as tables:
        for name in ("bad.parquet", "nosuch.parquet"):
            with pytest.raises(StatflightError) as caught:
                tables.add(str(tmp_path / name))
            assert str(caught.value).startswith(str(tmp_path / name))
        assert ndv(tables, tables.add(str(tmp_path / "good.parquet")))[0] == 3
