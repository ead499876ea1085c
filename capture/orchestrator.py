"""Resolve: the stored record, or a capture within the caller's budget, or a follow-up for later.

Knows no transport: what it looks records up in, what runs a capture and what queues one are handed to it.
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
    """A spec for one table at one snapshot, looked up and pinned."""

    table_key: int
    snapshot_id: int
    spec: CaptureSpec
    mode: Mode = Mode.SYNC
    has_connector: bool = True

    @property
    def same(self) -> tuple[Any, ...]:
        """A key that questions which share one capture have in common: table, snapshot, target and kinds."""
        return self.table_key, self.snapshot_id, self.spec.target.storage_id, tuple(sorted(self.spec.kinds))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        outcome: As `resolve` names them.
        detail: Why, where it is not plain.
        record: What is stored.
        can_change: A capture may find what is missing.
    """

    outcome: str
    detail: str = ""
    record: Mapping[str, Any] | None = None
    can_change: bool = True


class Running(Protocol):
    """A capture under way; `outcome(question)` gives (outcome, detail) once `wait` returned True."""

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the capture.

        Args:
            seconds: 0 or less only asks whether it has ended.

        Returns:
            False if it has not ended within the time.
        """

    def outcome(self, question: Question) -> tuple[str, str]:
        """The end of one question of a capture that has ended.

        Args:
            question: One of those it was started with, or an equal one.

        Returns:
            An `Outcome` by name, and the detail.

        Raises:
            StatflightError: The capture as a whole failed.
        """


class ControlPlane(Protocol):
    """The parts of a server that the orchestrator needs: stored records, captures, jobs."""

    def lookup(self, questions: Sequence[Question]) -> list[Mapping[str, Any] | Answer | None]:
        """Looks up the records that answer questions, at exactly their snapshots, with the kinds asked for.

        Returns:
            For each question, in order, the record, or None where there is none; an Answer in its place where a
            capture would not find one either.
        """

    def is_light(self, question: Question) -> bool:
        """True if metadata answers it; such captures do not wait for scans."""

    def start(self, questions: Sequence[Question]) -> Running:
        """Begins one capture.

        Args:
            questions: At least one, about the same table, all light or none.

        Raises:
            StatflightError: The capture cannot be begun.
        """

    def follow_up(self, questions: Sequence[Question]) -> None:
        """Queues one job for those questions that an engine can take; no job where that is none.

        Args:
            questions: At least one, about the same table.

        Raises:
            StatflightError: The job cannot be queued.
        """


@dataclass
class Orchestrator:
    """Answers `resolve`: from the store, by a capture within the caller's budget, or with a queued job.

    Attributes:
        plane: The server's side of it.
        sync_enabled: False answers SKIPPED instead of capturing while the caller waits.
        outcomes: Answers so far, by outcome.
    """

    plane: ControlPlane
    sync_enabled: bool = True
    clock: Callable[[], float] = time.monotonic  # seconds, of which budgets are counted
    outcomes: Counter[str] = field(default_factory=Counter)  # of all answers so far
    _flying: dict[tuple[Any, ...], Running] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions, each within its own budget, counted from this call.

        Args:
            questions: About any tables; those whose captures can be shared share them.

        Returns:
            One answer per question, in order. Trouble of a capture is an answer FAILED of its questions.

        Raises:
            StatflightError: The stored records cannot be looked up.
        """
        started = self.clock()
        answers: list[Answer | None] = [None] * len(questions)
        waits: list[int] = []
        for at, (question, record) in enumerate(zip(questions, self.plane.lookup(questions), strict=True)):
            if record is not None:
                answers[at] = _stored(record)
            elif (reason := self._not_now(question)) is not None:
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

    def _not_now(self, question: Question) -> str | None:
        if question.mode is Mode.ASYNC:
            return "async_mode"
        if question.spec.latency_budget_ms == 0:
            return "no_budget"
        return None if self.sync_enabled else "sync_disabled"

    def _launch(self, questions: Sequence[Question], waits: Sequence[int]) -> dict[int, Running | Answer]:
        """Joins captures under way and starts others for the rest, of a table one of what is light and one of what is
        not; an Answer where there is none to wait for."""
        if not waits:
            return {}
        joined: dict[int, Running | Answer] = {}
        with self._lock:
            self._flying = {same: running for same, running in self._flying.items() if not running.wait(0)}
            rest: list[int] = []
            for at in waits:
                if (running := self._flying.get(questions[at].same)) is not None:
                    joined[at] = running
                else:
                    rest.append(at)
            # what was captured since the first look is no cause for another capture
            records = self.plane.lookup([questions[at] for at in rest])
            new: dict[tuple[int, bool], list[int]] = {}
            for at, record in zip(rest, records, strict=True):
                if record is not None:
                    joined[at] = _stored(record)
                else:
                    question = questions[at]
                    new.setdefault((question.table_key, self.plane.is_light(question)), []).append(at)
            for members in new.values():
                once = {questions[at].same: questions[at] for at in members}
                try:
                    started = self.plane.start(list(once.values()))
                except StatflightError as error:
                    joined |= dict.fromkeys(members, Answer("FAILED", str(error)))
                else:
                    self._flying |= dict.fromkeys(once, started)
                    joined |= dict.fromkeys(members, started)
        return {at: joined[at] for at in waits}

    def _await(self, question: Question, running: Running, started: float) -> Answer:
        budget = question.spec.latency_budget_ms
        budget_ms = DEFAULT_BUDGET_MS if budget is None else min(budget, MAX_BUDGET_MS)
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
                open_questions.setdefault(question.table_key, {})[question.same] = question
        for members in open_questions.values():
            with contextlib.suppress(StatflightError):  # the answers stand, with a follow-up or without
                self.plane.follow_up(sorted(members.values(), key=lambda q: (q.snapshot_id, q.spec.target.storage_id)))


def _stored(record: Mapping[str, Any] | Answer) -> Answer:
    return record if isinstance(record, Answer) else Answer("HIT", "", record)
