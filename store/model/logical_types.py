"""The logical types of store/SEMANTICS.md §4: eighteen kinds, their names in other systems, and their Arrow types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

import pyarrow as pa

from store.model.errors import InvalidField, nearest

MAX_FRACTION: Final = 6  # microseconds
MAX_DECIMAL: Final = 76  # digits of decimal256
MAX_DECIMAL128: Final = 38


class Kind(StrEnum):
    """Names of logical types, without their parameters."""

    BOOLEAN = "BOOLEAN"
    INT = "INT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    UUID = "UUID"
    BINARY = "BINARY"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMPTZ = "TIMESTAMPTZ"
    INTERVAL = "INTERVAL"
    JSON = "JSON"
    ARRAY = "ARRAY"
    MAP = "MAP"
    STRUCT = "STRUCT"
    VARIANT = "VARIANT"


UNORDERED: Final = frozenset({Kind.INTERVAL, Kind.JSON, Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.VARIANT})
TEMPORAL: Final = frozenset({Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
FLOATING: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
TEXTUAL: Final = frozenset({Kind.STRING, Kind.BINARY, Kind.UUID, Kind.JSON})
NESTED: Final = frozenset({Kind.ARRAY, Kind.MAP, Kind.STRUCT})
MEASURED: Final = FLOATING | {Kind.INT, Kind.DECIMAL}
"""Kinds with a mean and a standard deviation."""
NUMERIC: Final = MEASURED | TEMPORAL | {Kind.DATE}
"""Kinds with quantiles."""
HASHED: Final = NUMERIC | TEXTUAL | {Kind.BOOLEAN}
"""Kinds with distinct counts."""


@dataclass(frozen=True, slots=True)
class LogicalType:
    """One type in normal form.

    Attributes:
        precision: Digits of a DECIMAL, or of the fraction of a second; None if unstated.
        scale: Digits after the point of a DECIMAL.
        qualifier: The fields of an INTERVAL, such as `DAY(2) TO SECOND`, without the precision of the seconds.
    """

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    qualifier: str = ""

    @property
    def text(self) -> str:
        """The canonical name, which `parse` reads back as an equal type."""
        name = f"{self.kind} {self.qualifier}" if self.qualifier else str(self.kind)
        if self.precision is None:
            return name
        return f"{name}({self.precision})" if self.scale is None else f"{name}({self.precision},{self.scale})"

    @property
    def orderable(self) -> bool:
        """True if values are ordered, so that min and max are defined."""
        return self.kind not in UNORDERED

    def __str__(self) -> str:
        return self.text


# Names that take no argument. LIST, OBJECT, SERIAL and INT96 are left out on purpose: each means less, or something
# else, than the kind it resembles (golden/logical_types.jsonl).
_PLAIN: Final[dict[Kind, str]] = {
    Kind.BOOLEAN: "BOOLEAN BOOL BIT LOGICAL",
    Kind.INT: "INT INTEGER INT1 INT2 INT4 INT8 INT16 INT32 INT64 TINYINT SMALLINT MEDIUMINT BIGINT LONG SHORT BYTE "
    "UINT UINT8 UINT16 UINT32 UINT64 UINTEGER UTINYINT USMALLINT UBIGINT",
    Kind.FLOAT: "FLOAT REAL FLOAT4 FLOAT16 FLOAT32 HALFFLOAT",
    Kind.DOUBLE: "DOUBLE FLOAT8 FLOAT64",
    Kind.STRING: "STRING TEXT TINYTEXT MEDIUMTEXT LONGTEXT CLOB NTEXT UTF8",
    Kind.UUID: "UUID GUID UNIQUEIDENTIFIER",
    Kind.BINARY: "BINARY VARBINARY BYTES BYTEA BLOB TINYBLOB MEDIUMBLOB LONGBLOB",
    Kind.DATE: "DATE DATE32",
    Kind.JSON: "JSON JSONB",
    Kind.ARRAY: "ARRAY",
    Kind.MAP: "MAP",
    Kind.STRUCT: "STRUCT",
    Kind.VARIANT: "VARIANT",
}
_PLAIN_NAMES: Final = {name: kind for kind, names in _PLAIN.items() for name in names.split()} | {
    "DOUBLE PRECISION": Kind.DOUBLE
}
# Names whose length is cosmetic: a longer VARCHAR has the same logical type.
_SIZED_TEXT: Final = frozenset(
    {"CHAR", "CHARACTER", "NCHAR", "BPCHAR", "VARCHAR", "NVARCHAR", "VARCHAR2", "NVARCHAR2", "CHARACTER VARYING"}
)
_DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC", "DEC", "NUMBER"})
_FRACTIONAL: Final[dict[str, Kind]] = {
    "TIME": Kind.TIME,
    "TIME WITHOUT TIME ZONE": Kind.TIME,
    "TIMESTAMP": Kind.TIMESTAMP,
    "TIMESTAMP WITHOUT TIME ZONE": Kind.TIMESTAMP,
    "TIMESTAMP_NTZ": Kind.TIMESTAMP,
    "TIMESTAMPNTZ": Kind.TIMESTAMP,
    "DATETIME": Kind.TIMESTAMP,
    "DATETIME2": Kind.TIMESTAMP,
    "TIMESTAMPTZ": Kind.TIMESTAMPTZ,
    "TIMESTAMP WITH TIME ZONE": Kind.TIMESTAMPTZ,
    "TIMESTAMP WITH LOCAL TIME ZONE": Kind.TIMESTAMPTZ,
    "TIMESTAMP_TZ": Kind.TIMESTAMPTZ,
    "TIMESTAMP_LTZ": Kind.TIMESTAMPTZ,
    "TIMESTAMPLTZ": Kind.TIMESTAMPTZ,
    "DATETIMEOFFSET": Kind.TIMESTAMPTZ,
}
_KNOWN: Final = sorted({*_PLAIN_NAMES, *_SIZED_TEXT, *_DECIMALS, *_FRACTIONAL, "INTERVAL"})
_CALL = re.compile(r"(?P<name>[A-Z][A-Z0-9_ ]*?)(?:\((?P<arguments>[^()]*)\))?", re.ASCII)
_LEAD = r"(?:\([1-9]\))?"  # digits of the leading field
_INTERVAL = re.compile(
    rf"INTERVAL(?: (?P<fields>YEAR{_LEAD}(?: TO MONTH)?|MONTH{_LEAD}"
    rf"|DAY{_LEAD}(?: TO (?:HOUR|MINUTE))?|HOUR{_LEAD}(?: TO MINUTE)?|MINUTE{_LEAD}"
    rf"|(?P<seconds>(?:(?:DAY|HOUR|MINUTE){_LEAD} TO )?SECOND)))?(?:\((?P<precision>\d+)\))?",
    re.ASCII,
)


@lru_cache(maxsize=4096)
def parse(text: str) -> LogicalType:
    """The type that a canonical name or alias names, in any case, with any whitespace between its words.

    Raises:
        InvalidField: `text` is not the name of a type, or has arguments that the type does not take.
    """
    if not isinstance(text, str):
        raise InvalidField("logical_type", "is not a string", expected="the name of a type", actual=type(text).__name__)
    folded = re.sub(r"\s*([(,])\s*|\s+(\))", r"\1\2", re.sub(r"\s+", " ", text).strip().upper())
    if folded.startswith("INTERVAL"):
        return _interval(folded, text)
    call = _CALL.fullmatch(folded)
    if call is None:
        raise _unknown(text, folded)
    name, arguments = call["name"], call["arguments"]
    if name in _PLAIN_NAMES:
        if arguments is not None:
            raise _refused(text, "takes no argument", name)
        return LogicalType(_PLAIN_NAMES[name])
    if name in _SIZED_TEXT:
        if arguments is not None and arguments != "MAX" and not _digits(arguments):
            raise _refused(text, "has no such length", f"{name}(n) or {name}(MAX)")
        return LogicalType(Kind.STRING)
    if name in _FRACTIONAL:
        kind = _FRACTIONAL[name]
        return LogicalType(kind) if arguments is None else LogicalType(kind, _fraction(arguments, text, str(kind)))
    if name in _DECIMALS:
        return _decimal(arguments, text)
    raise _unknown(text, name)


def _decimal(arguments: str | None, text: str) -> LogicalType:
    parts = (arguments or "").split(",")
    # Defaults differ between systems (38,0 · 10,0 · 18,3), so both numbers must be stated.
    if len(parts) == 2 and all(map(_digits, parts)):
        precision, scale = map(int, parts)
        if 1 <= precision <= MAX_DECIMAL and scale <= precision:
            return LogicalType(Kind.DECIMAL, precision, scale)
    raise _refused(text, "has no valid precision and scale", f"DECIMAL(p,s) with 1 ≤ p ≤ {MAX_DECIMAL}, 0 ≤ s ≤ p")


def _interval(folded: str, text: str) -> LogicalType:
    match = _INTERVAL.fullmatch(folded)
    if match is None:
        raise _refused(text, "is not an interval", "INTERVAL, INTERVAL YEAR TO MONTH or INTERVAL DAY TO SECOND(p)")
    fields, digits = match["fields"], match["precision"]
    if digits is None:
        return LogicalType(Kind.INTERVAL, qualifier=fields or "")
    if fields and not match["seconds"]:
        raise _refused(text, "has a precision but no seconds", f"INTERVAL {fields}")
    return LogicalType(Kind.INTERVAL, _fraction(digits, text, "INTERVAL"), qualifier=fields or "DAY TO SECOND")


def _fraction(digits: str, text: str, name: str) -> int:
    if _digits(digits) and int(digits) <= MAX_FRACTION:
        return int(digits)
    raise _refused(text, "has no such precision", f"{name}(p) with 0 ≤ p ≤ {MAX_FRACTION}")


def _digits(text: str) -> bool:
    return 0 < len(text) <= 10 and text.isascii() and text.isdigit()


def _refused(text: str, reason: str, expected: str) -> InvalidField:
    return InvalidField("logical_type", reason, expected=expected, actual=text)


def _unknown(text: str, name: str) -> InvalidField:
    error = InvalidField("logical_type", "is unknown", expected=f"one of {', '.join(Kind)}", actual=text)
    error.hint = nearest(name, _KNOWN)
    return error


_EXTENSIONS: Final[dict[str, Kind]] = {
    "arrow.uuid": Kind.UUID,
    "arrow.json": Kind.JSON,
    "arrow.bool8": Kind.BOOLEAN,
    "arrow.parquet.variant": Kind.VARIANT,
    "parquet.variant": Kind.VARIANT,
}
_is = pa.types
# The first test that is true decides.
_FROM_ARROW: Final = (
    (Kind.INT, (_is.is_integer,)),
    (Kind.STRING, (_is.is_string, _is.is_large_string, _is.is_string_view, _is.is_null)),
    (Kind.BOOLEAN, (_is.is_boolean,)),
    (Kind.DOUBLE, (_is.is_float64,)),
    (Kind.FLOAT, (_is.is_floating,)),
    (Kind.BINARY, (_is.is_binary, _is.is_large_binary, _is.is_binary_view, _is.is_fixed_size_binary)),
    (Kind.DATE, (_is.is_date,)),
    (Kind.TIME, (_is.is_time,)),
    (Kind.INTERVAL, (_is.is_duration, _is.is_interval)),
    (Kind.MAP, (_is.is_map,)),
    (Kind.STRUCT, (_is.is_struct,)),
    (
        Kind.ARRAY,
        (_is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view, _is.is_large_list_view),
    ),
)


@lru_cache(1024)
def from_arrow(type: pa.DataType) -> LogicalType | None:
    """The logical type of an Arrow type; None if no kind fits, as for a union.

    Arrow's null type, of a column that is all null, becomes STRING.
    """
    if isinstance(type, pa.BaseExtensionType):
        kind = _EXTENSIONS.get(type.extension_name)
        return LogicalType(kind) if kind else from_arrow(type.storage_type)
    if _is.is_dictionary(type) or _is.is_run_end_encoded(type):
        return from_arrow(type.value_type)
    if _is.is_decimal(type):
        # A negative scale adds zeros before the point, one above the precision adds zeros right after it.
        precision, scale = max(type.precision - min(type.scale, 0), type.scale), max(type.scale, 0)
        return LogicalType(Kind.DECIMAL, precision, scale) if precision <= MAX_DECIMAL else None
    if _is.is_timestamp(type):
        return LogicalType(Kind.TIMESTAMPTZ if type.tz else Kind.TIMESTAMP)
    return next((LogicalType(kind) for kind, tests in _FROM_ARROW if any(test(type) for test in tests)), None)


_TO_ARROW: Final[dict[Kind, pa.DataType]] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.JSON: pa.string(),
    Kind.UUID: pa.binary(16),
    Kind.BINARY: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}


def to_arrow(lt: LogicalType) -> pa.DataType:
    """The Arrow type of the values of a logical type.

    Raises:
        ValueError: The kind alone does not determine an Arrow type: containers, VARIANT and INTERVAL.
    """
    if lt.kind is Kind.DECIMAL:
        precision, scale = lt.precision or MAX_DECIMAL128, lt.scale or 0
        return pa.decimal128(precision, scale) if precision <= MAX_DECIMAL128 else pa.decimal256(precision, scale)
    try:
        return _TO_ARROW[lt.kind]
    except KeyError:
        raise ValueError(f"{lt.text} has no single Arrow type") from None
