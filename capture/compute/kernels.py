"""Partial statistics of one column's values, computed with NumPy and Arrow on whole arrays.

Each column is first reduced to its distinct values and their counts: integers of a small range by counting, other
numbers by sorting, dictionaries by counting indices, strings by sorting hashes. All statistics follow from these.

Independent of Spark, connectors and `datasketches`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.compute import decimals, moments, numbers, shared_steps, strings
from capture.compute.partial import ALL, Frame, Partial, SketchSelection, merged_by, width
from capture.compute.shared_steps import Kernel, Step, printed
from capture.connectors.rows.column_values import plain
from store.model import bounds, sketches
from store.model.logical_types import FLOATING, HASHED, MEASURED, NESTED, NUMERIC, TEMPORAL, TEXTUAL, Kind, LogicalType
from store.model.sketches import ThetaBuilder, murmur3
from store.model.sketches.murmur3 import Hashes, Longs
from store.model.statistics import FLAGS, MOMENTS, SIDES, Merge

_MAX_LONG: Final = (1 << 63) - 1
_WHOLE: Final = frozenset({Kind.INT, Kind.DECIMAL})
PIECE_ROWS: Final = 1 << 22  # rows processed at once; limits the memory of a column to a few hundred MiB


def summarise(values: pa.ChunkedArray, lt: LogicalType, wanted: SketchSelection = ALL, times: int = 1) -> Partial:
    """Computes the statistics of one column; arguments as of `Values`.

    Args:
        wanted: Sketches besides theta.

    Raises:
        pyarrow.ArrowException: The values do not convert to the type.
        ValueError: A string is not valid UTF-8.
    """
    (found,) = summarise_each([Values(values, lt, times)], wanted)
    if isinstance(found, Exception):
        raise found
    return found


class Values(NamedTuple):
    """The values of a column, which is of `len(values) * times` rows.

    Attributes:
        values: Values of any Arrow type that represents the kind, dictionaries included.
        times: Rows that each value stands for; a constant column is one value and the number of rows.
    """

    values: pa.ChunkedArray
    lt: LogicalType
    times: int = 1


def summarise_each(columns: Sequence[Values], wanted: SketchSelection = ALL) -> list[Partial | Exception]:
    """Computes the statistics of some columns at once, which takes less time than one after the other if they have few
    rows.

    Returns:
        The statistics of each column, or the error that `summarise` raises.
    """
    return shared_steps.run([_kernel(*column, wanted) for column in columns])


def _kernel(values: pa.ChunkedArray, lt: LogicalType, times: int, wanted: SketchSelection) -> Kernel:
    """The kernel of a column."""
    if len(values) > PIECE_ROWS:
        parts = []
        for start in range(0, len(values), PIECE_ROWS):
            part = yield from _kernel(values.slice(start, PIECE_ROWS), lt, times, wanted)
            parts.append(part)
        return merge(parts, lt)
    if lt.kind in NESTED:
        return Partial(len(values) * times, values.null_count * times)
    values = plain(values)
    frame = Frame(lt, wanted, len(values) * times, values.null_count * times, times)
    if not frame.count:
        return _empty(frame)
    if frame.nulls:
        values = values.drop_null()
    if lt.kind in TEXTUAL:
        return (yield from strings.summarise(values, frame))
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if lt.kind is Kind.BOOLEAN:
        return (yield from _summarise_booleans(values, frame))
    if lt.kind in FLOATING:
        return (yield from _summarise_floats(values, frame))
    if lt.kind is Kind.DECIMAL:
        return (yield from _summarise_decimals(values, frame))
    if lt.kind in TEMPORAL:
        return (yield from _summarise_instants(*numbers.instants(values, lt), frame))
    if lt.kind in NUMERIC:
        distinct, counts = numbers.count_integers(numbers.integers(values, lt))
        return (yield from _summarise_numbers(distinct, counts, hash_integers(lt), frame))
    return Partial(frame.rows, frame.nulls)


_SUMS: Final = merged_by(Merge.SUM)
_WIDEST: Final = merged_by(Merge.WIDEST)
_UNIONS: Final[dict[str, Callable[[list[bytes]], bytes]]] = {
    "theta": sketches.union,
    "kll": sketches.merge_kll,
    "mcv": sketches.merge_frequent,
}


def merge(parts: Sequence[Partial], lt: LogicalType) -> Partial:
    """Merges the statistics of disjoint rows, at least one. A count or sketch that one part lacks is missing, as is a
    bound that a part with values lacks."""
    if len(parts) == 1:
        return parts[0]

    def of_all(name: str, merged: Callable[[list[Any]], Any]) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if None in values else merged(values)

    found = {name: of_all(name, sum) for name in _SUMS}
    found |= {name: of_all(name, union) for name, union in _UNIONS.items()}
    for name in _WIDEST:
        found[name] = max((value for part in parts if (value := getattr(part, name)) is not None), default=None)
    for side, flag, outermost in zip(SIDES, FLAGS, (pc.min, pc.max), strict=True):
        known = [(getattr(p, side), getattr(p, flag)) for p in parts if getattr(p, side) or p.numbers]
        found[side], found[flag] = _outermost_bound(known, lt, outermost)
    merged_moments = moments.merge((p.numbers, p.mean, p.stddev) for p in parts)
    found |= dict(zip(MOMENTS, merged_moments, strict=True))
    whole = Partial(**found)
    return replace(whole, stddev=0.0) if whole.stddev is None and _is_constant(whole) else whole


def _is_constant(part: Partial) -> bool:
    """True if all values, at least two, are one number, which may be too large for its means to tell it from others."""
    is_one = part.min is not None and part.min == part.max and part.min_is_exact and part.max_is_exact
    return is_one and part.mean is not None and math.isfinite(part.mean) and part.numbers > 1


def row_hashes(values: pa.ChunkedArray, lt: LogicalType) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    """Hashes each row of a column, for tuples of columns.

    Args:
        values: Shape (n,), of any Arrow type that represents the kind.

    Returns:
        Hashes, shape (n,), and a null mask, shape (n,), or None without nulls. Hashes of null rows are undefined.

    Raises:
        ValueError: Values of this type are not hashed.
    """
    if lt.kind not in HASHED:
        raise ValueError(f"{lt.text} values are not hashed")
    if not len(values):
        return np.empty(0, np.uint64), None
    values = plain(values)
    if values.null_count:
        null = values.is_null().to_numpy()
        hashes: Hashes = np.zeros(len(values), np.uint64)
        if not null.all():
            hashes[~null] = _hashes(values.drop_null(), lt)
        return hashes, null
    return _hashes(values, lt), None


def _hashes(values: pa.ChunkedArray, lt: LogicalType) -> Hashes:
    """The hashes of values without nulls, of a kind that is hashed."""
    if lt.kind in TEXTUAL:
        return strings.row_hashes(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if lt.kind is Kind.BOOLEAN:
        return murmur3.hash_booleans(numbers.flat(values))
    if lt.kind in FLOATING:
        return hash_floats(lt)(numbers.floats(values, lt))
    if lt.kind is Kind.DECIMAL:
        words = decimals.words(values, lt)
        if words.shape[1] > 1:
            return murmur3.hash_wide_decimals(words)
        return murmur3.hash_decimals(words[:, 0].view(np.int64))
    if lt.kind in TEMPORAL:
        return hash_instants(*numbers.instants(values, lt))
    return hash_integers(lt)(numbers.integers(values, lt))


def hash_integers(lt: LogicalType) -> Callable[[Any], Hashes]:
    """The hash function for INT, DATE or a type stored as 64-bit integers, of shape (n,) to shape (n,)."""
    return murmur3.hash_ints if lt.kind is Kind.DATE else _hash_integers


def _hash_integers(values: npt.NDArray[np.integer[Any]]) -> Hashes:
    return murmur3.hash_longs(values if values.dtype.itemsize == 8 else values.astype(np.int64))


def hash_instants(micros: Longs, beyond: Longs | None) -> Hashes:
    """Hashes instants from `numbers.instants`, shape (n,): equal ones equally, whatever their column's unit.

    Args:
        micros: Microseconds, shape (n,).
        beyond: Remainders below a microsecond, shape (n,); None if all are 0.
    """
    hashes = murmur3.hash_longs(micros)
    if beyond is not None:
        rows = np.flatnonzero(beyond)
        words = [micros[rows].view(np.uint64), beyond[rows].view(np.uint64)]
        hashes[rows] = murmur3.combine(words, [None, None])
    return hashes


def hash_floats(lt: LogicalType) -> Callable[[Any], Hashes]:
    """The hash function for FLOAT or DOUBLE, of floats of that precision, shape (n,), to shape (n,)."""
    return murmur3.hash_floats if lt.kind is Kind.FLOAT else murmur3.hash_doubles


def _empty(frame: Frame) -> Partial:
    """Statistics of a column without values."""
    kind, wanted = frame.lt.kind, frame.wanted
    none: Hashes = np.empty(0, np.uint64)
    return Partial(
        frame.rows,
        frame.nulls,
        0 if kind in FLOATING else None,
        theta=sketches.theta(none) if kind in HASHED else None,
        kll=sketches.kll(np.empty(0)) if kind in NUMERIC and wanted.quantiles else None,
        mcv=sketches.frequent([], [], 0, 0) if kind in HASHED and wanted.frequent else None,
    )


def _summarise_booleans(values: pa.ChunkedArray, frame: Frame) -> Kernel:
    true = pc.sum(values).as_py()
    counts = {name: n * frame.times for name, n in (("false", len(values) - true), ("true", true)) if n}
    names = list(counts)
    hashes = yield Step(murmur3.hash_booleans, np.array([name == "true" for name in names]), murmur3.hash_booleans)
    theta = sketches.theta(hashes)
    texts = [name.encode() for name in names]
    mcv = sketches.frequent(texts, list(counts.values()), frame.count, 0) if frame.wanted.frequent else None
    size = frame.count
    return Partial(
        frame.rows, frame.nulls, None, names[0], names[-1], width_sum=size, width_max=1, theta=theta, mcv=mcv
    )


def _summarise_floats(values: pa.ChunkedArray, frame: Frame) -> Kernel:
    floats = numbers.floats(values, frame.lt)
    nan = np.isnan(floats)
    nans = int(np.count_nonzero(nan))
    if nans:
        floats = floats[~nan]
    floats.sort()
    distinct, counts = numbers.runs(floats)
    return (yield from _summarise_numbers(distinct, counts, hash_floats(frame.lt), frame, nans))


def _summarise_decimals(values: pa.ChunkedArray, frame: Frame) -> Kernel:
    lt = frame.lt
    words = decimals.words(values, lt)
    if words.shape[1] == 1:
        distinct, counts = numbers.count_integers(words[:, 0].view(np.int64))
        return (yield from _summarise_numbers(distinct, counts, murmur3.hash_decimals, frame))
    words, counts = decimals.count(words)
    builder = ThetaBuilder()
    hashes = yield Step(murmur3.hash_wide_decimals, words, (murmur3.hash_wide_decimals, words.shape[1]))
    builder.update(hashes)
    precise = moments.moments_from(*decimals.above_first(words), counts * frame.times, lt.scale or 0)
    doubles = decimals.doubles(words, lt)
    return (
        yield from _summarise_distinct(
            lambda at: decimals.to_arrow(words[at], lt),
            builder,
            counts,
            doubles,
            frame,
            None,
            8 * words.shape[1],
            precise,
        )
    )


def _summarise_instants(micros: Longs, beyond: Longs | None, frame: Frame) -> Kernel:
    """Statistics of instants. Distinct ones are counted unrounded; bounds are rounded outwards to the precision."""
    lt = frame.lt
    distinct, counts = numbers.count_integers(micros)
    part = yield from _summarise_numbers(distinct, counts, murmur3.hash_longs, frame)
    step = 10 ** (6 - lt.precision) if lt.precision is not None and lt.precision < 6 else 1
    low, high = int(distinct[0]), int(distinct[-1])
    is_exact = [low % step == 0, high % step == 0]
    if beyond is not None:
        builder = ThetaBuilder()
        builder.update(hash_instants(micros, beyond))
        part = replace(part, theta=builder.serialize())
        is_exact[0] &= not beyond[micros == low].all()
        is_exact[1] &= not beyond[micros == high].any()
    if is_exact[1]:
        return replace(part, min_is_exact=is_exact[0])
    above = (high // step + 1) * step
    text = None
    if part.max is not None and above <= _MAX_LONG:
        text = bounds.encode_array(numbers.to_arrow(np.array([above]), lt), lt)[0].as_py()
    return replace(part, min_is_exact=is_exact[0], max=text, max_is_exact=False)


def _summarise_numbers(
    distinct: npt.NDArray[Any], counts: Longs, hashed: Callable[[Any], Hashes], frame: Frame, nans: int | None = None
) -> Kernel:
    """Statistics from ascending distinct numbers in storage form (days, microseconds, unscaled) and their counts."""
    lt = frame.lt
    builder = ThetaBuilder()
    hashes = yield Step(hashed, distinct, hashed)
    builder.update(hashes)
    if nans:
        builder.update(hashed(np.array([np.nan], distinct.dtype)))
    doubles = distinct.astype(np.float64)
    precise = None
    if lt.kind in _WHOLE and len(distinct) and max(-doubles[0], doubles[-1]) > moments.EXACT:
        offsets = (distinct.view(np.uint64) - distinct[:1].view(np.uint64)).astype(np.float64)
        precise = moments.moments_from(int(distinct[0]), offsets, counts * frame.times, lt.scale or 0)
    if lt.kind is Kind.DECIMAL and lt.scale:
        doubles /= 10.0**lt.scale
    size = distinct.dtype.itemsize
    return (
        yield from _summarise_distinct(
            lambda at: numbers.to_arrow(distinct[at], lt), builder, counts, doubles, frame, nans, size, precise
        )
    )


def _summarise_distinct(
    values_at: Callable[[Longs], pa.Array],
    builder: ThetaBuilder,
    counts: Longs,
    doubles: npt.NDArray[np.float64],
    frame: Frame,
    nans: int | None,
    stored_bytes: int,
    precise: moments.Moments | None = None,
) -> Kernel:
    """Bounds, widths and sketches from ordered distinct numbers; `values_at` converts those at indexes to Arrow, and
    `precise` has the moments if those of the doubles would be rounded."""
    lt, wanted, count = frame.lt, frame.wanted, frame.count
    if frame.times != 1:
        counts, nans = counts * frame.times, None if nans is None else nans * frame.times
    low = high = mcv = None
    heavy, offset = sketches.heaviest(counts) if wanted.frequent else (np.empty(0, np.int64), 0)
    items: list[tuple[bytes, int]] = [(b"NaN", nans - offset)] if nans else []
    if len(counts):
        places = np.concatenate([[0, len(counts) - 1], heavy])
        texts = yield printed(values_at(places), lt)
        low, high, *heavies = texts.to_pylist()
        weights = (counts[heavy] - offset).tolist()
        items += [(text.encode(), n) for text, n in zip(heavies, weights, strict=True) if text is not None]
    if wanted.frequent:
        mcv = sketches.frequent([item for item, _ in items], [n for _, n in items], count, offset)
    size = width(lt, stored_bytes)
    if precise is None:
        precise = moments.moments(doubles, counts) if lt.kind in MEASURED else (None, None)
    mean, stddev = precise
    return Partial(
        frame.rows,
        frame.nulls,
        nans,
        low,
        high,
        width_sum=size * count,
        width_max=size,
        theta=builder.serialize(),
        kll=sketches.kll(doubles, counts) if wanted.quantiles else None,
        mcv=mcv,
        mean=mean,
        stddev=stddev,
    )


def _outermost_bound(
    candidates: list[tuple[str | None, bool]], lt: LogicalType, outermost: Callable[[pa.Array], pa.Scalar]
) -> tuple[str | None, bool]:
    """The outermost bound in the type's order, and whether it is exact: (None, True) if one of them is unknown.

    Among equal bounds one exact bound suffices, because it is attained.
    """
    is_exact: dict[str, bool] = {}
    for text, exact in candidates:
        if text is None:
            return None, True
        is_exact[text] = is_exact.get(text, False) or exact
    given = sorted(is_exact)
    if len(given) < 2:
        return (given[0], is_exact[given[0]]) if given else (None, True)
    keys = bounds.sort_keys(pa.array(given, pa.string()), lt)
    place: int = pc.index(keys, outermost(keys)).as_py()
    return given[place], is_exact[given[place]]
