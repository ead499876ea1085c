"""The theta sketch of a column for `merge_sketches`: its own, or the union of those of its files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from capture import partitions
from capture.spec_body import parse_partitions
from flight_server.core.actions.registry import Call
from flight_server.core.views.reader import equal, read_table
from flight_server.core.wire.scan_request import parse_json
from store.model import logical_types, sketches
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, NotFound
from store.model.freshness import EXACT, held
from store.model.structs import Snapshot, Struct, Table, Text


class SketchedColumn(Struct):
    """A column of a table at a snapshot, as a request names it."""

    table: Table
    snapshot: Snapshot
    column: Text


@dataclass(frozen=True, slots=True)
class Theta:
    """A theta sketch of a column, the snapshot whose rows it holds, and whether it holds all of them."""

    data: bytes
    snapshot_id: int
    freshness: str
    is_whole: bool = True


def theta_of(call: Call, of: SketchedColumn, allow_partial: bool, chosen: Sequence[Any] | None = None) -> Theta:
    """A column's theta sketch: its own, else the union of those of its files.

    Args:
        allow_partial: Use a sketch of a sample, or of some of the files.
        chosen: The partitions, as objects or their JSON, whose files' sketches are united; None for the whole column.

    Raises:
        InvalidArgument: There are only sketches of a sample, or of some of the files (PARTIAL_SKETCH).
        NotFound: There is no sketch, or files are not known by partition (UNKNOWN_SKETCH).
    """
    catalog = call.app.catalog
    table = call.app.access.table(of.table, call.principal, "stats.read")
    snapshot_id, column_id = catalog.snapshot_id(table, of.snapshot), catalog.column_id(table, of.column)
    of_column = equal("role", "NDV"), equal("column_id", column_id)
    found = read_table(call.reader, "stats.sketches", table.full_name, None, *of_column, snapshot=snapshot_id)
    rows = found.to_pylist()
    if chosen is None and (own := _whole_of(rows, "COLUMN")):
        return _united(own, snapshot_id)
    of_files = _whole_of(rows, "FILE")
    captured = max((row["snapshot_id"] for row in of_files), default=snapshot_id)  # all are of one listing
    files = read_table(call.reader, "stats.files", table.full_name, None, equal("freshness", EXACT), snapshot=captured)
    column = f'column "{of.column}" of "{table.full_name}"'
    among = None if chosen is None else _paths_in(call, table, captured, files, chosen)
    parts = [row for row in of_files if among is None or row["file_path"] in among]
    if parts:
        lacking = _lacking(files, among, parts)
        is_whole = bool(files.num_rows) and not lacking
        if not is_whole and not allow_partial:
            raise _of_some_files(column, len(parts), len(lacking))
        return _united(parts, snapshot_id, is_whole=is_whole)
    if not rows or chosen is not None:
        raise NotFound(f"no theta sketch is stored of {column}", code="UNKNOWN_SKETCH", hint="capture its NDV first")
    if not allow_partial:
        raise InvalidArgument(
            f"the theta sketch of {column} is of a sample",
            code="PARTIAL_SKETCH",
            hint='capture its NDV without sampling, or set "allow_partial": true',
        )
    return _united(rows, snapshot_id, is_whole=False)


def _lacking(files: pa.Table, among: Collection[str] | None, parts: Sequence[Mapping[str, Any]]) -> set[str]:
    """The paths of the data files that may have rows and that no sketch is of."""
    return _with_data(files, among).difference(row["file_path"] for row in parts)


def _whole_of(rows: Sequence[Mapping[str, Any]], target_kind: str) -> list[Mapping[str, Any]]:
    """The sketches of a kind of target that are of all its rows."""
    return [row for row in rows if row["target_kind"] == target_kind and not sketches.is_partial(row["params"])]


def _of_some_files(column: str, having: int, lacking: int) -> InvalidArgument:
    """The error that only some files have a sketch; the number of those that lack one is 0 if it is not known."""
    told = f"of {column}, {lacking} of {lacking + having} files have no theta sketch"
    if not lacking:
        told = f"of {column}, theta sketches of {having} files are stored, and there may be others"
    return InvalidArgument(
        told,
        code="PARTIAL_SKETCH",
        hint='capture its NDV, or set "allow_partial": true to unite those that there are',
    )


def _united(rows: Sequence[Mapping[str, Any]], snapshot_id: int, *, is_whole: bool = True) -> Theta:
    """The union of stored sketches; EXACT if all were captured at the requested snapshot."""
    captured = {row["snapshot_id"] for row in rows}
    data = rows[0]["data"] if len(rows) == 1 else sketches.union([row["data"] for row in rows])
    return Theta(data, max(captured), held(is_own=captured == {snapshot_id}), is_whole)


def _paths_in(
    call: Call, table: TableEntry, snapshot_id: int, files: pa.Table, chosen: Sequence[Any]
) -> Collection[str]:
    """The paths of the files in partitions."""
    if not files.num_rows:
        raise NotFound(
            f'no files of "{table.full_name}" at snapshot {snapshot_id} are stored, so none are known by partition',
            code="UNKNOWN_SKETCH",
            hint="capture the table with its columns first",
        )
    parsed = [parse_json(each.encode(), "partition") if isinstance(each, str) else each for each in chosen]
    catalog = call.app.catalog
    columns = catalog.schema_columns(table, catalog.snapshot(table, snapshot_id).schema_hash)
    types = {name: logical_types.parse(text) for name, text, *_ in columns}
    return set(partitions.paths_in(files, parse_partitions(parsed), types, table.full_name).to_pylist())


def _with_data(files: pa.Table, among: Collection[str] | None) -> set[str]:
    """The paths of the data files that may have rows."""
    return {
        file["file_path"]
        for file in files.select(["file_path", "file_content", "row_count"]).to_pylist()
        if file["file_content"] in (None, "DATA")
        and file["row_count"] != 0
        and (among is None or file["file_path"] in among)
    }
