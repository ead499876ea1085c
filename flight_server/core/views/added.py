"""Statistics of the rows that came with the files that a snapshot has and another lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.views.reader import Leaf, Reader, equal, read_table
from flight_server.core.views.table_summary import Row, TableSummary
from store.model.columns import DISTRIBUTION, THETA
from store.model.figures import distinct, values
from store.model.freshness import EXACT
from store.model.schemas import FLIGHTS
from store.model.statistics import MOMENTS, PARTS_OF_ROWS, SIDES, WIDTHS, exactness, of_kind

_NAMED: Final = 500  # most files that a condition names; of more the rows of all files are read
_FILE: Final = ("file_path", "file_content", "row_count", "size_bytes", "snapshot_id")
_OF_NDV: Final = of_kind("NDV")
_OF_VALUES: Final = (*PARTS_OF_ROWS, *DISTRIBUTION)
"""What deleted rows may have changed, besides the exactness of bounds."""


class NotListed(Exception):
    """Raised when the files of a snapshot are not known; the message says of which."""


def files(reader: Reader, name: str, snapshot: int, against: int | None) -> pa.Table:
    """The data files of a snapshot that another one lacks: by path and size, for a file may be written anew.

    Args:
        name: Full name of the table.
        snapshot, against: Ids; None for no other, which means all files.

    Raises:
        NotListed: The files of one of them are not captured.
    """
    now = _listed(reader, name, snapshot)
    if against is None:
        return now
    before = _listed(reader, name, against)
    keys = ["file_path", "size_bytes"]
    known = set(zip(*(before[key].to_pylist() for key in keys), strict=True))
    is_new = [key not in known for key in zip(*(now[key].to_pylist() for key in keys), strict=True)]
    return now.filter(pa.array(is_new, pa.bool_()))


def _listed(reader: Reader, name: str, snapshot: int) -> pa.Table:
    """The data files of a snapshot.

    Raises:
        NotListed: They are not captured.
    """
    listed = read_table(reader, "stats.files", name, _FILE, equal("freshness", EXACT), snapshot=snapshot)
    if not listed.num_rows:
        of_table = read_table(reader, "stats.tables", name, ["data_file_count"], snapshot=snapshot).to_pylist()
        if not of_table or of_table[0]["data_file_count"] != 0:
            raise NotListed(f"the files of snapshot {snapshot} are not captured")
    is_data = pc.fill_null(pc.equal(listed["file_content"], "DATA"), True)
    return listed.filter(is_data)


def gather(
    reader: Reader,
    name: str,
    snapshot: int,
    against: int | None,
    column_ids: Collection[int],
    *,
    sketches: bool = False,
) -> tuple[TableSummary, dict[int, bytes]]:
    """The statistics of the rows that came with the files that another snapshot lacks.

    Args:
        name: Full name of the table.
        snapshot, against: As of `files`.
        column_ids: Columns to tell of.
        sketches: Also unite the sketches of distinct values.

    Returns:
        The statistics, as rows of `stats.tables` and `stats.columns`; and by column id the theta sketches by which
        distinct values are counted, of columns of which every file has one.

    Raises:
        NotListed: The files of one of the snapshots are not captured.
    """
    new = files(reader, name, snapshot, against)
    rows_of = dict(zip(new["file_path"].to_pylist(), new["row_count"].to_pylist(), strict=True))
    at = _labels(snapshot)
    table = at | {
        "row_count": _total(new["row_count"]),
        "total_size_bytes": _total(new["size_bytes"]),
        "data_file_count": new.num_rows,
    }
    rows, thetas = dict[int, list[Row]](), dict[int, list[bytes]]()
    if rows_of and column_ids:
        of_columns = equal("column_id", *sorted(column_ids))
        found = _of_files(reader, "stats.file_columns", name, snapshot, rows_of, None, of_columns)
        for row in found.to_pylist():
            rows.setdefault(row["column_id"], []).append(row)
        if sketches:
            thetas = _thetas(reader, name, snapshot, rows_of, of_columns)
    whole = {column: parts for column, parts in thetas.items() if len(parts) == _with_rows(rows_of)}
    united = {column: _united(parts) for column, parts in whole.items()}
    names = {"column_id": pa.int64(), "column_name": pa.string(), "logical_type": pa.string()}
    described = read_table(reader, "stats.columns", name, list(names), snapshot=snapshot).to_pylist()
    columns = [
        at | row | _merged(row["logical_type"], rows.get(row["column_id"], []), rows_of, united.get(row["column_id"]))
        for row in described
        if row["column_id"] in column_ids
    ]
    schema = FLIGHTS["stats.columns"].schema
    return TableSummary(name, pa.Table.from_pylist(columns, schema), table), united


def _labels(snapshot: int) -> Row:
    """The labels of a row that is computed of the records of one snapshot."""
    return dict.fromkeys(FLIGHTS["stats.columns"].schema.names) | {
        "snapshot_id": snapshot,
        "freshness": EXACT,
        "completeness": "COMPLETE",
        "distribution_snapshot_id": snapshot,
        "distribution_freshness": EXACT,
    }


def _total(values: pa.ChunkedArray) -> int | None:
    """The sum of some counts; None if one is unknown, 0 of none."""
    return None if values.null_count else pc.sum(values).as_py() or 0


def _with_rows(rows_of: Mapping[str, int | None]) -> int:
    """The number of files that may have rows."""
    return sum(rows != 0 for rows in rows_of.values())


def _of_files(
    reader: Reader,
    flight: str,
    name: str,
    snapshot: int,
    paths: Collection[str],
    columns: Sequence[str] | None,
    *more: Leaf,
) -> pa.Table:
    """The rows of some files in a flight."""
    named = [equal("file_path", *paths)] if len(paths) <= _NAMED else []
    found = read_table(reader, flight, name, columns, *more, *named, snapshot=snapshot)
    return found if named else found.filter(pc.is_in(found["file_path"], pa.array(list(paths), pa.string())))


def _thetas(
    reader: Reader, name: str, snapshot: int, rows_of: Mapping[str, int | None], of_columns: Leaf
) -> dict[int, list[bytes]]:
    """Column id → the theta sketches of all values of the files with rows."""
    from store.model.sketches import is_partial

    wanted = equal("role", "NDV"), equal("target_kind", "FILE"), equal("sketch_type", THETA), of_columns
    names = ["column_id", "file_path", "data", "params"]
    found: dict[int, list[bytes]] = {}
    for row in _of_files(reader, "stats.sketches", name, snapshot, rows_of, names, *wanted).to_pylist():
        if rows_of[row["file_path"]] != 0 and not is_partial(row["params"]):
            found.setdefault(row["column_id"], []).append(row["data"])
    return found


def _united(thetas: Sequence[bytes]) -> bytes:
    from store.model.sketches import union

    return thetas[0] if len(thetas) == 1 else union(thetas)


def _merged(
    logical_type: str | None, rows: Sequence[Row], rows_of: Mapping[str, int | None], theta: bytes | None
) -> Row:
    """The statistics of a column over files; null where a file with rows does not tell.

    Args:
        rows: Its rows of `stats.file_columns`, of any number of the files.
        rows_of: Path → live rows of all the files.
        theta: The union of their sketches; None if a file has none.
    """
    counts = list(rows_of.values())
    whole: Row = {"row_count": None if None in counts else sum(filter(None, counts))}
    filled = [row for row in rows if rows_of[row["file_path"]] != 0]
    if logical_type is None or len(filled) != _with_rows(rows_of):
        return whole
    whole |= _by_statistic(logical_type, filled)
    whole |= _no_surer(filled)
    if len(filled) == 1 and theta is None:
        whole |= {name: filled[0][name] for name in _OF_NDV}
    elif theta is not None:
        whole |= _ndv(theta, whole)
    if any(row["row_count"] != rows_of[row["file_path"]] for row in filled):  # rows were deleted since
        whole |= dict.fromkeys(_OF_VALUES) | {exactness(side): False for side in SIDES if whole[side] is not None}
    return whole


def _by_statistic(logical_type: str, rows: Sequence[Row]) -> Row:
    """The merged counts, bounds and moments of a column, each by its rule; without distinct values."""
    from capture.compute import kernels
    from capture.compute.partial import Partial
    from store.model import logical_types

    lt = logical_types.parse(logical_type)
    merged = kernels.merge([Partial.of_record(row) for row in rows], lt)
    found: Row = {name: getattr(merged, name) for name in (*PARTS_OF_ROWS, *SIDES, *MOMENTS)}
    counts = [values(row) for row in rows]
    if None in counts:
        found |= dict.fromkeys((*MOMENTS, "null_count"))
    elif merged.values and not any(count and row[WIDTHS[0]] is None for count, row in zip(counts, rows, strict=True)):
        found |= merged.widths
    for side in SIDES:
        flag = exactness(side)
        unsure = any(row[flag] is None and row[side] is not None for row in rows)
        found[flag] = None if found[side] is None or unsure else getattr(merged, flag)
    return found


def _no_surer(rows: Sequence[Row]) -> Row:
    """The labels of a merged row: those of its least sure part."""
    levels = [row["confidence_level"] for row in rows if row["confidence_level"] is not None]
    producers = [row["producer"] for row in rows]
    return {
        "completeness": "COMPLETE" if all(row["completeness"] == "COMPLETE" for row in rows) else "PARTIAL",
        "confidence_level": min(levels, default=None),
        "producer": next((each for each in producers if each != "ENGINE_COMPUTED"), "ENGINE_COMPUTED"),
    }


def _ndv(theta: bytes, row: Row) -> Row:
    """The number of distinct values by a sketch, at most the number of values."""
    from store.model.sketches import Estimate, estimate

    found = estimate(theta)
    most = values(row)
    if most is not None:
        ndv, low, high = (min(each, float(most)) for each in (found.ndv, found.lower, found.upper))
        found = Estimate(ndv, low, high, found.exact)
    return distinct(found)
