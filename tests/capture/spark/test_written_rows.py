"""Rows of files that executors write: with those that are put they are the rows of a capture in this process, whatever
is tried twice, lost, or out of reach."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from capture.compute import fold, written_rows
from capture.engines.compute.engine import ComputeEngine
from capture.spark import job
from capture.spec import Engine, FileSketches
from capture.spi import CaptureRequest, Outcome, Schema, SegmentPlace, TableHandle
from store.duckdb.segment_files import SegmentFiles
from store.model.errors import UpstreamError
from store.model.targets import Target
from tests.capture.engines.compute.lake import COLUMNS, IDS, Lake, MemorySink

FILES, BLOCK = 26, 4
ANSWERS = 6  # for each file: of three columns, a group, and its members
OWNER = "this database"


class Executors:
    """A session whose executors are this process; each task is tried as often as a test says.

    Args:
        tries: Number of a task → times that it runs, the last of which answers.
        fails: Whether the job fails after its tasks.
    """

    master, cores, is_warm = "executors of a test", 1, True

    def __init__(self, tries=lambda _: 1, *, fails=False, is_one_try=False):
        self._tries, self._fails, self.is_one_try = tries, fails, is_one_try
        self.answers = []  # number of answers of each job

    def ensure(self):
        pass

    def run(self, compute, payloads, schema, poll):
        found = []
        for number, payload in enumerate(payloads):
            for _ in range(self._tries(number)):
                answer = compute(payload)
            found.append(answer)
            poll()
        self.answers.append(sum(batch.num_rows for batch in found))
        if self._fails:
            raise UpstreamError("an executor was killed too often")
        return pa.Table.from_batches(found, schema)


class SegmentSink(MemorySink):
    """A sink with a directory of segments, from which it takes the rows that it is told of."""

    def __init__(self, directory: Path):
        super().__init__()
        self.files = SegmentFiles(directory)
        self.files.prepare()
        self.files.claim(OWNER)
        self.told, self.put_files = [], 0

    def segment_place(self, table, column_ids, file_paths):
        return SegmentPlace(str(self.files.directory), OWNER)

    def put(self, flight, rows, *, extra=False, checked=False):
        self.put_files += rows.num_rows if flight == "stats.file_columns" else 0
        super().put(flight, rows, extra=extra, checked=checked)

    def add_segment(self, flight, table, written):
        self.files.check(written.name, written.digest)
        self.told.append(written.name)
        rows = self.files.read(written)
        assert rows.num_rows == written.row_count
        for name, value in table.key.items():
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        self.rows.setdefault(flight, []).append(rows)

    def get(self, flight):
        tables = self.rows.get(flight, [])
        return [row for table in tables for row in table.to_pylist()]

    def content(self):
        times = ("captured_at", "refreshed_at")
        return sorted(
            repr((flight, {k: v for k, v in sorted(row.items()) if k not in times and v is not None}))
            for flight in self.rows
            for row in self.get(flight)
        )

    @property
    def names(self):
        return sorted(path.name for path in self.files.directory.glob("*.parquet"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("lake")
    lake = Lake(path)
    for number in range(FILES):
        lake.add(f"{number:04}.parquet", range(number * 7, number * 7 + 20))
    return path


def handle(lake):
    return TableHandle("c", "s", "t", "id-1", 7, Schema(COLUMNS), IDS, lake)


@pytest.fixture
def table(files):
    return handle(Lake(files))


@pytest.fixture(autouse=True)
def small_waves(monkeypatch):
    for module in (fold, job, written_rows):
        monkeypatch.setattr(module, "FAN_IN", BLOCK)
    monkeypatch.setattr(job, "_WAVE_ANSWERS", 12)  # three files at once, or three blocks of them
    monkeypatch.setattr(job, "_frozen", True)
    monkeypatch.setattr(written_rows, "_FLUSH_ROWS", 5)


def captured(table, sink, spark, **options):
    engine = ComputeEngine(spark=spark, engine=Engine.SPARK, **options)
    return engine.capture_batch(requests(table), sink)


def requests(table):
    targets = [*(Target.column(i) for i in (1, 2, 3)), Target.column_group([1, 2])]
    return [CaptureRequest.of(table, target) for target in targets]


@pytest.fixture
def expected(files, tmp_path):
    """The rows of the same files without executors."""
    return rows_here(files, tmp_path)


def rows_here(files, directory, **options):
    table = handle(Lake(files))
    sink = SegmentSink(directory / "here")
    results = ComputeEngine(inline_max_cells=10**9, **options).capture_batch(requests(table), sink)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    assert sink.put_files == 3 * FILES
    return [line.replace("'engine_id': 'local'", "'engine_id': 'spark'") for line in sink.content()]


@pytest.mark.parametrize(
    ("is_one_try", "kept"), [(False, FileSketches.AUTO), (False, FileSketches.NONE), (True, FileSketches.FULL)]
)
def test_executors_write_the_rows_of_files_and_merge_blocks(table, tmp_path, files, is_one_try, kept):
    sink, spark = SegmentSink(tmp_path / "segments"), Executors(is_one_try=is_one_try)
    results = captured(table, sink, spark, file_sketches=kept)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    assert {result.attributes["files_read"] for result in results} == {FILES}
    assert sink.content() == sorted(rows_here(files, tmp_path, file_sketches=kept))
    assert sink.put_files == 0
    assert sorted(sink.told) == sink.names
    if not is_one_try:  # whose groups are too small for blocks here
        first, *others = spark.answers
        assert first == ANSWERS * BLOCK and sum(others) == ANSWERS * sum(divmod(FILES - BLOCK, BLOCK))


def test_task_that_ran_twice_leaves_no_row_twice(table, tmp_path, expected):
    sink = SegmentSink(tmp_path / "segments")
    captured(table, sink, Executors(tries=lambda number: 1 + number % 3))
    assert sink.content() == sorted(expected)
    assert len(sink.told) == len(set(sink.told)) < len(sink.names)
    sink.files.collect(sink.told, grace_seconds=0)
    assert sink.names == sorted(sink.told)


def test_files_of_a_job_that_failed_are_told_to_nobody(table, tmp_path):
    sink = SegmentSink(tmp_path / "segments")
    results = captured(table, sink, Executors(fails=True))
    assert {result.outcome for result in results} == {Outcome.DEGRADED}
    assert sink.names and not sink.told and not sink.rows


def test_executors_that_do_not_reach_the_place_answer_with_all_rows(table, tmp_path, expected):
    sink, spark = SegmentSink(tmp_path / "segments"), Executors()
    (sink.files.directory / "owner").write_text("another database")
    captured(table, sink, spark)
    assert sink.content() == sorted(expected)
    assert not sink.told and sink.put_files == 3 * FILES
    assert max(spark.answers) <= ANSWERS * BLOCK  # waves stay small


def test_place_that_goes_away_meanwhile_is_put_to(table, tmp_path, expected):
    sink = SegmentSink(tmp_path / "segments")
    owner = sink.files.directory / "owner"

    class Leaving(Executors):
        def run(self, *arguments):
            try:
                return super().run(*arguments)
            finally:
                owner.unlink(missing_ok=True)

    captured(table, sink, Leaving())
    assert sink.content() == sorted(expected)
    assert sink.told and 0 < sink.put_files < 3 * FILES


def test_file_that_cannot_be_read_stops_no_other(tmp_path, files):
    broken = tmp_path / "broken"
    shutil.copytree(files, broken)
    (broken / "0010.parquet").write_bytes(b"PAR1 not at all PAR1")
    table = handle(Lake(broken))
    sink = SegmentSink(tmp_path / "segments")
    results = captured(table, sink, Executors())
    assert {result.attributes["files_failed"] for result in results} == {1}
    other = SegmentSink(tmp_path / "other")
    ComputeEngine(inline_max_cells=10**9).capture_batch(requests(table), other)
    assert sink.content() == sorted(line.replace("'local'", "'spark'") for line in other.content())
    assert max(Counter((row["file_path"], row["column_id"]) for row in sink.get("stats.file_columns")).values()) == 1


def test_file_that_is_listed_twice_is_not_written(table, tmp_path, monkeypatch):
    tasks = type(table).scan_tasks
    monkeypatch.setattr(type(table), "scan_tasks", lambda self, columns: 2 * tasks(self, columns)[:9])
    sink = SegmentSink(tmp_path / "segments")
    captured(table, sink, Executors())
    assert not sink.told and sink.put_files == 3 * 18


def test_files_that_are_read_in_pieces_are_not_written(table, tmp_path):
    sink, spark = SegmentSink(tmp_path / "segments"), Executors()
    spark.cores = FILES
    captured(table, sink, spark)
    assert not sink.names and sink.put_files == 3 * FILES
