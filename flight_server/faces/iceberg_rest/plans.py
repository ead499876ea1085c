"""Plans of scans as Iceberg's REST protocol has them, in pages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.conditions.exact_json import dumps
from flight_server.core.app import App
from flight_server.core.auth.principal import Principal
from flight_server.faces.iceberg_rest import made_up, pyiceberg_files
from flight_server.faces.iceberg_rest.expressions import Find, columns_of, condition, texts
from flight_server.faces.iceberg_rest.partitions import single_value
from flight_server.faces.iceberg_rest.pyiceberg_files import Asked
from flight_server.faces.iceberg_rest.residuals import residual_of
from flight_server.faces.iceberg_rest.tables import Served, Tables, url, values_of
from flight_server.planning.scan_columns import Columns
from flight_server.planning.scan_plan import ScanPlanner
from flight_server.planning.slices import SLICE, WHOLE, Slice, slices
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidField, NotFound, Unimplemented, UpstreamError
from store.model.predicates.tree import Node

PAGE: Final = 10_000  # tasks
RESIDUAL_BYTES: Final = 8 << 20  # of the filter in all tasks of a page
PLANS_BYTES: Final = 32 << 20  # of plans whose pages are not all fetched; the least recently used goes first
ROWS_BYTES: Final = 64 << 20  # of the files of such plans; those that found no room are planned again
_TRIES: Final = 5  # to plan a scan of several pages between two commits to its table
_PLAN_BYTES: Final = 2_000  # of a plan without its files and its filter
_COLUMNS: Final = [
    "file_path",
    "file_format",
    "row_count",
    "size_bytes",
    "partition_data_json",
    "partition_spec_id",
    "delete_files",
]
_INCREMENTAL: Final = ("start-snapshot-id", "end-snapshot-id")


@dataclass(frozen=True)
class _Plan:
    """A planned scan, in the slices of its table's listing.

    Attributes:
        node: The condition; None if there is none.
        page: Most tasks of a page.
    """

    id: str
    caller: str
    table: TableEntry
    served: Served
    snapshot_id: int
    asked: Asked
    node: Node | None
    columns: Columns
    residual: Any
    internal: bool
    page: int


@dataclass(frozen=True)
class _Part:
    """The files of a plan in one slice.

    Attributes:
        starts: The path of the first file of each page. What is captured meanwhile may skip further files, so that
            pages are ranges of paths, not of rows.
    """

    slice: Slice
    starts: Sequence[str]

    def page(self, files: pa.Table, number: int) -> pa.Table:
        """The files of a page, of those that the slice has."""
        paths, wanted = files["file_path"], None
        if number:
            wanted = pc.greater_equal(paths, self.starts[number])
        if number + 1 < len(self.starts):
            before = pc.less(paths, self.starts[number + 1])
            wanted = before if wanted is None else pc.and_(wanted, before)
        return files if wanted is None else files.filter(wanted)


@dataclass(frozen=True)
class _Pages:
    """A plan whose pages are not all fetched.

    Attributes:
        parts: The slices that have files of the plan.
        digest: Digest of the listing.
    """

    plan: _Plan
    parts: Sequence[_Part]
    digest: Any


class Plans:
    """Plans scans, and keeps them until their pages are fetched."""

    def __init__(self, app: App, tables: Tables):
        self._app, self._tables = app, tables
        self._plans: LruCache[str, _Pages] = LruCache(PLANS_BYTES)
        self._rows: LruCache[tuple[str, int], pa.Table] = LruCache(ROWS_BYTES)

    def plan(self, caller: Principal, table: TableEntry, body: Mapping[str, Any], *, internal: bool) -> dict[str, Any]:
        """The answer to a plan: the first page of tasks, and the tokens of the others.

        Args:
            body: The request (`PlanTableScanRequest`).
            internal: The form of partition values, see `partitions.single_value`.

        Raises:
            InvalidArgument: The request is malformed, or its filter does not suit the table.
            Unimplemented: The scan cannot be served safely.
            NotFound: The table has no such snapshot.
            UpstreamError: The lake cannot be reached.
        """
        if asked := [name for name in _INCREMENTAL if body.get(name) is not None]:
            raise Unimplemented(f"{asked[0]}: scans of what was added between two snapshots are not planned here")
        served = self._tables.load(table)
        table = self._app.catalog.by_key(table.table_key)
        snapshot: str | int = "current"
        answer: dict[str, Any] = {"status": "completed", "plan-tasks": []}
        if body.get("snapshot-id") is not None:
            snapshot = served.stored(_integer(body, "snapshot-id"))
            self._app.catalog.snapshot(table, snapshot)
        elif table.current_snapshot_id is None:
            return answer  # nothing was written to it yet
        table = self._tables.captured(table, snapshot)
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        assert snapshot_id is not None  # it is captured
        columns = self._app.parts["planning"].planner.listings.reading(
            table, snapshot_id, lambda _, listing: listing.columns
        )
        by_snapshot, exact = _flag(body, "use-snapshot-schema", False), _flag(body, "case-sensitive", True)
        find = served.finder(columns, by_snapshot=by_snapshot, exact=exact)
        filter = body.get("filter")
        node = True if filter is None else condition(filter, find, null_differs=not internal)
        if node is False:
            return answer
        self._app.usage.note(table.table_key, tuple({*columns_of(filter), *texts(body.get("select"))}))
        residual = None if filter is None else residual_of(filter, find)
        residual_bytes = len(dumps(residual))
        plan = _Plan(
            secrets.token_urlsafe(16),
            caller.name,
            table,
            served,
            snapshot_id,
            Asked(filter, find, body.get("select")),
            None if isinstance(node, bool) else node,
            columns,
            residual,
            internal,
            max(1, min(PAGE, RESIDUAL_BYTES // residual_bytes)),
        )
        return answer | self._first(plan, residual_bytes)

    def _first(self, plan: _Plan, residual_bytes: int) -> dict[str, Any]:
        """The first page of a plan, and the tokens of the others. The plan is kept if there are others."""
        first: pa.Table | None = None
        for _ in range(_TRIES):
            settled = self._app.versions.settled(plan.table.table_key)
            parts, tokens, first = self._parts(plan)
            if len(tokens) <= 1:
                break
            digest = self._app.parts["planning"].planner.digest(plan.table, plan.snapshot_id)
            if settled is not None and settled == self._app.versions.settled(plan.table.table_key):
                size_bytes = _PLAN_BYTES + residual_bytes + 400 * len(tokens)
                self._plans.put(plan.id, _Pages(plan, parts, digest), size_bytes)
                break
        else:
            raise UpstreamError("the table changed while the scan was planned", hint="plan the scan again")
        return {} if first is None else self._page(plan, parts[0].page(first, 0)) | {"plan-tasks": tokens[1:]}

    def _parts(self, plan: _Plan) -> tuple[list[_Part], list[str], pa.Table | None]:
        """The parts of a plan, the tokens of their pages, and the files of the first part, None if there is none."""
        first: pa.Table | None = None
        parts: list[_Part] = []
        tokens: list[str] = []
        for slice, files in self._sliced(
            plan, self._app.parts["planning"].planner.listed(plan.table, plan.snapshot_id)
        ):
            if not files.num_rows:
                continue
            starts = files["file_path"].take(pa.array(range(0, files.num_rows, plan.page))).to_pylist()
            tokens += [f"{plan.id}.{len(parts)}.{number}" for number in range(len(starts))]
            parts.append(_Part(slice, starts))
            first = files if first is None else first
            if len(tokens) > 1:
                self._rows.put((plan.id, slice.number), files, files.nbytes)
        return parts, tokens, first

    def _sliced(self, plan: _Plan, listed: int) -> Iterator[tuple[Slice, pa.Table]]:
        """The files of a plan in each slice of the listing; at once if a condition keeps few of many.

        Args:
            listed: Number of files in the listing.
        """
        if listed > SLICE and plan.node is not None and (few := self._kept(plan, WHOLE, SLICE)) is not None:
            yield WHOLE, few
            return
        for slice in slices(listed):
            yield slice, self._files(plan, slice)

    def _files(self, plan: _Plan, slice: Slice) -> pa.Table:
        """The files of a plan in a slice, by path."""
        files = self._kept(plan, slice)
        assert files is not None  # there is no limit
        return files

    def _kept(self, plan: _Plan, slice: Slice, most: int | None = None) -> pa.Table | None:
        """The files of a plan in a slice, by path; None if bounds keep more than `most`."""
        planner, find = self._app.parts["planning"].planner, plan.asked.find
        kept = planner.kept(
            plan.table, plan.node, (), plan.snapshot_id, find, slice, added=["partition_spec_id"], most=most
        )
        if kept is None:
            return None
        files = kept.select(_COLUMNS)
        if not plan.internal:
            return files
        looks = _Looks(planner, plan.table, plan.snapshot_id, plan.columns, find, slice)
        return _for_pyiceberg(files, plan.served, plan.asked, looks, plan.node).sort_by("file_path")

    def page(self, caller: Principal, table: TableEntry, token: Any) -> dict[str, Any]:
        """A page of a plan.

        Raises:
            NotFound: The token is not one of a plan of this caller and table, the plan is no longer kept, or other
                files are listed for its snapshot by now.
        """
        id, at, number = _numbers(token)
        pages = self._plans.get(id)
        if pages is None or at >= len(pages.parts):
            raise _no_page()
        plan, part = pages.plan, pages.parts[at]
        is_of_caller = (plan.caller, plan.table.table_key) == (caller.name, table.table_key)
        if not is_of_caller or number >= len(part.starts):
            raise _no_page()
        files = self._rows.get((plan.id, part.slice.number))
        if files is None:
            files = self._files(plan, part.slice)
            if self._app.parts["planning"].planner.digest(plan.table, plan.snapshot_id) != pages.digest:
                raise _no_page()  # other files are listed, so that this page may lack some of the plan
            self._rows.put((plan.id, part.slice.number), files, files.nbytes)
        return self._page(plan, part.page(files, number))

    def _page(self, plan: _Plan, files: pa.Table) -> dict[str, Any]:
        """The tasks of some files of a plan, and the delete files that they refer to."""
        rows = files.to_pylist()
        deletes = self._deletes(plan, rows)
        partitions: dict[tuple[int | None, str | None, tuple[int, ...]], dict[str, Any]] = {}
        references: dict[int, int] = {}  # number of a delete file in the snapshot → in this page
        tasks = []
        for row in rows:
            of_partition = row["partition_spec_id"], row["partition_data_json"], tuple(row.get("absent") or ())
            if (partition := partitions.get(of_partition)) is None:
                partition = partitions[of_partition] = _partition(plan, *of_partition)
            path, count, applying = deletes["data_files"].get(row["file_path"], (None, row["row_count"], ()))
            if row["delete_files"] and not applying:
                raise Unimplemented(f"the deletes of {row['file_path']} are not known any more")
            task: dict[str, Any] = {"data-file": partition | _data_file(row, path, count)}
            if applying:
                task["delete-file-references"] = [references.setdefault(at, len(references)) for at in applying]
            if plan.residual is not None:
                task["residual-filter"] = plan.residual
            tasks.append(task)
        if not tasks:
            return {}
        told = [deletes["delete_files"][at] for at in references]
        return {"file-scan-tasks": tasks} | (
            {"delete-files": [file | {"file-path": url(file["file-path"])} for file in told]} if told else {}
        )

    def _deletes(self, plan: _Plan, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Delete files of a snapshot, and its data files that have some; none if these rows have none.

        Raises:
            Unimplemented: The deletes are of a kind that readers of Iceberg do not know.
        """
        is_made_up = plan.served.is_made_up
        if not any(row["delete_files"] or (row["delete_files"] is None and not is_made_up) for row in rows):
            return {"delete_files": [], "data_files": {}}
        if is_made_up:
            raise Unimplemented(f'"{plan.table.full_name}" has deletion vectors of Delta')
        return self._tables.row_deletes(plan.table, plan.snapshot_id)


def _numbers(token: Any) -> tuple[str, int, int]:
    """The id of a plan, the number of a part and that of a page in it.

    Raises:
        NotFound: The token is none of a page.
    """
    id, *numbers = token.split(".") if isinstance(token, str) else [""]
    if len(numbers) != 2 or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise _no_page()
    return id, int(numbers[0]), int(numbers[1])


def _no_page() -> NotFound:
    return NotFound("no plan has this page", code="UNKNOWN_PLAN_TASK", hint="plan the scan again")


def _data_file(row: Mapping[str, Any], path: str | None, count: int | None) -> dict[str, Any]:
    """A data file of a task, without its partition.

    Args:
        row: The file in the plan.
        path: Its address in the lake's metadata; None for that of the plan.
        count: Its rows, deleted ones too; None if unknown.

    Raises:
        Unimplemented: Its rows or bytes are unknown.
    """
    if count is None or row["size_bytes"] is None:
        raise Unimplemented(
            f"the number of rows or bytes of {row['file_path']} is not known, which readers of Iceberg rely on",
            hint="capture the table",
        )
    return {
        "content": "data",
        "file-path": path or url(row["file_path"]),
        "file-format": (row["file_format"] or "PARQUET").lower(),
        "file-size-in-bytes": row["size_bytes"],
        "record-count": count,
    }


@dataclass(frozen=True)
class _Looks:
    """Look-ups of the files of a snapshot in a slice, by the planner."""

    planner: ScanPlanner
    table: TableEntry
    snapshot_id: int
    columns: Columns
    find: Find
    slice: Slice

    def kept(self, node: Node | None) -> pa.ChunkedArray:
        """Paths of the files that may have a row for which a condition is true."""
        return self._planned(node, ())["file_path"]

    def size_of(self, id: int, node: Node | None) -> pa.ChunkedArray | None:
        """Bytes of a column in each of these files, null where they are unknown; None if the snapshot lacks it."""
        column = self.columns.of_id(id)
        return None if column is None else self._planned(node, [column.name])["bytes_to_read"]

    def _planned(self, node: Node | None, names: Sequence[str]) -> pa.Table:
        files = self.planner.kept(self.table, node, names, self.snapshot_id, self.find, self.slice)
        assert files is not None  # there is no limit
        return files


def _for_pyiceberg(files: pa.Table, served: Served, asked: Asked, looks: _Looks, node: Node | None) -> pa.Table:
    """The files of a plan in which pyiceberg finds the rows that there are.

    Raises:
        Unimplemented: It would find other rows of some file.
    """

    def size_of(id: int) -> pa.ChunkedArray | None:
        return looks.size_of(id, node)

    if served.is_mapped:
        files = pyiceberg_files.with_absent(files, served, asked, size_of)
    files, columns = pyiceberg_files.right_ones(files, served, asked, looks.kept, size_of)
    if columns:
        names = ", ".join(sorted(columns))
        raise Unimplemented(
            f'pyiceberg would find other rows than there are: files of "{looks.table.full_name}" lack {names}, which it'
            " takes for null where it is not selected, and to which null satisfies <> and NOT",
            hint=f"select {names} too, without OR beside <> or NOT of it, or read with statflight's client.scan",
        )
    return pyiceberg_files.with_absent_ones_read(files, asked) if served.is_mapped else files


def _partition(plan: _Plan, spec_id: int | None, text: str | None, absent: Sequence[int]) -> dict[str, Any]:
    """Spec and partition values of a file.

    Args:
        absent: See `pyiceberg_files.with_absent`.
    """
    served = plan.served
    if served.is_made_up:
        return _made_up_partition(plan, text)
    spec_id = spec_id or 0
    if spec_id not in served.specs:
        raise Unimplemented(f'the metadata of "{plan.table.full_name}" has no partition spec {spec_id}')
    partition = served.specs[spec_id]
    pairs = zip(values_of(text, partition), partition, strict=True)
    values = [single_value(value, type, internal=plan.internal) for value, (_, type) in pairs]
    sources = served.sources[spec_id]
    told_of = zip(sources, values, partition, strict=True)
    _check_decimals(plan, [(value, type) for id, value, (_, type) in told_of if id in absent])
    if not plan.internal or None not in values:
        return {"spec-id": spec_id, "partition": values}
    of_columns = {id: value for id, value in zip(sources, values, strict=True) if id is not None}
    told = pyiceberg_files.partition_of(served, spec_id, of_columns, absent)
    if told is None:
        raise Unimplemented(
            f'"{plan.table.full_name}" has files without the columns of their partition, whose values {text} pyiceberg'
            " cannot read from a plan for the null among them",
            hint="select none of these columns, or read it with statflight's client.scan, or with Spark",
        )
    return told


def _made_up_partition(plan: _Plan, text: str | None) -> dict[str, Any]:
    """Spec and partition values of a file of a table whose metadata is made up: a spec without the fields whose value
    is null."""
    fields = plan.served.specs[0]
    whole = values_of(text, fields)
    nulls = [value is None for value in whole]
    kept = [(value, type) for value, (_, type) in zip(whole, fields, strict=True) if value is not None]
    values = [single_value(value, type, internal=plan.internal) for value, type in kept]
    _check_decimals(plan, zip(values, (type for _, type in kept), strict=True))
    return {"spec-id": made_up.spec_id(nulls), "partition": values}


def _check_decimals(plan: _Plan, values: Iterable[tuple[Any, str]]) -> None:
    """Refuses values that pyiceberg needs and JSON lacks.

    Args:
        values: Values as they are sent, each with its type.
    """
    if plan.internal and any(isinstance(value, str) and type.startswith("decimal") for value, type in values):
        raise Unimplemented(
            f'"{plan.table.full_name}" has decimals as partition values, which pyiceberg cannot read from a plan',
            hint="read it with statflight's client.scan, or with Spark",
        )


def _integer(body: Mapping[str, Any], name: str) -> int:
    value = body[name]
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) < value < 2**63:
        raise InvalidField(name, "must be an integer", expected="the id of a snapshot", actual=value)
    return value


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidField(name, "must be true or false", expected="true | false", actual=value)
    return default if value is None else value
