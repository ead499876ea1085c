"""The computing engine on a Spark session: rows as in process, expressions, cancellation, and reuse of the session."""

import contextlib
import datetime as dt
import os
import shutil
import sys
import threading
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import pieces
from capture.connectors import open_connector
from capture.connectors.spi import Column, ConnectorConfig, ScanColumn, ScanTask, Schema
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from capture.spark import job, judge, language
from capture.spark.language import NotDeterministic
from capture.spark.session import Spark
from capture.spec import Budget, Engine, Sampling
from capture.spi import CaptureRequest, Outcome, Sink, TableHandle
from flight_server.client.connection import Connection
from flight_server.worker.loop import Worker
from store.model import schemas
from store.model.errors import Cancelled, InvalidArgument, UpstreamError
from store.model.targets import Target
from tests.capture.engine_contract import check_rows
from tests.capture.engines.compute.lake import Lake as SmallLake
from tests.capture.spark import test_written_rows as written_rows
from tests.flight_server.live_server import eventually, serving

pytestmark = pytest.mark.spark

COLUMNS = (
    Column("id", "INT"),
    Column("word", "STRING"),
    Column("money", "DECIMAL(10,2)"),
    Column("at", "TIMESTAMPTZ"),
    Column("place", "STRUCT"),
    Column("place.lat", "DOUBLE"),
    Column("part", "STRING"),
    Column("key", "UUID"),
    Column("order by", "DATE"),
)
IDS = {column.name: number for number, column in enumerate(COLUMNS, 1)}
ROWS = 3000
BIG_FILES, BIG_ROWS = 600, 1_000_000


@dataclass
class Lake:
    path: object
    format: str = "parquet"
    states_files: bool = False

    def plan_files(self, namespace, name, snapshot_id, ids, column_names=None):
        for file in sorted(self.path.glob("*.parquet")):
            columns = [ScanColumn(ids[c.name], c.name, c.logical_type, c.name) for c in COLUMNS if c.is_leaf]
            columns = [c for c in columns if column_names is None or c.name in column_names]
            columns = [
                ScanColumn(c.column_id, "part", "STRING", constant=pa.array([file.stem])) if c.name == "part" else c
                for c in columns
            ]
            deleted = pa.array([0], pa.int64())
            size = file.stat().st_size
            yield ScanTask("parquet", f"t/{file.name}", str(file), ROWS - 1, size, tuple(columns), "v", {}, deleted)

    def capture_snapshot_target_stats(self, *_):
        raise UpstreamError("no metadata")


class MemorySink(Sink):
    def __init__(self):
        self.rows = {}
        self.shares = []

    def put(self, flight, rows, *, extra=False, checked=False):
        check_rows(flight, rows, checked)
        self.rows.setdefault(flight, []).append(rows)

    def stored(self, flight, table, columns=None, column_ids=None):
        found = schemas.FLIGHTS[flight].schema.empty_table()
        return found.select(columns) if columns else found

    def list_files(self, table, listing):
        return False

    def progress(self, share, message=""):
        self.shares.append(share)

    def get(self, flight):
        return pa.concat_tables(self.rows[flight]).to_pylist() if flight in self.rows else []

    def content(self):
        times = ("captured_at", "refreshed_at")
        found = [(flight, row) for flight in self.rows for row in self.get(flight)]
        return sorted(repr((flight, {k: v for k, v in row.items() if k not in times})) for flight, row in found)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("lake")
    for number in range(5):
        ids = range(number * ROWS, (number + 1) * ROWS)
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": [None if i % 10 == 1 else f"w{i % 7000}" for i in ids],
                "money": pa.array(ids).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2)),
                "at": pa.array([start + dt.timedelta(minutes=i) for i in ids], pa.timestamp("us", "UTC")),
                "place": pa.array(
                    [None if i % 5 == 0 else {"lat": i / 4} for i in ids], pa.struct({"lat": pa.float64()})
                ),
                "key": pa.array([i.to_bytes(16, "big") for i in ids], pa.binary(16)),
                "order by": pa.array([dt.date(2026, 1, 1 + i % 28) for i in ids]),
            }
        )
        pq.write_table(rows, path / f"p{number}.parquet")
    return TableHandle("c", "s", "t", "id-1", 7, Schema(COLUMNS), IDS, Lake(path))


@pytest.fixture(scope="module")
def engine():
    engine = ComputeEngine(spark=Spark("local[2]"), inline_max_cells=0)
    yield engine
    engine.close()


def requests(table):
    columns = [CaptureRequest.of(table, Target.column(IDS[c.name])) for c in COLUMNS if c.is_leaf]
    return [*columns, CaptureRequest.of(table, Target.column_group([1, 2]))]


def content_as_by_spark(sink):
    """The content of a sink, with Spark as the engine."""
    return [line.replace("'engine_id': 'local'", "'engine_id': 'spark'") for line in sink.content()]


def expression(table, text):
    return CaptureRequest.of(table, Target.expression("spark", text.encode()))


def test_spark_computes_the_same_rows_as_in_process(engine, table):
    on_spark, inline = MemorySink(), MemorySink()
    results = engine.capture_batch(requests(table), on_spark)
    assert {(r.outcome, r.detail, r.attributes["execution"]) for r in results} == {(Outcome.CAPTURED, "", "spark")}
    ComputeEngine(inline_max_cells=10**9).capture_batch(requests(table), inline)
    engine_ids = [
        {row["engine_id"] for row in sink.get("stats.columns") + sink.get("stats.file_columns")}
        for sink in (on_spark, inline)
    ]
    assert engine_ids == [{"spark"}, {"local"}]
    assert on_spark.content() == content_as_by_spark(inline)
    assert len(on_spark.get("stats.columns")) == 8


def test_capture_in_waves_of_files_has_the_same_rows(engine, table, monkeypatch):
    monkeypatch.setattr(job, "_WAVE_ANSWERS", 16)
    whole, waves = MemorySink(), MemorySink()
    ComputeEngine(inline_max_cells=10**9).capture_batch(requests(table), whole)
    engine.capture_batch(requests(table), waves)
    assert waves.content() == content_as_by_spark(whole)
    assert len(set(waves.shares)) >= 3


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"sampling": Sampling.RANDOM_ROW_GROUP},
        {"sampling": Sampling.METADATA_GUIDED, "budget": Budget(max_rows=9000)},
    ],
)
def test_one_large_file_is_many_tasks_with_the_same_rows(engine, tmp_path, monkeypatch, how):
    monkeypatch.setattr(pieces, "PIECE_ROWS", 2500)
    (tmp_path / "t").mkdir()
    ids = range(20_000)
    rows = pa.table(
        {"id": ids, "word": [None if i % 9 == 0 else f"w{i % 7000}" for i in ids], "x": [i / 7 for i in ids]}
    )
    pq.write_table(rows, tmp_path / "t/one.parquet", row_group_size=1000)
    counts = []
    distributed = job.distributed

    def counted(spark, numbered, work, poll):
        counts.append(len(numbered))
        return distributed(spark, numbered, work, poll)

    monkeypatch.setattr(job, "distributed", counted)
    with contextlib.closing(open_connector(ConnectorConfig("c", "parquet", str(tmp_path)))) as lake:
        snapshot = lake.enumerate_snapshots("default", "t").current_snapshot_id
        schema = lake.describe("default", "t").schema
        one = TableHandle("c", "default", "t", "id", snapshot, schema, {"id": 1, "word": 2, "x": 3}, lake)
        targets = [*map(Target.column, (1, 2, 3)), Target.column_group([1, 2])]
        sinks = MemorySink(), MemorySink()
        for sink, where in zip(sinks, (Engine.SPARK, Engine.LOCAL), strict=True):
            wanted = [CaptureRequest.of(one, target, engine=where, **how) for target in targets]
            results = engine.capture_batch(wanted, sink)
            assert {(r.outcome, r.engine_id) for r in results} == {(Outcome.CAPTURED, str(where))}
            assert all(f"engine {where} (requested)" in r.reason for r in results)
    assert sinks[0].content() == content_as_by_spark(sinks[1])
    assert counts == [10 if not how else 1 if "budget" not in how else counts[0]] and counts[0] > ("budget" in how)


def test_detail_names_an_unreadable_file(engine, table, tmp_path):
    for file in table.connector.path.glob("*.parquet"):
        shutil.copy(file, tmp_path)
    (tmp_path / "p3.parquet").write_bytes(b"PAR1 nothing PAR1")
    broken = TableHandle("c", "s", "t", "id-1", 7, Schema(COLUMNS), IDS, Lake(tmp_path))
    sink = MemorySink()
    (result,) = engine.capture_batch([CaptureRequest.of(broken, Target.column(1))], sink)
    assert (result.outcome, 'file "t/p3.parquet"' in result.detail) == (Outcome.CAPTURED, True)
    assert sink.get("stats.columns")[0]["completeness"] == "PARTIAL"
    (result,) = engine.capture_batch([expression(broken, "id + 1")], MemorySink())
    assert (result.outcome, result.detail.startswith('file "t/p3.parquet"')) == (Outcome.DEGRADED, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id % 10", ("INT", 0, 10, "0", "9")),
        ("upper(word)", ("STRING", 1500, None, "W0", "W999")),
        ("money * 2", ("DECIMAL(12,2)", 0, 14995, "2", "29998")),
        ("place.lat > 10", ("BOOLEAN", 2995, 2, "false", "true")),
        ("date_trunc('DAY', at)", ("TIMESTAMPTZ", 0, 11, "2026-01-01T00:00:00Z", "2026-01-11T00:00:00Z")),
        ("part", ("STRING", 0, 5, "p0", "p4")),
        ("substring(key, 1, 8)", ("STRING", 0, 1, "00000000", "00000000")),
        ("`order by`", ("DATE", 0, 28, "2026-01-01", "2026-01-28")),
        ("1", ("INT", 0, 1, "1", "1")),
        ("extract(YEAR FROM at)", ("INT", 0, 1, "2026", "2026")),
    ],
)
def test_expression_has_its_type_counts_and_bounds(engine, table, text, expected):
    sink = MemorySink()
    (result,) = engine.capture_batch([expression(table, text)], sink)
    assert (result.outcome, result.detail) == (Outcome.CAPTURED, "")
    (row,) = sink.get("stats.expressions")
    kind, nulls, ndv, low, high = expected
    assert (row["logical_type"], row["row_count"], row["null_count"]) == (kind, 5 * (ROWS - 1), nulls)
    assert (row["min"], row["max"]) == (low, high)
    assert row["ndv"] == pytest.approx(6000 if ndv is None else ndv, rel=0.05 if (ndv or 6000) > 4000 else 0)
    assert (row["engine_kind"], row["engine_expression_key"]) == ("spark", text.encode())
    assert {sketch["storage_id"] for sketch in sink.get("stats.sketches")} == {
        Target.expression("spark", text.encode()).storage_id
    }


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Handles of table `t`, and of `ns`, which Spark cannot read; each is one file."""
    path = tmp_path_factory.mktemp("odd")
    place = pa.struct({"lat": pa.float64(), "in": pa.struct({"x": pa.int32()})})
    tagged = pa.struct({"tags": pa.list_(pa.int8()), "tagged": pa.int8()})
    rows = {
        "place": pa.array([None, {"lat": 1.0, "in": {"x": -5}}, {"lat": None}, {"lat": 3.0, "in": {}}], place),
        "tagged": pa.array([None, {"tags": [1]}, {"tagged": 1}, {}], tagged),
        "a": [1, 2, 3, 4],
        "a.b": [5, 6, 7, 8],
    } | {
        f"{sign}int{width}": pa.array([0, 1, 2 ** (width - (not sign)) - 1, 1 if sign else -7], f"{sign}int{width}")
        for sign in ("", "u")
        for width in (8, 16, 32, 64)
    }
    for name, content in {"t": rows, "ns": {"day": pa.array([1, 1000, 2001], pa.timestamp("ns"))}}.items():
        (path / name).mkdir()
        pq.write_table(pa.table(content), path / name / "0.parquet")
    with contextlib.closing(open_connector(ConnectorConfig("c", "parquet", str(path)))) as lake:
        handles = {}
        for name in ("t", "ns"):
            snapshot = lake.enumerate_snapshots("default", name).current_snapshot_id
            schema = lake.describe("default", name).schema
            ids = {column.key: number for number, column in enumerate(schema.columns, 1)}
            handles[name] = TableHandle("c", "default", name, "id", snapshot, schema, ids, lake)
        yield handles


@pytest.mark.parametrize(
    "text",
    [
        "place is null and place.lat is null",
        "place.in is null",
        "hash(place)",
        "to_json(place)",
        "place['lat']",
        "place.lat is null or isnull(place.in)",
        "tagged.tagged + tagged.`tagged`",
        "a",
        "`a.b`",
        "`a.b` + a",
        "typeof(int16)",
        "hash(int8, place.in.x, int32)",
        "hash(uint8, uint16, uint32)",
        "shiftrightunsigned(int32, 1)",
        "uint64 + 1",
    ],
)
def test_expression_has_the_values_that_spark_reads(engine, odd, text):
    sink = MemorySink()
    (result,) = engine.capture_batch([expression(odd["t"], text)], sink)
    assert (result.outcome, result.detail) == (Outcome.CAPTURED, "")
    (row,) = sink.get("stats.expressions")
    (task,) = odd["t"].scan_tasks(["a"])
    rows = engine.spark._session.read.parquet(task.location).selectExpr(f"{text} AS value")
    ((low, high, ndv, nulls),) = rows.selectExpr(
        "min(value)", "max(value)", "count(DISTINCT value)", "count_if(value IS NULL)"
    ).collect()
    assert (row["row_count"], row["null_count"], row["ndv"]) == (4, nulls, ndv)
    assert (row["min"], row["max"]) == tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in (low, high))


@pytest.mark.parametrize(
    ("table", "text", "reason"),
    [
        ("t", "hash(tagged)", 'the value of the struct "tagged" cannot be read, because "tagged.tags" in it is ARRAY'),
        ("t", "size(tagged.tags)", 'no expression reads column "tagged.tags", which is ARRAY'),
        ("ns", "day", 'column "day" cannot be timestamp[us], as Spark has it'),
        ("t", "1 / int8", "DIVIDE_BY_ZERO"),
        ("t", "cast(uint64 as bigint) + 1", "CAST_OVERFLOW"),
    ],
)
def test_expression_on_what_spark_cannot_read_fails(engine, odd, table, text, reason):
    sink = MemorySink()
    (result,) = engine.capture_batch([expression(odd[table], text)], sink)
    assert (result.outcome, sink.rows, reason in result.detail) == (Outcome.DEGRADED, {}, True), result.detail
    assert result.attributes == {"retryable": False}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing + 1", "nothing"),
        ("id +", "Spark says"),
        ("sum(id)", 'the function "sum" is not allowed'),
        ("array(id)", "ARRAY"),
        ("(select max(id) from other)", "subquery"),
        ("( TABLE other)", "subquery"),
        ("(SELECT(max(value))FROM text.`/etc/passwd`)", "subquery"),
        ("/**/(select 1)", "comments"),
        ("reflect('java.lang.System', 'exit', 1)", 'the function "reflect" is not allowed'),
        ("`java_method`('a', 'b')", 'the function "java_method" is not allowed'),
        ("explode(array(1))", 'the function "explode" is not allowed'),
        ("word collate UNICODE_CI", "collation UNICODE_CI"),
        ("hash(*)", "* is not allowed"),
        ("hash(place.lat, place.*)", "* is not allowed"),
        ("identifier('i' || 'd')", "IDENTIFIER is not allowed"),
    ],
)
def test_invalid_expression_fails_alone_with_the_reason(engine, table, text, reason):
    results = engine.capture_batch([expression(table, text), expression(table, "id")], MemorySink())
    assert [result.outcome for result in results] == [Outcome.DEGRADED, Outcome.CAPTURED]
    assert reason in results[0].detail


REACHING = """
    (select max(id) from other)
    (SELECT(max(value))FROM text.`/etc/passwd`)
    (SELECT*FROM parquet.`/lake/sec/t/0.parquet`)
    (from other |> select id)
    (table other)
    (values 1)
    (with x as (select 1 as y) select y from x)
    case when (select 1) = 1 then 1 else 2 end
    a in (select id from other)
    exists (from other)
    a[(select 1)]
    transform(array(a), x -> (select 1))[0]
    aggregate(array(a), 0, (x, y) -> x + (select max(id) from other))
    java_method('java.lang.System', 'nanoTime')
    `try_reflect`('java.lang.System', 'nanoTime')
    read_files('/etc/passwd')
    from_xml(w, 'a INT', map('rowValidationXSDPath', '/etc/passwd')).a
    from_protobuf(b, 'm', '/etc/passwd')
    xpath_string(w, 'a')
    system.builtin.upper(w)
    my_function(a)
    raise_error('x')
    sum(a) over ()
    first(a)
    percentile_cont(0.5) within group (order by a)
    identifier('upper')(w)
    identifier('a')
    f(table(other))
    :p
    ?
    t.*
"""


@pytest.mark.parametrize("text", REACHING.strip().splitlines())
def test_the_parsed_plan_alone_refuses_what_reads_more_than_the_row(engine, text):
    engine.spark.ensure()
    with pytest.raises(InvalidArgument, match=r"not allowed|Spark says") as refusal:
        judge.check_parsed(engine.spark._session, text.strip())
    assert not isinstance(refusal.value, NotDeterministic)


def test_the_analyzed_plan_alone_refuses_what_the_session_puts_in_place_of_names(engine):
    engine.spark.ensure()
    session = engine.spark._session
    session.sql("DECLARE OR REPLACE VARIABLE secret INT DEFAULT 3").collect()
    session.udf.register("mine", lambda text: text)
    empty = session.createDataFrame([], "a INT")

    def judged(text):
        judge.check_parsed(session, text)
        judge.check_analyzed(session, empty, text)

    try:
        for name in ("secret", "session.secret"):
            with pytest.raises(InvalidArgument, match="VariableReference is not allowed"):
                judged(name)
        with pytest.raises(InvalidArgument, match="a subquery is not allowed"):
            judge.check_analyzed(session, empty, "(SELECT 1)")
        with pytest.raises(InvalidArgument, match="PythonUDF is not allowed"):
            judge.check_analyzed(session, empty, "mine('x')")
        judged("abs(a)")
    finally:
        session.sql("DROP TEMPORARY VARIABLE secret").collect()
        session.sql("DROP TEMPORARY FUNCTION mine").collect()


def test_every_allowed_function_is_one_of_spark(engine):
    engine.spark.ensure()
    names = {row[0] for row in engine.spark._session.sql("SHOW SYSTEM FUNCTIONS").collect()}
    with_syntax = {"timestampadd", "timestampdiff"}
    assert with_syntax == language.FUNCTIONS - names and names >= language.VARYING


def test_captures_reuse_the_session(engine, table):
    one = [CaptureRequest.of(table, Target.column(1))]
    engine.capture_batch(one, MemorySink())
    session = engine.spark._session
    engine.capture_batch(one, MemorySink())
    assert engine.spark._session is session is not None


@contextlib.contextmanager
def working(uri, engine):
    """A worker of the server, in this process and on its Spark session."""
    worker = Worker(Connection(uri, None), Registry([engine, NativeEngine()]))
    worker.start([("control",), ("sync",), ("job", "light")])
    try:
        yield
    finally:
        worker.stopping.set()


@pytest.fixture
def tracker(engine):
    engine.spark.ensure()
    return engine.spark._session.sparkContext.statusTracker()


def running(tracker):
    """The id of the running Spark job, once one of its tasks runs."""
    (job,) = eventually(tracker.getActiveJobsIds, 90.0)
    eventually(
        lambda: sum(tracker.getStageInfo(stage).numActiveTasks for stage in tracker.getJobInfo(job).stageIds), 90.0
    )
    return job


def stopped(tracker, job):
    """True if a Spark job was stopped before its end, which Spark calls a failure."""
    eventually(lambda: not tracker.getActiveJobsIds(), 90.0)
    return tracker.getJobInfo(job).status == "FAILED"


def test_cancellation_stops_a_running_spark_job(engine, tracker):
    jobs = []

    def slow(session):
        return session.range(0, 4, 1, 4).selectExpr("java_method('java.lang.Thread', 'sleep', 20000L) AS x").toArrow()

    def poll():
        jobs.append(running(tracker))
        raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        engine.spark.call(slow, poll)
    assert stopped(tracker, *jobs)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Tables `big`, minutes of work in hard links to one file, and `small`."""
    path = tmp_path_factory.mktemp("tables")
    (path / "big").mkdir()
    (path / "small").mkdir()
    pq.write_table(pa.table({"word": [f"{i * 7919 % 10**9:040}" for i in range(BIG_ROWS)]}), path / "big/0.parquet")
    for number in range(1, BIG_FILES):
        os.link(path / "big/0.parquet", path / f"big/{number}.parquet")
    pq.write_table(pa.table({"id": range(1000)}), path / "small/0.parquet")
    return path


@contextlib.contextmanager
def connected(directory, lake, engine):
    """A client of a server with the lake registered, whose worker is in this process."""
    with serving(directory) as server, server.connect() as client, working(server.uri, engine):
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        yield client


def test_cancellation_stops_a_spark_job_before_it_starts(engine, tracker):
    errors = []

    def slow(session):
        time.sleep(1)
        try:
            session.range(0, 4, 1, 4).selectExpr("java_method('java.lang.Thread', 'sleep', 60000L) AS x").toArrow()
        except Exception as error:
            errors.append(str(error))
            raise

    def poll():
        assert not tracker.getActiveJobsIds()
        raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        engine.spark.call(slow, poll)
    assert "cancelled" in errors[0]


def test_cancel_job_stops_the_spark_job(engine, tracker, lake, tmp_path):
    request = {"mode": "ASYNC", "target": {"kind": "COLUMN", "column_id": 1}}
    with connected(tmp_path, lake, engine) as client:
        (queued,) = client.act("capture", {"requests": [request | {"table": "lake.default.big"}]})
        spark_job = running(tracker)
        client.act("cancel_job", {"job_id": queued["job_id"]})
        (job,) = client.act("wait_job", {"job_id": queued["job_id"]})
        assert job["state"] == "CANCELLED"
        assert stopped(tracker, spark_job)
        (queued,) = client.act("capture", {"requests": [request | {"table": "lake.default.small"}]})
        (job,) = client.act("wait_job", {"job_id": queued["job_id"]})
        assert (job["state"], job["degraded"]) == ("SUCCEEDED", False)
        assert client.get({"table": "stats.columns"})["column_name"].to_pylist() == ["id"]


def test_sample_ends_after_its_maximum_time(engine, tracker, lake, tmp_path):
    sampling = {"method": "RANDOM_ROW_GROUP", "max_seconds": 4}
    request = {"table": "lake.default.big", "target": {"kind": "COLUMN", "column_id": 1}, "sampling": sampling}
    with connected(tmp_path, lake, engine) as client:
        client.timeout = 120.0
        (outcome,) = client.act("capture", {"requests": [request]})
        assert (outcome["outcome"], outcome["detail"], outcome["attributes"]["execution"]) == ("CAPTURED", "", "spark")
        assert outcome["attributes"]["sample"]["ended_by"] == "seconds"
        (row,) = client.get({"table": "stats.columns"}).to_pylist()
    assert not tracker.getActiveJobsIds()
    assert (row["completeness"], row["usable_for"], row["row_count"]) == ("PARTIAL", "PLANNING", BIG_FILES * BIG_ROWS)
    assert 2 <= row["row_groups_sampled"] < BIG_FILES
    assert row["rows_scanned"] == row["row_groups_sampled"] * BIG_ROWS
    assert row["ndv_lower"] <= BIG_ROWS <= row["ndv_upper"]


def test_concurrent_captures_have_the_same_rows(engine, table):
    sinks = [MemorySink() for _ in range(3)]
    threads = [threading.Thread(target=engine.capture_batch, args=(requests(table), sink)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sinks[0].content() == sinks[1].content() == sinks[2].content() != []


def test_session_starts_again_after_it_was_closed(engine, table):
    engine.close()
    assert engine.spark._session is None
    (result,) = engine.capture_batch([CaptureRequest.of(table, Target.column(1))], MemorySink())
    assert (result.outcome, result.attributes["execution"]) == (Outcome.CAPTURED, "spark")


def test_spark_workers_run_this_python(engine):
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert engine.spark.cores == 2


def test_invalid_master_raises_an_upstream_error(engine):
    engine.close()
    with pytest.raises(UpstreamError, match="Spark did not start on nonsense"):
        Spark("nonsense").ensure()


@pytest.mark.parametrize(
    "text",
    [
        "rand()",
        "uuid()",
        "id + rand(42)",
        "now()",
        "current_timestamp()",
        "current_date",
        "unix_timestamp()",
        "datediff(current_date(), date'2020-01-01')",
        "current_user()",
        "current_database()",
        "input_file_name()",
        "date'today'",
        "`order by` > 'today'",
        "cast(concat('to', 'day') as date)",
        "to_date('now')",
    ],
)
def test_expression_that_depends_on_more_than_its_row_is_uncapturable(engine, table, text):
    sink = MemorySink()
    (result,) = engine.capture_batch([expression(table, text)], sink)
    assert (result.outcome, f'the value of "{text}" is not a function of its row' in result.detail) == (
        Outcome.UNCAPTURABLE,
        True,
    )
    assert sink.get("stats.expressions") == []


def test_executors_of_this_machine_write_the_rows_of_files(engine, tmp_path):
    (tmp_path / "lake").mkdir()
    lake = SmallLake(tmp_path / "lake")
    for number in range(12):
        lake.add(f"{number:02}.parquet", range(number * 7, number * 7 + 20))
    table = written_rows.handle(lake)
    written, put = (written_rows.SegmentSink(tmp_path / name) for name in ("segments", "none"))
    results = engine.capture_batch(written_rows.requests(table), written)
    assert {result.attributes["execution"] for result in results} == {"spark"}
    ComputeEngine(inline_max_cells=10**9).capture_batch(written_rows.requests(table), put)
    assert written.content() == content_as_by_spark(put)
    assert written.put_files == 0 and written.names == sorted(written.told) != []
