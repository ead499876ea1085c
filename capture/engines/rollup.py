"""Column records of a table: statistics of files rolled up, completed by those that a source has for the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import NativeStats
from capture.spi import TableHandle
from store.model import bounds, logical_types
from store.model.columns import SCALAR
from store.model.figures import most_values, values
from store.model.statistics import COUNTED, PARTS_OF_ROWS, PER_VALUE, SIDES, WIDTHS, exactness, of_kind

_OUTERMOST: Final = dict(zip(SIDES, (pc.min, pc.max), strict=True))


@dataclass
class Rollup:
    """Per-file statistics of one column, rolled up. A value that is unknown for one file is unknown for the whole."""

    name: str
    logical_type: str
    files: int = 0
    row_count: int | None = 0
    null_count: int | None = 0
    nan_count: int | None = 0
    sides: dict[str, tuple[str, bool | None] | None] = field(default_factory=lambda: dict.fromkeys(SIDES))
    known: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(SIDES, True))
    doubts: frozenset[str] = frozenset()  # reasons why bounds of some files may be wrong

    @classmethod
    def of(cls, name: str, logical_type: str, parts: Iterable[Rollup]) -> Rollup:
        """Merges roll-ups of a column over disjoint sets of files; the only part itself if there is one."""
        whole, parts = cls(name, logical_type), list(parts)
        if len(parts) == 1:
            return parts[0]
        whole.files = sum(part.files for part in parts)
        whole.doubts = frozenset().union(*(part.doubts for part in parts))
        for count in COUNTED:
            counts = [getattr(part, count) for part in parts]
            setattr(whole, count, None if None in counts else sum(counts))
        for side in SIDES:
            whole.known[side] = all(part.known[side] for part in parts)
            bounds_of = [bound for part in parts if (bound := part.sides[side]) is not None]
            if whole.known[side] and bounds_of:
                texts, exact = zip(*bounds_of, strict=True)
                whole._outermost(side, pa.array(texts, pa.string()), pa.array(exact, pa.bool_()))
        return whole

    def add(self, rows: pa.Table) -> None:
        """Adds rows of FILE_COLUMN_SCHEMA about this column in further files, one per file."""
        if rows["doubt"].null_count < rows.num_rows:
            self.doubts |= frozenset(pc.unique(rows["doubt"]).drop_null().to_pylist())
        self.files += rows.num_rows
        for name in COUNTED:
            total = getattr(self, name)
            missing = rows[name].null_count > 0
            setattr(self, name, None if total is None or missing else total + (pc.sum(rows[name]).as_py() or 0))
        empty = pc.add(rows["null_count"], pc.fill_null(rows["nan_count"], 0))  # bounds skip NaN
        has_values = pc.fill_null(pc.not_equal(empty, rows["row_count"]), True)
        live = rows if pc.all(has_values, min_count=0).as_py() else rows.filter(has_values)
        for side in SIDES:
            self._bound(side, live)

    def add_first(self, row: Mapping[str, Any]) -> None:
        """Adds the row of FILE_COLUMN_SCHEMA about this column in the first file; a shortcut."""
        self.files = 1
        if row["doubt"] is not None:
            self.doubts = frozenset([row["doubt"]])
        for name in COUNTED:
            setattr(self, name, row[name])
        nulls = row["null_count"]
        if nulls is not None and nulls + (row["nan_count"] or 0) == row["row_count"]:
            return  # without values there are no bounds
        for side in SIDES:
            self.known[side] = row[side] is not None
            if self.known[side]:
                self.sides[side] = (row[side], row[exactness(side)])

    def _bound(self, side: str, rows: pa.Table) -> None:
        if not rows.num_rows or not self.known[side]:
            return
        if rows[side].null_count:
            self.known[side] = False
            return
        self._outermost(side, rows[side].combine_chunks(), rows[exactness(side)].combine_chunks())

    def _outermost(self, side: str, texts: pa.Array, exact: pa.Array) -> None:
        """Merges bounds, none of them null."""
        if (old := self.sides[side]) is not None:
            texts = pa.concat_arrays([texts, pa.array([old[0]], pa.string())])
            exact = pa.concat_arrays([exact, pa.array([old[1]], pa.bool_())])
        keys = bounds.sort_keys(texts, logical_types.parse(self.logical_type))
        ties = pc.equal(keys, _OUTERMOST[side](keys))
        best = pc.index(ties, True).as_py()
        # an exact bound among equal outermost ones is attained, so the result is exact
        flags = exact.filter(ties).to_pylist()
        self.sides[side] = (texts[best].as_py(), True if True in flags else None if None in flags else False)

    def complete(self, files: int | None) -> bool:
        """True if it covers all files, where their number is known, and at least one bound is known."""
        return (files is None or self.files == files) and any(self.known.values())

    def scalars(self, files: int | None, row_count: int | None, row_deletes: bool) -> dict[str, Any]:
        """The scalar columns of the table-level record, None if unknown, with `column_name` and `logical_type`.

        Args:
            files: Number of data files of the snapshot, None if unknown. If the roll-up covers fewer, null_count,
                nan_count and bounds are null.
            row_count: Live rows of the table from metadata; takes precedence over the sum over the files.
            row_deletes: The files may contain deleted rows, so no bound is exact.
        """
        partial = files is not None and self.files < files
        row: dict[str, Any] = dict.fromkeys(SCALAR) | {"column_name": self.name, "logical_type": self.logical_type}
        row["row_count"] = row_count if row_count is not None else None if partial else self.row_count
        if not partial:
            row["null_count"], row["nan_count"] = self.null_count, self.nan_count
        for side in SIDES:
            bound = self.sides[side]
            if bound is not None and self.known[side] and not partial:
                row[side] = bound[0]
                row[exactness(side)] = False if row_deletes else bound[1]
        return row


def known_scalars(native: NativeStats, table: TableHandle) -> dict[int, dict[str, Any]]:
    """Column id → `Rollup.scalars` over the metadata of all files, for columns with statistics of at least one; without
    bounds that are in doubt."""
    rollups: dict[int, Rollup] = {}
    for part in native.file_columns():
        roll_up(rollups, part, table)
    nothing = dict.fromkeys(of_kind("MIN_MAX"))
    return {
        column_id: rollup.scalars(native.data_file_count, native.row_count, native.row_deletes)
        | (nothing if rollup.doubts else {})
        for column_id, rollup in rollups.items()
    }


def roll_up(rollups: dict[int, Rollup], rows: pa.Table, table: TableHandle) -> None:
    """Adds rows of FILE_COLUMN_SCHEMA to the roll-ups of the table's columns, by column id.

    Rows are matched by column id, because two columns can have the same dotted name (`a.b` and `a` → `b`), and by name
    only if the id is null.

    Args:
        rollups: Column id → roll-up; updated in place, new columns are added.
        rows: Rows of any columns and files; columns that the table does not have are ignored.
    """
    columns = table.by_id
    if rows["column_id"].null_count:
        id_of = {column.name: column_id for column_id, column in columns.items()}
        named = rows["column_name"].combine_chunks().dictionary_encode()
        of_names = pa.array([id_of.get(name) for name in named.dictionary.to_pylist()], pa.int64()).take(named.indices)
        at = rows.schema.get_field_index("column_id")
        rows = rows.set_column(at, "column_id", pc.coalesce(rows["column_id"], of_names))
    ids = rows["column_id"]
    if not rollups and pc.count_distinct(ids, mode="all").as_py() == rows.num_rows:  # of one file
        for row in rows.take(pc.sort_indices(ids)).to_pylist():
            if (column := columns.get(row["column_id"])) is not None:
                rollup = rollups[row["column_id"]] = Rollup(column.name, column.logical_type)
                rollup.add_first(row)
        return
    for column_id, part in by_column(rows):
        if column_id is not None and (column := columns.get(column_id)) is not None:
            rollups.setdefault(column_id, Rollup(column.name, column.logical_type)).add(part)


def by_column(rows: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    """Yields each `column_id` of some rows once, ascending, the null id last, with its rows in their order."""
    if not rows.num_rows:
        return
    runs = pc.run_end_encode(rows["column_id"].combine_chunks())
    if pc.count_distinct(runs.values, mode="all").as_py() < len(runs.values):
        rows = rows.take(pc.sort_indices(rows["column_id"]))  # stable
        runs = pc.run_end_encode(rows["column_id"].combine_chunks())
    ends = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    for at in pc.sort_indices(runs.values).to_pylist():
        yield runs.values[at].as_py(), rows.slice(starts[at], ends[at] - starts[at])


# Statistics of the source.


def combined(files: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a source's statistics of a column with the roll-up of its files; counts stay consistent.

    Args:
        files: The roll-up of the same snapshot; empty if there is none.
        kept: The source's row of COLUMN_SCHEMA; nulls are unknown.
    """
    paired = {exactness(side) for side in SIDES if kept[side] is not None}
    return possible(dict(files) | {name: value for name, value in kept.items() if value is not None or name in paired})


def possible(row: dict[str, Any]) -> dict[str, Any]:
    """Makes a row consistent: ndv is clamped to the non-null rows, impossible counts and widths become unknown."""
    rows = row.get("row_count")
    for name in PARTS_OF_ROWS:
        count = row.get(name)
        if count is not None and (count < 0 or (rows is not None and count > rows)):
            row[name] = None
    most = most_values(row)
    for name in PER_VALUE:
        value = row.get(name)
        if value is not None and most is not None:
            row[name] = min(max(float(value), 0.0), float(most))
    width, widest = (row.get(name) for name in WIDTHS)
    if widest is not None and width is not None and width > widest:
        row |= dict.fromkeys(WIDTHS)
    return row


def is_complete(row: Mapping[str, Any]) -> bool:
    """True if the row has a row count and a null count."""
    return values(row) is not None
