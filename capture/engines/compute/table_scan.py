"""One pass over the files of a table: the requested columns and groups, and their results so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from capture.compute import fold as incremental
from capture.compute import functional_dependencies as dependencies
from capture.compute.file_scan import Answer, Work
from capture.compute.file_sketches import Keeping
from capture.compute.fold import TUPLES, Fold, Known
from capture.compute.partial import SketchSelection
from capture.compute.stat_rows import Coverage, Rows
from capture.connectors.spi import ScanTask
from capture.engines.compute.contradictions import StatedFiles
from capture.spec import FileSketches, Sampling
from capture.spi import CaptureRequest, Sink
from store.model import logical_types
from store.model.freshness import WHOLE_TABLE
from store.model.targets import TargetKind
from store.model.units import bytes_text

Key = tuple[int, ...]  # column ids of a column or a group


@dataclass(slots=True)
class _Read:
    """Files, rows and bytes that the pass itself read for a column or a group."""

    paths: set[str] = field(default_factory=set)
    rows: int = 0
    size_bytes: int = 0

    def add(self, paths: Iterable[str], rows: int, size_bytes: int) -> None:
        self.paths.update(paths)
        self.rows, self.size_bytes = self.rows + rows, self.size_bytes + size_bytes

    @property
    def files(self) -> int:
        return len(self.paths)


class TableScan:
    """State of a pass over all columns and groups of requests of one table, snapshot, mode and sampling. Answers are
    folded in the order of the files.

    Attributes:
        types: Column id → type, of the columns and of the members of groups.
        members: Column id → values of each column of a group, nulls included.
        dependencies: Of groups, set by `finish`.
        uncut: Ids of columns whose NDV is named: of these, whole sketches of files are kept.
        known: Column id → scalars of the whole from metadata.
        reused: Indexes of tasks whose results come from the store.
        stated: What the metadata says of the files that are read.
        contradictions: Of columns, one for each file.
        has_other_rows: A file has another number of rows than the metadata says.
    """

    def __init__(self, requests: Sequence[CaptureRequest], file_sketches: FileSketches = FileSketches.AUTO):
        self.table, self.sampling, self.file_sketches = requests[0].table, requests[0].spec.sampling, file_sketches
        columns = sorted({r.target.column_id for r in requests if r.target.column_id is not None})
        groups = sorted({r.target.column_ids for r in requests if r.target.column_ids})
        wanted = sketches_of([r for r in requests if r.target.kind is TargetKind.COLUMN])
        self.work = Work(tuple(columns), tuple(groups), wanted)
        all_ids = sorted({*columns, *(i for group in groups for i in group)})
        self.types = {i: logical_types.parse(self.table.by_id[i].logical_type) for i in all_ids}
        keys: list[Key] = [*((i,) for i in columns), *groups]
        self.folds = {key: Fold(self.types[key[0]] if len(key) == 1 else TUPLES) for key in keys}
        self.members = {i: Fold(TUPLES) for group in groups for i in group}
        self.errors: dict[Key, list[str]] = {key: [] for key in keys}
        self.row_groups = dict.fromkeys(keys, 0)
        self.read = {key: _Read() for key in keys}
        self.dependencies: dict[Key, list[dict[str, Any]]] = {}
        self.uncut = frozenset(r.target.column_id for r in requests if r.target.column_id and "NDV" in r.spec.kinds)
        self.known: dict[int, dict[str, Any]] = {}
        self.rows_total = self.files_total = 0
        self.taken = 0  # number of files folded
        self.reused: frozenset[int] = frozenset()
        self.stated: StatedFiles | None = None
        self.contradictions: dict[Key, list[str]] = {}
        self.has_other_rows = False

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Ids of the columns that are no containers."""
        return frozenset(i for i in self.types if self.table.by_id[i].is_leaf)

    @property
    def sampled(self) -> bool:
        """True if only some row groups are read."""
        return self.sampling is not Sampling.NONE

    def stored(self, tasks: Sequence[ScanTask], sink: Sink, engine_ids: Sequence[str]) -> Known:
        """The results that the store has of the tasks' files; a sample uses none, nor does a scan of groups.

        Args:
            engine_ids: Engines whose results are equal to those of a new scan.
        """
        work = self.work
        if self.sampled or work.groups or not tasks or not work.column_ids:
            return Known()
        uncut = work.column_ids if self.file_sketches is FileSketches.FULL else self.uncut
        return incremental.known(sink, self.table, engine_ids, tasks, self.types, work.column_ids, work.wanted, uncut)

    def reuse(self, tasks: Sequence[ScanTask], known: Known) -> dict[int, list[Answer]]:
        """Reuses stored results of files for which the store has all requested columns.

        Returns:
            Task index → answers; empty if groups are requested, whose per-file results are not stored.
        """
        reused: dict[int, list[Answer]] = {}
        if not known.parts or self.work.groups:
            return reused
        for at, task in enumerate(tasks):
            parts = {i: known.parts.get((task.file_path, i)) for i in self.work.column_ids}
            if all(parts.values()):
                reused[at] = [Answer(at, i, (), "", part[1], 0, part[0]) for i, part in parts.items() if part]
        self.reused = frozenset(reused)
        whole = sum(map(len, reused.values())) == len(known.parts)
        for i in self.work.column_ids:
            if whole and i in known.unions:
                self.folds[i,].unite(known.unions[i])
                continue
            for answers in reused.values():  # no stored union: unite the files' sketches
                self.folds[i,].unite(known.theta((tasks[answers[0].task].file_path, i)))
        return reused

    def take(self, answers: dict[int, list[Answer]], tasks: Sequence[ScanTask], rows: Rows) -> None:
        """Folds answers, by task index, in file order as far as possible, removes them, and adds the rows of files."""
        while self.taken in answers:
            at = self.taken
            of_task = answers.pop(at)
            for answer in of_task:
                self._fold(answer, tasks[at : at + answer.files], rows)
            self.taken += of_task[0].files if of_task else 1

    def _fold(self, answer: Answer, tasks: Sequence[ScanTask], rows: Rows) -> None:
        if answer.column_id is None and len(answer.column_ids) == 1 and answer.partial:
            self.members[answer.column_ids[0]].add(answer.partial, at=answer.task, files=answer.files)
            return
        key = answer.column_ids if answer.column_id is None else (answer.column_id,)
        if answer.partial is None:
            self.errors[key].append(answer.error)
            return
        reused = answer.task in self.reused
        self.folds[key].add(answer.partial, answer.size_bytes, reused, answer.task, answer.files)
        self.row_groups[key] += max(answer.row_groups, 1)  # a file of a format without row groups counts as one
        if not reused:
            paths = (task.file_path for task in tasks)
            self.read[key].add(paths, answer.partial.row_count, answer.size_bytes)
        if answer.column_id is None or reused or answer.is_written:
            return
        (task,) = tasks
        lt, contradiction = self.types[answer.column_id], self._contradiction(answer, task)
        if not self.sampled:
            kept = self.keeping.of(answer.column_id, answer.partial, answer.size_bytes, task.file_path)
            rows.file_column(task.file_path, task.fingerprint, lt, answer, kept, contradicted=bool(contradiction))
        elif contradiction:
            rows.withdraw(answer.column_id, lt, task.file_path)

    @property
    def keeping(self) -> Keeping:
        """The rule by which sketches of files are kept."""
        return Keeping(self.file_sketches, self.uncut, self.files_total, len(self.table.by_id))

    def _contradiction(self, answer: Answer, task: ScanTask) -> str:
        """The difference between metadata and data of a column of a file, which is remembered; empty if none."""
        if self.stated is None or answer.column_id is None or answer.partial is None:
            return ""
        column_id, path = answer.column_id, task.file_path
        found = self.stated.contradiction(
            path, column_id, self.types[column_id], answer.partial, whole=not self.sampled
        )
        if found:
            stated, rows = self.stated.row_count(path, column_id), answer.partial.row_count
            self.has_other_rows |= stated is not None and (rows > stated or (rows < stated and not self.sampled))
            name = self.table.names[column_id]
            found = f'file "{path}", column "{name}": the metadata has {found}'
            self.contradictions.setdefault((column_id,), []).append(found)
        return found

    def finish(self, tasks: Sequence[ScanTask], rows: Rows) -> None:
        """Adds the rows of the table; `tasks` are all its live files, read or not."""
        total, files = self.rows_total, incremental.listing(tasks)
        for key, fold in self.folds.items():
            if tasks and not fold.parts:
                continue  # nothing could be read
            part = fold.result()
            contradicted = key in self.contradictions  # then nobody knows how many rows there are
            is_sample = self.sampled and (contradicted or part.row_count < total)
            row_groups = self.row_groups[key] if is_sample else 0
            read = self.read[key].files if self.sampled else fold.parts
            known = self.known.get(key[0], {}) if len(key) == 1 and not contradicted else {}
            covers = Coverage(
                max(total, part.row_count),
                read,
                fold.size_bytes,
                row_groups,
                len(self.errors[key]),
                known,
                contradicted,
            )
            if len(key) == 1:
                rows.column(key[0], self.types[key[0]], part, covers, files)
            else:
                if covers.complete and part.theta:  # a sample would overestimate the degree
                    thetas = {i: self.members[i].result().theta or b"" for i in key}
                    self.dependencies[key] = dependencies.degrees(key, part.theta, thetas)
                rows.group(key, part, covers, self.dependencies.get(key, []))
        self._rows_of_table(rows)

    def _rows_of_table(self, rows: Rows) -> None:
        """Adds the record of the table if its number of rows contradicts the metadata, or did and does so no more."""
        if self.stated is None or not (self.has_other_rows or WHOLE_TABLE in self.table.contradicted):
            return
        whole = not self.sampled and not any(self.errors.values())
        counts = {fold.result().row_count for key, fold in self.folds.items() if len(key) == 1 and fold.parts}
        count = counts.pop() if whole and len(counts) == 1 else None
        if self.has_other_rows:
            rows.table_of(self.stated.native, count, contradicted=True)
        elif count is not None and count == self.stated.native.row_count:
            rows.table_of(self.stated.native, count, contradicted=False)

    def withdraw(self, rows: Rows) -> None:
        """Adds records of the columns of the table whose metadata is contradicted, after a scan of a part of it."""
        for column_id, *_ in self.contradictions:
            rows.withdraw(column_id, self.types[column_id])
        if self.has_other_rows and self.stated is not None:
            rows.table_of(self.stated.native, None, contradicted=True)


def sketches_of(requests: Sequence[CaptureRequest]) -> SketchSelection:
    """The sketches that at least one request for columns or expressions needs; empty kinds mean all."""
    kinds = [request.spec.kinds for request in requests]
    return SketchSelection(
        quantiles=any(not asked or "HISTOGRAM" in asked for asked in kinds),
        frequent=any(not asked or "MCV" in asked for asked in kinds),
    )


# Progress.

_SCAN_SHARE: Final = 0.9  # the scan's share of a capture; the rest is writing results


class ScanProgress:
    """Counts the completed files of a scan.

    Args:
        report: Called with the completed share of the capture, 0 to 1, and a message.
    """

    def __init__(self, report: Callable[[float, str], None], clock: Callable[[], float] = time.monotonic):
        self._report, self._clock = report, clock
        self._begun = clock()
        self._tasks: Sequence[ScanTask] = ()
        self._done: set[int] = set()
        self._done_bytes = self._total_bytes = self._read_bytes = self._counted = 0

    def start(self, tasks: Sequence[ScanTask], known: Iterable[int] = ()) -> None:
        """Starts counting `tasks`, to which the scan may add; `known` are the indexes of those with stored results."""
        self._tasks, self._begun = tasks, self._clock()
        self.done(known)
        self._read_bytes = 0

    def done(self, places: Iterable[int]) -> None:
        """Marks tasks as completed; `places` are their indexes."""
        for place in places:
            if place not in self._done:
                self._done.add(place)
                self._done_bytes += self._tasks[place].size_bytes
                self._read_bytes += self._tasks[place].size_bytes

    def report(self) -> None:
        """Reports the progress; an exception of the callback ends the scan."""
        self._total_bytes += sum(task.size_bytes for task in self._tasks[self._counted :])
        self._counted = len(self._tasks)
        files = len(self._tasks)
        share = self._done_bytes / self._total_bytes if self._total_bytes else len(self._done) / max(files, 1)
        words = f"{len(self._done)} of {files} {'file' if files == 1 else 'files'}"
        if self._total_bytes:
            words += f", {bytes_text(self._done_bytes)} of {bytes_text(self._total_bytes)}"
        seconds = self._clock() - self._begun
        if self._read_bytes and seconds > 0:
            words += f", {bytes_text(self._read_bytes / seconds)}/s"
        self._report(_SCAN_SHARE * min(share, 1.0), words)
