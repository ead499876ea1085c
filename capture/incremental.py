"""Which files are new, and the union of the statistics of all live ones.

A file's statistics are kept with the fingerprint its scan task had. As long as the fingerprint is the same, a later
capture takes them from the store; a file that is gone from the table is simply not part of the union any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.spark import kernels
from capture.spark.partial import HASHED, NUMERIC, Partial, Wanted
from capture.spi import Sink, TableHandle
from store import schemas, sketches
from store.logical_types import Kind, LogicalType

_FAN_IN: Final = 64  # parts merged at once: a quantile's error grows with the depth of the tree, not with its leaves
_THETA_FAN_IN: Final = 8  # theta is large, and its union the same however it is grouped
_ROLES: Final = {"NDV": "theta", "QUANTILES": "kll", "MCV": "mcv"}
_KNOWN: Final = [
    "file_path", "column_id", "logical_type", "row_count", "null_count", "nan_count", "min", "max", "avg_width_bytes",
    "max_width_bytes", "completeness", "engine_id", "row_groups_sampled", "bytes_scanned",
]  # fmt: skip


class Fold:
    """The statistics of a column over parts that come one by one, in the order of their files.

    The result is a function of the parts and their order alone, so that a capture that finds some of them in the store
    gives the same bytes as one that computes them all.
    """

    def __init__(self, lt: LogicalType):
        self.lt = lt
        self.parts = 0
        self.size_bytes = 0
        self._levels: list[list[Partial]] = [[]]
        self._thetas: list[bytes] = []
        self._no_theta = False

    def add(self, part: Partial, size_bytes: int = 0) -> None:
        self.parts += 1
        self.size_bytes += size_bytes
        if part.theta is None:
            self._no_theta = True
        else:
            self._thetas.append(part.theta)
            if len(self._thetas) >= _THETA_FAN_IN:
                self._thetas = [sketches.union(self._thetas)]
        self._push(0, replace(part, theta=None))

    def result(self) -> Partial:
        """The statistics of all parts so far; of none, those of no rows."""
        parts = [part for level in reversed(self._levels) for part in level]
        if not parts and self.lt.kind is Kind.STRUCT:  # tuples of columns
            return Partial(0, 0, theta=sketches.union([]))
        if not parts:
            return kernels.summarise(pa.chunked_array([], pa.null()), self.lt)
        theta = None if self._no_theta else sketches.union(self._thetas)
        return replace(kernels.merge(parts, self.lt), theta=theta)

    def _push(self, level: int, part: Partial) -> None:
        if level == len(self._levels):
            self._levels.append([])
        held = self._levels[level]
        held.append(part)
        if len(held) == _FAN_IN:
            self._levels[level] = []
            self._push(level + 1, kernels.merge(held, self.lt))


@dataclass(slots=True)
class _Sketches:
    fingerprint: str = ""
    data: dict[str, bytes] = field(default_factory=dict)
    whole: bool = True  # all of one fingerprint


@dataclass(frozen=True, slots=True)
class Known:
    """Statistics of files found in the store, by (file path, column id)."""

    rows: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    sketches: dict[tuple[str, int], _Sketches] = field(default_factory=dict)

    def find(
        self, file_path: str, fingerprint: str, column_id: int, lt: LogicalType, wanted: Wanted
    ) -> tuple[Partial, int] | None:
        """What was computed of a column of exactly this file, and the file's bytes that hold it."""
        row, held = self.rows.get((file_path, column_id)), self.sketches.get((file_path, column_id))
        if row is None or held is None or not held.whole or held.fingerprint != fingerprint:
            return None
        if row["logical_type"] != lt.text or lt.kind not in HASHED or "theta" not in held.data:
            return None
        needs_kll = wanted.quantiles and lt.kind in NUMERIC
        if (needs_kll and "kll" not in held.data) or (wanted.frequent and "mcv" not in held.data):
            return None
        count = row["row_count"] - row["null_count"]
        partial = Partial(
            row["row_count"],
            row["null_count"],
            row["nan_count"],
            row["min"],
            row["max"],
            round((row["avg_width_bytes"] or 0) * count),
            row["max_width_bytes"],
            held.data["theta"],
            held.data.get("kll") if wanted.quantiles else None,
            held.data.get("mcv") if wanted.frequent else None,
        )
        return partial, row["bytes_scanned"] or 0


def known(sink: Sink, table: TableHandle, engine_id: str, column_ids: Iterable[int]) -> Known:
    """What the sink has of the table's files, of the columns asked for, computed in full by this engine."""
    sketched = sink.stored("stats.sketches", table, ["file_path", "column_id", "role", "data", "params"])
    if not sketched.num_rows:
        return Known()
    ids = pa.array(list(column_ids), pa.int64())
    sketched = sketched.filter(pc.and_(pc.is_valid(sketched["file_path"]), pc.is_in(sketched["column_id"], ids)))
    if not sketched.num_rows:
        return Known()
    found: dict[tuple[str, int], _Sketches] = {}
    for path, column_id, role, data, params in zip(
        *(sketched[name].to_pylist() for name in ("file_path", "column_id", "role", "data", "params")), strict=True
    ):
        if role not in _ROLES:
            continue
        entry = found.setdefault((path, column_id), _Sketches())
        fingerprint = _fingerprint(params)
        entry.whole &= bool(fingerprint) and (not entry.data or entry.fingerprint == fingerprint)
        entry.fingerprint = fingerprint
        entry.data[_ROLES[role]] = data
    stored = sink.stored("stats.file_columns", table, _KNOWN)
    rows = {}
    for row in stored.filter(pc.is_in(stored["column_id"], ids)).to_pylist():
        own = row["engine_id"] == engine_id and row["completeness"] == "COMPLETE" and not row["row_groups_sampled"]
        if own and row["row_count"] is not None and row["null_count"] is not None:
            rows[row["file_path"], row["column_id"]] = row
    return Known(rows, found)


def params(role: str, lt: LogicalType, fingerprint: str = "", **more: Any) -> str:
    """The JSON of a sketch's parameters.

    NDV: k, seed and how values were hashed; QUANTILES: k and the unit of the doubles; MCV: the items kept of exact
    counts. `fingerprint` is that of the file scanned.
    """
    told: dict[str, Any] = {}
    match role:
        case "NDV" | "TUPLE_NDV":
            told = {"k": sketches.THETA_K, "seed": 9001, "values": "iceberg single-value bytes, INT as 8 bytes"}
        case "QUANTILES":
            units = {"DATE": "days", "TIME": "us", "TIMESTAMP": "us", "TIMESTAMPTZ": "us"}
            told = {"k": sketches.KLL_K, "unit": units.get(lt.kind, "value"), "rank_error": 2 / sketches.KLL_K}
        case "MCV":
            told = {"lg_max_map_size": sketches.FREQUENT_LG, "items": sketches.FREQUENT_ITEMS_KEPT}
    if fingerprint:
        told["fingerprint"] = fingerprint
    return json.dumps(told | more, sort_keys=True)


SKETCHES: Final = (
    ("NDV", schemas.THETA, "theta"),
    ("QUANTILES", schemas.KLL, "kll"),
    ("MCV", schemas.FREQUENT_ITEMS, "mcv"),
)
"""Role, type and the field of `Partial` of every sketch of a column."""


def _fingerprint(params: str | None) -> str:
    try:
        told = json.loads(params or "{}")
    except ValueError:
        return ""
    return str(told.get("fingerprint") or "") if isinstance(told, dict) else ""
