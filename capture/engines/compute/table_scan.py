"""One pass over the files of a table: what is asked of it, and what came of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from capture.compute import fold as incremental
from capture.compute import functional_dependencies as dependencies
from capture.compute.file_scan import Answer, Work
from capture.compute.fold import Fold, Known
from capture.compute.partial import SketchSelection
from capture.compute.stat_rows import Coverage, Rows
from capture.connectors.spi import ScanTask
from capture.spi import CaptureRequest, Sampling, TableHandle
from store import logical_types
from store.logical_types import Kind, LogicalType
from store.targets import TargetKind

SAMPLE_SHARE: Final = 0.1  # of the row groups of each file

Key = tuple[int, ...]  # of a column or a group: its ids


@dataclass(slots=True)
class _Read:
    """The rows and bytes that one pass itself read of a column or a group."""

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
class TableScan:
    """A pass. Answers are folded file by file, in the order of the files."""

    table: TableHandle
    sampling: Sampling
    work: Work
    types: dict[int, LogicalType]
    all_ids: tuple[int, ...]
    folds: dict[Key, Fold]
    errors: dict[Key, list[str]]
    row_groups: dict[Key, int]
    read: dict[Key, _Read]
    members: dict[int, Fold]  # of groups: each column's values, null among them
    dependencies: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)  # of groups, once all is folded
    known: dict[int, dict[str, Any]] = field(default_factory=dict)  # by column id: what metadata says of the whole
    rows_total: int = 0
    files_total: int = 0
    taken: int = 0  # files folded, in order
    reused: frozenset[int] = frozenset()  # tasks whose answers, and thetas, are from the store

    @classmethod
    def of(cls, requests: Sequence[CaptureRequest]) -> TableScan:
        """A pass that has read nothing yet.

        Args:
            requests: Of one table, snapshot, mode and sampling.

        Returns:
            The pass over all columns and groups that the requests name.
        """
        table, method = requests[0].table, requests[0].sampling
        columns = sorted({r.target.column_id for r in requests if r.target.column_id is not None})
        groups = sorted({r.target.column_ids for r in requests if r.target.column_ids})
        wanted = sketches_of([r for r in requests if r.target.kind is TargetKind.COLUMN])
        share = SAMPLE_SHARE if method is Sampling.RANDOM_ROW_GROUP and requests[0].budget is None else None
        all_ids = sorted({*columns, *(i for group in groups for i in group)})
        types = {i: logical_types.parse(table.by_id[i].logical_type) for i in all_ids}
        keys: list[Key] = [*((i,) for i in columns), *groups]
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
        """True if only some row groups are read."""
        return self.sampling is not Sampling.NONE

    def reuse(self, tasks: Sequence[ScanTask], known: Known) -> dict[int, list[Answer]]:
        """Takes the answers of files that the store has all answers of.

        Args:
            tasks: The live files, in order.
            known: What the store has of them.

        Returns:
            Answers by the number of the task; nothing where groups are asked for, which have no parts in the store.
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
            for answers in reused.values():  # without it, the sketches one by one
                self.folds[i,].unite(known.theta((tasks[answers[0].task].file_path, i)))
        return reused

    def take(self, answers: dict[int, list[Answer]], tasks: Sequence[ScanTask], rows: Rows) -> None:
        """Folds the answers of files whose turn it is, and makes the rows of each file.

        Args:
            answers: By the number of the task; those that are folded are removed.
            tasks: The live files, in order.
            rows: Receives the rows.
        """
        while self.taken in answers:
            at = self.taken
            task = tasks[at]
            for answer in answers.pop(at):
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
            rows.file_column(task, answer.column_id, self.types[answer.column_id], answer)

    def finish(self, tasks: Sequence[ScanTask], rows: Rows) -> None:
        """Makes the rows of the table.

        Args:
            tasks: All its live files, whatever was read of them.
            rows: Receives the rows.
        """
        total, files = self.rows_total, incremental.listing(tasks)
        for key, fold in self.folds.items():
            if tasks and not fold.parts:
                continue  # nothing could be read
            part = fold.result()
            row_groups = self.row_groups[key] if self.sampled and part.row_count < total else 0
            read = self.read[key].files if self.sampled else fold.parts
            known = self.known.get(key[0], {}) if len(key) == 1 else {}
            covers = Coverage(total, read, fold.size_bytes, row_groups, len(self.errors[key]), known)
            if len(key) == 1:
                rows.column(key[0], self.types[key[0]], part, covers, files)
            else:
                if covers.complete and part.theta:  # of a sample the degree would be too high
                    thetas = {i: self.members[i].result().theta or b"" for i in key}
                    self.dependencies[key] = dependencies.degrees(key, part.theta, thetas)
                rows.group(key, part, covers, self.dependencies.get(key, []))


def sketches_of(requests: Sequence[CaptureRequest]) -> SketchSelection:
    """The sketches that any of the requests asks for.

    Args:
        requests: Of columns or expressions; one without kinds asks for all.

    Returns:
        The costlier statistics to compute.
    """
    kinds = [request.kinds for request in requests]
    return SketchSelection(
        quantiles=any(not asked or "HISTOGRAM" in asked for asked in kinds),
        frequent=any(not asked or "MCV" in asked for asked in kinds),
    )
