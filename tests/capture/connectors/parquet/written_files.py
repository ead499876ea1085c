"""Bounds in footers, compared with the values of the files by brute force."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.footers.leaf_types import FooterLeaf
from capture.connectors.footers.reader import LeafStats, read_footer
from capture.connectors.storage.places import open_place

_TEXTS: Final = (
    "",
    "a",
    "aaa",
    "b",
    "cc",
    "ddd",
    "é",
    "\U0001f600",
    "\uffff",
    "z" * 70,
    "\U0010ffff" * 20,
    "\x00",
    "ä" * 40,
)
_EDGES: Final = (0, 1, -1, 2, 300, -10)
_US: Final = 86_400_000_000


class Claim(NamedTuple):
    """A claim about a column in a file, its null count or its bounds, and what is wrong with it; empty if it holds."""

    leaf: FooterLeaf
    of: str
    wrong: str


def _integers(bits: int, *, signed: bool = True) -> Callable[[random.Random], int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    edges = [edge for edge in (*_EDGES, low, high, high // 2, high // 2 + 1) if low <= edge <= high]
    return lambda rng: rng.choice(edges) if rng.random() < 0.4 else rng.randint(low, high)


def _floats(form: str) -> Callable[[random.Random], float]:
    edges = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan")]

    def value(rng: random.Random) -> float:
        number = rng.choice(edges) if rng.random() < 0.3 else rng.uniform(-1000, 1000)
        return float(struct.unpack(form, struct.pack(form, number))[0])

    return value


def _decimals(digits: int, scale: int) -> Callable[[random.Random], Decimal]:
    most = 10**digits - 1
    edges = [edge for edge in (*_EDGES, most, -most, 127, 128, 255, 256, -128, -129, -256) if abs(edge) <= most]

    def value(rng: random.Random) -> Decimal:
        number = rng.choice(edges) if rng.random() < 0.6 else rng.randint(-most, most)
        return Decimal(number).scaleb(-scale, Context(prec=80))

    return value


def _bytes(rng: random.Random) -> bytes:
    edges = [text.encode() for text in _TEXTS] + [b"\xff", b"\xff" * 70, b"\x80", b"\x7f", b"\x01\x2c"]
    return rng.choice(edges) if rng.random() < 0.5 else rng.randbytes(rng.randint(0, 12))


def _text(rng: random.Random) -> str:
    return (
        rng.choice(_TEXTS) if rng.random() < 0.7 else "".join(rng.choices("abc\u00e9\U0001f600", k=rng.randint(0, 40)))
    )


def _days(rng: random.Random) -> int:
    return rng.choice([0, -1, 1, -719_162, 2_932_896]) if rng.random() < 0.3 else rng.randint(-40_000, 60_000)


def _instants(rng: random.Random) -> int:
    return rng.randint(-30_000 * _US, 50_000 * _US)


TYPES: Final[dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]]] = {
    "bool": (pa.bool_(), lambda rng: rng.random() < 0.5),
    **{f"int{bits}": (pa.type_for_alias(f"int{bits}"), _integers(bits)) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (pa.type_for_alias(f"uint{bits}"), _integers(bits, signed=False)) for bits in (8, 16, 32, 64)},
    "half": (pa.float16(), _floats("<e")),
    "float": (pa.float32(), _floats("<f")),
    "double": (pa.float64(), _floats("<d")),
    "date": (pa.date32(), _days),
    "time_us": (pa.time64("us"), lambda rng: rng.randint(0, _US - 1)),
    "time_ns": (pa.time64("ns"), lambda rng: rng.randint(0, _US * 1000 - 1)),
    "time_ms": (pa.time32("ms"), lambda rng: rng.randint(0, _US // 1000 - 1)),
    "ts_us": (pa.timestamp("us"), _instants),
    "ts_ms": (pa.timestamp("ms"), lambda rng: _instants(rng) // 1000),
    "ts_ns": (pa.timestamp("ns"), lambda rng: _instants(rng) * 1000 + rng.randint(0, 999)),
    "tz_us": (pa.timestamp("us", "UTC"), _instants),
    "tz_ns": (pa.timestamp("ns", "UTC"), lambda rng: _instants(rng) * 1000 + rng.randint(0, 999)),
    **{
        f"dec_{digits}": (pa.decimal128(digits, scale), _decimals(digits, scale))
        for digits, scale in ((5, 2), (9, 0), (15, 3), (18, 4), (20, 5), (24, 4), (38, 10))
    },
    "text": (pa.string(), _text),
    "bytes": (pa.binary(), _bytes),
    "three": (pa.binary(3), lambda rng: rng.randbytes(3)),
    "uuid": (pa.uuid(), lambda rng: rng.randbytes(16)),
}
"""Name of a column → its type, and a function that draws a value, of times and dates as integers."""


def random_table(rng: random.Random, rows: int, without: frozenset[str] = frozenset()) -> pa.Table:
    """A table of all types but those named in `without`, of which few, many or all values are null."""
    columns = {}
    for name, (type, draw) in TYPES.items():
        if name in without:
            continue
        share, of_few = rng.choice((0.0, 0.3, 0.99)), rng.random() < 0.3
        few = [draw(rng) for _ in range(3)]
        values = [None if rng.random() < share else (rng.choice(few) if of_few else draw(rng)) for _ in range(rows)]
        storage = type.storage_type if isinstance(type, pa.BaseExtensionType) else type
        plain = {pa.date32(): pa.int32(), pa.time32("ms"): pa.int32()}.get(storage, storage)
        if pa.types.is_temporal(storage) and plain == storage:
            plain = pa.int64()
        if pa.types.is_float16(storage):
            array = pa.array(values, pa.float32()).cast(storage)
        else:
            array = pa.array(values, plain).cast(storage)
        columns[name] = (
            pa.ExtensionArray.from_storage(type, array) if storage is not type and storage != type else array
        )
    return pa.table(columns)


def claims_of(path: Path) -> Iterator[Claim]:
    """The claims about each column in the footer of a file, compared with the values that pyarrow reads."""
    footer = read_footer(open_place(str(path), {}))
    table = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
    for leaf, stats in zip(footer.leaves, footer.rolled_up(), strict=True):
        if stats is None or len(leaf.parts) > 1:
            continue
        column = table[leaf.parts[0]]
        if stats.null_count is not None:
            differs = stats.null_count != column.null_count
            yield Claim(leaf, "nulls", f"{stats.null_count} nulls, not {column.null_count}" if differs else "")
        if stats.lower is not None:
            yield Claim(leaf, "bounds", _wrong(leaf, stats, column))


def _wrong(leaf: FooterLeaf, stats: LeafStats, column: pa.ChunkedArray) -> str:
    values = _comparable(column)
    least, greatest = min(values), max(values)
    if isinstance(least, tuple):  # nanoseconds: the bounds are microseconds around them
        (low_ns,), (high_ns,) = least, greatest
        least, greatest = low_ns // 1000, -(-high_ns // 1000)
    if not (stats.lower <= least and greatest <= stats.upper):
        return f"{stats.lower!r} .. {stats.upper!r}, the values {least!r} .. {greatest!r}"
    if (stats.lower_exact and stats.lower != least) or (stats.upper_exact and stats.upper != greatest):
        return f"exact {stats.lower!r} .. {stats.upper!r}, the values {least!r} .. {greatest!r}"
    return ""


def _comparable(column: pa.ChunkedArray) -> list[Any]:
    """The values in the form of bounds, without nulls and NaN; nanoseconds as tuples."""
    column = column.combine_chunks() if not isinstance(column, pa.Array) else column
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type = column.type
    if pa.types.is_date32(type):
        return [(value - date(1970, 1, 1)).days for value in column.drop_null().to_pylist()]
    if pa.types.is_timestamp(type) or pa.types.is_time(type):
        numbers = column.cast(pa.int32() if pa.types.is_time32(type) else pa.int64()).drop_null().to_pylist()
        if type.unit == "ns":
            return [(number,) for number in numbers]
        factor = {"s": 1_000_000, "ms": 1000, "us": 1}[type.unit]
        return [number * factor for number in numbers]
    if pa.types.is_floating(type):
        return [value for value in column.drop_null().to_pylist() if value == value]
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return [text.encode() for text in column.drop_null().to_pylist()]
    return list(pc.drop_null(column).to_pylist())
