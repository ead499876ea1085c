"""Registry: candidates, their order, and results that break the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capture.registry import Registry
from capture.spi import CaptureRequest, CaptureResult, Mode, Outcome
from store.model.targets import Target, TargetKind
from tests.capture.engine_contract import EngineContract, MemorySink
from tests.capture.fake_engine import FakeEngine, column_row, handle

TABLE = handle()


class TestFakeEngine(EngineContract):
    @pytest.fixture
    def engine(self):
        return FakeEngine()

    @pytest.fixture
    def table(self):
        return TABLE

    def capturable(self, table):
        return [Target.column(1), Target.column(2)]

    def foreign(self, table):
        return [Target.table(), Target.expression("x", b"k")]


def requests_for(*ids: int, **fields: Any) -> list[CaptureRequest]:
    return [CaptureRequest.of(TABLE, Target.column(i) if i else Target.table(), **fields) for i in ids]


def run(engines: list[Any], requests: list[CaptureRequest], sink: Any = None):
    return Registry(engines).capture_batch(requests, sink or MemorySink())


def always(outcome: Outcome, detail: str = "") -> Any:
    return lambda request: CaptureResult(outcome, detail=detail)


def test_candidates_are_ordered_by_priority_then_id():
    engines = [FakeEngine("b"), FakeEngine("z", 5), FakeEngine("a"), FakeEngine("native", 1000)]
    assert [engine.id for engine in Registry(engines).candidates(requests_for(1)[0])] == ["z", "a", "b", "native"]


def test_one_call_per_engine_with_its_requests_in_order():
    tables = FakeEngine("tables", target_kinds={TargetKind.TABLE: frozenset()})
    columns = FakeEngine("columns")
    results, _ = run([tables, columns], requests_for(2, 0, 1, 0, 2))
    assert [[r.target.column_id for r in batch] for batch in columns.batches] == [[2, 1, 2]]
    assert [len(batch) for batch in tables.batches] == [2]
    assert [r.engine_id for r in results] == ["columns", "tables", "columns", "tables", "columns"]


def test_uncapturable_requests_go_to_the_next_engine():
    first = FakeEngine("first", 1, always(Outcome.UNCAPTURABLE, "not me"))
    second = FakeEngine("second", 2)
    results, decisions = run([first, second], requests_for(1, 2))
    assert [(r.outcome, r.engine_id) for r in results] == [(Outcome.CAPTURED, "second")] * 2
    assert [(d.outcome, d.engine_id) for d in decisions] == [("UNCAPTURABLE", "first")] * 2 + [
        ("CAPTURED", "second")
    ] * 2
    assert all(d.elapsed_ms >= 0 for d in decisions)


@pytest.mark.parametrize("final", [Outcome.CAPTURED, Outcome.QUEUED, Outcome.DEGRADED])
def test_any_other_outcome_is_final(final):
    second = FakeEngine("second", 2)
    results, _ = run([FakeEngine("first", 1, always(final, "so")), second], requests_for(1))
    assert (results[0].outcome, results[0].engine_id, results[0].detail) == (final, "first", "so")
    assert not second.batches


def test_request_without_candidates_is_target_unsupported():
    results, decisions = run([FakeEngine()], requests_for(0))
    assert results[0].outcome is Outcome.UNCAPTURABLE
    assert results[0].detail.startswith("target unsupported: target TABLE unsupported")
    assert [d.outcome for d in decisions] == ["UNCAPTURABLE"]
    assert run([], requests_for(1))[0][0].detail == "target unsupported"
    engine = FakeEngine()
    engine.supports = lambda request: "target unsupported: on Mondays"
    assert run([engine], requests_for(1))[0][0].detail == "target unsupported: on Mondays"


def test_request_that_no_engine_captures_has_no_capture_result():
    results, decisions = run([FakeEngine("a", 1, always(Outcome.UNCAPTURABLE, "a list"))], requests_for(1))
    assert (results[0].outcome, results[0].detail) == (Outcome.UNCAPTURABLE, "no capture result: a list")
    assert len(decisions) == 2
    assert run([FakeEngine("a", 1, always(Outcome.UNCAPTURABLE))], requests_for(1))[0][0].detail == "no capture result"


def test_forwarded_requests_reach_the_next_engine_in_one_call():
    """An engine is called once for its own requests, and once for those that other engines pass on."""
    choosy = FakeEngine(
        "choosy", 1, lambda r: CaptureResult(Outcome.UNCAPTURABLE if r.target.column_id == 1 else Outcome.CAPTURED)
    )
    rest = FakeEngine("rest", 2)
    results, _ = run([choosy, rest], requests_for(1, 2, 1))
    assert [r.engine_id for r in results] == ["rest", "choosy", "rest"]
    assert len(choosy.batches) == len(rest.batches) == 1


class Breach(FakeEngine):
    def __init__(self, breach: Any):
        super().__init__("breach", 1)
        self.breach = breach

    def capture_batch(self, requests, sink):
        return self.breach(requests, super().capture_batch(requests, sink))


def fail(requests, results):
    raise ZeroDivisionError("secret path /etc")


BREACHES = {
    "raises": (fail, "capture failed: ZeroDivisionError"),
    "too few": (lambda q, r: r[:-1], "capture failed: 1 results for 2 requests"),
    "too many": (lambda q, r: [*r, r[0]], "capture failed: 3 results for 2 requests"),
    "none": (lambda q, r: None, "capture failed: TypeError"),
    "no results": (lambda q, r: [None, None], "capture failed: no capture result"),
    "wrong order": (lambda q, r: r[::-1], "capture failed: the result is for another target"),
    "other snapshot": (
        lambda q, r: [replace(x, table=handle(snapshot_id=2)) for x in r],
        "capture failed: the result is for another table or snapshot",
    ),
}


@pytest.mark.parametrize(("breach", "detail"), BREACHES.values(), ids=BREACHES)
def test_breach_degrades_the_requests_of_that_engine_only(breach, detail, capsys):
    tables = FakeEngine("tables", 2, target_kinds={TargetKind.TABLE: frozenset()})
    results, decisions = run([Breach(breach), tables, FakeEngine("never", 3)], requests_for(1, 0, 2))
    assert [r.outcome for r in results] == [Outcome.DEGRADED, Outcome.CAPTURED, Outcome.DEGRADED]
    assert {results[0].detail, results[2].detail} == {detail}
    assert [d.outcome for d in decisions] == ["DEGRADED", "DEGRADED", "CAPTURED"]
    assert "secret" not in "".join(r.detail for r in results)


def test_result_for_another_target_degrades_that_request_only():
    def swap(requests, results):
        return [results[0], replace(results[1], target=Target.column(7)), results[2]]

    results, _ = run([Breach(swap)], requests_for(1, 2, 1))
    assert [r.outcome for r in results] == [Outcome.CAPTURED, Outcome.DEGRADED, Outcome.CAPTURED]


@pytest.mark.parametrize(("other", "passes"), [(handle(snapshot_id=2), True), (handle("u"), False)])
def test_extra_records_may_be_of_other_snapshots_but_not_tables(other, passes):
    class Finder(FakeEngine):
        def capture_batch(self, requests, sink):
            (request,) = requests
            sink.put("stats.columns", column_row(other, request.target.column_id), extra=True)
            return [CaptureResult(Outcome.CAPTURED)]

    sink = MemorySink()
    (result,), _ = run([Finder()], requests_for(1), sink)
    assert (result.outcome is Outcome.CAPTURED, bool(sink.rows("stats.columns"))) == (passes, passes)


@pytest.mark.parametrize("other", [handle(snapshot_id=2), handle("u")], ids=["snapshot", "table"])
def test_record_of_another_snapshot_or_table_is_not_put(other):
    class Astray(FakeEngine):
        def capture_batch(self, requests, sink):
            for request in requests:
                table = other if request.target.column_id == 2 else request.table
                sink.put("stats.columns", column_row(table, request.target.column_id))
            return [CaptureResult(Outcome.CAPTURED) for _ in requests]

    sink = MemorySink()
    results, _ = run([Astray()], requests_for(1, 2), sink)
    assert [r.outcome for r in results] == [Outcome.CAPTURED, Outcome.DEGRADED]
    assert [row["column_id"] for row in sink.rows("stats.columns")] == [1]


@pytest.mark.parametrize("priority", [1, 200], ids=["earlier", "later"])
def test_records_of_targets_asked_of_another_engine_are_extra(priority):
    """As those of a source that has statistics of its own, where the data was asked for too."""

    class Generous(FakeEngine):
        def capture_batch(self, requests, sink):
            for column_id in (1, 2):
                sink.put("stats.columns", column_row(requests[0].table, column_id))
            return [CaptureResult(Outcome.CAPTURED) for _ in requests]

    sink = MemorySink()
    generous = Generous("generous", priority, target_kinds={TargetKind.TABLE: frozenset()})
    run([generous, FakeEngine()], requests_for(0, 2), sink)
    put = sorted((row["column_id"], extra) for _, rows, extra, _ in sink.puts for row in rows.to_pylist())
    assert put == [(1, False), (2, False), (2, True)]


def test_engine_whose_supports_raises_is_not_a_candidate():
    class Confused(FakeEngine):
        def supports(self, request):
            raise KeyError("what")

    results, _ = run([Confused("confused", 1), FakeEngine("good", 2)], requests_for(1))
    assert results[0].engine_id == "good"
    assert "failed to check the request" in run([Confused("confused")], requests_for(1))[0][0].detail


def test_modes_and_kinds_select_the_candidates():
    now = FakeEngine("now", 1, modes=frozenset({Mode.SYNC}))
    later = FakeEngine("later", 2)
    registry = Registry([now, later])
    assert [e.id for e in registry.candidates(requests_for(1, mode=Mode.ASYNC)[0])] == ["later"]
    assert Registry([now]).candidates(requests_for(1, mode=Mode.ASYNC)[0]) == []
    assert registry.candidates(requests_for(1, kinds=frozenset({"MCV"}))[0]) == []


def test_empty_batch_has_no_results_and_decisions():
    assert run([FakeEngine()], []) == ([], [])


def metadata_engine(**able: Any) -> FakeEngine:
    return FakeEngine("metadata", 1000, **able)


def test_metadata_comes_first_for_named_kinds_and_last_for_all():
    engines = [FakeEngine("data"), metadata_engine(), FakeEngine("early", 50)]
    (named,), (all_kinds,) = requests_for(1, kinds=frozenset({"ROW_COUNT"})), requests_for(1)
    assert [engine.id for engine in Registry(engines).candidates(named)] == ["early", "metadata", "data"]
    assert [engine.id for engine in Registry(engines).candidates(all_kinds)] == ["early", "data", "metadata"]


def test_metadata_is_read_once_unless_another_engine_comes_between():
    column, (table,) = requests_for(1, kinds=frozenset({"ROW_COUNT"})), requests_for(0)
    kinds = {TargetKind.COLUMN: frozenset({"ROW_COUNT", "NULL_COUNT"}), TargetKind.TABLE: frozenset()}
    metadata, data = metadata_engine(target_kinds=kinds), FakeEngine("data")
    run([metadata, data], [table, *column])
    assert [len(batch) for batch in metadata.batches] == [2]
    metadata = metadata_engine(target_kinds=kinds)
    results, _ = run([metadata, data], [table, *column, *requests_for(2)])
    assert [len(batch) for batch in metadata.batches] == [1, 1]
    assert [result.engine_id for result in results] == ["metadata", "metadata", "data"]


def test_decision_has_the_detail_and_the_reason():
    answer = lambda request: CaptureResult(Outcome.CAPTURED, detail="2 of 3 files", reason="3 rows")  # noqa: E731
    results, decisions = run([FakeEngine(answer=answer)], requests_for(1))
    assert (results[0].detail, decisions[0].detail) == ("2 of 3 files", "2 of 3 files; 3 rows")
