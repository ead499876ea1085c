"""Random tables as Arrow, and the true statistics of their columns by brute force."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import pyarrow as pa

from store.model.logical_types import Kind, LogicalType, parse
from tests.ledger.ledger import Page

_WORDS = ("", "a", "Z", "é", "zz top", "\U0001f600", "long " * 30, "￿", "0", "NaN")
_NANOS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_FAR = {"s": 1 << 45, "ms": 1 << 55, "us": 1 << 61, "ns": 1 << 62}
_LEAST = 5e-324  # between two of the smallest doubles
MOMENTS = frozenset({Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL})


def _int(bits: int, signed: bool) -> Callable[[random.Random], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda rng: rng.choice([low, high, 0, 1, rng.randint(low, high), rng.randint(max(low, -9), min(high, 9))])


def _float(rng: random.Random) -> float:
    # 3.4 is not a float32, and not the value read back from one
    ends = [math.nan, 0.0, -0.0, 1.5, 3.4, -2.25, 1e-30, 60000.0]
    return rng.choice([*ends, rng.uniform(-1e4, 1e4)])


def _double(rng: random.Random) -> float:
    return rng.choice([_float(rng), math.inf, -math.inf, 5e-324, 1.7e308, 2.0**53 + 1])


def _decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    most = 10**precision - 1
    return lambda rng: Decimal(f"{rng.choice([most, -most, 0, 1, rng.randint(-most, most)])}e-{scale}")


def _text(rng: random.Random) -> str:
    return rng.choice([*_WORDS, f"w{rng.randint(0, 50)}", "x" * rng.randint(0, 80)])


def _instant(unit: str, far: bool) -> Callable[[random.Random], int]:
    second = 10**9 // _NANOS[unit]

    def value(rng: random.Random) -> int:
        near = rng.randint(-(10**9), 2 * 10**9) * second + rng.randrange(second)
        return rng.choice(
            [near, 0, -1, 5001 if unit == "ns" else 1, rng.randint(-_FAR[unit], _FAR[unit]) if far else 7]
        )

    return value


@dataclass(frozen=True)
class Type:
    """A column type: its Arrow type and a generator of values; instants and dates are integers."""

    arrow: pa.DataType
    value: Callable[[random.Random], Any]

    def column(self, rng: random.Random, rows: int) -> pa.Array:
        nulls = rng.choice([0, 0.2, 1])
        few = [self.value(rng) for _ in range(rng.choice([1, 3, 1000]))]
        values = [None if rng.random() < nulls else rng.choice(few) for _ in range(rows)]
        if pa.types.is_temporal(self.arrow):
            width = pa.int32() if self.arrow.bit_width == 32 else pa.int64()
            return pa.array(values, width).view(self.arrow)
        if pa.types.is_dictionary(self.arrow):
            return pa.array(values, self.arrow.value_type).dictionary_encode()
        return pa.array(values, self.arrow)


def types(far: bool = True) -> dict[str, Type]:
    """All types of columns; `far` includes instants and dates outside of the years 0 to 9999."""
    whole = {}
    for bits in (8, 16, 32, 64):
        whole[f"int{bits}"] = Type(getattr(pa, f"int{bits}")(), _int(bits, True))
        whole[f"uint{bits}"] = Type(getattr(pa, f"uint{bits}")(), _int(bits, False))
    days = (-800_000, 3_000_000) if far else (-20_000, 40_000)
    instants = {}
    for unit in _NANOS:
        for zone in (None, "UTC"):
            instants[f"timestamp_{unit}{'_utc' if zone else ''}"] = Type(pa.timestamp(unit, zone), _instant(unit, far))
    return (
        whole
        | instants
        | {
            "bool": Type(pa.bool_(), lambda rng: rng.random() < 0.5),
            "float16": Type(pa.float16(), _float),
            "float32": Type(pa.float32(), _float),
            "float64": Type(pa.float64(), _double),
            "decimal5_2": Type(pa.decimal128(5, 2), _decimal(5, 2)),
            "decimal18_4": Type(pa.decimal128(18, 4), _decimal(18, 4)),
            "decimal38_10": Type(pa.decimal128(38, 10), _decimal(38, 10)),
            "decimal60_7": Type(pa.decimal256(60, 7), _decimal(60, 7)),
            "string": Type(pa.string(), _text),
            "large_string": Type(pa.large_string(), _text),
            "coded": Type(pa.dictionary(pa.int32(), pa.string()), _text),
            "binary": Type(pa.binary(), lambda rng: rng.randbytes(rng.choice([0, 1, 5, 70]))),
            "fixed": Type(pa.binary(4), lambda rng: rng.randbytes(4)),
            "date": Type(pa.date32(), lambda rng: rng.choice([0, -1, rng.randint(*days)])),
            "time_ms": Type(pa.time32("ms"), lambda rng: rng.randrange(86_400_000)),
            "time_us": Type(
                pa.time64("us"), lambda rng: rng.choice([0, 86_399_999_999, rng.randrange(86_400_000_000)])
            ),
            "time_ns": Type(pa.time64("ns"), lambda rng: rng.choice([1, 86_399_999_999_999, rng.randrange(10**9)])),
            "duration": Type(pa.duration("us"), lambda rng: rng.randint(-5, 5)),
        }
    )


def table(rng: random.Random, of: Mapping[str, Type], rows: int, nested: bool = True) -> pa.Table:
    """Random rows with an `id` and a column of each type; `nested` adds a struct, and a column named like its leaf."""
    columns: dict[str, Any] = {"id": pa.array([rng.randint(0, 5000) for _ in range(rows)], pa.int64())}
    columns |= {name: type.column(rng, rows) for name, type in of.items()}
    if nested:
        number, word = Type(pa.int64(), _int(64, True)), Type(pa.string(), _text)
        inner = pa.StructArray.from_arrays([number.column(rng, rows)], ["z.z"])
        columns["st.x"] = number.column(rng, rows)
        columns["st"] = pa.StructArray.from_arrays(
            [word.column(rng, rows), inner],
            ["x", "deep"],
            mask=pa.array([rng.random() < 0.2 for _ in range(rows)], pa.bool_()),
        )
    return pa.table(columns)


def leaves(rows: pa.Table) -> dict[tuple[str, ...], pa.ChunkedArray]:
    """Leaf columns by path, null where a struct above is null."""
    found: dict[tuple[str, ...], pa.ChunkedArray] = {}

    def walk(path: tuple[str, ...], values: pa.ChunkedArray) -> None:
        if pa.types.is_struct(values.type):
            for field, child in zip(values.type, values.flatten(), strict=True):
                walk((*path, field.name), child)
        else:
            found[path] = values

    for name in rows.column_names:
        walk((name,), rows[name])
    return found


def comparables(values: pa.ChunkedArray, lt: LogicalType) -> list[Any]:
    """The non-null values in forms ordered like the type: instants in nanoseconds, texts as bytes."""
    type = values.type
    if pa.types.is_dictionary(type):
        values, type = values.cast(type.value_type), type.value_type
    values = values.drop_null()
    if pa.types.is_temporal(type) and lt.kind is not Kind.INTERVAL:
        raw = pa.chunked_array(
            [c.view(pa.int32() if type.bit_width == 32 else pa.int64()) for c in values.chunks],
            pa.int32() if type.bit_width == 32 else pa.int64(),
        ).to_pylist()
        return raw if lt.kind is Kind.DATE else [value * _NANOS[type.unit] for value in raw]
    found = values.to_pylist()
    if lt.kind is Kind.FLOAT:
        return [struct.unpack("f", struct.pack("f", value))[0] for value in found]
    if lt.kind is Kind.DECIMAL:
        return [Fraction(value) for value in found]
    return [value.encode() if isinstance(value, str) else value for value in found]


@cache
def bound(text: str, lt: LogicalType) -> Any:
    """A canonical bound in the form of `comparables`."""
    match lt.kind:
        case Kind.BOOLEAN:
            return text == "true"
        case Kind.INT:
            return int(text)
        case Kind.FLOAT:
            return struct.unpack("f", struct.pack("f", float(text)))[0]
        case Kind.DOUBLE:
            return float(text)
        case Kind.DECIMAL:
            return Fraction(text)
        case Kind.BINARY:
            return base64.b64decode(text)
        case Kind.UUID:
            return bytes.fromhex(text.replace("-", ""))
        case Kind.DATE:
            return _days(text)
        case Kind.TIME:
            return _clock(text)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            day, _, clock = text.removesuffix("Z").partition("T")
            return _days(day) * 86_400 * 10**9 + _clock(clock)
    return text.encode()


def _days(text: str) -> int:
    import numpy as np

    return int(np.datetime64(text, "D").astype(np.int64))


def _clock(text: str) -> int:
    whole, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int((fraction + "0" * 9)[:9])


def no_claim(_: str, __: int = 1) -> None:
    """Counts no claim, outside of a run of the ledger."""


@dataclass(frozen=True)
class Truth:
    """The true statistics of a column."""

    logical_type: LogicalType
    rows: int
    nulls: int
    values: Sequence[Any]  # non-null, as `comparables` gives them

    @classmethod
    def of(cls, values: pa.ChunkedArray, logical_type: str) -> Truth:
        lt = parse(logical_type)
        nulls = len(values) if pa.types.is_null(values.type) else values.null_count
        return cls(lt, len(values), nulls, [] if nulls == len(values) else comparables(values, lt))

    @cached_property
    def numbers(self) -> list[Any]:
        return [value for value in self.values if not (isinstance(value, float) and math.isnan(value))]

    @cached_property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest of the numbers, of which there are some."""
        return min(self.numbers), max(self.numbers)

    @cached_property
    def distinct(self) -> int:
        """Distinct values, NaN one of them."""
        return len(set(self.numbers)) + (len(self.numbers) < len(self.values))

    @cached_property
    def moments(self) -> tuple[Fraction, Fraction]:
        """The mean of the numbers, which are finite, and their variance, 0 for one."""
        ratios = [(float(value) if abs(value) < 1e300 else value).as_integer_ratio() for value in self.numbers]
        count, unit = len(ratios), math.lcm(*(below for _, below in ratios))
        whole = [above * (unit // below) for above, below in ratios]
        total = sum(whole)
        squares = count * sum(value * value for value in whole) - total * total
        return Fraction(total, count * unit), Fraction(squares, max(count * (count - 1), 1) * unit * unit)

    def check(
        self,
        row: Mapping[str, Any],
        where: str,
        *,
        computed: bool = True,
        deletes: bool = False,
        page: Page | None = None,
    ) -> None:
        """Compares a record that claims completeness with the truth.

        Args:
            row: Of `stats.columns` or `stats.file_columns`.
            page: Where the claims that are compared are counted.
            computed: An engine has read the values, so that every statistic it computes must be present.
            deletes: The source's own statistics may still count deleted rows.
        """
        lt, numbers = self.logical_type, self.numbers
        count = page.count if page else no_claim
        where = f"{where} {lt.text}: {dict(row)}"
        assert parse(row["logical_type"]) == lt, where
        nans = len(self.values) - len(numbers)
        floating = lt.kind in (Kind.FLOAT, Kind.DOUBLE)
        for name, true in (
            ("row_count", self.rows),
            ("null_count", self.nulls),
            ("nan_count", nans if floating else None),
        ):
            assert row[name] == true or (row[name] is None and not computed), f"{name} is {true}: {where}"
            count("count", row[name] is not None)
        for at, side in enumerate(("min", "max")):
            text, exact = row[side], row[f"{side}_is_exact"]
            if not numbers:
                assert text is None, where
            elif text is not None:
                true, recorded = self.ends[at], bound(text, lt)
                assert recorded <= true if side == "min" else recorded >= true, (
                    f"{side} does not enclose {true}: {where}"
                )
                if exact:
                    assert recorded == true, f"{side} is {true}, not exactly: {where}"
                count("bound")
        count(*self._check_ndv(row, where, computed, deletes))
        if computed and lt.kind in MOMENTS:
            self._check_moments(row, where)

    def _check_ndv(self, row: Mapping[str, Any], where: str, computed: bool, deletes: bool) -> tuple[str, int]:
        """The kind of the claim that was compared, and 1; or 0 if there is none."""
        true = self.distinct
        if row["ndv"] is None:
            assert not computed or self.logical_type.kind is Kind.INTERVAL, where
            return "distinct count", 0
        assert 0 <= row["ndv"] <= self.rows - self.nulls, where
        if row["ndv_exact"] and not deletes:
            assert row["ndv"] == true, f"ndv is {true}: {where}"
        if row["ndv_lower"] is None and row["ndv_upper"] is None and not computed:
            return "distinct count", bool(row["ndv_exact"] and not deletes)  # else an estimate of unknown error
        spare = 0 if row["ndv_exact"] else 0.02 * true  # the limits are those of 95 % confidence
        assert row["ndv_lower"] - spare <= true, f"ndv is {true}: {where}"
        assert deletes or true <= row["ndv_upper"] + spare, f"ndv is {true}: {where}"
        return "distinct count" if row["ndv_exact"] and not deletes else "distinct interval", 1

    def _check_moments(self, row: Mapping[str, Any], where: str) -> None:
        if any(isinstance(value, float) and math.isinf(value) for value in self.numbers):
            assert row["stddev"] is None, where
            return
        if not self.numbers:
            assert (row["mean"], row["stddev"]) == (None, None), where
            return
        scale = float(max(map(abs, self.ends)))
        mean, variance = self.moments
        assert row["mean"] is not None, where
        assert abs(Fraction(row["mean"]) - mean) <= Fraction(scale) / 10**11 + Fraction(_LEAST), where
        if len(self.numbers) == 1:
            assert row["stddev"] is None, where
        elif scale < 1e150:
            true = math.sqrt(variance)
            if row["stddev"] is None:  # means of parts, rounded to doubles, hide it
                assert scale > 2.0**53 and true < 1024 * math.ulp(scale), f"stddev is {true}: {where}"
                assert true or row["min"] is None, f"stddev is 0: {where}"
                return
            assert abs(row["stddev"] - true) <= 1e-6 * true + 1e-9 * scale + _LEAST, f"stddev is {true}: {where}"
