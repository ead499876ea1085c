"""Sketches of files cut to what a table of so many files needs, and when they are read again."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from capture.compute import kernels
from capture.compute.file_sketches import FEW, WIDE, cut, cut_k, is_sufficient, kept
from capture.connectors.spi import Schema
from capture.engines.compute.engine import ComputeEngine
from capture.spec import FileSketches
from capture.spi import TableHandle
from store.model import logical_types, sketches
from tests.capture.engines.compute.lake import COLUMNS, IDS, Lake, MemorySink, column

INT = logical_types.parse("INT")
FILES, ROWS = 100, 1000


def part(values):
    return kernels.summarise(pa.chunked_array([pa.array(values, pa.int64())]), INT)


def cut_parts(of_file):
    return [cut(part(of_file(n)), 0, FILES, f"{n}.parquet") for n in range(FILES)]


def test_sketches_of_large_files_and_of_few_values_stay_whole():
    whole = part(range(ROWS))
    assert cut(whole, 10**7, FILES, "a") == whole
    few = part([n % FEW for n in range(ROWS)])
    assert cut(few, 0, FILES, "a").theta == few.theta
    small = cut(whole, 0, FILES, "a")
    assert len(small.theta) < len(whole.theta) / 5 and len(small.kll) < len(whole.kll) / 3
    assert replace(small, theta=None, kll=None) == replace(whole, theta=None, kll=None)
    assert cut_k("NDV", small.theta) == 123 and cut_k("QUANTILES", small.kll) == 103
    assert [cut_k("NDV", whole.theta), cut_k("QUANTILES", whole.kll), cut_k("MCV", whole.mcv)] == [None] * 3


def test_wide_tables_keep_no_sketches_that_are_larger_than_the_data():
    whole = part(range(ROWS))
    size = len(whole.theta) + len(whole.kll) + len(whole.mcv)
    assert kept(whole, size - 1, 1, "a", WIDE + 1) is None
    assert kept(whole, size, 1, "a", WIDE + 1) == kept(whole, 0, 1, "a", WIDE) == whole
    small = cut(whole, 0, FILES, "a")
    assert kept(whole, size - 1, FILES, "a", WIDE + 1) == small


def test_cut_sketches_of_values_of_their_own_are_as_precise_together_as_whole_ones():
    parts = cut_parts(lambda n: range(n * ROWS, (n + 1) * ROWS))
    union = sketches.union([p.theta for p in parts])
    assert len(sketches.read_theta(union).hashes) == sketches.THETA_K
    assert is_sufficient(union, [(p.kll, ROWS) for p in parts])
    assert not is_sufficient(union, [(p.kll, ROWS) for p in parts[: FILES // 5]])


@pytest.mark.parametrize("seed", range(3))
def test_rank_errors_of_files_cancel_out(seed):
    """Also where the files have the same values, so that the same values would stand for the others."""
    values = np.sort(np.random.default_rng(seed).permutation(100_000)[:ROWS])
    merged = sketches.read_kll(sketches.merge_kll([p.kll for p in cut_parts(lambda n: values)]))
    ranks = np.cumsum(merged.weights)[np.searchsorted(merged.values, values, "right") - 1] / (FILES * ROWS)
    error = np.abs(ranks - np.arange(1, ROWS + 1) / ROWS)[values >= merged.values[0]]
    assert error.max() < 2 / sketches.KLL_K


def test_union_of_cut_sketches_of_shared_values_is_not_sufficient():
    union = sketches.union([p.theta for p in cut_parts(lambda n: range(ROWS))])
    assert not is_sufficient(union, []) and is_sufficient(None, [])


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def table(lake):
    return TableHandle("c", "s", "t", "id-1", 7, Schema(COLUMNS), IDS, lake)


def captured(setting, table, sink, snapshot_id=7, **spec):
    engine = ComputeEngine(inline_max_cells=10**9, file_sketches=setting)
    (result,) = engine.capture_batch([column(replace(table, snapshot_id=snapshot_id), "id", **spec)], sink)
    return result.attributes["files_reused"]


def ndv(sink):
    return sink.get("stats.columns")[-1]["ndv"]


def fresh_ndv(table, snapshot_id):
    """The distinct count that a capture of all files finds."""
    sink = MemorySink()
    captured(FileSketches.AUTO, table, sink, snapshot_id)
    return ndv(sink)


def fill(lake, values):
    """Adds 40 files; `values` gives the values of each."""
    for n in range(40):
        lake.add(f"{n:02}.parquet", values(n))


def test_files_are_read_again_once_their_sketches_no_longer_suffice(lake, table):
    fill(lake, lambda _: range(5000))
    sink = MemorySink()
    captured(FileSketches.AUTO, table, sink)
    lake.add("40.parquet", range(5000, 5100))
    assert captured(FileSketches.AUTO, table, sink, 8) == 40  # the union of all is stored
    assert ndv(sink) == pytest.approx(5100, rel=0.05)
    (lake.path / "40.parquet").unlink()
    assert captured(FileSketches.AUTO, table, sink, 9) == 0
    assert ndv(sink) == fresh_ndv(table, 9)


def test_only_columns_whose_sketches_do_not_suffice_are_read_again(lake, table):
    fill(lake, lambda _: range(5000))
    sink, engine = MemorySink(), ComputeEngine(inline_max_cells=10**9)
    engine.capture_batch([column(table, name) for name in ("part", "id")], sink)
    (lake.path / "03.parquet").unlink()
    again = MemorySink()
    again.stored = sink.stored
    requests = [column(replace(table, snapshot_id=8), name) for name in ("id", "part")]
    results = engine.capture_batch(requests, again)
    assert [result.attributes["files_reused"] for result in results] == [0, 39]
    assert [result.target for result in results] == [request.target for request in requests]
    assert again.shares == sorted(again.shares)
    fresh = MemorySink()
    engine.capture_batch(requests, fresh)
    assert {name: row["ndv"] for name, row in again.columns().items()} == {
        name: row["ndv"] for name, row in fresh.columns().items()
    }


def test_files_with_values_of_their_own_are_reused_after_another_is_removed(lake, table):
    fill(lake, lambda n: range(n * 1000, n * 1000 + 1000))
    sink = MemorySink()
    captured(FileSketches.AUTO, table, sink)
    (lake.path / "03.parquet").unlink()
    assert captured(FileSketches.AUTO, table, sink, 8) == 39
    assert ndv(sink) == fresh_ndv(table, 8)


def test_whole_sketches_are_kept_on_request(lake, table):
    fill(lake, lambda n: range(n * 1000, n * 1000 + 1000))

    def sizes(sink):
        rows = [r for r in sink.get("stats.sketches") if (r["target_kind"], r["role"]) == ("FILE", "NDV")]
        return {(len(sketches.read_theta(row["data"]).hashes), json.loads(row["params"])["k"]) for row in rows}

    cut_sink, named, full, none = (MemorySink() for _ in range(4))
    captured(FileSketches.AUTO, table, cut_sink)
    assert sizes(cut_sink) == {(308, 308)}
    assert captured(FileSketches.AUTO, table, cut_sink, kinds=frozenset({"NDV"})) == 0
    captured(FileSketches.AUTO, table, named, kinds=frozenset({"NDV"}))
    captured(FileSketches.FULL, table, full)
    assert sizes(named) == sizes(full) == {(1000, 4096)}
    captured(FileSketches.NONE, table, none)
    assert sizes(none) == set() and captured(FileSketches.NONE, table, none, 8) == 0
    assert len(none.get("stats.file_columns")) == 80 and none.get("stats.file_columns")[0]["ndv"] == 1000
