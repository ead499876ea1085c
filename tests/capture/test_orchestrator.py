"""Resolve: outcomes, budgets, one capture for equal misses, follow-ups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from capture.orchestrator import MAX_BUDGET_MS, Answer, Orchestrator, Question
from capture.spec import CaptureSpec
from capture.spi import Mode
from store.model.errors import NotFound, UpstreamError
from store.model.targets import Target

LIGHT = 99  # the column whose statistics come from metadata


def question(column: int = 1, table: int = 1, **fields: Any) -> Question:
    spec = {name: fields.pop(name) for name in ("kinds", "latency_budget_ms") if name in fields}
    return Question(table, 1, CaptureSpec(Target.column(column), **{"latency_budget_ms": 1000, **spec}), **fields)


@dataclass
class Running:
    plane: Plane
    questions: Sequence[Question]
    due: float
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> bool:
        self.plane.waited.append(seconds)
        self.plane.pass_time(min(seconds, max(0.0, self.due - self.plane.now)))
        return self.done.is_set()

    def unserved(self) -> str:
        return self.plane.nobody

    def outcome(self, question: Question) -> tuple[str, str]:
        if isinstance(self.plane.ends, Exception):
            raise self.plane.ends
        return self.plane.ends


class Plane:
    """A control plane in memory. A capture takes `seconds` of a fake clock, which advances only during waits, and
    stores its records unless `stores` is false."""

    def __init__(self, seconds: float = 0.0, ends: Any = ("CAPTURED", ""), stores: bool = True):
        self.seconds, self.ends, self.stores = seconds, ends, stores
        self.stored: dict[Any, dict[str, Any]] = {}
        self.started: list[list[Question]] = []
        self.followed: list[list[Question]] = []
        self.waited: list[float] = []
        self.refuses: Exception | None = None
        self.nobody = ""  # why nobody works
        self.now = 0.0
        self.lock = threading.Lock()
        self.captures: list[tuple[float, Callable[[], None]]] = []

    def lookup(self, questions):
        return [self.stored.get(q.capture_key[:3]) for q in questions]

    def is_light(self, question):
        return question.spec.target.column_id == LIGHT

    def start(self, questions):
        if self.refuses:
            raise self.refuses
        self.started.append(list(questions))
        running = Running(self, questions, self.now + self.seconds)

        def finish() -> None:
            if self.stores and self.ends == ("CAPTURED", ""):
                self.stored |= {q.capture_key[:3]: {"column_id": q.spec.target.column_id} for q in questions}
            running.done.set()

        self.captures.append((running.due, finish))
        self.pass_time(0.0)
        return running

    def pass_time(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds
            for capture in [each for each in self.captures if each[0] <= self.now]:
                self.captures.remove(capture)
                capture[1]()

    def follow_up(self, questions):
        self.followed.append(list(questions))


def orchestrator(plane: Plane, **options: Any) -> Orchestrator:
    return Orchestrator(plane, clock=lambda: plane.now, **options)


def resolve(plane: Plane, *questions: Question, **options: Any):
    return orchestrator(plane, **options).resolve(list(questions))


def test_a_stored_record_is_a_hit():
    plane = Plane()
    plane.stored[question().capture_key[:3]] = {"ndv": 1}
    (answer,) = resolve(plane, question())
    assert (answer.outcome, answer.record) == ("HIT", {"ndv": 1})
    assert not plane.started and not plane.followed


def test_a_miss_is_captured():
    plane = Plane()
    (answer,) = resolve(plane, question())
    assert (answer.outcome, answer.record) == ("CAPTURED", {"column_id": 1})
    assert not plane.followed


def test_permanent_failure_is_neither_captured_nor_followed_up():
    plane = Plane()
    plane.stored[question().capture_key[:3]] = never = Answer("FAILED", "a STRING has no HISTOGRAM", can_change=False)
    assert resolve(plane, question(), question(2)) == [never, Answer("CAPTURED", "", {"column_id": 2})]
    assert [[q.spec.target.column_id for q in members] for members in plane.started] == [[2]]
    assert not plane.followed


def test_capture_that_stores_no_record_is_partial():
    plane = Plane(stores=False)
    (answer,) = resolve(plane, question())
    assert answer.outcome == "PARTIAL"
    assert [[q.spec.target.column_id for q in members] for members in plane.followed] == [[1]]


def test_spent_budget_is_a_timeout_and_the_capture_continues():
    plane = Plane(seconds=0.2)
    resolver = orchestrator(plane)
    (answer,) = resolver.resolve([question(latency_budget_ms=20)])
    assert answer.outcome == "TIMEOUT" and plane.now == pytest.approx(0.02)
    assert len(plane.followed) == 1
    plane.pass_time(0.3)
    assert resolver.resolve([question()])[0].outcome == "HIT"
    assert len(plane.started) == 1


def test_budget_is_shared_by_the_batch():
    plane = Plane(seconds=0.3)
    answers = resolve(plane, *(question(i, table=i, latency_budget_ms=50) for i in (1, 2, 3)))
    assert [a.outcome for a in answers] == ["TIMEOUT"] * 3
    assert plane.now == pytest.approx(0.05)


def test_budget_is_capped_at_the_maximum():
    plane = Plane()
    resolve(plane, question(latency_budget_ms=3_600_000))
    assert max(plane.waited) <= MAX_BUDGET_MS / 1000


@pytest.mark.parametrize("ends", [("DEGRADED", "no footer"), ("UNCAPTURABLE", "no footer"), UpstreamError("no footer")])
def test_failed_capture_is_answered_failed_and_followed_up(ends):
    plane = Plane(ends=ends)
    (answer,) = resolve(plane, question())
    assert (answer.outcome, answer.detail) == ("FAILED", "no footer")
    assert len(plane.followed) == 1


def test_capture_that_cannot_start_is_answered_failed_and_followed_up():
    plane = Plane()
    plane.refuses = NotFound('no connector "c"')
    answers = resolve(plane, question(1), question(2))
    assert {(a.outcome, a.detail) for a in answers} == {("FAILED", 'no connector "c"')}
    assert len(plane.followed) == 1


def test_question_without_a_connector_fails_without_a_follow_up():
    plane = Plane()
    (answer,) = resolve(plane, question(has_connector=False))
    assert answer.outcome == "FAILED" and "connector" in answer.detail
    assert not plane.started and not plane.followed


@pytest.mark.parametrize(
    ("question", "options", "detail"),
    [
        (question(mode=Mode.ASYNC), {}, "async_mode"),
        (question(mode=Mode.ASYNC), {"sync_enabled": False}, "async_mode"),
        (question(latency_budget_ms=0), {}, "no_budget"),
    ],
)
def test_skipped_question_has_a_reason_and_a_follow_up(question, options, detail):
    plane = Plane()
    (answer,) = resolve(plane, question, **options)
    assert (answer.outcome, answer.detail) == ("SKIPPED", detail)
    assert not plane.started and len(plane.followed) == 1


@pytest.mark.parametrize("budget", [None, 0, 10_000])
def test_where_captures_are_disabled_nothing_is_queued(budget):
    plane = Plane()
    (answer,) = resolve(plane, question(latency_budget_ms=budget), sync_enabled=False)
    assert (answer.outcome, answer.detail) == ("SKIPPED", "sync_disabled")
    assert not plane.started and not plane.followed


def test_a_capture_that_nobody_serves_fails_instead_of_timing_out():
    plane = Plane(seconds=60)
    plane.nobody = "no worker is connected"
    (answer,) = resolve(plane, question(latency_budget_ms=500))
    assert (answer.outcome, answer.detail) == ("FAILED", "no worker is connected")
    assert plane.now == 0.5 and len(plane.followed) == 1


def test_answers_keep_order_and_each_table_has_one_follow_up():
    plane = Plane()
    plane.stored[question(5).capture_key[:3]] = {"column_id": 5}
    later = {"mode": Mode.ASYNC}
    answers = resolve(
        plane,
        question(3, **later),
        question(5),
        question(1, **later),
        question(3, **later),
        question(2, table=2, **later),
    )
    assert [a.outcome for a in answers] == ["SKIPPED", "HIT", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert [[q.spec.target.column_id for q in members] for members in plane.followed] == [[1, 3], [2]]


def test_a_batch_captures_each_table_once():
    plane = Plane()
    answers = resolve(plane, question(1), question(1, table=2), question(2), question(1))
    assert [a.outcome for a in answers] == ["CAPTURED"] * 4
    assert [[q.spec.target.column_id for q in members] for members in plane.started] == [[1, 2], [1]]


def test_captures_from_metadata_start_apart_from_scans():
    plane = Plane()
    answers = resolve(plane, question(1), question(LIGHT), question(2))
    assert [a.outcome for a in answers] == ["CAPTURED"] * 3
    assert [[q.spec.target.column_id for q in members] for members in plane.started] == [[1, 2], [LIGHT]]


def test_hundred_concurrent_equal_misses_share_one_capture():
    plane = Plane(seconds=0.1)
    resolver = orchestrator(plane)
    barrier, outcomes = threading.Barrier(100), []

    def one() -> None:
        barrier.wait()
        outcomes.append(resolver.resolve([question(latency_budget_ms=10_000)])[0].outcome)

    threads = [threading.Thread(target=one) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plane.started) == 1
    assert set(outcomes) <= {"CAPTURED", "HIT"} and len(outcomes) == 100


def test_slow_start_of_a_capture_blocks_only_its_own_questions():
    class Slow(Plane):
        going, gate = threading.Event(), threading.Event()

        def start(self, questions):
            if questions[0].table_key == 1:
                self.going.set()
                assert self.gate.wait(60)
            return super().start(questions)

    plane = Slow()
    resolver = orchestrator(plane)
    answers: dict[str, Answer] = {}

    def ask(name: str, table: int, budget: int) -> threading.Thread:
        def run() -> None:
            (answers[name],) = resolver.resolve([question(table=table, latency_budget_ms=budget)])

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    first = ask("first", 1, 10_000)
    assert plane.going.wait(60)
    ask("other", 2, 10_000).join(10)
    ask("impatient", 1, 1).join(10)
    joining = ask("joining", 1, 10_000)
    assert (answers["other"].outcome, answers["impatient"].outcome) == ("CAPTURED", "TIMEOUT")
    plane.gate.set()
    first.join(10)
    joining.join(10)
    assert answers["first"].outcome == "CAPTURED"
    assert answers["joining"].outcome in ("CAPTURED", "HIT")
    assert len(plane.started) == 2


def test_unexpected_error_ends_the_capture_for_all_who_joined():
    plane = Plane()
    plane.refuses = ValueError("a defect")
    resolver = orchestrator(plane)
    with pytest.raises(ValueError, match="a defect"):
        resolver.resolve([question()])
    plane.refuses = None
    assert resolver.resolve([question()])[0].outcome == "CAPTURED"


def test_failed_follow_up_does_not_change_the_answer():
    class NoQueue(Plane):
        def follow_up(self, questions):
            raise UpstreamError("the queue is full")

    assert resolve(NoQueue(), question(mode=Mode.ASYNC))[0].outcome == "SKIPPED"


def test_questions_about_other_kinds_are_not_merged():
    plane = Plane(seconds=0.05)
    resolve(plane, question(kinds=("NDV",)), question(kinds=("MCV",)))
    assert [len(members) for members in plane.started] == [2]


def test_budgets_are_settings():
    plane = Plane(seconds=9.0)
    assert resolve(plane, question(latency_budget_ms=None), budget_ms=70)[0].outcome == "TIMEOUT"
    assert plane.now == pytest.approx(0.07)
    assert resolve(plane, question(2, latency_budget_ms=500), max_budget_ms=30)[0].outcome == "TIMEOUT"
    assert plane.now == pytest.approx(0.10)
