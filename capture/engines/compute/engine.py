"""The engine that reads data: scans the files of a table, in this process or on Spark (`choice.py`).

It computes row, null and NaN counts, exact bounds, widths, theta, KLL and frequent-items sketches per column and file.
A table's statistics are merged from those of its live files, so unchanged files are not read again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from capture.compute import fold, local, sampling
from capture.compute.file_scan import LOCAL, Answer, Numbered, Work
from capture.compute.fold import Known
from capture.compute.pieces import Pieces
from capture.compute.stat_rows import Coverage, Rows
from capture.connectors.spi import NativeStats, ScanTask
from capture.connectors.task_readers import GONE
from capture.engines.compute.choice import Choice, choose
from capture.engines.compute.contradictions import stated_files, summary, warn
from capture.engines.compute.plan import Plan, passes, plan_of
from capture.engines.compute.table_scan import Key, ScanProgress, TableScan, sketches_of
from capture.engines.native.rollup import known_scalars
from capture.spark import expressions, job, language
from capture.spark.job import SPARK
from capture.spark.session import Spark
from capture.spec import Budget, Engine, FileSketches, Sampling, impossible
from capture.spi import Capabilities, CaptureEngine, CaptureRequest, CaptureResult, Mode, Outcome, Sink
from store.model import logical_types
from store.model.errors import Cancelled, StatflightError
from store.model.logical_types import HASHED, NESTED, Kind
from store.model.statistics import SCALARS
from store.model.targets import NO_COLUMN, TargetKind

SAMPLE_SHARE: Final = 0.1  # of the rows of a table, in a sample without a budget
_FLUSH_ROWS: Final = 4000
_THREADED_CELLS: Final = 100_000  # below, threads cost more than they save
_PIECES_PER_CORE: Final = 4  # with fewer files per core, large ones are divided among the cores

_COLUMN_KINDS: Final = frozenset({each.kind for each in SCALARS} | {"HISTOGRAM", "MCV"})


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

    id: str = SPARK
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

    by_engine_id: Mapping[str, Capabilities] = {
        LOCAL: replace(
            capabilities,
            target_kinds={
                target: kinds
                for target, kinds in capabilities.target_kinds.items()
                if target is not TargetKind.EXPRESSION
            },
        ),
        SPARK: capabilities,
    }

    def __init__(
        self,
        inline_max_cells: int | None = None,
        spark: Spark | None = None,
        engine: Engine = Engine.AUTO,
        file_sketches: FileSketches = FileSketches.AUTO,
    ):
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
            except language.NotDeterministic as error:
                answers = [self._result(request, Outcome.UNCAPTURABLE, str(error)) for request in requested]
            except Cancelled:
                answers = [self._result(request, Outcome.DEGRADED, "cancelled") for request in requested]
            except Exception as error:  # the contract: an engine never raises
                failed = CaptureResult.failed(self._asked_of(requested[0]), error)
                answers = [replace(failed, target=request.target, table=request.table) for request in requested]
            results |= zip(places, answers, strict=True)
        return [results[at] for at in range(len(requests))]

    def close(self) -> None:
        """Stops Spark, if it was started."""
        self.spark.stop()

    def _capture(
        self,
        requests: Sequence[CaptureRequest],
        sink: Sink,
        progress: Callable[[float, str], None],
        plan: Plan | None = None,
    ) -> list[CaptureResult]:
        """Captures requests of one table, snapshot, mode and sampling in one pass over the files, or in one for each
        part of the columns.

        Args:
            plan: That of the requests and others, if it is made already.
        """
        begun, first = time.monotonic(), requests[0]
        scan, rows = TableScan(requests, self.file_sketches), Rows(first.table, LOCAL, first.mode)
        if plan is None:
            progress(0.0, f"planning {first.table.schema}.{first.table.name}")
            plan = plan_of(scan, first.spec.partitions)
        whole, notes = plan.tasks, list(plan.notes)
        scan.rows_total, scan.files_total = plan.row_count, len(whole)
        if len(parts := passes(requests, scan, len(whole), sink)) > 1:
            return self._apart(requests, parts, sink, progress, plan)
        native = self._metadata(scan, notes) if scan.sampled else None
        draw = self._draw(first, scan, whole, native, notes)
        seconds = None if draw is None else draw.budget.max_seconds
        tasks = whole
        if draw is not None:  # a timed sample adds tasks while it runs
            tasks = draw.take() if seconds is None else []
        known = self._known(scan, tasks, sink)
        again = [request for request in requests if request.target.column_id in known.insufficient]
        if again and len(again) < len(requests) and not scan.work.groups:
            others = [request for request in requests if request.target.column_id not in known.insufficient]
            return self._apart(requests, (others, again), sink, progress, plan)
        reused = scan.reuse(tasks, known)
        new = [(at, task) for at, task in enumerate(tasks) if at not in reused]
        read = [task for _, task in new] if seconds is None else whole
        scan.stated = stated_files(
            first.table, native, read, [i for i in scan.work.column_ids if i in scan.leaves], notes
        )
        scanned = ScanProgress(progress)
        scanned.start(tasks, reused)
        choice = self._choice(first, scan, draw.rows_at_most if draw else sum(task.row_count for _, task in new), notes)
        if draw and seconds is not None:
            waves = self._timed(draw, tasks, scan.work, scanned.report, begun + seconds, choice)
        else:
            waves = self._waves(new, scan.work, scanned.report, choice, notes)
        places = ((tasks[at].file_path, i) for at in reused for i in scan.work.column_ids)
        for flight, stored in known.tables(places).items():
            for start in range(0, len(stored), _FLUSH_ROWS):
                sink.put(flight, rows.stored(stored[start : start + _FLUSH_ROWS]))
        _fold(waves, scan, tasks, reused, rows, sink, scanned)
        answered_by = rows.engine_id
        if reused and not new and SPARK in known.engine_ids:
            rows.engine_id = SPARK  # who computed it, not who had nothing left to read
        if not first.spec.partitions:
            if native is None and any(scan.errors.values()):
                self._metadata(scan, [])  # may have the bounds of files that could not be read
            scan.finish(whole, rows)
        else:  # a part of the table gives no record of the whole
            scan.withdraw(rows)
        _flush(rows, sink)
        warn(first.table, scan.contradictions)
        reason = choice.reason + (f"; {len(reused)} of {scan.files_total} files were known" if reused else "")
        attributes = _attributes(scan, answered_by, draw) | {"files_reused": len(reused)}
        return [self._answer(request, scan, notes, attributes, answered_by, reason) for request in requests]

    def _known(self, scan: TableScan, tasks: Sequence[ScanTask], sink: Sink) -> Known:
        """The results that the store has of the tasks' files; a sample uses none, nor does a scan of groups."""
        if scan.sampled or scan.work.groups or not tasks or not scan.work.column_ids:
            return Known()
        uncut = scan.work.column_ids if self.file_sketches is FileSketches.FULL else scan.uncut
        engines, work = (LOCAL, SPARK), scan.work
        return fold.known(sink, scan.table, engines, tasks, scan.types, work.column_ids, work.wanted, uncut)

    def _choice(self, request: CaptureRequest, scan: TableScan, rows: int, notes: list[str]) -> Choice:
        """Chooses where data is read, given the greatest number of rows to read."""
        engine = request.spec.engine or self.engine
        choice = choose(engine, self._asked(request), rows, len(scan.types), self.spark, self.inline_max_cells)
        if choice.note:
            notes.append(choice.note)
        return choice

    def _apart(
        self,
        requests: Sequence[CaptureRequest],
        parts: Sequence[Sequence[CaptureRequest]],
        sink: Sink,
        progress: Callable[[float, str], None],
        plan: Plan,
    ) -> list[CaptureResult]:
        """Captures parts of the columns, each in a pass of its own: those of which files are read again, so that others
        are not read; or as many as memory has room for what is stored of them."""
        results: dict[int, CaptureResult] = {}
        for done, part in enumerate(parts):
            answers = self._capture(part, sink, _of_part(progress, done, len(parts)), plan)
            results |= zip(map(id, part), answers, strict=True)
        return [results[id(request)] for request in requests]

    def _asked_of(self, request: CaptureRequest) -> str:
        """The engine id of what certainly runs in Spark, else of this process, which also hands work to Spark."""
        in_spark = request.target.kind is TargetKind.EXPRESSION or (request.spec.engine or self.engine) is Engine.SPARK
        return SPARK if in_spark else LOCAL

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
        self,
        numbered: Sequence[Numbered],
        work: Work,
        report: Callable[[], None],
        choice: Choice,
        notes: list[str],
        threads: int,
    ) -> Iterator[list[Answer]]:
        if choice.overlapped:
            return job.overlapped(self.spark, numbered, work, report, notes)
        if choice.on_spark:
            return job.distributed(self.spark, numbered, work, report)
        return local.computed(numbered, work, report, threads, few=len(numbered) < 2 * threads)

    def _draw(
        self,
        request: CaptureRequest,
        scan: TableScan,
        tasks: Sequence[ScanTask],
        native: NativeStats | None,
        notes: list[str],
    ) -> sampling.Draw | None:
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
        self,
        draw: sampling.Draw,
        tasks: list[ScanTask],
        work: Work,
        report: Callable[[], None],
        deadline: float,
        choice: Choice,
    ) -> Iterator[list[Answer]]:
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
        text = language.checked(target.engine_expression_key)
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
        captured = [self._result(request, Outcome.CAPTURED, "", attributes) for request in requests]
        return [replace(result, engine_id=SPARK, reason=reason) for result in captured]

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
        """A result of this process, which did not ask Spark."""
        return CaptureResult(outcome, LOCAL, detail, attributes or {}, request.target, request.table)


class _TimeIsUpError(Exception):
    """Cancels the running wave of a timed sample."""


def _of_part(progress: Callable[[float, str], None], done: int, parts: int) -> Callable[[float, str], None]:
    """The progress of one of equal parts, of which some are done."""
    return lambda share, message: progress((done + share) / parts, message)


def _fold(
    waves: Iterable[Sequence[Answer]],
    scan: TableScan,
    tasks: Sequence[ScanTask],
    reused: Mapping[int, list[Answer]],
    rows: Rows,
    sink: Sink,
    scanned: ScanProgress,
) -> None:
    """Folds the answers of a scan together with the reused ones, which are given by task index."""
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


def _attributes(scan: TableScan, engine_id: str, draw: sampling.Draw | None) -> dict[str, Any]:
    """How a table was read, for the caller."""
    attributes: dict[str, Any] = {
        "execution": "spark" if engine_id == SPARK else "inline",
        "files": scan.files_total,
    }
    if scan.sampled:
        ended_by = (draw.ended_by if draw else "") or None
        attributes["sample"] = {"method": str(scan.sampling), "rows_total": scan.rows_total, "ended_by": ended_by}
    return attributes


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
            return f"{NO_COLUMN} {column_id} in snapshot {request.table.snapshot_id}; columns are: {known}"
    return ""


def _flush(rows: Rows, sink: Sink) -> None:
    for flight, table in rows.tables().items():
        sink.put(flight, table, checked=True)
