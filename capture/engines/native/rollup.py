"""The statistics of a column over many files, from those of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import NativeStats
from store import bounds, logical_types
from store.schemas import SCALAR

_COUNTS = ("row_count", "null_count", "nan_count")


@dataclass
class Rollup:
    """Per-file statistics of one column, summed up. Whatever one file leaves unknown is unknown of the whole."""

    name: str
    logical_type: str
    files: int = 0
    row_count: int | None = 0
    null_count: int | None = 0
    nan_count: int | None = 0
    sides: dict[str, tuple[str, bool | None] | None] = field(default_factory=lambda: {"min": None, "max": None})
    known: dict[str, bool] = field(default_factory=lambda: {"min": True, "max": True})

    @classmethod
    def of(cls, name: str, logical_type: str, parts: Iterable[Rollup]) -> Rollup:
        """The roll-up of all the files of some roll-ups."""
        found, parts = cls(name, logical_type), list(parts)
        found.files = sum(part.files for part in parts)
        for count in _COUNTS:
            told = [getattr(part, count) for part in parts]
            setattr(found, count, None if None in told else sum(told))
        for side in ("min", "max"):
            found.known[side] = all(part.known[side] for part in parts)
            bounds_of = [bound for part in parts if (bound := part.sides[side]) is not None]
            if found.known[side] and bounds_of:
                texts, exact = zip(*bounds_of, strict=True)
                found._outermost(side, pa.array(texts, pa.string()), pa.array(exact, pa.bool_()))
        return found

    def add(self, rows: pa.Table) -> None:
        """Adds rows of this column in files, of FILE_COLUMN_SCHEMA."""
        self.files += rows.num_rows
        for name in _COUNTS:
            total = getattr(self, name)
            missing = rows[name].null_count > 0
            setattr(self, name, None if total is None or missing else total + (pc.sum(rows[name]).as_py() or 0))
        empty = pc.add(rows["null_count"], pc.fill_null(rows["nan_count"], 0))  # bounds skip NaN
        has_values = pc.fill_null(pc.not_equal(empty, rows["row_count"]), True)
        live = rows.filter(has_values)
        for side in ("min", "max"):
            self._bound(side, live)

    def _bound(self, side: str, rows: pa.Table) -> None:
        if not rows.num_rows or not self.known[side]:
            return
        if rows[side].null_count:
            self.known[side] = False
            return
        self._outermost(side, rows[side].combine_chunks(), rows[f"{side}_is_exact"].combine_chunks())

    def _outermost(self, side: str, texts: pa.Array, exact: pa.Array) -> None:
        """Takes in bounds, none of them null."""
        if (old := self.sides[side]) is not None:
            texts = pa.concat_arrays([texts, pa.array([old[0]], pa.string())])
            exact = pa.concat_arrays([exact, pa.array([old[1]], pa.bool_())])
        keys = bounds.sort_keys(texts, logical_types.parse(self.logical_type))
        order = pc.array_sort_indices(keys, order="ascending" if side == "min" else "descending")
        best = order[0].as_py()
        ties = pc.equal(keys, keys[best])
        # an exact bound among the outermost is attained, so the outermost is exact whatever the others are
        told = exact.filter(ties).to_pylist()
        self.sides[side] = (texts[best].as_py(), True if True in told else told[0])

    def complete(self, files: int | None) -> bool:
        return (files is None or self.files == files) and (self.known["min"] or self.known["max"])

    def scalars(self, files: int | None, row_count: int | None, row_deletes: bool) -> dict[str, Any]:
        """The scalar columns of the table-level record; with rows missing from the metadata, what is certain."""
        partial = files is not None and self.files < files
        row: dict[str, Any] = dict.fromkeys(SCALAR) | {"column_name": self.name, "logical_type": self.logical_type}
        row["row_count"] = row_count if row_count is not None else None if partial else self.row_count
        if not partial:
            row["null_count"], row["nan_count"] = self.null_count, self.nan_count
        for side in ("min", "max"):
            found = self.sides[side]
            if found is not None and self.known[side] and not partial:
                row[side] = found[0]
                row[f"{side}_is_exact"] = False if row_deletes else found[1]
        return row


def known_scalars(native: NativeStats, types: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Scalars that metadata knows of whole columns: enclosing bounds and counts, by column name.

    Args:
        native: The metadata of a snapshot.
        types: Logical types by column name, of the columns wanted.
    """
    found: dict[str, Rollup] = {}
    for part in native.file_columns():
        for name, rows in by_column(part):
            if name in types:
                found.setdefault(name, Rollup(name, types[name])).add(rows)
    return {
        name: rollup.scalars(native.data_file_count, native.row_count, native.row_deletes)
        for name, rollup in found.items()
    }


def by_column(part: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each column name, in their order."""
    names = part["column_name"].combine_chunks()
    order = pc.sort_indices(names)  # stable
    if not pc.all(pc.equal(order, pa.array(range(len(order)), pa.uint64()))).as_py():
        part, names = part.take(order), names.take(order)
    ends = pc.run_end_encode(names)
    start = 0
    for end, name in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
        yield name, part.slice(start, end - start)
        start = end
