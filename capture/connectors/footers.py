"""Parquet footers: the schema of a file, and what its footer says of each leaf column, with how far it can be trusted.

pyarrow gives the schema. The statistics are read from the thrift by `thrift.read_chunks`: pyarrow shows neither
exactness nor NaN counts, and ends the process at some damaged footers. Rules:

* what counts is `min_value`/`max_value` under a declared column order; the older `min`/`max` only of signed numbers
  (writers compared everything else as they liked: parquet-mr 1.8 told 2.00 as the minimum of decimals from 1.00 on);
* numbers, dates, times, booleans: bounds are exact. Floats: bounds skip NaN (CONTRACT §9) and are exact as the least
  and greatest number; a NaN bound is no bound, and nan_count is known only where the footer has it;
* byte arrays: as flagged; where there is no flag, exact if the writer never truncates, else not known (null);
* nanoseconds become microseconds outwards, inexact where something was cut; INT96 has no order and so no bounds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.layout import Place, Unreadable, first_line
from capture.connectors.thrift import Chunk, Chunks, read_chunks
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
    physical: str = ""
    required: bool = False
    old_bounds: bool = False  # `min`/`max` of old writers mean something
    is_bytes: bool = False  # values that a writer may truncate
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
    """A footer that was read: rows, leaves, and what each row group says of each leaf."""

    place: Place
    row_count: int
    leaves: tuple[Leaf, ...]
    size: int
    whole_bytes: bool | None
    groups: list[list[Chunk]] = field(repr=False)
    positions: Mapping[str, int] = field(repr=False)  # of leaves, by name

    def leaf(self, name: str) -> Leaf | None:
        position = self.positions.get(name)
        return None if position is None else self.leaves[position]

    def stats(self, leaf: Leaf) -> LeafStats:
        """The statistics of a leaf, row groups rolled up."""
        return _rolled_up(self, leaf)

    def rolled_up(self) -> tuple[LeafStats | None, ...]:
        """The statistics of all leaves in their order, None for containers."""
        return tuple(_rolled_up(self, leaf) if leaf.is_leaf else None for leaf in self.leaves)


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
            data = _footer_bytes(file)
            chunks = None if data is None else read_chunks(data)
            alike = None if chunks is None else _alike.get(chunks.kind)
            if data is None or chunks is None or alike is None:
                alike = _look(pq.read_metadata(file))
        if data is None or chunks is None:  # pyarrow knows what is wrong with most files
            raise ValueError("its footer is not where it should be")
        _check(chunks, alike.physical)
    except FileNotFoundError:
        raise Unreadable(f'file "{name}" is gone', hint="discover the table again") from None
    except PermissionError:
        raise Unreadable(f'file "{name}" may not be read') from None
    except (pa.ArrowException, OSError, ValueError, IndexError, RecursionError, MemoryError) as trouble:
        raise _refused(place, name, trouble) from None
    if len(_alike) >= _KINDS:
        _alike.clear()
    _alike[chunks.kind] = alike
    return Footer(place, chunks.row_count, alike.leaves, len(data), alike.whole_bytes, chunks.groups, alike.positions)


@dataclass(frozen=True, slots=True)
class _Alike:
    """What files of one schema and writer have in common: pyarrow is asked about the first of them only."""

    leaves: tuple[Leaf, ...]
    physical: list[str]
    whole_bytes: bool | None
    positions: Mapping[str, int]


_KINDS: Final = 64
_alike: dict[tuple[bytes, bytes, bytes], _Alike] = {}


def _look(metadata: pq.FileMetaData) -> _Alike:
    try:
        whole_bytes = _whole_bytes(metadata.created_by)
    except UnicodeDecodeError:
        whole_bytes = None
    leaves = _leaves(metadata, metadata.schema.to_arrow_schema())
    physical = [metadata.schema.column(i).physical_type for i in range(metadata.num_columns)]
    return _Alike(leaves, physical, whole_bytes, {leaf.name: position for position, leaf in enumerate(leaves)})


def _footer_bytes(file: pa.NativeFile) -> bytes | None:
    """The thrift of a footer, None where the file does not end as a plain Parquet file does."""
    size = file.size()
    start = max(0, size - _TAIL)
    tail: bytes = file.read_at(size - start, start)
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != b"PAR1" or length + 12 > size:
        return None
    return tail[-8 - length : -8] if length + 8 <= len(tail) else file.read_at(length, size - 8 - length)


def _check(chunks: Chunks, physical: list[str]) -> None:
    """Refuses a footer that contradicts its own schema; readers built on pyarrow end the process at such a one."""
    row_count = chunks.row_count
    if row_count < 0 or sum(chunks.rows) != row_count or any(rows < 0 for rows in chunks.rows):
        raise ValueError(f"its footer says {row_count} rows, its row groups {sum(chunks.rows)}")
    for group in chunks.groups:
        if [chunk.physical for chunk in group] != physical:
            raise ValueError("its row groups have other columns than its schema")


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
    told = str(logical.type).upper() if logical is not None else "NONE"
    kind = from_arrow(type) or LogicalType(Kind.BINARY)
    if told == "UUID":  # pyarrow before 21 reads plain bytes
        kind = LogicalType(Kind.UUID)
    elif told == "JSON" or column.converted_type == "JSON":
        kind = LogicalType(Kind.JSON)
    elif column.converted_type == "INTERVAL":
        kind = LogicalType(Kind.INTERVAL)
    unsigned = "isSigned=false" in str(logical) or (column.converted_type or "").startswith("UINT")
    read = None
    if kind.orderable and not pa.types.is_null(type) and physical != "INT96" and told not in ("UNDEFINED", "NULL"):
        read = _reading(kind, str(logical), unsigned, column, type)
    return Leaf(
        name,
        kind,
        nullable,
        index,
        column.path,
        read,
        physical,
        required=column.max_definition_level == 0,
        old_bounds=kind.kind in _SIGNED and physical in _NUMBERS and not unsigned,
        is_bytes=kind.kind in (Kind.STRING, Kind.BINARY),
        is_float=kind.kind in (Kind.FLOAT, Kind.DOUBLE),
        untyped=pa.types.is_null(type),
        field_id=int(number) if number else None,
    )


_US_PER: Final = {"milliseconds": 1000, "microseconds": 1, "s": 1_000_000, "ms": 1000, "us": 1}


def _reading(
    kind: LogicalType, logical: str, unsigned: bool, column: pq.ColumnSchema, type: pa.DataType
) -> Callable[[Any], Any] | None:
    """How a raw statistic becomes (lower, upper, cut): both the value, unless something was cut from it."""
    physical = column.physical_type
    match kind.kind:
        case Kind.BOOLEAN:
            return _plain
        case Kind.INT:
            if unsigned:
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
        case Kind.UUID:
            return lambda raw: _plain(raw) if len(raw) == 16 else None
        case Kind.BINARY:
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


# Statistics.


def _whole_bytes(created_by: str | None) -> bool | None:
    """Whether a writer that does not flag its bounds is known to leave byte arrays whole; None is not known."""
    found = re.match(r"(?P<name>parquet-cpp(?:-arrow)?|parquet-mr) version (?P<version>\d+\.\d+)", created_by or "")
    if found is None:
        return None
    # parquet-cpp leaves out what is longer than its limit; parquet-mr may be told to truncate from 1.11 on, silently.
    return True if found["name"] != "parquet-mr" or found["version"] == "1.10" else None


_SIGNED: Final = frozenset({Kind.BOOLEAN, Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.DATE, Kind.TIME,
                            Kind.TIMESTAMP, Kind.TIMESTAMPTZ})  # fmt: skip
_NUMBERS: Final = {
    "BOOLEAN": struct.Struct("<?"), "INT32": struct.Struct("<i"), "INT64": struct.Struct("<q"),
    "FLOAT": struct.Struct("<f"), "DOUBLE": struct.Struct("<d"),
}  # fmt: skip


def _rolled_up(footer: Footer, leaf: Leaf) -> LeafStats:
    assert leaf.index is not None
    found = LeafStats()
    nulls: int | None = 0
    nans: int | None = 0
    lower = upper = None
    lower_exact: bool | None = True
    upper_exact: bool | None = True
    bounded = leaf.read is not None
    for group in footer.groups:
        chunk = group[leaf.index]
        here = 0 if leaf.required else chunk.null_count
        nulls = None if nulls is None or here is None else nulls + here
        if leaf.is_float:
            told = 0 if chunk.num_values == here else chunk.nan_count
            nans = None if nans is None or told is None else nans + told
        if not bounded or chunk.num_values in (0, here):
            continue
        low, high = _bounds_of(leaf, chunk)
        if low is None or high is None or low[0] > high[1]:
            bounded = False
            continue
        if lower is None or low[0] <= lower:
            lower_exact = _merged(lower_exact, _exact(leaf, footer, chunk.min_exact, low[2]), lower, low[0])
            lower = low[0]
        if upper is None or high[1] >= upper:
            upper_exact = _merged(upper_exact, _exact(leaf, footer, chunk.max_exact, high[2]), upper, high[1])
            upper = high[1]
    found.null_count = nulls
    if leaf.is_float:
        found.nan_count = nans
    if bounded and lower is not None:
        found.lower, found.upper = lower, upper
        found.lower_exact, found.upper_exact = lower_exact, upper_exact
    return found


Bound = tuple[Any, Any, bool]  # rounded down, rounded up, whether that changed it


def _bounds_of(leaf: Leaf, chunk: Chunk) -> tuple[Bound | None, Bound | None]:
    if chunk.ordered and chunk.min_value is not None and chunk.max_value is not None:
        low, high = chunk.min_value, chunk.max_value
    elif leaf.old_bounds and chunk.old_min is not None and chunk.old_max is not None:
        low, high = chunk.old_min, chunk.old_max
    else:
        return None, None
    return _bound(leaf, low), _bound(leaf, high)


def _bound(leaf: Leaf, data: bytes) -> Bound | None:
    assert leaf.read is not None
    number = _NUMBERS.get(leaf.physical)
    try:
        found: Bound | None = leaf.read(data if number is None else number.unpack(data)[0])
    except (ValueError, struct.error, ArithmeticError):
        return None  # not as long as its type is
    return None if found is None or found[0] != found[0] else found  # NaN


def _exact(leaf: Leaf, footer: Footer, flag: bool | None, cut: bool) -> bool | None:
    if cut or flag is False:
        return False
    return True if flag or not leaf.is_bytes else footer.whole_bytes


def _merged(sofar: bool | None, this: bool | None, bound: Any, other: Any) -> bool | None:
    """Exactness of the outermost bound: of two equal ones, one that is exact is enough."""
    if bound is None or bound != other:
        return this
    return True if sofar or this else (False if sofar is False and this is False else None)


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
