"""The engine that reads data: scans the files of a table, in this process or on Spark (`choice.py`).

It computes row, null and NaN counts, exact bounds, widths, theta, KLL and frequent-items sketches per column and file.
A table's statistics are merged from those of its live files, so unchanged files are not read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from capture.cluster import SPARK, NoCluster, Session, Uncapturable, cluster
from capture.compute.file_scan import LOCAL, Answer
from capture.compute.fold import Known
from capture.compute.stat_rows import Coverage, Rows
from capture.connectors.spi import ScanTask
from capture.connectors.task_readers import GONE
from capture.engines.compute.choice import Choice, choose
from capture.engines.compute.contradictions import stated_files, summary, warn
from capture.engines.compute.plan import Plan, passes, plan_of
from capture.engines.compute.runner import Runner
from capture.engines.compute.selections import Whole, selection_of
from capture.engines.compute.table_scan import Key, ScanProgress, TableScan, sketches_of
from capture.spec import Engine, FileSketches, Sampling, impossible
from capture.spi import Capabilities, CaptureEngine, CaptureRequest, CaptureResult, Mode, Outcome, Sink, Writing
from store.model import logical_types
from store.model.errors import Cancelled
from store.model.logical_types import HASHED, NESTED, Kind
from store.model.statistics import SCALARS
from store.model.targets import NO_COLUMN, TargetKind

_FLUSH_ROWS: Final = 4000

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
    }  # those of this process, and of the cluster

    def __init__(
        self,
        inline_max_cells: int | None = None,
        spark: Session | None = None,
        engine: Engine = Engine.AUTO,
        file_sketches: FileSketches = FileSketches.AUTO,
    ):
        self.engine = engine
        self.file_sketches = file_sketches
        self.spark = spark or cluster().session()
        self.inline_max_cells = inline_max_cells
        if isinstance(cluster(), NoCluster):
            self.by_engine_id = {LOCAL: self.by_engine_id[LOCAL]}

    def supports(self, request: CaptureRequest) -> str:
        if request.target.kind is TargetKind.EXPRESSION:
            if isinstance(cluster(), NoCluster):
                return "target unsupported: Spark, which alone computes expressions, is not part of this build"
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
            if refused := self._refused(request):
                results[at] = refused
            else:
                batches.setdefault(_batch_of(request), []).append(at)
        for done, places in enumerate(batches.values()):
            requested = [requests[at] for at in places]
            try:
                capture = self._capture if requested[0].target.kind is not TargetKind.EXPRESSION else self._expression
                answers = capture(requested, sink, _of_part(sink.progress, done, len(batches)))
            except Uncapturable as error:
                answers = [self._result(request, Outcome.UNCAPTURABLE, str(error)) for request in requested]
            except Cancelled:
                answers = [self._result(request, Outcome.DEGRADED, "cancelled") for request in requested]
            except Exception as error:  # the contract: an engine never raises
                failed = CaptureResult.failed(self._asked_of(requested[0]), error)
                answers = [replace(failed, target=request.target, table=request.table) for request in requested]
            results |= zip(places, answers, strict=True)
        return [results[at] for at in range(len(requests))]

    def _refused(self, request: CaptureRequest) -> CaptureResult | None:
        """The result of a request that cannot be captured at all; else None."""
        if reason := self.supports(request) or _uncapturable(request):
            return self._result(request, Outcome.UNCAPTURABLE, reason)
        if reason := _unknown(request):
            return self._result(request, Outcome.DEGRADED, reason, {"retryable": False})
        return None

    def close(self) -> None:
        """Stops Spark, if it was started."""
        self.spark.stop()

    def _capture(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """Captures requests of one table, snapshot, mode and sampling in one pass over the files, or in one for each
        part of the columns."""
        begun = time.monotonic()
        table, spec = requests[0].table, requests[0].spec
        scan = TableScan(requests, self.file_sketches)
        rows = Rows(table.described, LOCAL, requests[0].mode)
        progress(0.0, f"planning {table.schema}.{table.name}")
        plan = plan_of(scan, spec.partitions)
        return self._pass(_Pass(requests, scan, rows, plan, sink, progress, begun))

    def _pass(self, one: _Pass) -> list[CaptureResult]:
        """Captures the requests of one pass, or of the passes into which it is to be divided."""
        scan, plan = one.scan, one.plan
        scan.rows_total, scan.files_total = plan.row_count, len(plan.tasks)
        parts = passes(one.requests, scan, len(plan.tasks), one.sink)
        if len(parts) > 1:
            return self._apart(one, parts)
        selection = selection_of(one.first.spec, scan, plan, one.begun, one.notes)
        known = scan.stored(selection.tasks, one.sink, (LOCAL, SPARK))
        again = [request for request in one.requests if request.target.column_id in known.insufficient]
        if again and len(again) < len(one.requests) and not scan.work.groups:
            others = [request for request in one.requests if request.target.column_id not in known.insufficient]
            return self._apart(one, (others, again))
        return self._read(one, selection, known)

    def _apart(self, one: _Pass, parts: Sequence[Sequence[CaptureRequest]]) -> list[CaptureResult]:
        """Captures parts of the columns, each in a pass of its own: those of which files are read again, so that others
        are not read; or as many as memory has room for what is stored of them."""
        results: dict[int, CaptureResult] = {}
        for done, part in enumerate(parts):
            scan = TableScan(part, self.file_sketches)
            rows = Rows(scan.table.described, LOCAL, part[0].mode)
            progress = _of_part(one.progress, done, len(parts))
            answers = self._pass(_Pass(part, scan, rows, one.plan, one.sink, progress, time.monotonic()))
            results |= zip(map(id, part), answers, strict=True)
        return [results[id(request)] for request in one.requests]

    def _read(self, one: _Pass, selection: Whole, known: Known) -> list[CaptureResult]:
        """Reads the files of a selection, except those with stored results, and puts the rows that follow from both."""
        scan, rows, tasks = one.scan, one.rows, selection.tasks
        reused = scan.reuse(tasks, known)
        new = [(at, task) for at, task in enumerate(tasks) if at not in reused]
        leaves = [i for i in scan.work.column_ids if i in scan.leaves]
        scan.stated = stated_files(scan.table, selection.native, selection.compared(new), leaves, one.notes)
        scanned = ScanProgress(one.progress)
        scanned.start(tasks, reused)
        choice = self._choice(one, selection.rows_at_most(new))
        work = replace(scan.work, writing=_writing(one, choice, [task for _, task in new]))
        runner = Runner(self.spark, choice, work, scanned.report, one.notes)
        waves = selection.waves(new, runner)
        _put_stored(one, known, [tasks[at] for at in reused])
        _fold(one, waves, tasks, reused, scanned)
        answered_by = rows.engine_id
        if reused and not new and SPARK in known.engine_ids:
            rows.engine_id = SPARK  # who computed it, not who had nothing left to read
        selection.finish(rows)
        _flush(rows, one.sink)
        warn(scan.table, scan.contradictions)
        reason = choice.reason + (f"; {len(reused)} of {scan.files_total} files were known" if reused else "")
        attributes = _attributes(scan, answered_by, selection.ended_by) | {"files_reused": len(reused)}
        answers = [self._answer(request, one, attributes) for request in one.requests]
        return [replace(answer, engine_id=answered_by, reason=reason) for answer in answers]

    def _choice(self, one: _Pass, rows: int) -> Choice:
        """Chooses where data is read, given the greatest number of rows to read."""
        engine, asked = one.first.spec.engine or self.engine, self._asked(one.first)
        choice = choose(engine, asked, rows, len(one.scan.types), self.spark, self.inline_max_cells)
        if choice.note:
            one.notes.append(choice.note)
        return choice

    def _asked_of(self, request: CaptureRequest) -> str:
        """The engine id of what certainly runs in Spark, else of this process, which also hands work to Spark."""
        in_spark = request.target.kind is TargetKind.EXPRESSION or (request.spec.engine or self.engine) is Engine.SPARK
        return SPARK if in_spark else LOCAL

    def _asked(self, request: CaptureRequest) -> str:
        """The engine of a request and who set it, for people."""
        return f"engine {request.spec.engine or self.engine} ({'requested' if request.spec.engine else 'the setting'})"

    def _expression(
        self, requests: Sequence[CaptureRequest], sink: Sink, progress: Callable[[float, str], None]
    ) -> list[CaptureResult]:
        """Captures requests for one expression, on Spark."""
        table, target = requests[0].table, requests[0].target
        assert target.engine_expression_key is not None
        executors = cluster()
        text = executors.checked(target.engine_expression_key)
        named = executors.named(text, table.columns.columns)
        columns = {i: column for column in named if (i := column.id_in(table.column_ids)) is not None}
        progress(0.0, f"planning {table.schema}.{table.name}")
        tasks = table.scan_tasks(column.key for column in columns.values())

        def report() -> None:
            progress(0.1, f"{len(tasks)} files")

        wanted = sketches_of(requests)
        lt, part, size = executors.evaluated(self.spark, tasks, text, columns, table.columns.columns, wanted, report)
        rows = Rows(table.described, SPARK, requests[0].mode)
        rows.expression(target, lt, part, Coverage(part.row_count, len(tasks), size))
        _flush(rows, sink)
        attributes: dict[str, object] = {"execution": "spark", "files": len(tasks)}
        reason = f"{self._asked(requests[0])}: only Spark computes expressions; {part.row_count:,} rows"
        captured = [self._result(request, Outcome.CAPTURED, "", attributes) for request in requests]
        return [replace(result, engine_id=SPARK, reason=reason) for result in captured]

    def _answer(self, request: CaptureRequest, one: _Pass, attributes: dict[str, object]) -> CaptureResult:
        """The result of a request after its pass; `attributes` are those of all its requests."""
        key, scan = _key(request), one.scan
        errors, read = scan.errors[key], scan.read[key]
        attributes = attributes | {"files_read": read.files, "rows_read": read.rows, "bytes_read": read.size_bytes}
        if errors:
            attributes["files_failed"] = len(errors)
            attributes["files_gone"] = sum(GONE in error for error in errors)
        if dependencies := scan.dependencies.get(key):
            attributes["dependencies"] = dependencies
        outcome = Outcome.DEGRADED if errors and not scan.folds[key].parts else Outcome.CAPTURED
        details = [*one.notes]
        if request.target.column_id is not None:
            columns = request.table.by_id
            details += filter(None, [impossible(columns[request.target.column_id].logical_type, request.spec.kinds)])
        if contradictions := scan.contradictions.get(key):
            attributes["files_contradicted"] = len(contradictions)
            details.append(summary(contradictions))
        if errors:
            others = f" (and {len(errors) - 1} more of {scan.files_total} files)" if len(errors) > 1 else ""
            details.append(f"{errors[0]}{others}")
        return self._result(request, outcome, "; ".join(details), attributes)

    def _result(
        self, request: CaptureRequest, outcome: Outcome, detail: str = "", attributes: dict[str, object] | None = None
    ) -> CaptureResult:
        """A result of this process, which did not ask Spark."""
        return CaptureResult(outcome, LOCAL, detail, attributes or {}, request.target, request.table)


@dataclass
class _Pass:
    """One pass over the files of a table, for requests of one snapshot, mode and sampling.

    Attributes:
        scan: The results so far.
        rows: Those to put.
        plan: The tasks of the table, for these requests and others.
        begun: Reading of `time.monotonic()` from which seconds of a budget count.
        notes: Notes for people, to which the pass adds.
    """

    requests: Sequence[CaptureRequest]
    scan: TableScan
    rows: Rows
    plan: Plan
    sink: Sink
    progress: Callable[[float, str], None]
    begun: float
    notes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.notes = list(self.plan.notes)

    @property
    def first(self) -> CaptureRequest:
        """A request that stands for all in what they share."""
        return self.requests[0]


def _writing(one: _Pass, choice: Choice, tasks: Sequence[ScanTask]) -> Writing | None:
    """How executors write the rows of files. None if there are none, or this process makes these rows: few ones, those
    that are compared with metadata, and those of files that are listed twice."""
    scan = one.scan
    if not choice.on_spark or scan.sampled or not scan.work.column_ids or scan.stated is not None:
        return None
    paths = list(dict.fromkeys(task.file_path for task in tasks))
    if len(paths) < len(tasks):
        return None
    place = one.sink.segment_place(scan.table, scan.work.column_ids, paths)
    if place is None:
        return None
    types = {i: scan.types[i].text for i in scan.work.column_ids}
    return Writing(place, scan.table.described, one.rows.mode, one.rows.now, types, scan.keeping)


def _batch_of(request: CaptureRequest) -> tuple[object, ...]:
    """Key of the requests that are captured together."""
    target, spec = request.target, request.spec
    # Each expression is a separate job, because Spark may reject it.
    expression_id = target.storage_id if target.kind is TargetKind.EXPRESSION else ""
    how = (request.mode, spec.sampling, spec.budget, spec.partitions, spec.engine)
    # Containers have no sketches, by which the stored results of other columns are found.
    return (*request.table.key.values(), *how, expression_id, _is_container(request))


def _of_part(progress: Callable[[float, str], None], done: int, parts: int) -> Callable[[float, str], None]:
    """The progress of one of equal parts, of which some are done."""
    return lambda share, message: progress((done + share) / parts, message)


def _put_stored(one: _Pass, known: Known, tasks: Iterable[ScanTask]) -> None:
    """Puts the stored results of tasks again, as rows of this snapshot."""
    places = ((task.file_path, i) for task in tasks for i in one.scan.work.column_ids)
    for flight, stored in known.tables(places).items():
        for start in range(0, len(stored), _FLUSH_ROWS):
            one.sink.put(flight, one.rows.stored(stored[start : start + _FLUSH_ROWS]))


def _fold(
    one: _Pass,
    waves: Iterable[Sequence[Answer]],
    tasks: Sequence[ScanTask],
    reused: Mapping[int, list[Answer]],
    scanned: ScanProgress,
) -> None:
    """Folds the answers of a scan together with the reused ones, which are given by task index."""
    scan, rows = one.scan, one.rows
    by_task = dict(reused)
    for wave in waves:
        for answer in wave:
            if answer.engine_id == SPARK:
                rows.engine_id = SPARK
            for flight, written in answer.written:
                one.sink.add_segment(flight, scan.table, written)
            by_task.setdefault(answer.task, []).append(answer)
        scanned.done(answer.task + at for answer in wave for at in range(answer.files))
        scan.take(by_task, tasks, rows)
        if rows.pending >= _FLUSH_ROWS:
            _flush(rows, one.sink)
        scanned.report()
    scan.take(by_task, tasks, rows)
    assert not by_task, "a task without an answer"


def _attributes(scan: TableScan, engine_id: str, ended_by: str) -> dict[str, Any]:
    """How a table was read, for the caller; `ended_by` is the limit that ended a sample."""
    attributes: dict[str, Any] = {
        "execution": "spark" if engine_id == SPARK else "inline",
        "files": scan.files_total,
    }
    if scan.sampled:
        sample = {"method": str(scan.sampling), "rows_total": scan.rows_total, "ended_by": ended_by or None}
        attributes["sample"] = sample
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
