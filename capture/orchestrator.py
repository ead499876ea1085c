"""Resolve: returns the stored record, captures it within the caller's latency budget, or queues a job for later.

Independent of transport and store: a `ControlPlane` looks up records, runs captures and queues jobs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from capture.spec import CaptureSpec
from capture.spi import Mode
from store.errors import StatflightError

DEFAULT_BUDGET_MS: Final = 1000
MAX_BUDGET_MS: Final = 10_000


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
        detail: The reason, if the outcome needs one.
        record: The stored record; None if there is none.
        can_change: Whether a later capture may produce the record.
    """

    outcome: str
    detail: str = ""
    record: Mapping[str, Any] | None = None
    can_change: bool = True


class Running(Protocol):
    """A running capture; `outcome` may be called once `wait` returned True."""

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the capture.

        Args:
            seconds: Maximum wait; 0 or less only checks whether the capture has ended.

        Returns:
            False on a timeout.
        """

    def outcome(self, question: Question) -> tuple[str, str]:
        """The result for one question, after the capture has ended.

        Args:
            question: A question of this capture, or one with the same key.

        Returns:
            The name of an `Outcome`, and its detail.

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
        """Starts one capture.

        Args:
            questions: At least one question, all about the same table, and either all light or none.

        Raises:
            StatflightError: The capture cannot be started.
        """

    def follow_up(self, questions: Sequence[Question]) -> None:
        """Queues one job for the questions that an engine supports; none if no engine supports any.

        Args:
            questions: At least one question, all about the same table.

        Raises:
            StatflightError: The job cannot be queued.
        """


@dataclass
class Orchestrator:
    """Answers `resolve`: from the store, by a capture within the caller's budget, or with a queued job.

    Attributes:
        plane: Looks up records, runs captures and queues jobs.
        sync_enabled: False: never capture while the caller waits, answer SKIPPED instead.
        budget_ms: Latency budget of questions without one.
        max_budget_ms: Largest latency budget.
        clock: Monotonic time in seconds, used for latency budgets.
        outcomes: Number of answers so far, by outcome.
    """

    plane: ControlPlane
    sync_enabled: bool = True
    budget_ms: int = DEFAULT_BUDGET_MS
    max_budget_ms: int = MAX_BUDGET_MS
    clock: Callable[[], float] = time.monotonic
    outcomes: Counter[str] = field(default_factory=Counter)
    _running: dict[tuple[Any, ...], Running] = field(default_factory=dict)
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
        for at, running in self._launch(questions, waits).items():
            if isinstance(running, Answer):
                answers[at] = running
            else:
                answers[at] = self._await(questions[at], running, started)
        final = [answer for answer in answers if answer is not None]
        with self._counting:
            self.outcomes.update([answer.outcome for answer in final])
        self._follow_up(questions, final)
        return final

    def _skip_reason(self, question: Question) -> str | None:
        if question.mode is Mode.ASYNC:
            return "async_mode"
        if question.spec.latency_budget_ms == 0:
            return "no_budget"
        return None if self.sync_enabled else "sync_disabled"

    def _launch(self, questions: Sequence[Question], waits: Sequence[int]) -> dict[int, Running | Answer]:
        """Joins running captures; starts at most two per table for the rest (metadata-only, and scan).

        Returns:
            For each place in `waits` the capture to wait for, or an Answer if it needs none or could not be started.
        """
        if not waits:
            return {}
        joined: dict[int, Running | Answer] = {}
        with self._lock:
            self._running = {key: running for key, running in self._running.items() if not running.wait(0)}
            rest: list[int] = []
            for at in waits:
                if (running := self._running.get(questions[at].capture_key)) is not None:
                    joined[at] = running
                else:
                    rest.append(at)
            # look up again: another call may have captured it meanwhile
            records = self.plane.lookup([questions[at] for at in rest])
            new: dict[tuple[int, bool], list[int]] = {}
            for at, record in zip(rest, records, strict=True):
                if record is not None:
                    joined[at] = _stored(record)
                else:
                    question = questions[at]
                    new.setdefault((question.table_key, self.plane.is_light(question)), []).append(at)
            for members in new.values():
                once = {questions[at].capture_key: questions[at] for at in members}
                try:
                    started = self.plane.start(list(once.values()))
                except StatflightError as error:
                    joined |= dict.fromkeys(members, Answer("FAILED", str(error)))
                else:
                    self._running |= dict.fromkeys(once, started)
                    joined |= dict.fromkeys(members, started)
        return {at: joined[at] for at in waits}

    def _await(self, question: Question, running: Running, started: float) -> Answer:
        budget = question.spec.latency_budget_ms
        budget_ms = min(self.budget_ms if budget is None else budget, self.max_budget_ms)
        try:
            if not running.wait(max(0.0, started + budget_ms / 1000 - self.clock())):
                return Answer("TIMEOUT", f"not captured within {budget_ms} ms; the work goes on")
            outcome, detail = running.outcome(question)
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
            if answer.outcome not in ("HIT", "CAPTURED") and answer.can_change and question.has_connector:
                open_questions.setdefault(question.table_key, {})[question.capture_key] = question
        for members in open_questions.values():
            with contextlib.suppress(StatflightError):  # a follow-up is optional
                self.plane.follow_up(sorted(members.values(), key=lambda q: (q.snapshot_id, q.spec.target.storage_id)))


def _stored(record: Mapping[str, Any] | Answer) -> Answer:
    return record if isinstance(record, Answer) else Answer("HIT", "", record)
