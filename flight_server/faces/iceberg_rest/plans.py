"""Plans of scans as Iceberg's REST protocol has them, in pages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

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
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidField, NotFound, Unimplemented
from store.model.predicates.tree import Node

PAGE: Final = 10_000  # tasks
RESIDUAL_BYTES: Final = 8 << 20  # of the filter in all tasks of a page
PLANS_BYTES: Final = 512 << 20  # of plans whose pages are not all fetched; the least recently used goes first
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
    caller: str
    table: TableEntry
    served: Served
    snapshot_id: int
    files: pa.Table
    residual: Any
    internal: bool
    page: int  # tasks


class Plans:
    """Plans scans, and keeps them until their pages are fetched."""

    def __init__(self, app: App, tables: Tables):
        self._app, self._tables = app, tables
        self._plans: LruCache[str, _Plan] = LruCache(PLANS_BYTES)

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
        columns = self._app.planner.reading(table, snapshot_id, lambda _, listing: listing.columns)
        by_snapshot, exact = _flag(body, "use-snapshot-schema", False), _flag(body, "case-sensitive", True)
        find = served.finder(columns, by_snapshot=by_snapshot, exact=exact)
        filter = body.get("filter")
        node = True if filter is None else condition(filter, find, null_differs=not internal)
        if node is False:
            return answer
        plan = self._app.planner.plan(
            table, None if node is True else node, (), snapshot_id, find=find, added=["partition_spec_id"]
        )
        self._app.usage.note(table.table_key, tuple({*columns_of(filter), *texts(body.get("select"))}))
        files = plan.files.select(_COLUMNS)
        if internal:
            looks = _Looks(self._app.planner, table, snapshot_id, columns, find)
            files = _for_pyiceberg(files, served, Asked(filter, find, body.get("select")), looks, node)
        residual = None if filter is None else residual_of(filter, find)
        residual_bytes = len(dumps(residual))
        page = max(1, min(PAGE, RESIDUAL_BYTES // residual_bytes))
        found = _Plan(caller.name, table, served, snapshot_id, files, residual, internal, page)
        id, pages = secrets.token_urlsafe(16), range(1, -(-files.num_rows // page))
        if pages:
            self._plans.put(id, found, files.nbytes + residual_bytes)
        return answer | self._page(found, 0) | {"plan-tasks": [f"{id}.{number}" for number in pages]}

    def page(self, caller: Principal, table: TableEntry, token: Any) -> dict[str, Any]:
        """A page of a plan.

        Raises:
            NotFound: The token is not one of a plan of this caller and table, or the plan is no longer kept.
        """
        id, _, number = token.partition(".") if isinstance(token, str) else ("", "", "")
        plan = self._plans.get(id)
        is_page = plan is not None and number.isdecimal() and 0 < int(number[:9]) * plan.page < plan.files.num_rows
        if plan is None or not is_page or (plan.caller, plan.table.table_key) != (caller.name, table.table_key):
            raise NotFound("no plan has this page", code="UNKNOWN_PLAN_TASK", hint="plan the scan again")
        return self._page(plan, int(number))

    def _page(self, plan: _Plan, number: int) -> dict[str, Any]:
        """The tasks of a page, and the delete files that they refer to."""
        rows = plan.files.slice(number * plan.page, plan.page).to_pylist()
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
    """What the planner knows of the files of a snapshot."""

    planner: ScanPlanner
    table: TableEntry
    snapshot_id: int
    columns: Columns
    find: Find

    def kept(self, node: Node | None) -> pa.ChunkedArray:
        """Paths of the files that may have a row for which a condition is true."""
        return self._planned(node, ())["file_path"]

    def size_of(self, id: int, node: Node | None) -> pa.ChunkedArray | None:
        """Bytes of a column in each of these files, null where they are unknown; None if the snapshot lacks it."""
        column = self.columns.of_id(id)
        return None if column is None else self._planned(node, [column.name])["bytes_to_read"]

    def _planned(self, node: Node | None, names: Sequence[str]) -> pa.Table:
        return self.planner.plan(self.table, node, names, self.snapshot_id, find=self.find).files


def _for_pyiceberg(files: pa.Table, served: Served, asked: Asked, looks: _Looks, node: Node | bool) -> pa.Table:
    """The files of a plan in which pyiceberg finds the rows that there are.

    Raises:
        Unimplemented: It would find other rows of some file.
    """
    planned = None if isinstance(node, bool) else node

    def size_of(id: int) -> pa.ChunkedArray | None:
        return looks.size_of(id, planned)

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
