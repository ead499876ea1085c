"""Conditions on `min` and `max`, which compare as values of the row's logical type (store/SEMANTICS.md §6).

The texts of bounds are read when they are compared. Each kind of logical type has a sort key, an expression of the text
in SQL and in Arrow, and a reading of literals; so a condition becomes one comparison of keys for each kind that reads
its literals, and is unknown for rows of all other kinds. A number suits numeric kinds only, true and false suit BOOLEAN
only, a text suits each kind that reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any, Final

import numpy as np
import pyarrow as pa

from store.model import bounds
from store.model.bounds.columns import ASCENDING, DESCENDING
from store.model.bounds.java_floats import read_float
from store.model.bounds.scalar import MAX_DAY, MIN_DAY
from store.model.logical_types import MEASURED, TEMPORAL, Kind, LogicalType, parse
from store.model.predicates.literals import Scalar, exact_number, literal_text

BOUNDS: Final = frozenset({"min", "max"})
TYPE_COLUMN: Final = "logical_type"

_DAY_SECONDS: Final = 86_400
_EXACT: Final = (Kind.INT, Kind.DECIMAL)
_DOUBLE_STEPS: Final = 4  # that a decimal as a double may be off
_GREATEST: Final = 1e77  # no decimal is greater
_WIDE: Final = Context(prec=400)
_NAMED: Final = re.compile(r"\s*[+-]?(NaN|Infinity)\s*")
_FINER: Final = re.compile(r"\.[0-9]{6}([0-9]+)")  # digits of a second's fraction below a microsecond


@dataclass(frozen=True, slots=True)
class SortKey:
    """The sort key of the bounds of one kind.

    Attributes:
        sql: DuckDB expression of the key, with `{0}` for the text; null for a text of another kind.
        of: The keys of canonical texts (utf8).
        read: A literal's text → a literal of `type`, None if the kind cannot read it.
        coarse_sql: DuckDB expression that is cheaper than the key and does not decrease with it; None if there is none.
        coarse: Value of the key → the least and the greatest coarse value that a row with that key can have.
    """

    type: pa.DataType
    sql: str
    of: Callable[[pa.Array], pa.Array]
    read: Callable[[str], Scalar]
    coarse_sql: str | None = None
    coarse: Callable[[Any], tuple[Any, Any]] = lambda key: (key, key)


def is_bound(name: str, names: Mapping[str, Any]) -> bool:
    """True if a column (lower case) of a flight with these columns contains bounds of logical types."""
    return name in BOUNDS and TYPE_COLUMN in names


def read(value: Scalar, kind: Kind) -> Scalar:
    """A literal of a condition as a literal of a kind's sort key; None if the kind cannot read it."""
    if value is None or kind not in KEYS:
        return None
    if isinstance(value, bool):
        suits = kind is Kind.BOOLEAN
    elif isinstance(value, str):
        suits = kind not in (Kind.INT, Kind.DECIMAL) or not _NAMED.fullmatch(value)
    else:
        suits = kind in MEASURED
    text = literal_text(value)
    return KEYS[kind].read(text) if suits and text is not None else None


def readings(value: Scalar, type: LogicalType) -> list[Any]:
    """The literals that readers compare with, of the sort key of the type's kind; a single one if they agree.

    Of a FLOAT they are the nearest float and the nearest double, of a time between two microseconds both of them. An
    INT or DECIMAL is compared with a number that is no integer by value, or both are compared as doubles: then the
    ends of the range that is the same double are readings, too.

    Args:
        value: A literal that the kind can read.
    """
    kind = type.kind
    key: Any = read(value, kind)
    if kind in _EXACT:
        ends = _same_double(value, type)
        if kind is Kind.INT:
            exact = exact_number(str(key))
            return [exact if ends else key, *(end for end in ends if end != exact)]
        return list(dict.fromkeys([key, *(_decimal(str(end)) for end in ends)]))
    if kind is Kind.FLOAT:
        return [float(key), float(str(literal_text(value)))]
    if kind in TEMPORAL and "." in key:
        return [math.floor(Decimal(key)), math.ceil(Decimal(key))]
    return [key]


def _same_double(value: Scalar, type: LogicalType) -> tuple[Decimal, ...]:
    """The least and the greatest number that readers may take for a literal's double; none if the literal is an
    integer, or no value of the type is near it."""
    text = literal_text(value)
    if text is None or isinstance(value, str | bool):
        return ()
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return ()
    double = float(text)
    if not math.isfinite(double) or abs(double) > _GREATEST:
        return ()
    unit = Decimal(1).scaleb(-(type.scale or 0))
    with localcontext(_WIDE):
        if type.kind is Kind.INT:  # rounded to the nearest double
            below, above = (Decimal(math.nextafter(double, end)) for end in (-math.inf, math.inf))
            below, above = (Decimal(double) + below) / 2, (Decimal(double) + above) / 2
        else:  # divided or multiplied as doubles, which is some steps off
            near = _DOUBLE_STEPS * Decimal(math.ulp(double))
            below, above = Decimal(double) - near, Decimal(double) + near
        least, greatest = below.quantize(unit, ROUND_CEILING), above.quantize(unit, ROUND_FLOOR)
        if least > greatest:
            return ()
        # pyarrow takes 17 * 1e-4 for the decimal 0.0017, which is not the double 0.0017
        off = unit / 2 if type.kind is Kind.DECIMAL and isinstance(value, float) else 0
        return least - off, greatest + off


def kind_sql(kind: Kind, type_sql: str) -> str:
    """DuckDB condition that is true for rows of a kind, by the SQL of their logical type."""
    plain, sized = f"{type_sql} = '{kind}'", f"starts_with({type_sql}, '{kind}(')"
    if kind is Kind.DECIMAL:
        return sized
    return f"({plain} OR {sized})" if kind in (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ) else plain


def rows_by_kind(types: pa.Array) -> Mapping[Kind, np.ndarray]:
    """The numbers of the rows of each kind, ascending, by logical types (utf8); those without one are of none."""
    coded = types.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy()
    kinds = [parse(text).kind for text in coded.dictionary.to_pylist()]
    if len(kinds) == 1 and not types.null_count:
        return {kinds[0]: np.arange(len(types))}
    distinct = list(dict.fromkeys(kinds))
    numbers = np.array([*map(distinct.index, kinds), -1])[codes]  # code -1 is that of a null
    return {kind: np.flatnonzero(numbers == at) for at, kind in enumerate(distinct)}


# Sort keys.


def _canonical(kind: Kind) -> Callable[[str], str | None]:
    lt = LogicalType(kind)

    def read(text: str) -> str | None:
        try:
            return bounds.canonical(text, lt)
        except ValueError:
            return None

    return read


def _number(text: str) -> str | None:
    return None if exact_number(text) is None else text


def _integer(text: str) -> str | None:
    number = exact_number(text)
    return text if number is not None and number == number else None


def _single(text: str) -> float | None:
    number = exact_number(text)
    return None if number is None else read_float(text.strip())


def _micros(kind: Kind) -> Callable[[str], str | None]:
    """Reads a time or timestamp as microseconds, with a fraction if it is finer."""
    lt, canonical = LogicalType(kind), _canonical(kind)

    def read(text: str) -> str | None:
        if (whole := canonical(text)) is None:
            return None
        finer = _FINER.search(text)
        micros = Decimal(bounds.sort_keys(pa.array([whole]), lt)[0].as_py())
        return str(micros + Decimal(f"0.{finer[1]}") if finer else micros)

    return read


def _seconds(start: int, first: int, last: int) -> Callable[[int], tuple[str, str]]:
    """The range of the texts of a second; texts of different seconds are in the order of time.

    Args:
        start: Position of the text in that of a timestamp.
        first: The first second that has a text, in seconds since 1970.
        last: The last one.
    """

    def coarse(micros: int) -> tuple[str, str]:
        second = micros // 1_000_000
        if not first <= second <= last:
            return ("", "") if second < first else ("~", "~")
        text = str(np.datetime64(second, "s"))[start:]
        return text, f"{text}~"

    return coarse


# The key of a decimal is a text (`bounds.sort_keys`), beyond which are those of larger and smaller numbers.
_LARGEST, _SMALLEST = "1~", "0!"
_MAX_DIGITS: Final = 76
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")
_DIGITS_SQL: Final = "(CASE WHEN strpos({0}, '.') = 0 THEN length({0}) ELSE strpos({0}, '.') - 1 END)"
_DECIMAL_SQL: Final = (
    f"(CASE WHEN starts_with({{0}}, '-') THEN '0' || chr(({DESCENDING + 1} - {_DIGITS_SQL})::INTEGER)"
    " || translate(substr({0}, 2), '0123456789', '9876543210') || '~'"
    f" ELSE '1' || chr(({ASCENDING} + {_DIGITS_SQL})::INTEGER) || {{0}} END)"
)


def _decimal(text: str) -> str | None:
    number = exact_number(text)
    if number is None or number != number:
        return None
    value = Decimal(number)
    if not value:
        return "1)0"
    if value.is_infinite() or value.adjusted() >= _MAX_DIGITS:
        return _LARGEST if value > 0 else _SMALLEST
    if value.adjusted() < -_MAX_DIGITS:  # nearer to zero than any bound
        value = Decimal(1 if value > 0 else -1).scaleb(-_MAX_DIGITS - 1)
    plain = format(value, "f")
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    digits = plain.lstrip("-")
    whole = len(digits.partition(".")[0])
    if value > 0:
        return f"1{chr(ASCENDING + whole)}{digits}"
    return f"0{chr(DESCENDING - whole)}{digits.translate(_COMPLEMENT)}~"


def _nearest(key: str) -> tuple[float, float]:
    """The double nearest to a decimal, of its key."""
    if key in (_LARGEST, _SMALLEST):
        number = math.inf if key == _LARGEST else -math.inf
    else:
        number = float(key[2:]) if key[0] == "1" else -float(key[2:-1].translate(_COMPLEMENT))
    return number, number


def _sorted_as(kind: Kind) -> Callable[[pa.Array], pa.Array]:
    return lambda texts: bounds.sort_keys(texts, LogicalType(kind))


def _text(kind: Kind) -> SortKey:
    """The text itself."""
    return SortKey(pa.string(), "{0}", lambda texts: texts, _canonical(kind))


def _time(kind: Kind, sql_type: str) -> SortKey:
    sql = f"epoch_us(TRY_CAST({{0}} AS {sql_type}))"
    if kind is Kind.TIME:
        seconds = _seconds(len("1970-01-01T"), 0, _DAY_SECONDS - 1)
    else:
        seconds = _seconds(0, MIN_DAY * _DAY_SECONDS, (MAX_DAY + 1) * _DAY_SECONDS - 1)
    return SortKey(pa.int64(), sql, _sorted_as(kind), _micros(kind), "{0}", seconds)


KEYS: Final[Mapping[Kind, SortKey]] = {
    Kind.INT: SortKey(pa.int64(), "TRY_CAST({0} AS BIGINT)", _sorted_as(Kind.INT), _integer),
    Kind.FLOAT: SortKey(
        pa.float64(),
        "TRY_CAST({0} AS FLOAT)::DOUBLE",
        lambda texts: texts.cast(pa.float32()).cast(pa.float64()),
        _single,
    ),
    Kind.DOUBLE: SortKey(pa.float64(), "TRY_CAST({0} AS DOUBLE)", lambda texts: texts.cast(pa.float64()), _number),
    Kind.DECIMAL: SortKey(
        pa.string(), _DECIMAL_SQL, _sorted_as(Kind.DECIMAL), _decimal, "TRY_CAST({0} AS DOUBLE)", _nearest
    ),
    Kind.BOOLEAN: _text(Kind.BOOLEAN),
    Kind.STRING: _text(Kind.STRING),
    Kind.UUID: _text(Kind.UUID),
    Kind.BINARY: SortKey(pa.binary(), "TRY(from_base64({0}))", _sorted_as(Kind.BINARY), _canonical(Kind.BINARY)),
    Kind.DATE: _text(Kind.DATE),
    Kind.TIME: _time(Kind.TIME, "TIME"),
    Kind.TIMESTAMP: _time(Kind.TIMESTAMP, "TIMESTAMP"),
    Kind.TIMESTAMPTZ: _time(Kind.TIMESTAMPTZ, "TIMESTAMP"),  # as written, in UTC
}
"""The sort key of each kind with an order."""
