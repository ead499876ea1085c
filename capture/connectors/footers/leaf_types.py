"""Columns of a Parquet file: their types, and decoders for their raw statistics.

The schema comes from pyarrow. Nanoseconds are rounded outwards to microseconds and flagged inexact if that changed
them; INT96 has no order and therefore no bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.footers.writers import GREGORIAN_DAY, UNKNOWN, ZONED_US, Writer
from capture.connectors.metadata.known_writers import bound_type
from store.model.logical_types import FLOATING, Kind, LogicalType, from_arrow, to_arrow
from store.model.names import column_key

_DIGITS: Final = Context(prec=80)
_SIGNED: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.DATE,
        Kind.TIME,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)
_NUMBERS: Final = {
    "BOOLEAN": struct.Struct("<?"),
    "INT32": struct.Struct("<i"),
    "INT64": struct.Struct("<q"),
    "FLOAT": struct.Struct("<f"),
    "DOUBLE": struct.Struct("<d"),
}

Bound = tuple[Any, Any, bool]  # value rounded down, value rounded up, whether rounding changed it


@dataclass(frozen=True, slots=True)
class FooterLeaf:
    """A column of a file. `index` is its position among the footer's leaves; None for a container."""

    parts: tuple[str, ...]
    logical_type: LogicalType
    nullable: bool
    index: int | None
    read: Callable[[Any], Any] | None = None  # decodes a raw statistic to a Bound; None: no bounds
    physical: str = ""
    required: bool = False
    old_bounds: bool = False  # the deprecated `min`/`max` are usable
    is_bytes: bool = False  # values that a writer may truncate
    is_coded: bool = False  # texts that Arrow wrote from a dictionary
    is_float: bool = False
    untyped: bool = False  # Arrow's null type; another file's type of the column takes precedence
    field_id: int | None = None
    width_bytes: int | None = None  # width of an integer in the Arrow type
    bound_type: str = ""  # output of `known_writers.bound_type`
    writer: Writer = UNKNOWN

    @property
    def is_leaf(self) -> bool:
        """True if the column has scalar values; structs, lists and maps do not."""
        return self.index is not None

    @property
    def doubt(self) -> str:
        """The reason why the bounds may be wrong; empty if their writer is known to be right."""
        return self.writer.doubt(self.bound_type)

    @property
    def name(self) -> str:
        """Dotted path, not necessarily unique."""
        return ".".join(self.parts)

    @property
    def key(self) -> str:
        """Unique key within the file."""
        return column_key(self.parts)


def writer_of(metadata: pq.FileMetaData) -> Writer:
    """The writer of a file."""
    try:
        created_by = metadata.created_by
    except UnicodeDecodeError:
        created_by = None
    return Writer.of(created_by, metadata.metadata or {})


def leaves_of(metadata: pq.FileMetaData, schema: pa.Schema, writer: Writer = UNKNOWN) -> tuple[FooterLeaf, ...]:
    """The columns of a file, structs before their leaves, in the order of the Arrow schema and the footer; without
    decoders of bounds that are wrong by their writer."""
    columns = metadata.schema
    leaves: list[FooterLeaf] = []
    position = 0

    def walk(field: pa.Field, above: tuple[str, ...], nullable: bool) -> None:
        nonlocal position
        parts, nullable = (*above, field.name), nullable or field.nullable
        if pa.types.is_struct(field.type):
            leaves.append(FooterLeaf(parts, LogicalType(Kind.STRUCT), nullable, None))
            for i in range(field.type.num_fields):
                walk(field.type.field(i), parts, nullable)
            return
        width = _width(field.type)
        kind = from_arrow(field.type)
        if width == 1 and kind is not None and kind.kind not in (Kind.ARRAY, Kind.MAP, Kind.VARIANT):
            leaves.append(_trusted(_leaf(parts, field, nullable, position, columns.column(position)), writer))
        else:
            leaves.append(FooterLeaf(parts, _container(kind), nullable, None))
        position += width

    for top in schema:
        walk(top, (), False)
    if position != metadata.num_columns:
        raise ValueError(f"its schema has {metadata.num_columns} leaves, {position} expected")
    return tuple(leaves)


def _container(kind: LogicalType | None) -> LogicalType:
    """The logical type of a column that has several leaves in the file."""
    if kind is None or kind.kind not in (Kind.MAP, Kind.VARIANT):
        return LogicalType(Kind.ARRAY)
    return kind if kind.kind is Kind.MAP else LogicalType(Kind.VARIANT)


def _width(type: pa.DataType) -> int:
    """Number of footer leaves of an Arrow type."""
    if isinstance(type, pa.BaseExtensionType):
        return _width(type.storage_type)
    if pa.types.is_dictionary(type):
        return _width(type.value_type)
    if type.num_fields == 0:
        return 1
    return sum(_width(type.field(i).type) for i in range(type.num_fields))


def _leaf(parts: tuple[str, ...], field: pa.Field, nullable: bool, index: int, column: pq.ColumnSchema) -> FooterLeaf:
    type, number = field.type, (field.metadata or {}).get(b"PARQUET:field_id")
    logical, physical = column.logical_type, column.physical_type
    annotation = str(logical.type).upper() if logical is not None else "NONE"
    kind = _kind(type, annotation, column.converted_type)
    unsigned = "isSigned=false" in str(logical) or (column.converted_type or "").startswith("UINT")
    has_no_type = pa.types.is_null(type) or annotation in ("UNDEFINED", "NULL")
    has_bounds = kind.orderable and not has_no_type and physical != "INT96"
    return FooterLeaf(
        parts,
        kind,
        nullable,
        index,
        _decoder(kind, str(logical), unsigned, column, type) if has_bounds else None,
        physical,
        required=column.max_definition_level == 0,
        old_bounds=kind.kind in _SIGNED and physical in _NUMBERS and not unsigned,
        is_bytes=kind.kind in (Kind.STRING, Kind.BINARY),
        is_coded=pa.types.is_dictionary(type),
        is_float=kind.kind in FLOATING,
        untyped=pa.types.is_null(type),
        field_id=int(number) if number else None,
        width_bytes=type.bit_width // 8 if pa.types.is_integer(type) else None,
        bound_type=bound_type(kind.kind, physical, unsigned=unsigned),
    )


def _kind(type: pa.DataType, annotation: str, converted_type: str | None) -> LogicalType:
    """The logical type of a column: that of its Arrow type, unless its annotation says more."""
    if annotation == "UUID":  # pyarrow before 21 reads plain bytes
        return LogicalType(Kind.UUID)
    if annotation == "JSON" or converted_type == "JSON":
        return LogicalType(Kind.JSON)
    if converted_type == "INTERVAL":
        return LogicalType(Kind.INTERVAL)
    return from_arrow(type) or LogicalType(Kind.BINARY)


def _trusted(leaf: FooterLeaf, writer: Writer) -> FooterLeaf:
    """The column, its decoder limited to bounds that are right by this writer."""
    leaf = replace(leaf, writer=writer)
    kind, is_signed, read = leaf.logical_type.kind, leaf.old_bounds, leaf.read
    if read is None or writer.has_wrong_bounds(leaf.physical, kind is Kind.DECIMAL, is_signed):
        return replace(leaf, read=None)
    if not writer.legacy or kind not in _CALENDAR:
        return leaf
    first = GREGORIAN_DAY if kind is Kind.DATE else ZONED_US  # that all calendars share

    def shared(raw: Any) -> Bound | None:
        found: Bound | None = read(raw)
        return None if found is None or found[0] < first else found

    return replace(leaf, read=shared)


_CALENDAR: Final = (Kind.DATE, Kind.TIMESTAMPTZ)  # not TIMESTAMP, Spark's TIMESTAMP_NTZ
_US_PER: Final = {"milliseconds": 1000, "microseconds": 1, "s": 1_000_000, "ms": 1000, "us": 1}


def _decoder(
    kind: LogicalType, logical: str, unsigned: bool, column: pq.ColumnSchema, type: pa.DataType
) -> Callable[[Any], Any] | None:
    """Creates the decoder of a statistic; None if the type has no usable bounds."""
    physical = column.physical_type
    match kind.kind:
        case Kind.BOOLEAN | Kind.BINARY:
            return _plain
        case Kind.INT:
            limit = 1 << (64 if physical == "INT64" else 32)
            return (lambda raw: _plain(raw % limit)) if unsigned else _plain
        case Kind.FLOAT | Kind.DOUBLE:
            return _half if physical == "FIXED_LEN_BYTE_ARRAY" else _plain
        case Kind.DECIMAL:
            return _decimals(kind.scale or 0, physical)
        case Kind.STRING:
            return _text
        case Kind.UUID:
            return lambda raw: _plain(raw) if len(raw) == 16 else None
        case Kind.DATE:
            return _plain if physical == "INT32" else None
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _times(logical, type)
    return None


def _decimals(scale: int, physical: str) -> Callable[[Any], Any]:
    """Creates the decoder of decimals of a scale, stored as integers or as big-endian bytes."""
    if physical in ("INT32", "INT64"):
        return lambda raw: _plain(Decimal(raw).scaleb(-scale, _DIGITS))
    return lambda raw: _plain(Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _DIGITS))


def _times(logical: str, type: pa.DataType) -> Callable[[Any], Any]:
    """Creates the decoder of times, in the unit of the annotation or else of the Arrow type."""
    if "nanoseconds" in logical:
        return _nanoseconds
    unit = next((n for n in ("milliseconds", "microseconds") if n in logical), getattr(type, "unit", "us"))
    factor = _US_PER.get(unit)
    return (lambda raw: _plain(raw * factor)) if factor else _nanoseconds


def _plain(raw: Any) -> tuple[Any, Any, bool]:
    return raw, raw, False


def _half(raw: bytes) -> tuple[float, float, bool]:
    (value,) = struct.unpack("<e", raw)
    return value, value, False


def _text(raw: bytes) -> tuple[bytes, bytes, bool] | None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return None  # truncated within a character, or not UTF-8
    return raw, raw, False


def _nanoseconds(raw: int) -> tuple[int, int, bool]:
    return raw // 1000, -(-raw // 1000), raw % 1000 != 0


def bound(leaf: FooterLeaf, data: bytes) -> Bound | None:
    """Decodes the bytes of a bound in a footer; None if they do not fit the type or are NaN."""
    assert leaf.read is not None
    number = _NUMBERS.get(leaf.physical)
    try:
        value: Bound | None = leaf.read(data if number is None else number.unpack(data)[0])
    except (ValueError, struct.error, ArithmeticError):
        return None  # wrong length for the type
    return None if value is None or value[0] != value[0] else value  # NaN


# Values to Arrow.


def typed(values: Sequence[Any], kind: LogicalType, to_kind: LogicalType) -> pa.Array:
    """Converts bounds from a file's type to the table's promoted type; values that do not fit become null."""
    target = to_arrow(to_kind)
    try:
        return _converted(values, kind, to_kind)
    except (pa.ArrowException, OverflowError, UnicodeDecodeError):
        if len(values) == 1:
            return pa.nulls(1, target)
        return pa.concat_arrays([typed([value], kind, to_kind) for value in values])


def _converted(values: Sequence[Any], kind: LogicalType, to_kind: LogicalType) -> pa.Array:
    """As `typed`, but raises if a value does not fit the Arrow type, or a text is not UTF-8."""
    target = to_arrow(to_kind)
    match kind.kind, to_kind.kind:
        case Kind.STRING, Kind.STRING:
            return pa.array([None if value is None else value.decode() for value in values], pa.string())
        case ((Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ), _):
            return pa.array(values, pa.int64()).cast(target)
        case Kind.DATE, to:
            days = pa.array(values, pa.int32()).cast(pa.date32())
            return days if to is Kind.DATE else days.cast(target)
        case Kind.INT, Kind.INT:  # those of unsigned 64 bits may not fit
            return pa.array(_within(values, -(2**63), 2**63 - 1), pa.int64())
        case Kind.INT, (Kind.DOUBLE | Kind.FLOAT) as to:
            limit = _WHOLE_NUMBERS[to]
            kept = _within(values, -limit, limit)
            return pa.array([None if value is None else float(value) for value in kept], target)
        case Kind.INT, Kind.DECIMAL:
            return pa.array([None if value is None else Decimal(value) for value in values], target)
        case Kind.FLOAT, Kind.DOUBLE:
            return pa.array(values, pa.float32()).cast(pa.float64())
    return pa.array(values, target)


_WHOLE_NUMBERS: Final = {Kind.FLOAT: 2**24, Kind.DOUBLE: 2**53}  # up to which each integer has a float of its own


def _within(values: Sequence[int | None], least: int, most: int) -> list[int | None]:
    """The values, those outside of the limits replaced by None."""
    return [value if value is not None and least <= value <= most else None for value in values]


def promoted(one: LogicalType, other: LogicalType) -> LogicalType | None:
    """The common type of two types; None if there is none."""
    if one == other:
        return one
    kinds = {one.kind, other.kind}
    if kinds == {Kind.DECIMAL} or kinds == {Kind.INT, Kind.DECIMAL}:
        pairs = [(19, 0) if t.kind is Kind.INT else ((t.precision or 0), (t.scale or 0)) for t in (one, other)]
        scale = max(s for _, s in pairs)
        precision = max(p - s for p, s in pairs) + scale
        return LogicalType(Kind.DECIMAL, precision, scale) if precision <= 76 else None
    for narrow, wide in (
        ({Kind.INT, Kind.DOUBLE}, Kind.DOUBLE),
        ({Kind.INT, Kind.FLOAT}, Kind.DOUBLE),
        ({Kind.FLOAT, Kind.DOUBLE}, Kind.DOUBLE),
        ({Kind.DATE, Kind.TIMESTAMP}, Kind.TIMESTAMP),
        ({Kind.STRING, Kind.BINARY}, Kind.BINARY),
        ({Kind.STRING, Kind.JSON}, Kind.STRING),
        ({Kind.UUID, Kind.BINARY}, Kind.BINARY),
    ):
        if kinds == narrow:
            return LogicalType(wide)
    return None
