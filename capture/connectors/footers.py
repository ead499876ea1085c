"""Parquet footers: the schema of a file, and what its footer says of each leaf column, with how far it can be trusted.

Rules (notes in ADDING_A_CONNECTOR.md are shorter):

* values come from pyarrow, which already drops what old writers are known to have got wrong; what the footer says of
  exactness and of NaN comes from a thrift reading of our own, made only for writers that record it;
* numbers, dates, times, booleans: bounds are exact. Floats: bounds skip NaN (CONTRACT §9) and are exact as the least
  and greatest number; a NaN bound is no bound, and nan_count is known only where the footer has it;
* byte arrays: exact when the writer is known not to truncate, as flagged where it says so, else not known (null);
* decimals in byte arrays: only from writers that compare them as numbers (parquet-mr before 1.10 compared bytes);
* nanoseconds become microseconds outwards, inexact where something was cut; INT96 has no order and so no bounds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.layout import Place, Unreadable, first_line
from store.errors import UpstreamError
from store.logical_types import Kind, LogicalType, from_arrow

READERS: Final = 8  # footers asked for at once from an object store; locally threads are slower than one
_TAIL: Final = 65_536  # what is read from the end of a file to find most footers whole
_DIGITS: Final = Context(prec=80)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a file: `index` is its leaf in the footer, None for a container. `kind` None = a null column."""

    name: str
    logical_type: LogicalType
    nullable: bool
    index: int | None
    path: str = ""
    read: Callable[[Any], Any] | None = None  # raw statistic → (value downwards, value upwards, cut), None = no bounds
    is_bytes: bool = False
    is_float: bool = False
    untyped: bool = False  # Arrow's null type: any other type of the name wins
    field_id: int | None = None

    @property
    def is_leaf(self) -> bool:
        return self.index is not None


@dataclass(slots=True)
class LeafStats:
    """What a footer says of one leaf over all row groups; None is unknown."""

    null_count: int | None = 0
    nan_count: int | None = None
    lower: Any = None
    upper: Any = None
    lower_exact: bool | None = None
    upper_exact: bool | None = None


@dataclass(slots=True)
class Footer:
    """A footer that was read: rows, leaves, and the marks of our own thrift reading where the writer makes them."""

    place: Place
    metadata: pq.FileMetaData
    leaves: tuple[Leaf, ...]
    writer: Writer
    marks: list[list[Marks]] | None = None
    _by_name: dict[str, Leaf] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        rows: int = self.metadata.num_rows
        return rows

    def leaf(self, name: str) -> Leaf | None:
        if not self._by_name:
            self._by_name = {leaf.name: leaf for leaf in self.leaves}
        return self._by_name.get(name)

    def stats(self, leaf: Leaf) -> LeafStats:
        """The statistics of a leaf, row groups rolled up."""
        return _rolled_up(self, leaf)


# Reading.


def read_footer(place: Place) -> Footer:
    """The footer of one file.

    Raises:
        Unreadable: It is no Parquet file, or its footer is corrupt; names the file by its last part and the reason.
        UpstreamError: The file cannot be reached.
    """
    name = place.stem
    try:
        with place.file_system.open_input_file(place.path) as file:
            metadata = pq.read_metadata(file)
            arrow_schema = metadata.schema.to_arrow_schema()
            writer = Writer.of(metadata.created_by)
            leaves = _leaves(metadata, arrow_schema)
            marks = _read_marks(file) if writer.marks and any(x.is_bytes or x.is_float for x in leaves) else None
    except FileNotFoundError:
        raise UpstreamError(f'file "{name}" is gone', hint="discover the table again") from None
    except PermissionError:
        raise Unreadable(f'file "{name}" may not be read') from None
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError, RecursionError) as trouble:
        raise _refused(place, name, trouble) from None
    groups = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if metadata.num_rows < 0 or groups != metadata.num_rows:
        raise Unreadable(f'file "{name}" is corrupt: its footer says {metadata.num_rows} rows, its row groups {groups}')
    return Footer(place, metadata, leaves, writer, marks)


def _refused(place: Place, name: str, trouble: Exception) -> UpstreamError:
    line = first_line(trouble).replace(place.path, name)
    corrupt = (
        isinstance(trouble, pa.ArrowInvalid | pa.ArrowNotImplementedError | ValueError) or "thrift" in line.lower()
    )
    if place.is_local or corrupt:
        return Unreadable(f'file "{name}" cannot be read as Parquet ({line})')
    return UpstreamError(f'file "{name}" cannot be reached ({line})')


def read_footers(places: Sequence[Place]) -> Iterator[Footer]:
    """The footers of many files, in order; several at once where a file is far away."""
    if not places or places[0].is_local or len(places) == 1:
        yield from map(read_footer, places)
        return
    with ThreadPoolExecutor(READERS, "footer") as pool:
        for group in batched(places, READERS * 4):
            yield from pool.map(read_footer, group)


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


# Schema.


def _leaves(metadata: pq.FileMetaData, schema: pa.Schema) -> tuple[Leaf, ...]:
    """The columns of a file, structs before their leaves. Arrow's tree and the footer's leaves come in one order."""
    columns = metadata.schema
    found: list[Leaf] = []
    position = 0

    def walk(field: pa.Field, prefix: str, nullable: bool) -> None:
        nonlocal position
        name, nullable = prefix + field.name, nullable or field.nullable
        if pa.types.is_struct(field.type):
            found.append(Leaf(name, LogicalType(Kind.STRUCT), nullable, None))
            for i in range(field.type.num_fields):
                walk(field.type.field(i), f"{name}.", nullable)
            return
        width = _width(field.type)
        kind = from_arrow(field.type)
        if width == 1 and kind is not None and kind.kind not in (Kind.ARRAY, Kind.MAP, Kind.VARIANT):
            found.append(_leaf(name, field, nullable, position, columns.column(position)))
        else:
            container = kind if kind is not None and kind.kind is Kind.MAP else LogicalType(Kind.ARRAY)
            is_variant = kind is not None and kind.kind is Kind.VARIANT
            found.append(Leaf(name, LogicalType(Kind.VARIANT) if is_variant else container, nullable, None))
        position += width

    for top in schema:
        walk(top, "", False)
    if position != metadata.num_columns:
        raise ValueError(f"its schema has {metadata.num_columns} leaves, {position} expected")
    return tuple(found)


def _width(type: pa.DataType) -> int:
    """How many leaves of a footer an Arrow type takes."""
    if isinstance(type, pa.BaseExtensionType):
        return _width(type.storage_type)
    if pa.types.is_dictionary(type):
        return _width(type.value_type)
    if type.num_fields == 0:
        return 1
    return sum(_width(type.field(i).type) for i in range(type.num_fields))


def _leaf(name: str, field: pa.Field, nullable: bool, index: int, column: pq.ColumnSchema) -> Leaf:
    type, number = field.type, (field.metadata or {}).get(b"PARQUET:field_id")
    logical, physical = column.logical_type, column.physical_type
    told = logical.type if logical is not None else "NONE"
    kind = from_arrow(type) or LogicalType(Kind.BINARY)
    if told == "UUID":  # pyarrow before 21 reads plain bytes
        kind = LogicalType(Kind.UUID)
    elif told == "JSON" or column.converted_type == "JSON":
        kind = LogicalType(Kind.JSON)
    elif column.converted_type == "INTERVAL":
        kind = LogicalType(Kind.INTERVAL)
    read = None
    if kind.orderable and not pa.types.is_null(type) and physical != "INT96":
        read = _reading(kind, str(logical), column, type)
    return Leaf(
        name,
        kind,
        nullable,
        index,
        column.path,
        read,
        is_bytes=physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and kind.kind is not Kind.FLOAT,
        is_float=kind.kind in (Kind.FLOAT, Kind.DOUBLE),
        untyped=pa.types.is_null(type),
        field_id=int(number) if number else None,
    )


_US_PER: Final = {"milliseconds": 1000, "microseconds": 1, "s": 1_000_000, "ms": 1000, "us": 1}


def _reading(
    kind: LogicalType, logical: str, column: pq.ColumnSchema, type: pa.DataType
) -> Callable[[Any], Any] | None:
    """How a raw statistic becomes (lower, upper, cut): both the value, unless something was cut from it."""
    physical = column.physical_type
    match kind.kind:
        case Kind.BOOLEAN:
            return _plain
        case Kind.INT:
            if "isSigned=false" in logical or (column.converted_type or "").startswith("UINT"):
                limit = 1 << (64 if physical == "INT64" else 32)
                return lambda raw: _plain(raw % limit)
            return _plain
        case Kind.FLOAT | Kind.DOUBLE:
            return _half if physical == "FIXED_LEN_BYTE_ARRAY" else _plain
        case Kind.DECIMAL:
            scale = kind.scale or 0
            if physical in ("INT32", "INT64"):
                return lambda raw: _plain(Decimal(raw).scaleb(-scale, _DIGITS))
            return lambda raw: _plain(Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _DIGITS))
        case Kind.STRING:
            return _text
        case Kind.UUID | Kind.BINARY:
            return _plain
        case Kind.DATE:
            return _plain if physical == "INT32" else None
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            if "nanoseconds" in logical:
                return _nanoseconds
            unit = next((n for n in ("milliseconds", "microseconds") if n in logical), getattr(type, "unit", "us"))
            factor = _US_PER.get(unit)
            return (lambda raw: _plain(raw * factor)) if factor else _nanoseconds
    return None


def _plain(raw: Any) -> tuple[Any, Any, bool]:
    return raw, raw, False


def _half(raw: bytes) -> tuple[float, float, bool]:
    (value,) = struct.unpack("<e", raw)
    return value, value, False


def _text(raw: bytes) -> tuple[bytes, bytes, bool] | None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return None  # cut within a character, or no text at all
    return raw, raw, False


def _nanoseconds(raw: int) -> tuple[int, int, bool]:
    return raw // 1000, -(-raw // 1000), raw % 1000 != 0


# Who wrote it.


@dataclass(frozen=True, slots=True)
class Writer:
    """What is known of a writer: whether it truncates byte arrays, compares decimals right, and marks its bounds."""

    whole_bytes: bool | None = None
    decimal_bytes: bool = False
    ordered_bytes: bool = True
    marks: bool = True

    @classmethod
    def of(cls, created_by: str | None) -> Writer:
        found = re.match(r"(?P<name>[A-Za-z][A-Za-z-]*)\D*(?P<major>\d+)?(?:\.(?P<minor>\d+))?", created_by or "")
        if found is None:
            return cls()
        name, version = found["name"].lower(), (int(found["major"] or 0), int(found["minor"] or 0))
        if name in ("parquet-cpp-arrow", "parquet-cpp"):
            # Leaves out what is longer than its limit, never cuts.
            return cls(whole_bytes=True, decimal_bytes=True, marks=version >= (21, 0))
        if name == "parquet-mr":
            # Before 1.10 it compared bytes as signed; from 1.11 on it may be told to truncate, and does not say so.
            old = version < (1, 10)
            whole = True if version == (1, 10) else None
            return cls(whole, decimal_bytes=not old, ordered_bytes=not old, marks=version >= (1, 16))
        return cls(decimal_bytes=name in ("duckdb", "parquet-rs", "polars"))


# Statistics.


def _rolled_up(footer: Footer, leaf: Leaf) -> LeafStats:
    assert leaf.index is not None
    metadata, writer = footer.metadata, footer.writer
    found = LeafStats()
    nans: int | None = 0
    lower = upper = None
    lower_exact: bool | None = True
    upper_exact: bool | None = True
    bounded = leaf.read is not None
    required = metadata.schema.column(leaf.index).max_definition_level == 0
    if leaf.is_bytes and leaf.logical_type.kind is Kind.DECIMAL and not writer.decimal_bytes:
        bounded = False
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf.index)
        values = chunk.num_values
        statistics = chunk.statistics if chunk.is_stats_set else None
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        nulls = 0 if required else nulls
        mark = footer.marks[group][leaf.index] if footer.marks is not None else Marks()
        found.null_count = None if nulls is None or found.null_count is None else found.null_count + nulls
        if leaf.is_float:
            unknown = nans is None or (mark.nan_count is None and values != nulls)
            nans = None if unknown or nans is None else nans + (mark.nan_count or 0)
        if values == 0 or values == nulls or not bounded:
            continue
        if statistics is None or not statistics.has_min_max:
            bounded = False
            continue
        low, high = _read(leaf, statistics)
        if low is None or high is None or (leaf.is_bytes and not writer.ordered_bytes and low[0] != high[1]):
            bounded = False
            continue
        if lower is None or low[0] <= lower:
            lower_exact = _merged(lower_exact, _exact(leaf, writer, mark.min_exact, low[2]), lower, low[0])
            lower = low[0]
        if upper is None or high[1] >= upper:
            upper_exact = _merged(upper_exact, _exact(leaf, writer, mark.max_exact, high[2]), upper, high[1])
            upper = high[1]
    if leaf.is_float:
        found.nan_count = nans
    if bounded and lower is not None and upper is not None and lower <= upper:
        found.lower, found.upper = lower, upper
        found.lower_exact, found.upper_exact = lower_exact, upper_exact
    return found


def _read(leaf: Leaf, statistics: Any) -> tuple[Any, Any]:
    assert leaf.read is not None
    try:
        low, high = leaf.read(statistics.min_raw), leaf.read(statistics.max_raw)
    except (pa.ArrowException, ValueError, TypeError, struct.error, ArithmeticError):
        return None, None
    if leaf.is_float and low is not None and high is not None and (low[0] != low[0] or high[0] != high[0]):
        return None, None
    return low, high


def _exact(leaf: Leaf, writer: Writer, mark: bool | None, cut: bool) -> bool | None:
    if cut or mark is False:
        return False
    if mark or not leaf.is_bytes or leaf.logical_type.kind in (Kind.DECIMAL, Kind.UUID):
        return True
    return writer.whole_bytes


def _merged(sofar: bool | None, this: bool | None, bound: Any, other: Any) -> bool | None:
    """Exactness of the outermost bound: of two equal ones, one that is exact is enough."""
    if bound is None or bound != other:
        return this
    return True if sofar or this else (False if sofar is False and this is False else None)


# The few marks pyarrow does not show, by the compact thrift protocol: FileMetaData.row_groups[].columns[].meta_data
# .statistics has is_max_value_exact (7), is_min_value_exact (8), nan_count (9).


@dataclass(frozen=True, slots=True)
class Marks:
    min_exact: bool | None = None
    max_exact: bool | None = None
    nan_count: int | None = None


_NO_MARKS: Final = Marks()


def _read_marks(file: pa.NativeFile) -> list[list[Marks]] | None:
    size = file.size()
    start = max(0, size - _TAIL)
    tail = file.read_at(size - start, start)
    length = int.from_bytes(tail[-8:-4], "little")
    footer = tail[-8 - length : -8] if length + 8 <= len(tail) else file.read_at(length, size - 8 - length)
    try:
        return _Thrift(footer).row_groups()
    except (IndexError, struct.error):
        return None  # pyarrow could read it; without the marks nothing is known of exactness


class _Thrift:
    """A reader of compact thrift that looks at what we want and steps over the rest."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0

    def row_groups(self) -> list[list[Marks]]:
        found: list[list[Marks]] = []
        for number, type in self._fields():
            if number == 4 and type == 9:
                found = [self._row_group() for _ in range(self._list()[0])]
            else:
                self._skip(type)
        return found

    def _row_group(self) -> list[Marks]:
        found: list[Marks] = []
        for number, type in self._fields():
            if number == 1 and type == 9:
                found = [self._inside(3, lambda: self._inside(12, self._statistics)) for _ in range(self._list()[0])]
            else:
                self._skip(type)
        return found

    def _inside(self, wanted: int, read: Callable[[], Marks]) -> Marks:
        found = _NO_MARKS
        for number, type in self._fields():
            if number == wanted and type == 12:
                found = read()
            else:
                self._skip(type)
        return found

    def _statistics(self) -> Marks:
        held: dict[int, Any] = {}
        for number, type in self._fields():
            if number in (7, 8) and type in (1, 2):
                held[number] = type == 1
            elif number == 9 and type == 6:
                coded = self._varint()
                held[number] = (coded >> 1) ^ -(coded & 1)
            else:
                self._skip(type)
        return Marks(held.get(8), held.get(7), held.get(9)) if held else _NO_MARKS

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while header := self._byte():
            if header >> 4:
                number += header >> 4
            else:
                coded = self._varint()
                number = (coded >> 1) ^ -(coded & 1)
            yield number, header & 15

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _list(self) -> tuple[int, int]:
        header = self._byte()
        return (header >> 4 if header >> 4 != 15 else self._varint()), header & 15

    def _skip(self, type: int) -> None:
        match type:
            case 1 | 2:
                pass
            case 3:
                self._at += 1
            case 4 | 5 | 6:
                self._varint()
            case 7:
                self._at += 8
            case 8:
                length = self._varint()
                self._at += length
            case 9 | 10:
                count, inner = self._list()
                for _ in range(count):
                    self._skip(3 if inner in (1, 2) else inner)
            case 11:
                if count := self._varint():
                    types = self._byte()
                    for _ in range(count):
                        self._skip(3 if types >> 4 in (1, 2) else types >> 4)
                        self._skip(3 if types & 15 in (1, 2) else types & 15)
            case 12:
                for _, inner in self._fields():
                    self._skip(inner)
            case 13:
                self._at += 16
            case _:
                raise IndexError(type)


# Values to Arrow.


def typed(values: list[Any], kind: LogicalType, of: LogicalType) -> pa.Array:
    """Bounds of one file type as an array of another that they were promoted to; what does not fit is unknown."""
    from store.logical_types import to_arrow

    target = to_arrow(of)
    try:
        if kind.kind is Kind.STRING and of.kind is Kind.STRING:
            return pa.array([None if value is None else value.decode() for value in values], pa.string())
        if kind.kind in (Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            return pa.array(values, pa.int64()).cast(target)
        if kind.kind is Kind.DATE:
            days = pa.array(values, pa.int32()).cast(pa.date32())
            return days if of.kind is Kind.DATE else days.cast(target)
        if kind.kind is Kind.INT and of.kind is Kind.INT:
            kept = [None if value is None or value > 2**63 - 1 else value for value in values]  # unsigned 64 bits
            return pa.array(kept, pa.int64())
        if kind.kind is Kind.INT and of.kind in (Kind.DOUBLE, Kind.FLOAT):
            limit = 2**53 if of.kind is Kind.DOUBLE else 2**24
            return pa.array([None if v is None or abs(v) > limit else float(v) for v in values], target)
        if kind.kind is Kind.INT and of.kind is Kind.DECIMAL:
            return pa.array([None if value is None else Decimal(value) for value in values], target)
        if kind.kind is Kind.FLOAT and of.kind is Kind.DOUBLE:
            return pa.array(values, pa.float32()).cast(pa.float64())
        return pa.array(values, target)
    except (pa.ArrowException, OverflowError, UnicodeDecodeError):
        if len(values) == 1:
            return pa.nulls(1, target)
        return pa.concat_arrays([typed([value], kind, of) for value in values])


def promoted(one: LogicalType, other: LogicalType) -> LogicalType | None:
    """The type that holds the values of both, None when there is none."""
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
