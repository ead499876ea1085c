"""Registry of capture engines: routes each request to the first engine, by (rank, id), that supports it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.spi import (
    CaptureEngine,
    CaptureRequest,
    CaptureResult,
    Decision,
    Outcome,
    SegmentPlace,
    Sink,
    TableHandle,
    elapsed_ms,
    rank,
)
from store.model.errors import Cancelled, InvalidArgument
from store.model.puts import Listing
from store.model.targets import Target, TargetKind

log = logging.getLogger("statflight.worker")

_FINAL = {"retryable": False}  # the engine broke the contract and would do so again


class Registry:
    """Routes batches to engines. One engine serves a request; results of two are never merged."""

    def __init__(self, engines: Sequence[CaptureEngine]):
        self.engines = sorted(engines, key=lambda engine: (engine.priority, engine.id))

    def candidates(self, request: CaptureRequest) -> list[CaptureEngine]:
        """The engines that support a request, in the order in which they are tried."""
        able = [engine for engine in self.engines if not _mismatch(engine, request)]
        return sorted(able, key=lambda engine: _order(engine, request))

    def capture_batch(
        self, requests: Sequence[CaptureRequest], sink: Sink
    ) -> tuple[list[CaptureResult], list[Decision]]:
        """Captures requests, each with the first candidate that does not answer UNCAPTURABLE.

        Args:
            sink: Receives rows of the requested tables and snapshots only.

        Returns:
            One result per request, in order, and all decisions made. Errors of engines are in the results.
        """
        results: list[CaptureResult | None] = [None] * len(requests)
        pending = {at: self.candidates(request) for at, request in enumerate(requests)}
        tried: dict[int, CaptureResult] = {}
        decisions = []
        while pending:
            for at in [at for at, candidates in pending.items() if not candidates]:
                del pending[at]
                results[at] = exhausted = self._exhausted(requests[at], tried.get(at))
                decisions.append(_decision(requests[at], exhausted, 0.0))
            if not pending:
                break
            engine, stage = _next_stage(requests, pending)
            started = time.perf_counter()
            here = set(stage)
            others = [request for at, request in enumerate(requests) if at not in here]
            answers = _call(engine, [requests[at] for at in stage], others, sink)
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
            detail = f"no capture result: {last.detail}" if last.detail else "no capture result"
            return CaptureResult(Outcome.UNCAPTURABLE, last.engine_id, detail)
        reasons = dict.fromkeys(
            reason.removeprefix("target unsupported: ")
            for engine in self.engines
            if (reason := _mismatch(engine, request))
        )
        detail = "target unsupported" + (f": {'; '.join(reasons)}" if reasons else "")
        return CaptureResult(Outcome.UNCAPTURABLE, "", detail)


def _next_stage(
    requests: Sequence[CaptureRequest], pending: Mapping[int, Sequence[CaptureEngine]]
) -> tuple[CaptureEngine, list[int]]:
    """The engine whose turn it is, and the indexes of the pending requests that it gets now.

    Args:
        pending: Index of a request → its engines that are not tried yet, at least one.
    """
    order = {at: _order(candidates[0], requests[at]) for at, candidates in pending.items()}
    next_at = min(pending, key=order.__getitem__)
    engine, first = pending[next_at][0], order[next_at]
    stage = [at for at, candidates in pending.items() if candidates[0] is engine]
    if len(stage) < len(pending):  # other engines first, then what this one has to do after them
        stage = [at for at in stage if order[at] == first]
    return engine, stage


def _order(engine: CaptureEngine, request: CaptureRequest) -> tuple[int, str]:
    return rank(engine.priority, request.spec.kinds), engine.id


def _mismatch(engine: CaptureEngine, request: CaptureRequest) -> str:
    try:
        return engine.supports(request)
    except Exception as error:  # a bug in one engine must not affect the others
        return f"engine {engine.id} failed to check the request: {type(error).__name__}"


def _call(
    engine: CaptureEngine, requests: list[CaptureRequest], others: list[CaptureRequest], sink: Sink
) -> list[CaptureResult]:
    """Calls an engine and enforces the batch contract; `others` are the requests of the batch that it does not get."""
    guard = _Guard(sink, requests, others)
    try:
        answers = list(engine.capture_batch(requests, guard))
    except Cancelled as error:
        return [CaptureResult(Outcome.DEGRADED, engine.id, str(error)) for _ in requests]
    except Exception as error:
        log.exception("engine %s failed", engine.id)
        return [CaptureResult.failed(engine.id, error)] * len(requests)
    if len(answers) != len(requests):
        wrong = f"capture failed: {len(answers)} results for {len(requests)} requests"
        return [CaptureResult(Outcome.DEGRADED, engine.id, wrong, _FINAL) for _ in requests]
    return [_checked(engine, request, answer, guard) for request, answer in zip(requests, answers, strict=True)]


def _checked(engine: CaptureEngine, request: CaptureRequest, answer: Any, guard: _Guard) -> CaptureResult:
    if not isinstance(answer, CaptureResult):
        return CaptureResult(Outcome.DEGRADED, engine.id, "capture failed: no capture result", _FINAL)
    other_target = answer.target is not None and answer.target.storage_id != request.target.storage_id
    other_table = answer.table is not None and answer.table.key != request.table.key
    if other_target or other_table:
        what = "target" if other_target else "table or snapshot"
        return CaptureResult(Outcome.DEGRADED, engine.id, f"capture failed: the result is for another {what}", _FINAL)
    if answer.outcome is Outcome.CAPTURED and request.target.storage_id in guard.strays:
        wrong = "capture failed: a record is for another table or snapshot"
        return CaptureResult(Outcome.DEGRADED, engine.id, wrong, _FINAL)
    return answer if answer.engine_id else replace(answer, engine_id=engine.id)


class _Guard:
    """Sink for one call of an engine; drops rows of tables and snapshots that were not requested.

    `extra` rows may be about other snapshots of a requested table, because a source may keep statistics of an earlier
    snapshot. Records of targets that are requested of another call are extra, whatever the engine says, so that there
    is one record for each target: that of the engine that was asked.
    """

    def __init__(self, sink: Sink, requests: Sequence[CaptureRequest], others: Sequence[CaptureRequest]):
        self._sink = sink
        self._requested = {_key(request.table) for request in requests}
        self._tables = {key[:-1] for key in self._requested}
        own = {(_key(request.table), request.target.storage_id) for request in requests}
        asked = ((request.target.kind, _key(request.table), request.target.storage_id) for request in others)
        self._elsewhere: dict[TargetKind, set[tuple[Any, str]]] = {}
        for kind, key, storage_id in asked:
            if (key, storage_id) not in own:
                self._elsewhere.setdefault(kind, set()).add((key, storage_id))
        self.strays: set[str] = set()  # storage ids of the targets of dropped rows

    def put(
        self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False, checked: bool = False
    ) -> None:
        names = ["table_catalog", "table_schema", "table_name", "snapshot_id"]
        if absent := set(names) - set(rows.column_names):
            raise InvalidArgument(f"rows of {flight} lack {', '.join(sorted(absent))}")
        keys = _keys_of(rows.select(names))
        if not all(key in self._requested or (extra and key[:-1] in self._tables) for key in keys):
            of_table = set() if flight in _RECORDS else {Target.table().storage_id}
            self.strays |= of_table | set(_targets(flight, rows))
            return
        elsewhere = self._elsewhere.get(_RECORDS[flight]) if flight in _RECORDS and not extra and not whole else None
        if elsewhere:
            tables = zip(*(rows[name].to_pylist() for name in names), strict=True)
            asked = pa.array([of in elsewhere for of in zip(tables, _targets(flight, rows), strict=True)], pa.bool_())
            if pc.any(asked, min_count=0).as_py():
                self._sink.put(flight, rows.filter(asked), extra=True, checked=checked)
                rows = rows.filter(pc.invert(asked))
                if not rows.num_rows:
                    return
        self._sink.put(flight, rows, extra=extra, whole=whole, checked=checked)

    def list_files(self, table: TableHandle, listing: Listing) -> bool:
        return _key(table) in self._requested and self._sink.list_files(table, listing)

    def segment_place(
        self, table: TableHandle, column_ids: Sequence[int], file_paths: Sequence[str]
    ) -> SegmentPlace | None:
        is_requested = _key(table) in self._requested
        return self._sink.segment_place(table, column_ids, file_paths) if is_requested else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def _keys_of(rows: pa.Table) -> set[tuple[Any, ...]]:
    """The distinct rows. Equal ones, the usual case, are ten times cheaper than a group-by."""
    if rows.num_rows and rows.slice(1).equals(rows.slice(0, rows.num_rows - 1)):
        return {tuple(column[0].as_py() for column in rows.columns)}
    distinct = rows.group_by(rows.column_names, use_threads=False).aggregate([])
    return set(zip(*(column.to_pylist() for column in distinct.columns), strict=True))


def _key(table: TableHandle) -> tuple[str, str, str, int]:
    return table.catalog, table.schema, table.name, table.snapshot_id


_RECORDS: Final = {
    "stats.tables": TargetKind.TABLE,
    "stats.columns": TargetKind.COLUMN,
    "stats.expressions": TargetKind.EXPRESSION,
    "stats.column_groups": TargetKind.COLUMN_GROUP,
}
"""Flight → kind of the targets that its rows are the records of."""


def _targets(flight: str, rows: pa.Table) -> list[str]:
    """Storage ids of the targets that the rows are about, row by row; empty for a row without a valid one."""
    if flight == "stats.columns" and "column_id" in rows.column_names:
        return [Target.column(i).storage_id if i is not None and i > 0 else "" for i in rows["column_id"].to_pylist()]
    if flight == "stats.column_groups":
        return ["" if ids is None else Target.column_group(ids).storage_id for ids in rows["column_ids"].to_pylist()]
    if flight == "stats.expressions":
        keys = zip(rows["engine_kind"].to_pylist(), rows["engine_expression_key"].to_pylist(), strict=True)
        return [Target.expression(kind, key).storage_id for kind, key in keys]
    if "file_path" in rows.column_names:
        paths = rows["file_path"].to_pylist()
        return [Target.table().storage_id if path is None else Target.file(path).storage_id for path in paths]
    return [Target.table().storage_id] * rows.num_rows


def _decision(request: CaptureRequest, result: CaptureResult, took_ms: float) -> Decision:
    detail = "; ".join(filter(None, (result.detail, result.reason)))
    return Decision(request, str(result.outcome), result.engine_id, detail, took_ms)
