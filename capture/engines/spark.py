"""The engine that computes: scans the files of a table, in this process when they are few, else on Spark.

Per column and file: row, null and NaN counts, exact bounds, widths, theta, KLL, frequent items. A table's statistics
are the union over its live files, so files that were scanned before are not read again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from capture import incremental, partitions
from capture.connectors.spi import ScanTask
from capture.incremental import Fold, Known
from capture.spark import dependencies, expressions, job, sampling
from capture.spark.partial import HASHED, Wanted
from capture.spark.rows import Coverage, Rows
from capture.spark.scan import Answer, Work
from capture.spark.session import Spark, SparkUnavailable
from capture.spi import Budget, Capabilities, CaptureRequest, CaptureResult, Mode, Outcome, Sampling, Sink, TableHandle
from store import logical_types
from store.errors import Cancelled, StatflightError
from store.logical_types import Kind, LogicalType
from store.targets import TargetKind

SAMPLE_SHARE: Final = 0.1  # of the row groups of each file
_FLUSH_ROWS: Final = 4000

_COLUMN_KINDS: Final = frozenset({
    "ROW_COUNT", "NULL_COUNT", "NAN_COUNT", "NDV", "MIN_MAX", "WIDTH", "HISTOGRAM", "MCV",
})  # fmt: skip


class SparkEngine:
    """Computes statistics of columns, groups of columns and Spark expressions.

    Args:
        master: The Spark master; default `local[*]`. Nothing is started before a capture is large enough.
        inline_max_cells: Up to so many rows times columns a capture is computed in this process.
    """

    id: str = "spark"
    priority: int = 100
    capabilities = Capabilities(
        target_kinds={
            TargetKind.COLUMN: _COLUMN_KINDS,
            TargetKind.COLUMN_GROUP: frozenset({"ROW_COUNT", "NULL_COUNT", "NDV"}),
            TargetKind.EXPRESSION: _COLUMN_KINDS,
        },
        modes=frozenset({Mode.SYNC, Mode.ASYNC}),
        sampling=frozenset(Sampling),
        partitions=True,
        budgets=True,
    )

    def __init__(self, master: str | None = None, inline_max_cells: int = 1_000_000):
        self.spark = Spark(master)
        self.inline_max_cells = inline_max_cells

    def supports(self, request: CaptureRequest) -> str:
        if request.target.kind is TargetKind.EXPRESSION:
            if request.target.engine_kind != self.id:
                return f"target unsupported: an expression of {request.target.engine_kind}, not of {self.id}"
            if request.sampling is not Sampling.NONE:
                return f"sampling {request.sampling} unsupported for expressions"
        if request.partitions and request.sampling is not Sampling.NONE:
            return f"sampling {request.sampling} unsupported for partitions"
        return self.capabilities.mismatch(request)

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        results: dict[int, CaptureResult] = {}
        batches: dict[tuple[object, ...], list[int]] = {}
        for at, request in enumerate(requests):
            if trouble := self.supports(request) or _uncapturable(request):
                results[at] = self._result(request, Outcome.UNCAPTURABLE, trouble)
            elif trouble := _unknown(request):
                results[at] = self._result(request, Outcome.DEGRADED, trouble)
            else:
                # Each expression is a job of its own: Spark may refuse one of them.
                alone = request.target.storage_id if request.target.kind is TargetKind.EXPRESSION else ""
                how = (request.mode, request.sampling, request.budget, request.partitions)
                key = (*request.table.key.values(), *how, alone)
                batches.setdefault(key, []).append(at)
        for done, places in enumerate(batches.values()):
            asked = [requests[at] for at in places]

            def progress(share: float, message: str, done: int = done) -> None:
                sink.progress((done + share) / len(batches), message)

            try:
                capture = self._capture if asked[0].target.kind is not TargetKind.EXPRESSION else self._expression
                answers = capture(asked, sink, progress)
            except Cancelled:
                answers = [self._result(request, Outcome.DEGRADED, "cancelled") for request in asked]
            except StatflightError as trouble:
                told: dict[str, object] = {"retryable": trouble.retryable}
                answers = [self._result(request, Outcome.DEGRADED, str(trouble), told) for request in asked]
            except Exception as trouble:  # the contract: an engine never raises
                detail = f"capture failed: {type(trouble).__name__}"
                answers = [self._result(request, Outcome.DEGRADED, detail) for request in asked]
            results |= zip(places, answers, strict=True)
        return [results[at] for at in range(len(requests))]

    def close(self) -> None:
        """Stops Spark, if it was started."""
        self.spark.stop()

    def _capture(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """The requests of one table at one snapshot, in one mode and sampling: one pass over its files."""
        begun = time.monotonic()
        scan = _Scan.of(requests)
        table = scan.table
        progress(0.0, f"planning {table.schema}.{table.name}")
        names = frozenset(table.names[i] for i in scan.all_ids)
        planned = table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids, names)
        tasks = sorted(planned, key=lambda task: task.file_path)
        notes = []
        if requests[0].partitions:
            total, tasks = len(tasks), partitions.within(table, tasks, requests[0].partitions)
            notes.append(partitions.detail(len(tasks), total))
        scan.rows_total, scan.files_total = sum(task.row_count for task in tasks), len(tasks)
        whole, draw = tasks, self._draw(requests[0], scan, tasks, notes)
        seconds = draw.budget.max_seconds if draw else None
        if draw:
            tasks = [] if seconds is not None else draw.take()  # those of a timed sample come while it runs
        known = Known()
        if not scan.sampled and tasks and scan.work.column_ids:
            known = incremental.known(sink, table, self.id, tasks, scan.types, scan.work.column_ids, scan.work.wanted)
        reused = scan.reuse(tasks, known)
        new = [(at, task) for at, task in enumerate(tasks) if at not in reused]

        rows = Rows(table, self.id, requests[0].mode)
        seen, execution = len(reused), "inline"

        def tell() -> None:
            progress(0.9 * seen / max(len(tasks), 1), f"{seen} of {len(tasks)} files")

        expected = draw.rows_at_most if draw else sum(task.row_count for _, task in new)
        if expected * max(len(scan.all_ids), 1) > self.inline_max_cells:
            try:
                self.spark.ensure()
                execution = "spark"
            except SparkUnavailable as trouble:
                notes.append(f"computed without Spark: {trouble}")
        if draw and seconds is not None:
            waves = self._timed(draw, tasks, scan.work, tell, begun + seconds, execution == "spark")
        else:
            waves = self._waves(new, scan.work, tell, execution == "spark")
        for flight, found in known.tables(
            (tasks[at].file_path, i) for at in reused for i in scan.work.column_ids
        ).items():
            for start in range(0, len(found), _FLUSH_ROWS):
                sink.put(flight, rows.stored(found[start : start + _FLUSH_ROWS]))
        held = dict(reused)
        for wave in waves:
            for answer in wave:
                held.setdefault(answer.task, []).append(answer)
            seen = len(reused) + len(held.keys() - reused.keys())
            scan.take(held, tasks, rows)
            if rows.pending >= _FLUSH_ROWS:
                _flush(rows, sink)
            tell()
        scan.take(held, tasks, rows)
        assert not held, "a task without an answer"
        if not requests[0].partitions:  # no record of the whole is made of a part
            scan.finish(whole, rows)
        _flush(rows, sink)
        attributes: dict[str, Any] = {"execution": execution, "files": scan.files_total, "files_reused": len(reused)}
        if scan.sampled:
            ended_by = (draw.ended_by if draw else "") or None
            attributes["sample"] = {"method": str(scan.sampling), "rows_total": scan.rows_total, "ended_by": ended_by}
        return [self._answer(request, scan, notes, attributes) for request in requests]

    def _waves(
        self, numbered: Sequence[job.Numbered], work: Work, tell: Callable[[], None], on_spark: bool
    ) -> Iterator[list[Answer]]:
        return job.distributed(self.spark, numbered, work, tell) if on_spark else job.inline(numbered, work, tell)

    def _draw(
        self, request: CaptureRequest, scan: _Scan, tasks: Sequence[ScanTask], notes: list[str]
    ) -> sampling.Draw | None:
        """The row groups of a sample in their order; None where each file is asked for a share of its own, or for
        all."""
        if not scan.sampled or scan.work.share is not None or not scan.rows_total:
            return None
        budget = request.budget or Budget(max_rows=math.ceil(SAMPLE_SHARE * scan.rows_total))
        if request.sampling is Sampling.RANDOM_ROW_GROUP:
            return sampling.Draw(tasks, sampling.random_points(incremental.listing(tasks)), budget)
        table, names = scan.table, frozenset(scan.table.names[i] for i in scan.all_ids)
        try:
            native = table.connector.capture_snapshot_target_stats(
                table.schema, table.name, table.snapshot_id, table.column_ids, names
            )
            tasks = sampling.by_metadata(tasks, native, scan.types)
        except StatflightError as trouble:
            notes.append(f"sampled in the order of file names: {trouble}")
        return sampling.Draw(tasks, sampling.spread_points(), budget)

    def _timed(
        self, draw: sampling.Draw, tasks: list[ScanTask], work: Work, tell: Callable[[], None], deadline: float,
        on_spark: bool,
    ) -> Iterator[list[Answer]]:  # fmt: skip
        """The answers of a sample until the time is over; `tasks` grows by those of each wave.

        The first wave is finished however long it takes: a sample is never empty. Spark is stopped in the middle of
        any other, whose row groups then do not count.
        """
        count, first = self.spark.cores if on_spark else 1, True

        def poll() -> None:
            tell()
            if not first and time.monotonic() >= deadline:
                raise _TimeIsUpError

        begun = time.monotonic()
        while chosen := draw.take(count, deadline):
            if not first and time.monotonic() >= deadline:
                draw.ended_by = "seconds"
                return
            numbered = list(enumerate(chosen, len(tasks)))
            tasks += chosen
            try:
                yield from self._waves(numbered, work, poll, on_spark)
            except _TimeIsUpError:
                draw.ended_by = "seconds"
                return
            first, now = False, time.monotonic()
            fits = int(0.8 * (deadline - now) / max(now - begun, 1e-3) * count)
            begun, count = now, min(max(fits, self.spark.cores if on_spark else 1), 4 * count)

    def _expression(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """The requests for one expression."""
        table, target = requests[0].table, requests[0].target
        assert target.engine_expression_key is not None
        text = expressions.checked(target.engine_expression_key)
        leaves = {c.name: logical_types.parse(c.logical_type) for c in table.columns.columns if c.is_leaf}
        types = expressions.named(text, leaves)
        progress(0.0, f"planning {table.schema}.{table.name}")
        names = frozenset(types)
        planned = table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids, names)
        tasks = sorted(planned, key=lambda task: task.file_path)

        def tell() -> None:
            progress(0.1, f"{len(tasks)} files")

        wanted = _wanted(requests)
        lt, part, size = expressions.capture(self.spark, tasks, text, types, wanted, tell)
        rows = Rows(table, self.id, requests[0].mode)
        rows.expression(target, lt, part, Coverage(part.row_count, len(tasks), size))
        _flush(rows, sink)
        attributes: dict[str, object] = {"execution": "spark", "files": len(tasks)}
        return [self._result(request, Outcome.CAPTURED, "", attributes) for request in requests]

    def _answer(
        self,
        request: CaptureRequest,
        scan: _Scan,
        notes: Sequence[str],
        attributes: dict[str, object],
    ) -> CaptureResult:
        key = _key(request)
        errors, read = scan.errors[key], scan.read[key]
        attributes = attributes | {"files_read": read.files, "rows_read": read.rows, "bytes_read": read.size_bytes}
        if errors:
            attributes["files_failed"] = len(errors)
        if found := scan.dependencies.get(key):
            attributes["dependencies"] = found
        outcome = Outcome.DEGRADED if errors and not scan.folds[key].parts else Outcome.CAPTURED
        told = [*notes]
        if errors:
            others = f" (and {len(errors) - 1} more of {scan.files_total} files)" if len(errors) > 1 else ""
            told.append(f"{errors[0]}{others}")
        return self._result(request, outcome, "; ".join(told), attributes)

    def _result(
        self, request: CaptureRequest, outcome: Outcome, detail: str = "", attributes: dict[str, object] | None = None
    ) -> CaptureResult:
        return CaptureResult(outcome, self.id, detail, attributes or {}, request.target, request.table)


class _TimeIsUpError(Exception):
    """Stops the wave of a timed sample that is under way."""


_Key = tuple[int, ...]  # of a column or a group: its ids


@dataclass(slots=True)
class _Read:
    """What one pass read itself, of a column or a group."""

    paths: set[str] = field(default_factory=set)
    rows: int = 0
    size_bytes: int = 0

    def add(self, path: str, rows: int, size_bytes: int) -> None:
        self.paths.add(path)
        self.rows, self.size_bytes = self.rows + rows, self.size_bytes + size_bytes

    @property
    def files(self) -> int:
        return len(self.paths)


@dataclass(slots=True)
class _Scan:
    """One pass over a table: what is asked, and what came of it so far."""

    table: TableHandle
    sampling: Sampling
    work: Work
    types: dict[int, LogicalType]
    all_ids: tuple[int, ...]
    folds: dict[_Key, Fold]
    errors: dict[_Key, list[str]]
    row_groups: dict[_Key, int]
    read: dict[_Key, _Read]
    members: dict[int, Fold]  # of groups: each column's values, null among them
    dependencies: dict[_Key, list[dict[str, Any]]] = field(default_factory=dict)  # of groups, once all is folded
    rows_total: int = 0
    files_total: int = 0
    taken: int = 0  # files folded, in order
    reused: frozenset[int] = frozenset()  # tasks whose answers, and thetas, are from the store

    @classmethod
    def of(cls, requests: Sequence[CaptureRequest]) -> _Scan:
        table, method = requests[0].table, requests[0].sampling
        columns = sorted({r.target.column_id for r in requests if r.target.column_id is not None})
        groups = sorted({r.target.column_ids for r in requests if r.target.column_ids})
        wanted = _wanted([r for r in requests if r.target.kind is TargetKind.COLUMN])
        share = SAMPLE_SHARE if method is Sampling.RANDOM_ROW_GROUP and requests[0].budget is None else None
        all_ids = sorted({*columns, *(i for group in groups for i in group)})
        named = {c.name: c.logical_type for c in table.columns.columns}
        types = {i: logical_types.parse(named[table.names[i]]) for i in all_ids}
        keys: list[_Key] = [*((i,) for i in columns), *groups]
        lts = [types[key[0]] if len(key) == 1 else LogicalType(Kind.STRUCT) for key in keys]
        return cls(
            table,
            method,
            Work(tuple(columns), tuple(groups), wanted, share),
            types,
            tuple(all_ids),
            {key: Fold(lt) for key, lt in zip(keys, lts, strict=True)},
            {key: [] for key in keys},
            dict.fromkeys(keys, 0),
            {key: _Read() for key in keys},
            {i: Fold(LogicalType(Kind.STRUCT)) for group in groups for i in group},
        )

    @property
    def sampled(self) -> bool:
        return self.sampling is not Sampling.NONE

    def reuse(self, tasks: Sequence[ScanTask], known: Known) -> dict[int, list[Answer]]:
        """The answers from the store, by task, for those it has all answers of."""
        found: dict[int, list[Answer]] = {}
        if not known.parts or self.work.groups:
            return found
        for at, task in enumerate(tasks):
            parts = {i: known.parts.get((task.file_path, i)) for i in self.work.column_ids}
            if all(parts.values()):
                found[at] = [Answer(at, i, (), "", part[1], 0, part[0]) for i, part in parts.items() if part]
        self.reused = frozenset(found)
        whole = sum(map(len, found.values())) == len(known.parts)
        for i in self.work.column_ids:
            if whole and i in known.unions:
                self.folds[i,].unite(known.unions[i])
                continue
            for answers in found.values():  # without it, the sketches one by one
                self.folds[i,].unite(known.theta((tasks[answers[0].task].file_path, i)))
        return found

    def take(self, held: dict[int, list[Answer]], tasks: Sequence[ScanTask], rows: Rows) -> None:
        """Folds the answers of files whose turn it is, and makes the rows of each file."""
        while self.taken in held:
            at = self.taken
            task = tasks[at]
            for answer in held.pop(at):
                self._fold(answer, task, rows)
            self.taken += 1

    def _fold(self, answer: Answer, task: ScanTask, rows: Rows) -> None:
        if answer.column_id is None and len(answer.column_ids) == 1 and answer.partial:
            self.members[answer.column_ids[0]].add(answer.partial)
            return
        key = answer.column_ids if answer.column_id is None else (answer.column_id,)
        if answer.partial is None:
            self.errors[key].append(answer.error)
            return
        reused = answer.task in self.reused
        self.folds[key].add(answer.partial, answer.size_bytes, reused)
        self.row_groups[key] += max(answer.row_groups, 1)  # where a format has none, a file is one
        if not reused:
            self.read[key].add(task.file_path, answer.partial.row_count, answer.size_bytes)
        if answer.column_id is not None and not self.sampled and not reused:
            lt = self.types[answer.column_id]
            rows.file_column(task.file_path, task.fingerprint, answer.column_id, lt, answer.partial, answer.size_bytes)

    def finish(self, tasks: Sequence[ScanTask], rows: Rows) -> None:
        """The rows of the table; `tasks` are all its files, whatever was read of them."""
        total, files = self.rows_total, incremental.listing(tasks)
        for key, fold in self.folds.items():
            if tasks and not fold.parts:
                continue  # nothing could be read
            part = fold.result()
            row_groups = self.row_groups[key] if self.sampled and part.row_count < total else 0
            read = self.read[key].files if self.sampled else fold.parts
            covers = Coverage(total, read, fold.size_bytes, row_groups, len(self.errors[key]))
            if len(key) == 1:
                rows.column(key[0], self.types[key[0]], part, covers, files)
            else:
                if covers.complete and part.theta:  # of a sample the degree would be too high
                    thetas = {i: self.members[i].result().theta or b"" for i in key}
                    self.dependencies[key] = dependencies.degrees(key, part.theta, thetas)
                rows.group(key, part, covers, self.dependencies.get(key, []))


def _wanted(requests: Sequence[CaptureRequest]) -> Wanted:
    kinds = [request.kinds for request in requests]
    return Wanted(
        quantiles=any(not asked or "HISTOGRAM" in asked for asked in kinds),
        frequent=any(not asked or "MCV" in asked for asked in kinds),
    )


def _key(request: CaptureRequest) -> _Key:
    """The columns of a request; none for an expression."""
    target = request.target
    return target.column_ids if target.column_id is None else (target.column_id,)


def _uncapturable(request: CaptureRequest) -> str:
    """Why no engine of this kind could, or an empty string."""
    types = {request.table.column_ids.get(c.name): c.logical_type for c in request.table.columns.columns}
    for column_id in _key(request):
        kind = logical_types.parse(types[column_id]).kind if column_id in types else None
        if kind is not None and kind not in HASHED and kind is not Kind.INTERVAL:
            return f"target unsupported: {kind} column has no scalar statistics"
    return ""


def _unknown(request: CaptureRequest) -> str:
    names = request.table.names
    for column_id in _key(request):
        if column_id not in names:
            known = ", ".join(f"{i} {name}" for i, name in sorted(names.items())[:20])
            return f"no column with id {column_id} in snapshot {request.table.snapshot_id}; columns are: {known}"
    return ""


def _flush(rows: Rows, sink: Sink) -> None:
    for flight, table in rows.tables().items():
        sink.put(flight, table)
