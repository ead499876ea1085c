"""Pieces of large files: row groups as tasks, and results that depend on the file alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import file_scan, local, pieces
from capture.compute.file_scan import Work
from capture.connectors.spi import ScanColumn, ScanTask

ROWS, GROUP = 1000, 100
COLUMNS = (
    ScanColumn(1, "id", "INT", "id"),
    ScanColumn(2, "word", "STRING", "word"),
    ScanColumn(3, "day", "STRING", constant=pa.array(["x"])),
)
WORK = Work((1, 2, 3), ((1, 2),))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_ROWS", 250)


@pytest.fixture
def task(tmp_path):
    file = tmp_path / "a.parquet"
    words = [None if i % 10 == 0 else f"w{i % 77}" for i in range(ROWS)]
    pq.write_table(pa.table({"id": range(ROWS), "word": words}), file, row_group_size=GROUP)
    return ScanTask("parquet", "t/a.parquet", str(file), ROWS, file.stat().st_size, COLUMNS, "v")


def groups(tasks):
    return [task.arguments["row_groups"] for task in tasks]


def test_pieces_are_consecutive_row_groups(task):
    parts = pieces.divided(task)
    assert groups(parts) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert {part.row_count for part in parts} == {200}
    chosen = replace(task, arguments={"row_groups": [1, 2, 8, 9]})  # as in a sample
    assert groups(pieces.divided(chosen)) == [[1, 2], [8, 9]]


@pytest.mark.parametrize(
    "change",
    [
        {"row_count": 250},
        {"reader": "lance"},
        {"location": "/nowhere"},
        {"arguments": {"row_groups": [3]}},
    ],
)
def test_other_tasks_stay_whole(task, change):
    other = replace(task, **change)
    assert pieces.divided(other) == [other]


def test_result_is_the_same_however_the_pieces_are_computed(task):
    alone = pieces.scan(7, task, WORK)
    parts = pieces.Pieces([(7, task)])
    assert len(parts.tasks) == 5
    one_by_one = list(parts.joined(local.computed(parts.tasks, WORK, lambda: None, 1)))
    assert one_by_one[:-1] == [[]] * 4 and by_target(one_by_one[-1]) == by_target(alone)
    (at_once,) = parts.joined([[a for n, part in reversed(parts.tasks) for a in file_scan.scan(n, part, WORK)]])
    assert by_target(at_once) == by_target(alone)
    by_column = [answer for i in (1, 2, 3) for answer in pieces.scan(7, task, Work((i,)))]
    assert by_target(by_column).items() <= by_target(alone).items()


def by_target(answers):
    return {(answer.column_id, answer.column_ids): answer for answer in answers}


def test_statistics_are_those_of_the_whole_file(task):
    whole, parts = by_target(file_scan.scan(0, task, WORK)), by_target(pieces.scan(0, task, WORK))
    assert parts.keys() == whole.keys()
    for target, answer in parts.items():
        expected = whole[target]
        assert (answer.task, answer.size_bytes, answer.error) == (0, expected.size_bytes, "")
        for name in ("row_count", "null_count", "min", "max", "width_sum", "width_max", "theta"):
            assert getattr(answer.partial, name) == getattr(expected.partial, name), (target, name)


def test_deleted_rows_are_left_out_of_their_pieces(task):
    deleted = pa.array([0, 199, 200, 999], pa.int64())
    less = replace(task, deleted_rows=deleted)
    assert [part.deleted_rows.to_pylist() for part in pieces.divided(less)] == [[0, 199], [200], [], [], [999]]
    answer = pieces.scan(0, less, Work((1,)))[0]
    assert (answer.partial.row_count, answer.partial.min, answer.partial.max) == (ROWS - 4, "1", "998")


def test_error_of_one_piece_is_the_error_of_the_file(task, monkeypatch):
    real = file_scan.scan

    def scan(number, part, work):
        broken = part.arguments["row_groups"] == [4, 5]
        return real(number, replace(part, location="/nowhere") if broken else part, work)

    monkeypatch.setattr(file_scan, "scan", scan)
    answers = by_target(pieces.scan(0, task, WORK))
    assert answers.keys() == {(1, ()), (2, ()), (3, ()), (None, (1, 2))}
    assert all("no such file" in answer.error and answer.partial is None for answer in answers.values())
