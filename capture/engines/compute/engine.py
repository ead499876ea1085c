"""The engine that reads data: scans the files of a table, in this process or on Spark (`choice.py`).

It computes row, null and NaN counts, exact bounds, widths, theta, KLL and frequent-items sketches per column and file.
A table's statistics are merged from those of its live files, so unchanged files are not read again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from capture import partitions
from capture.compute import fold, local, sampling
from capture.compute.file_scan import LOCAL, Answer, Numbered, Work
from capture.compute.fold import Known
from capture.compute.pieces import Pieces
from capture.compute.readers.base import GONE
from capture.compute.stat_rows import Coverage, Rows
from capture.connectors.spi import NativeStats, ScanTask
from capture.engines.compute.choice import Choice, choose
from capture.engines.compute.contradictions import stated_files, summary, warn
from capture.engines.compute.table_scan import Key, ScanProgress, TableScan, sketches_of
from capture.engines.native.rollup import known_scalars
from capture.spark import expressions, job
from capture.spark.job import SPARK
from capture.spark.session import Spark
from capture.spec import Budget, Engine, FileSketches, Sampling, impossible
from capture.spi import Capabilities, CaptureEngine, CaptureRequest, CaptureResult, Mode, Outcome, Sink
from store.model import logical_types
from store.model.errors import Cancelled, StatflightError
from store.model.logical_types import HASHED, NESTED, Kind
from store.model.targets import TargetKind

SAMPLE_SHARE: Final = 0.1  # of the rows of a table, in a sample without a budget
_FLUSH_ROWS: Final = 4000
_THREADED_CELLS: Final = 100_000  # below, threads cost more than they save
_PIECES_PER_CORE: Final = 4  # with fewer files per core, large ones are divided among the cores

_COLUMN_KINDS: Final = frozenset({
    "ROW_COUNT", "NULL_COUNT", "NAN_COUNT", "NDV", "MIN_MAX", "WIDTH", "MOMENTS", "HISTOGRAM", "MCV",
})  # fmt: skip


class ComputeEngine(CaptureEngine):
    """Computes statistics of columns, groups of columns and Spark expressions.

    Its results have the engine id `local` or `spark`, depending on where they were computed.

    Args:
        inline_max_cells: Largest scan of `Engine.AUTO`, in rows times columns, that is computed in this process. None:
            the thresholds of `choice.py`.
        spark: The session, which starts with the first capture that needs it; None for one of its own.
        engine: Where data is read, unless a request says otherwise.
        file_sketches: What is kept of each file for the next capture.
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

    def __init__(
        self, inline_max_cells: int | None = None, spark: Spark | None = None,
        engine: Engine = Engine.AUTO, file_sketches: FileSketches = FileSketches.AUTO,
    ):  # fmt: skip
        self.engine = engine
        self.file_sketches = file_sketches
        self.spark = spark or Spark()
        self.inline_max_cells = inline_max_cells

    def supports(self, request: CaptureRequest) -> str:
        if request.target.kind is TargetKind.EXPRESSION:
            if request.target.engine_kind != self.id:
                return f"target unsupported: an expression of {request.target.engine_kind}, not of {self.id}"
            if request.spec.sampling is not Sampling.NONE:
                return f"sampling {request.spec.sampling} unsupported for expressions"
            if (request.spec.engine or self.engine) is Engine.LOCAL:
                return f"target unsupported: only Spark computes expressions, and {self._asked(request)}"
        if request.spec.partitions and request.spec.sampling is not Sampling.NONE:
            return f"sampling {request.spec.sampling} unsupported for partitions"
        return self.capabilities.mismatch(request)

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        """Captures requests, with one pass over the files per table, snapshot and sampling."""
        results: dict[int, CaptureResult] = {}
        batches: dict[tuple[object, ...], list[int]] = {}
        for at, request in enumerate(requests):
            if reason := self.supports(request) or _uncapturable(request):
                results[at] = self._result(request, Outcome.UNCAPTURABLE, reason)
            elif reason := _unknown(request):
                results[at] = self._result(request, Outcome.DEGRADED, reason, {"retryable": False})
            else:
                # Each expression is a separate job, because Spark may reject it.
                expression_id = request.target.storage_id if request.target.kind is TargetKind.EXPRESSION else ""
                spec = request.spec
                how = (request.mode, spec.sampling, spec.budget, spec.partitions, spec.engine)
                # Containers have no sketches, by which the stored results of other columns are found.
                key = (*request.table.key.values(), *how, expression_id, _is_container(request))
                batches.setdefault(key, []).append(at)
        for done, places in enumerate(batches.values()):
            requested = [requests[at] for at in places]
            try:
                capture = self._capture if requested[0].target.kind is not TargetKind.EXPRESSION else self._expression
                answers = capture(requested, sink, _of_part(sink.progress, done, len(batches)))
            except expressions.NotDeterministic as error:
                answers = [self._result(request, Outcome.UNCAPTURABLE, str(error)) for request in requested]
            except Cancelled:
                answers = [self._result(request, Outcome.DEGRADED, "cancelled") for request in requested]
            except Exception as error:  # the contract: an engine never raises
                failed = CaptureResult.failed(self.id, error)
                answers = [replace(failed, target=request.target, table=request.table) for request in requested]
            results |= zip(places, answers, strict=True)
        return [results[at] for at in range(len(requests))]

    def close(self) -> None:
        """Stops Spark, if it was started."""
        self.spark.stop()

    def _capture(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """Captures requests of one table, snapshot, mode and sampling in one pass over the files."""
        begun = time.monotonic()
        scan = TableScan(requests, self.file_sketches)
        table = scan.table
        progress(0.0, f"planning {table.schema}.{table.name}")
        tasks = table.scan_tasks(table.names[i] for i in scan.types)
        notes = []
        if requests[0].spec.partitions:
            total, tasks = len(tasks), partitions.within(table, tasks, requests[0].spec.partitions)
            notes.append(partitions.detail(len(tasks), total))
        deleted = sum(len(task.deleted_rows) for task in tasks if task.deleted_rows is not None)
        scan.rows_total, scan.files_total = sum(task.row_count for task in tasks) - deleted, len(tasks)
        native = self._metadata(scan, notes) if scan.sampled else None
        whole, draw = tasks, self._draw(requests[0], scan, tasks, native, notes)
        seconds = draw.budget.max_seconds if draw else None
        if draw:
            tasks = [] if seconds is not None else draw.take()  # a timed sample adds tasks while it runs
        known = Known()
        if not scan.sampled and tasks and scan.work.column_ids:
            known = fold.known(
                sink, table, (LOCAL, SPARK), tasks, scan.types, scan.work.column_ids, scan.work.wanted,
                scan.work.column_ids if self.file_sketches is FileSketches.FULL else scan.uncut,
            )  # fmt: skip
        if known.insufficient and not scan.work.groups:
            again = [request for request in requests if request.target.column_id in known.insufficient]
            if len(again) < len(requests):
                others = [request for request in requests if request.target.column_id not in known.insufficient]
                return self._apart(requests, (others, again), sink, progress)
        reused = scan.reuse(tasks, known)
        new = [(at, task) for at, task in enumerate(tasks) if at not in reused]
        read = whole if draw and seconds is not None else [task for _, task in new]
        scan.stated = stated_files(table, native, read, [i for i in scan.work.column_ids if i in scan.leaves], notes)

        rows = Rows(table, LOCAL, requests[0].mode)
        scanned = ScanProgress(progress)
        scanned.start(tasks, reused)
        expected = draw.rows_at_most if draw else sum(task.row_count for _, task in new)
        engine = requests[0].spec.engine or self.engine
        asked, columns = self._asked(requests[0]), len(scan.types)
        choice = choose(engine, asked, expected, columns, self.spark, self.inline_max_cells)
        if choice.note:
            notes.append(choice.note)
        if draw and seconds is not None:
            waves = self._timed(draw, tasks, scan.work, scanned.report, begun + seconds, choice)
        else:
            waves = self._waves(new, scan.work, scanned.report, choice, notes)
        for flight, stored in known.tables(
            (tasks[at].file_path, i) for at in reused for i in scan.work.column_ids
        ).items():
            for start in range(0, len(stored), _FLUSH_ROWS):
                sink.put(flight, rows.stored(stored[start : start + _FLUSH_ROWS]))
        by_task = dict(reused)
        for wave in waves:
            for answer in wave:
                if answer.engine_id == SPARK:
                    rows.engine_id = SPARK
                by_task.setdefault(answer.task, []).append(answer)
            scanned.done(by_task)
            scan.take(by_task, tasks, rows)
            if rows.pending >= _FLUSH_ROWS:
                _flush(rows, sink)
            scanned.report()
        scan.take(by_task, tasks, rows)
        assert not by_task, "a task without an answer"
        if not requests[0].spec.partitions:
            scan.finish(whole, rows)
        else:  # a part of the table gives no record of the whole
            scan.withdraw(rows)
        _flush(rows, sink)
        warn(table, scan.contradictions)
        execution = "spark" if rows.engine_id == SPARK else "inline"
        attributes: dict[str, Any] = {"execution": execution, "files": scan.files_total, "files_reused": len(reused)}
        if scan.sampled:
            ended_by = (draw.ended_by if draw else "") or None
            attributes["sample"] = {"method": str(scan.sampling), "rows_total": scan.rows_total, "ended_by": ended_by}
        reason = choice.reason + (f"; {len(reused)} of {scan.files_total} files were known" if reused else "")
        return [self._answer(request, scan, notes, attributes, rows.engine_id, reason) for request in requests]

    def _apart(
        self, requests: Sequence[CaptureRequest], parts: Sequence[Sequence[CaptureRequest]], sink: Sink,
        progress: Callable[[float, str], None],
    ) -> list[CaptureResult]:  # fmt: skip
        """Captures columns of which files are read again in a pass of their own, so that others are not read."""
        results: dict[int, CaptureResult] = {}
        for done, part in enumerate(parts):
            answers = self._capture(part, sink, _of_part(progress, done, len(parts)))
            results |= zip(map(id, part), answers, strict=True)
        return [results[id(request)] for request in requests]

    def _asked(self, request: CaptureRequest) -> str:
        """The engine of a request and who set it, for people."""
        return f"engine {request.spec.engine or self.engine} ({'requested' if request.spec.engine else 'the setting'})"

    def _waves(
        self, numbered: Sequence[Numbered], work: Work, report: Callable[[], None], choice: Choice, notes: list[str]
    ) -> Iterator[list[Answer]]:
        cells = sum(task.row_count for _, task in numbered) * len(work.column_ids)
        threads = local.CORES if cells > _THREADED_CELLS else 1
        if len(numbered) >= _PIECES_PER_CORE * (self.spark.cores if choice.on_spark else threads):
            return self._computed(numbered, work, report, choice, notes, threads)
        pieces = Pieces(numbered)
        return pieces.joined(self._computed(pieces.tasks, work, report, choice, notes, threads))

    def _computed(
        self, numbered: Sequence[Numbered], work: Work, report: Callable[[], None], choice: Choice, notes: list[str],
        threads: int,
    ) -> Iterator[list[Answer]]:  # fmt: skip
        if choice.overlapped:
            return job.overlapped(self.spark, numbered, work, report, notes)
        if choice.on_spark:
            return job.distributed(self.spark, numbered, work, report)
        return local.computed(numbered, work, report, threads, few=len(numbered) < 2 * threads)

    def _draw(
        self, request: CaptureRequest, scan: TableScan, tasks: Sequence[ScanTask], native: NativeStats | None,
        notes: list[str],
    ) -> sampling.Draw | None:  # fmt: skip
        """The draw of a sample; None without sampling."""
        if not scan.sampled or not scan.rows_total:
            return None
        budget = request.spec.budget or Budget(max_rows=math.ceil(SAMPLE_SHARE * scan.rows_total))
        if request.spec.sampling is Sampling.RANDOM_ROW_GROUP:
            return sampling.Draw(tasks, sampling.random_points(fold.listing(tasks)), budget)
        if native is None:
            notes.append("sampled in the order of file names")
        else:
            tasks = sampling.by_metadata(tasks, native, scan.types)
        return sampling.Draw(tasks, sampling.spread_points(), budget)

    def _metadata(self, scan: TableScan, notes: list[str]) -> NativeStats | None:
        """Reads native statistics and adds them to `scan`; None if they cannot be read."""
        table, names = scan.table, frozenset(scan.table.names[i] for i in scan.types if i in scan.leaves)
        try:
            native = table.native_stats(names)
            scan.known = known_scalars(native, table)
            if native.row_count is not None:
                scan.rows_total = native.row_count
        except StatflightError as error:
            notes.append(f"without bounds from metadata: {error}")
            return None
        return native

    def _timed(
        self, draw: sampling.Draw, tasks: list[ScanTask], work: Work, report: Callable[[], None], deadline: float,
        choice: Choice,
    ) -> Iterator[list[Answer]]:  # fmt: skip
        """Yields the answers of a sample until the deadline; appends the tasks of each wave to `tasks`.

        The first wave always completes, so a sample is never empty. Later waves on Spark are cancelled at the
        deadline, and their row groups are dropped.
        """
        choice = replace(choice, on_spark=choice.on_spark and not choice.overlapped, overlapped=False)
        most = self.spark.cores if choice.on_spark else 1
        count, first = most, True

        def poll() -> None:
            report()
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
                yield from self._waves(numbered, work, poll, choice, [])
            except _TimeIsUpError:
                draw.ended_by = "seconds"
                return
            first, now = False, time.monotonic()
            fits = int(0.8 * (deadline - now) / max(now - begun, 1e-3) * count)
            begun, count = now, min(max(fits, most), 4 * count)

    def _expression(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """Captures requests for one expression, on Spark."""
        table, target = requests[0].table, requests[0].target
        assert target.engine_expression_key is not None
        text = expressions.checked(target.engine_expression_key)
        named = expressions.named(text, table.columns.columns)
        columns = {i: column for column in named if (i := column.id_in(table.column_ids)) is not None}
        progress(0.0, f"planning {table.schema}.{table.name}")
        tasks = table.scan_tasks(column.key for column in columns.values())

        def report() -> None:
            progress(0.1, f"{len(tasks)} files")

        wanted = sketches_of(requests)
        note = expressions.unread(text, table.columns.columns)
        lt, part, size = expressions.capture(self.spark, tasks, text, columns, wanted, report, note)
        rows = Rows(table, SPARK, requests[0].mode)
        rows.expression(target, lt, part, Coverage(part.row_count, len(tasks), size))
        _flush(rows, sink)
        attributes: dict[str, object] = {"execution": "spark", "files": len(tasks)}
        reason = f"{self._asked(requests[0])}: only Spark computes expressions; {part.row_count:,} rows"
        return [replace(self._result(request, Outcome.CAPTURED, "", attributes), reason=reason) for request in requests]

    def _answer(
        self,
        request: CaptureRequest,
        scan: TableScan,
        notes: Sequence[str],
        attributes: dict[str, object],
        engine_id: str,
        reason: str,
    ) -> CaptureResult:
        key = _key(request)
        errors, read = scan.errors[key], scan.read[key]
        attributes = attributes | {"files_read": read.files, "rows_read": read.rows, "bytes_read": read.size_bytes}
        if errors:
            attributes["files_failed"] = len(errors)
            attributes["files_gone"] = sum(GONE in error for error in errors)
        if dependencies := scan.dependencies.get(key):
            attributes["dependencies"] = dependencies
        outcome = Outcome.DEGRADED if errors and not scan.folds[key].parts else Outcome.CAPTURED
        details = [*notes]
        if request.target.column_id is not None:
            columns = request.table.by_id
            details += filter(None, [impossible(columns[request.target.column_id].logical_type, request.spec.kinds)])
        if contradictions := scan.contradictions.get(key):
            attributes["files_contradicted"] = len(contradictions)
            details.append(summary(contradictions))
        if errors:
            others = f" (and {len(errors) - 1} more of {scan.files_total} files)" if len(errors) > 1 else ""
            details.append(f"{errors[0]}{others}")
        result = self._result(request, outcome, "; ".join(details), attributes)
        return replace(result, engine_id=engine_id, reason=reason)

    def _result(
        self, request: CaptureRequest, outcome: Outcome, detail: str = "", attributes: dict[str, object] | None = None
    ) -> CaptureResult:
        return CaptureResult(outcome, self.id, detail, attributes or {}, request.target, request.table)


class _TimeIsUpError(Exception):
    """Cancels the running wave of a timed sample."""


def _of_part(progress: Callable[[float, str], None], done: int, parts: int) -> Callable[[float, str], None]:
    """The progress of one of equal parts, of which some are done."""
    return lambda share, message: progress((done + share) / parts, message)


def _key(request: CaptureRequest) -> Key:
    """Column ids of a request; empty for an expression."""
    target = request.target
    return target.column_ids if target.column_id is None else (target.column_id,)


def _uncapturable(request: CaptureRequest) -> str:
    """The reason why the column types have no scalar statistics, or an empty string."""
    columns = request.table.by_id
    for column_id in _key(request):
        kind = logical_types.parse(columns[column_id].logical_type).kind if column_id in columns else None
        has_nulls_only = kind is Kind.INTERVAL or (kind in NESTED and request.target.kind is TargetKind.COLUMN)
        if kind is not None and kind not in HASHED and not has_nulls_only:
            return f"target unsupported: {kind} column has no scalar statistics"
    return ""


def _is_container(request: CaptureRequest) -> bool:
    column = request.table.by_id.get(request.target.column_id or 0)
    return column is not None and not column.is_leaf


def _unknown(request: CaptureRequest) -> str:
    names = request.table.names
    for column_id in _key(request):
        if column_id not in names:
            known = ", ".join(f"{i} {name}" for i, name in sorted(names.items())[:20])
            return f"no column with id {column_id} in snapshot {request.table.snapshot_id}; columns are: {known}"
    return ""


def _flush(rows: Rows, sink: Sink) -> None:
    for flight, table in rows.tables().items():
        sink.put(flight, table, checked=True)
