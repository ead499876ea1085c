"""Who answers a capture request: candidates by (priority, id), one call per engine and stage, every decision on record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from capture.spi import CaptureEngine, CaptureRequest, CaptureResult, Decision, Mode, Outcome, Sink, elapsed_ms


class Registry:
    """Routes batches to engines. It selects and never merges what two engines say."""

    def __init__(self, engines: Sequence[CaptureEngine]):
        self.engines = sorted(engines, key=lambda engine: (engine.priority, engine.id))

    def candidates(self, request: CaptureRequest) -> list[CaptureEngine]:
        return [engine for engine in self.engines if not engine.supports(request)]

    def has_async_candidate(self, request: CaptureRequest) -> bool:
        return bool(self.candidates(replace(request, mode=Mode.ASYNC)))

    def capture_batch(
        self, requests: Sequence[CaptureRequest], sink: Sink
    ) -> tuple[list[CaptureResult], list[Decision]]:
        """One result per request, in order, and the decisions that led to them. Never raises for one item's trouble."""
        results: list[CaptureResult | None] = [None] * len(requests)
        pending = {at: self.candidates(request) for at, request in enumerate(requests)}
        tried: dict[int, CaptureResult] = {}
        decisions = []
        while pending:
            for at in [at for at, candidates in pending.items() if not candidates]:
                del pending[at]
                results[at] = self._exhausted(requests[at], tried.get(at))
                decisions.append(_decision(requests[at], results[at], 0.0))
            if not pending:
                break
            engine = min((c[0] for c in pending.values()), key=lambda engine: (engine.priority, engine.id))
            stage = [at for at, candidates in pending.items() if candidates[0] is engine]
            started = time.perf_counter()
            answers = _call(engine, [requests[at] for at in stage], sink)
            took = elapsed_ms(started)
            for at, answer in zip(stage, answers, strict=True):
                decisions.append(_decision(requests[at], answer, took))
                if answer.outcome is Outcome.UNCAPTURABLE:
                    tried[at] = answer
                    pending[at] = pending[at][1:]
                else:
                    results[at] = answer
                    del pending[at]
        return [result for result in results if result is not None], decisions

    def _exhausted(self, request: CaptureRequest, last: CaptureResult | None) -> CaptureResult:
        if last is not None:
            return CaptureResult(Outcome.UNCAPTURABLE, last.engine_id, last.detail or "no capture result")
        reasons = dict.fromkeys(reason for engine in self.engines if (reason := engine.supports(request)))
        detail = "target unsupported" + (f": {'; '.join(reasons)}" if reasons else "")
        return CaptureResult(Outcome.UNCAPTURABLE, "", detail)


def _call(engine: CaptureEngine, requests: list[CaptureRequest], sink: Sink) -> list[CaptureResult]:
    """The engine's answers, held to the batch contract."""
    try:
        answers = engine.capture_batch(requests, sink)
    except Exception as trouble:
        failed = f"capture failed: {type(trouble).__name__}"
        return [CaptureResult(Outcome.DEGRADED, engine.id, failed) for _ in requests]
    if len(answers) != len(requests):
        wrong = f"capture failed: {len(answers)} results for {len(requests)} requests"
        return [CaptureResult(Outcome.DEGRADED, engine.id, wrong) for _ in requests]
    return [_checked(engine, request, answer) for request, answer in zip(requests, answers, strict=True)]


def _checked(engine: CaptureEngine, request: CaptureRequest, answer: CaptureResult) -> CaptureResult:
    other_target = answer.target is not None and answer.target.storage_id != request.target.storage_id
    other_table = answer.table is not None and answer.table.key != request.table.key
    if other_target or other_table:
        what = "target" if other_target else "table or snapshot"
        return CaptureResult(Outcome.DEGRADED, engine.id, f"capture failed: the result is for another {what}")
    return answer if answer.engine_id else replace(answer, engine_id=engine.id)


def _decision(request: CaptureRequest, result: CaptureResult | None, took_ms: float) -> Decision:
    assert result is not None
    return Decision(request, str(result.outcome), result.engine_id, result.detail, took_ms)
