"""Degrees of functional dependencies: by definition for exact sketches, within limits for estimating ones."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute.file_scan import Work, scan
from capture.compute.functional_dependencies import degrees
from capture.connectors.spi import ScanColumn, ScanTask

IDS = (3, 5, 8)
COLUMNS = (ScanColumn(3, "a", "INT", "a"), ScanColumn(5, "b", "STRING", "b"), ScanColumn(8, "c", "DOUBLE", "c"))
WORDS = st.one_of(st.none(), st.sampled_from(["", "x", "y"]))
NUMBERS = st.one_of(st.none(), st.integers(-2, 2))
TUPLES = st.lists(st.tuples(NUMBERS, WORDS, st.one_of(st.none(), st.sampled_from([0.5, -1.0]))), max_size=40)


def found(path, rows: pa.Table):
    """The degrees of (a, b, c) by determinant, of a Parquet file with these rows."""
    pq.write_table(rows, path)
    answers = scan(0, ScanTask("parquet", "f", str(path), len(rows), 1, COLUMNS, "v"), Work((), (IDS,)))
    thetas = {answer.column_ids: answer.partial.theta for answer in answers}
    result = degrees(IDS, thetas[IDS], {i: thetas[i,] for i in IDS})
    assert [d["determinant"] + d["dependent"] for d in result] == (
        [[3, 5, 8], [5, 3, 8], [8, 3, 5]] if len(rows) else []
    )
    return {d["determinant"][0]: d for d in result}


@given(TUPLES)
def test_degrees_of_exact_sketches_follow_the_definition(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "tuples.parquet"
    table = pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.int64()),
            "b": pa.array([row[1] for row in rows], pa.string()),
            "c": pa.array([row[2] for row in rows], pa.float64()),
        }
    )
    result = found(path, table)
    for place, column_id in enumerate(IDS if rows else ()):
        one = result[column_id]
        images = {}
        for row in rows:
            images.setdefault(row[place], set()).add(row)
        assert one["degree"] == one["degree_lower"] == one["degree_upper"] == len(images) / len(set(rows))
        assert (one["degree"] == 1) == all(len(tuples) == 1 for tuples in images.values())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.benchmark) for seed in range(1, 20))])
def test_degrees_of_estimating_sketches_are_within_their_limits(tmp_path, seed):
    a = np.random.default_rng(seed).integers(0, 60_000, 200_000)
    rows = pa.table({"a": a, "b": [f"b{value // 4}" for value in a.tolist()], "c": (a % 7).astype(np.float64)})
    result = found(tmp_path / "f.parquet", rows)
    truth = {3: 1.0, 5: len(np.unique(a // 4)) / len(np.unique(a)), 8: 7 / len(np.unique(a))}
    for column_id, degree in truth.items():
        one = result[column_id]
        assert one["degree_lower"] <= degree <= one["degree_upper"]
        assert one["degree_lower"] <= one["degree"] <= one["degree_upper"] <= 1
        assert one["degree"] == pytest.approx(degree, rel=0.1)
