"""Incremental captures: merges new statistics of changed files with stored ones of unchanged files.

A file's statistics are stored with the fingerprint of its scan task and reused while the fingerprint is the same.
Statistics of removed files are not merged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.compute import file_sketches, kernels
from capture.compute.partial import Partial, SketchSelection
from capture.connectors.spi import ScanTask
from capture.spi import Sink, TableHandle
from store.model import sketches
from store.model.columns import FREQUENT_ITEMS, KLL, THETA
from store.model.freshness import is_whole_arrow
from store.model.logical_types import HASHED, NUMERIC, Kind, LogicalType
from store.model.statistics import Merge, names

FAN_IN: Final = 64
"""Parts merged at once; the error of quantiles grows with the depth of the tree."""

TUPLES: Final = LogicalType(Kind.STRUCT)
"""The type of the tuples of a group of columns."""

_THETA_FAN_IN: Final = 8  # theta sketches are large; grouping does not change their union
_STATISTICS: Final = names(lambda each: each.merge is not Merge.SKETCH)
_MEASURES: Final = ("file_path", "column_id", "logical_type", *_STATISTICS, "bytes_scanned")

_Place = tuple[str, int]  # file path, column id


@dataclass(slots=True)
class _Level:
    """The parts of one block that wait to be merged."""

    block: int = 0
    parts: list[Partial] = field(default_factory=list)


class Fold:
    """Merges the statistics of a column part by part, in file order.

    The parts are the leaves of a tree whose shape their indexes alone decide: each node is of the `FAN_IN` nodes of a
    block. So an incremental capture produces the same bytes as a full one, and whoever has a whole block may merge it.
    """

    def __init__(self, lt: LogicalType):
        self.lt = lt
        self.parts = 0
        self.size_bytes = 0
        self._next = 0  # index of the next part
        self._levels: list[_Level] = [_Level()]
        self._thetas: list[bytes] = []
        self._no_theta = False
        self._first: tuple[int, Partial] | None = None  # as it was added, until there is another

    def unite(self, theta: bytes) -> None:
        """Adds a compact theta sketch of parts that are added with `counted`; the order does not matter."""
        self._thetas.append(theta)
        if len(self._thetas) >= _THETA_FAN_IN:
            self._thetas = [sketches.union(self._thetas)]

    def add(
        self, part: Partial, size_bytes: int = 0, counted: bool = False, at: int | None = None, files: int = 1
    ) -> None:
        """Adds the next part.

        Args:
            counted: Its theta sketch was added by `unite`.
            at: Its index, greater than those before; by default the next one.
            files: 1, or FAN_IN for a part that `merged_block` made of those from the index on.
        """
        index = self._next if at is None else at
        self._next = index + files
        self.parts += files
        self.size_bytes += size_bytes
        if counted:
            pass
        elif part.theta is None:
            self._no_theta = True
        else:
            self.unite(part.theta)
        if self.parts == 1 and not counted:
            self._first = index, part
            return
        self._push_first()
        if files == 1:
            self._push(0, index, _without_theta(part))
        else:
            self._close(0)
            self._push(1, index // FAN_IN, _without_theta(part))

    def result(self) -> Partial:
        """The statistics of all parts so far; without parts, those of zero rows."""
        if self._first is not None and len(self._thetas) == (self._first[1].theta is not None):
            return self._first[1]
        self._push_first()
        parts = [part for level in reversed(self._levels) for part in level.parts]
        if not parts and self.lt.kind is Kind.STRUCT:  # tuples of columns
            return Partial(0, 0, theta=sketches.union([]))
        if not parts:
            return kernels.summarise(pa.chunked_array([], pa.null()), self.lt)
        thetas = self._thetas
        theta = None if self._no_theta else thetas[0] if len(thetas) == 1 else sketches.union(thetas)
        return replace(kernels.merge(parts, self.lt), theta=theta)

    def _push_first(self) -> None:
        if self._first is not None:
            at, part = self._first
            self._push(0, at, _without_theta(part))
            self._first = None

    def _push(self, level: int, position: int, part: Partial) -> None:
        """Adds a part to a level of the tree, by its position there."""
        if level == len(self._levels):
            self._levels.append(_Level())
        own, (block, place) = self._levels[level], divmod(position, FAN_IN)
        if own.block != block:
            self._close(level)
        own.block = block
        own.parts.append(part)
        if place == FAN_IN - 1:
            self._close(level)

    def _close(self, level: int) -> None:
        """Merges the parts of a level that wait, fewer than a block's where some could not be read."""
        own = self._levels[level]
        parts, own.parts = own.parts, []
        if parts:
            self._push(level + 1, own.block, kernels.merge(parts, self.lt))


def merged_block(parts: Sequence[Partial], lt: LogicalType) -> Partial:
    """The part of a `Fold` that stands for those of a whole block, of FAN_IN files."""
    assert len(parts) == FAN_IN
    merged: Partial = kernels.merge(parts, lt)
    return merged


def _without_theta(part: Partial) -> Partial:
    return part if part.theta is None else replace(part, theta=None)


@dataclass(frozen=True, slots=True)
class Known:
    """Stored results of unchanged files.

    Attributes:
        parts: (file path, column id) → statistics without theta sketch, and bytes of the column in the file.
        unions: Column id → stored theta sketch over exactly the files in `parts`, if there is one.
        insufficient: Ids of the columns of which cut sketches of files are not precise enough; these files are not in
            `parts`.
    """

    parts: dict[_Place, tuple[Partial, int]] = field(default_factory=dict)
    unions: dict[int, bytes] = field(default_factory=dict)
    _columns: pa.Table | None = None
    _sketches: pa.Table | None = None
    _rows: dict[_Place, int] = field(default_factory=dict)
    _sketch_rows: dict[_Place, dict[str, int]] = field(default_factory=dict)
    insufficient: frozenset[int] = frozenset()

    def theta(self, place: _Place) -> bytes:
        """The compact theta sketch of a key of `parts`, loaded on demand because it is large."""
        assert self._sketches is not None
        data: bytes = self._sketches["data"][self._sketch_rows[place]["NDV"]].as_py()
        return data

    @property
    def engine_ids(self) -> frozenset[str]:
        """The engines that computed them."""
        return frozenset() if self._columns is None else frozenset(pc.unique(self._columns["engine_id"]).to_pylist())

    def tables(self, places: Iterable[_Place]) -> dict[str, pa.Table]:
        """The rows of `stats.file_columns` and `stats.sketches` stored for some of `parts`, by flight; {} if none are.

        Args:
            places: File paths and column ids, keys of `parts`.
        """
        if self._columns is None or self._sketches is None:
            return {}
        places = list(places)
        rows = [self._rows[place] for place in places]
        sketches_of_places = [row for place in places for row in self._sketch_rows[place].values()]
        return {
            "stats.file_columns": _taken(self._columns, rows),
            "stats.sketches": _taken(self._sketches, sketches_of_places),
        }


def known(
    sink: Sink,
    table: TableHandle,
    engine_ids: Sequence[str],
    tasks: Sequence[ScanTask],
    types: Mapping[int, LogicalType],
    column_ids: Sequence[int],
    wanted: SketchSelection,
    uncut: Collection[int] = (),
) -> Known:
    """Reads the complete stored results of unchanged files, together as precise as those of a scan.

    Args:
        engine_ids: Engines whose results are equal to those of a new scan.
        tasks: The live files; only results with the same fingerprint are returned.
        uncut: Ids of the columns of which a result must have whole sketches.
    """
    stored = sink.stored("stats.sketches", table, column_ids=column_ids)
    if not stored.num_rows:
        return Known()
    stored = stored.filter(pc.is_in(stored["role"], pa.array(sorted(_roles(wanted)))))
    whole = stored.filter(pc.equal(stored["target_kind"], "COLUMN"))
    stored = stored.filter(pc.is_valid(stored["file_path"]))
    stored = stored.filter(_current(stored, {task.file_path: task.fingerprint for task in tasks}))
    roles_of, cut = _by_place(stored)
    columns = _complete(sink.stored("stats.file_columns", table, column_ids=column_ids), engine_ids)
    wanted_of = {i: (lt, _roles(wanted, lt)) for i, lt in types.items() if lt.kind in HASHED}
    rows: dict[_Place, int] = {}
    parts: dict[_Place, tuple[Partial, int]] = {}
    for at, values in enumerate(_lists(columns, _MEASURES)):
        row = dict(zip(_MEASURES, values, strict=True))
        place = row["file_path"], row["column_id"]
        lt, roles = wanted_of.get(row["column_id"], (None, set[str]()))
        row_of_role = roles_of.get(place, {})
        if lt is None or row["logical_type"] != lt.text or not roles <= row_of_role.keys():
            continue
        rows[place] = at
        parts[place] = Partial.of_record(row, *_optional(stored["data"], row_of_role)), row["bytes_scanned"] or 0
    found = Known(parts, _unions(whole, tasks, parts, column_ids), columns, stored, rows, roles_of)
    if not (insufficient := _insufficient(found, cut, uncut)):
        return found
    read_again = {path for path, column_id in cut if column_id in insufficient}
    for place in [place for place in parts if place[0] in read_again]:
        del parts[place]
    return replace(found, unions=_unions(whole, tasks, parts, column_ids), insufficient=insufficient)


def _by_place(sketches: pa.Table) -> tuple[dict[_Place, dict[str, int]], set[_Place]]:
    """The row of each role of sketches of files; and the places that have a cut one."""
    roles_of: dict[_Place, dict[str, int]] = {}
    cut: set[_Place] = set()
    heads = pc.binary_slice(sketches["data"], 0, file_sketches.HEAD_BYTES).to_pylist()
    for at, (path, column_id, role) in enumerate(_lists(sketches, ("file_path", "column_id", "role"))):
        roles_of.setdefault((path, column_id), {})[role] = at
        if file_sketches.cut_k(role, heads[at]) is not None:
            cut.add((path, column_id))
    return roles_of, cut


def _complete(columns: pa.Table, engine_ids: Sequence[str]) -> pa.Table:
    """The rows of files' columns whose results are whole, and equal to those of a scan by these engines."""
    is_theirs = pc.and_(pc.is_in(columns["engine_id"], pa.array(engine_ids)), is_whole_arrow(columns))
    is_counted = pc.and_(pc.is_valid(columns["row_count"]), pc.is_valid(columns["null_count"]))
    return columns.filter(pc.and_(is_theirs, is_counted))


def _optional(data: pa.ChunkedArray, row_of_role: Mapping[str, int]) -> Iterator[bytes | None]:
    """The sketches of quantiles and of frequent values, by the row of each role."""
    for role in ("QUANTILES", "MCV"):
        yield data[row_of_role[role]].as_py() if role in row_of_role else None


def _insufficient(known: Known, cut: Set[_Place], uncut: Collection[int]) -> frozenset[int]:
    """The columns that need better sketches than the cut ones of their files are together."""

    def is_sufficient(column_id: int) -> bool:
        places = [place for place in known.parts if place[1] == column_id]
        union = None if column_id in known.unions else sketches.union([known.theta(place) for place in places])
        parts = [known.parts[place][0] for place in places]
        quantiles = [(part.kll, part.numbers) for part in parts if part.kll is not None]
        return column_id not in uncut and file_sketches.is_sufficient(union, quantiles)

    return frozenset(i for i in {place[1] for place in cut if place in known.parts} if not is_sufficient(i))


def listing(tasks: Iterable[ScanTask]) -> str:
    """Digest of the files covered by a statistic: SHA-256 in hex of their paths and fingerprints."""
    digest = hashlib.sha256()
    for line in sorted(json.dumps([task.file_path, task.fingerprint]) for task in tasks):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _unions(
    sketches: pa.Table, tasks: Sequence[ScanTask], parts: Mapping[_Place, object], column_ids: Iterable[int]
) -> dict[int, bytes]:
    """Column id → stored theta sketch of the table's column, if it covers exactly the files in `parts`."""
    sketches = sketches.filter(pc.equal(sketches["role"], "NDV"))
    row_of = dict(zip(sketches["column_id"].to_pylist(), range(sketches.num_rows), strict=True))
    unions, listings = {}, {}
    for column_id in column_ids:
        if (at := row_of.get(column_id)) is None:
            continue
        files = tuple(n for n, task in enumerate(tasks) if (task.file_path, column_id) in parts)
        if files not in listings:
            listings[files] = listing(tasks[n] for n in files)
        if _parameter(sketches["params"][at].as_py(), "files") == listings[files]:
            unions[column_id] = sketches["data"][at].as_py()
    return unions


def _roles(wanted: SketchSelection, lt: LogicalType | None = None) -> set[str]:
    """Roles of the sketches wanted for a type, or for any type."""
    roles = {"NDV"}
    if wanted.quantiles and (lt is None or lt.kind in NUMERIC):
        roles.add("QUANTILES")
    return roles | {"MCV"} if wanted.frequent else roles


def _current(sketches: pa.Table, fingerprints: Mapping[str, str]) -> pa.ChunkedArray:
    """Mask of the sketches whose file is unchanged."""
    stored = _by_value(sketches["params"], lambda params: _parameter(params, "fingerprint"))
    now = _by_value(sketches["file_path"], lambda path: fingerprints.get(path or ""))
    return pc.and_(pc.not_equal(stored, ""), pc.fill_null(pc.equal(stored, now), False))


def _by_value(texts: pa.ChunkedArray, function: Callable[[str | None], str | None]) -> pa.Array:
    """Applies a function to each text, once per distinct text."""
    coded = texts.combine_chunks().dictionary_encode(null_encoding="encode")
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    return pa.array([function(text) for text in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def _lists(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _taken(table: pa.Table, rows: list[int]) -> pa.Table:
    return table if rows == list(range(table.num_rows)) else table.take(pa.array(rows, pa.int64()))


def params(role: str, lt: LogicalType, **more: Any) -> str:
    """Parameters of a sketch as JSON, keys sorted.

    NDV: k, seed and the form of hashed values; QUANTILES: k and the unit of the doubles; MCV: map size and number of
    items.

    Args:
        role: NDV, TUPLE_NDV, QUANTILES or MCV.
        more: Further parameters: `fingerprint` of the scanned file, or `files`, the digest of all files of the table.
    """
    try:
        return _as_json(role, lt, tuple(more.items()))
    except TypeError:  # dependencies, which few sketches have, cannot be cached
        return json.dumps(_params(role, lt) | more, sort_keys=True)


@lru_cache(4096)
def _as_json(role: str, lt: LogicalType, more: tuple[tuple[str, Any], ...]) -> str:
    """`params`, cached, because those of all columns of a type and file are equal."""
    return json.dumps(_params(role, lt) | dict(more), sort_keys=True)


@lru_cache(4096)
def _params(role: str, lt: LogicalType) -> dict[str, Any]:
    """Parameters common to all columns of a type, cached."""
    parameters: dict[str, Any] = {}
    match role:
        case "NDV" | "TUPLE_NDV":
            parameters = {"k": sketches.THETA_K, "seed": 9001, "values": "iceberg single-value bytes, INT as 8 bytes"}
        case "QUANTILES":
            units = {"DATE": "days", "TIME": "us", "TIMESTAMP": "us", "TIMESTAMPTZ": "us"}
            parameters = {"k": sketches.KLL_K, "unit": units.get(lt.kind, "value"), "rank_error": 2 / sketches.KLL_K}
        case "MCV":
            parameters = {"lg_max_map_size": sketches.FREQUENT_LG, "items": sketches.FREQUENT_ITEMS_KEPT}
    return parameters


SKETCHES: Final = (
    ("NDV", THETA, "theta"),
    ("QUANTILES", KLL, "kll"),
    ("MCV", FREQUENT_ITEMS, "mcv"),
)
"""Role, sketch type and field of `Partial` for each sketch of a column."""


def _parameter(params: str | None, name: str) -> str:
    """A parameter of a sketch as text; empty if missing."""
    try:
        values = json.loads(params or "{}")
    except ValueError:
        return ""
    return str(values.get(name) or "") if isinstance(values, dict) else ""
