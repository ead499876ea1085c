"""Resolve: returns the stored record, captures it within the caller's latency budget, or queues a job for later.

Independent of transport and store: a `ControlPlane` looks up records, runs captures and queues jobs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from capture.spec import CaptureSpec
from capture.spi import Mode
from store.model.errors import StatflightError

DEFAULT_BUDGET_MS: Final = 1000
MAX_BUDGET_MS: Final = 10_000
SYNC_DISABLED: Final = "sync_disabled"  # why a question is skipped for which nothing is queued either


@dataclass(frozen=True, slots=True)
class Question:
    """A capture spec for one table, pinned to a snapshot."""

    table_key: int
    snapshot_id: int
    spec: CaptureSpec
    mode: Mode = Mode.SYNC
    has_connector: bool = True

    @property
    def capture_key(self) -> tuple[Any, ...]:
        """Table, snapshot, target, kinds and engine; questions with equal keys share one capture."""
        spec = self.spec
        return self.table_key, self.snapshot_id, spec.target.storage_id, tuple(sorted(spec.kinds)), spec.engine


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        outcome: Outcome that `resolve` returns, such as HIT or TIMEOUT.
        can_change: Whether a later capture may produce the record.
    """

    outcome: str
    detail: str = ""
    record: Mapping[str, Any] | None = None
    can_change: bool = True


class Running(Protocol):
    """A running capture; `outcome` may be called once `wait` returned True."""

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the capture, with 0 seconds or less only looks; False if it has not ended."""

    def unserved(self) -> str:
        """The reason why nobody works at the capture now, as far as that is known; empty if somebody does or may."""

    def outcome(self, question: Question) -> tuple[str, str]:
        """The name of an `Outcome`, and its detail, for a question with a key of this capture, after it has ended.

        Raises:
            StatflightError: The capture as a whole failed.
        """


class ControlPlane(Protocol):
    """The services that the orchestrator needs: record lookup, captures, jobs."""

    def lookup(self, questions: Sequence[Question]) -> list[Mapping[str, Any] | Answer | None]:
        """Looks up stored records, at exactly the questions' snapshots and with all requested kinds.

        Returns:
            One item per question, in order: the record; None if a capture is needed; an Answer if a capture could not
            produce the record either.
        """

    def is_light(self, question: Question) -> bool:
        """True if metadata answers the question; such captures do not queue behind scans."""

    def start(self, questions: Sequence[Question]) -> Running:
        """Starts one capture for questions, at least one, all about the same table, and either all light or none.

        Raises:
            StatflightError: The capture cannot be started.
        """

    def follow_up(self, questions: Sequence[Question]) -> None:
        """Queues one job for those questions, at least one and all about one table, that an engine supports, if any.

        Raises:
            StatflightError: The job cannot be queued.
        """


_Capture: TypeAlias = "Future[Running | Answer]"
"""A capture that one call begins and others may join: once it has started, or an Answer if none was needed."""


@dataclass
class Orchestrator:
    """Answers `resolve`: from the store, by a capture within the caller's budget, or with a queued job.

    Attributes:
        plane: Looks up records, runs captures and queues jobs.
        sync_enabled: False: never capture while the caller waits, answer SKIPPED instead and queue nothing, unless
            the caller asks for a queued capture.
        budget_ms: Latency budget of questions without one.
        outcomes: Number of answers so far, by outcome.
    """

    plane: ControlPlane
    sync_enabled: bool = True
    budget_ms: int = DEFAULT_BUDGET_MS
    max_budget_ms: int = MAX_BUDGET_MS
    clock: Callable[[], float] = time.monotonic
    outcomes: Counter[str] = field(default_factory=Counter)
    _captures: dict[tuple[Any, ...], _Capture] = field(default_factory=dict)  # by key of their questions
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions, each within its own latency budget, measured from this call.

        Args:
            questions: Questions about any tables; equal ones share a capture.

        Returns:
            One answer per question, in order. If a capture fails, its questions are answered FAILED.

        Raises:
            StatflightError: The record lookup failed.
        """
        started = self.clock()
        answers: list[Answer | None] = [None] * len(questions)
        waits: list[int] = []
        for at, (question, record) in enumerate(zip(questions, self.plane.lookup(questions), strict=True)):
            if record is not None:
                answers[at] = _stored(record)
            elif (reason := self._skip_reason(question)) is not None:
                answers[at] = Answer("SKIPPED", reason)
            elif not question.has_connector:
                answers[at] = Answer("FAILED", "no connector: the table only has statistics that were put")
            else:
                waits.append(at)
        captures = self._launch([questions[at] for at in waits])
        for at, capture in zip(waits, captures, strict=True):
            answers[at] = self._await(questions[at], capture, started)
        final = [answer for answer in answers if answer is not None]
        with self._counting:
            self.outcomes.update([answer.outcome for answer in final])
        self._follow_up(questions, final)
        return final

    def _skip_reason(self, question: Question) -> str | None:
        if question.mode is Mode.ASYNC:
            return "async_mode"
        if not self.sync_enabled:
            return SYNC_DISABLED
        return "no_budget" if question.spec.latency_budget_ms == 0 else None

    def _launch(self, questions: Sequence[Question]) -> list[_Capture]:
        """Joins the captures that other calls have begun, and begins the rest."""
        with self._lock:
            captures = self._captures.copy()
        ended = [(key, capture) for key, capture in captures.items() if _has_ended(capture)]
        begun: dict[tuple[Any, ...], Question] = {}
        joined = []
        with self._lock:
            for key, capture in ended:
                if self._captures.get(key) is capture:
                    del self._captures[key]
            for question in questions:
                if (key := question.capture_key) not in self._captures:
                    self._captures[key] = Future()
                    begun[key] = question
                joined.append(self._captures[key])
            captures = {key: self._captures[key] for key in begun}
        if begun:
            self._begin(begun, captures)
        return joined

    def _begin(
        self, questions: Mapping[tuple[Any, ...], Question], captures: Mapping[tuple[Any, ...], _Capture]
    ) -> None:
        """Starts at most two captures per table: metadata-only, and scan."""
        groups: dict[tuple[int, bool], list[tuple[Any, ...]]] = {}
        try:
            records = self.plane.lookup(list(questions.values()))  # again: another call may have captured it meanwhile
            for (key, question), record in zip(questions.items(), records, strict=True):
                if record is not None:
                    captures[key].set_result(_stored(record))
                else:
                    groups.setdefault((question.table_key, self.plane.is_light(question)), []).append(key)
            for keys in groups.values():
                self._start([questions[key] for key in keys], [captures[key] for key in keys])
        except BaseException as error:
            for capture in captures.values():
                if not capture.done():
                    capture.set_exception(error)
            raise

    def _start(self, questions: Sequence[Question], captures: Sequence[_Capture]) -> None:
        """Starts one capture for all questions, whose result or error is that of each."""
        try:
            running = self.plane.start(questions)
        except StatflightError as error:
            for capture in captures:
                capture.set_exception(error)
        else:
            for capture in captures:
                capture.set_result(running)

    def _await(self, question: Question, capture: _Capture, started: float) -> Answer:
        budget = question.spec.latency_budget_ms
        budget_ms = min(self.budget_ms if budget is None else budget, self.max_budget_ms)

        def left() -> float:
            return max(0.0, started + budget_ms / 1000 - self.clock())

        timeout = Answer("TIMEOUT", f"not captured within {budget_ms} ms; the work goes on")
        try:
            running = capture.result(left())
            if isinstance(running, Answer):
                return running
            if not running.wait(left()):
                unserved = running.unserved()
                return Answer("FAILED", unserved) if unserved else timeout
            outcome, detail = running.outcome(question)
        except TimeoutError:
            return timeout
        except StatflightError as error:
            return Answer("FAILED", str(error))
        if outcome != "CAPTURED":
            return Answer("FAILED", detail or outcome.lower())
        (record,) = self.plane.lookup([question])
        if record is None:
            return Answer("PARTIAL", "captured, but not the record")
        return record if isinstance(record, Answer) else Answer("CAPTURED", detail, record)

    def _follow_up(self, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        open_questions: dict[int, dict[tuple[Any, ...], Question]] = {}
        for question, answer in zip(questions, answers, strict=True):
            if question.has_connector and _wants_follow_up(answer):
                open_questions.setdefault(question.table_key, {})[question.capture_key] = question
        for members in open_questions.values():
            with contextlib.suppress(StatflightError):  # a follow-up is optional
                self.plane.follow_up(sorted(members.values(), key=lambda q: (q.snapshot_id, q.spec.target.storage_id)))


def _wants_follow_up(answer: Answer) -> bool:
    is_known = answer.outcome in ("HIT", "CAPTURED")
    is_disabled = answer.outcome == "SKIPPED" and answer.detail == SYNC_DISABLED
    return answer.can_change and not is_known and not is_disabled


def _has_ended(capture: _Capture) -> bool:
    if not capture.done():
        return False
    return capture.exception() is not None or isinstance(running := capture.result(), Answer) or running.wait(0)


def _stored(record: Mapping[str, Any] | Answer) -> Answer:
    return record if isinstance(record, Answer) else Answer("HIT", "", record)
