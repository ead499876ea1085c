"""Converts Iceberg schemas to the connector interface, and maps columns to fields of data files."""

from __future__ import annotations

import builtins
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from capture.connectors.iceberg.io import STRUCT_DEFAULT
from capture.connectors.spi import Column, Schema
from store.model import bounds
from store.model.columns import PARTITION_SPECS
from store.model.logical_types import LogicalType, parse, to_arrow
from store.model.names import column_key

_WORDS: dict[type, str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INT",
    LongType: "INT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    StringType: "STRING",
    UUIDType: "UUID",
    FixedType: "BINARY",
    BinaryType: "BINARY",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMPTZ",
    TimestampNanoType: "TIMESTAMP",
    TimestamptzNanoType: "TIMESTAMPTZ",
    ListType: "ARRAY",
    MapType: "MAP",
    StructType: "STRUCT",
}
NANOS = TimestampNanoType | TimestamptzNanoType  # their logical type has microseconds
_FIELD_ID = b"PARQUET:field_id"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Parent:
    """A struct that encloses a leaf. `has_default`: files older than it have a struct of its fields' defaults."""

    field_id: int
    required: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class IcebergLeaf:
    """A leaf column of an Iceberg schema."""

    field_id: int
    column: Column
    type: IcebergType
    logical: LogicalType
    initial_default: Any = None
    parents: tuple[Parent, ...] = ()

    @property
    def name(self) -> str:
        """Dotted name."""
        return self.column.name

    @property
    def width_bytes(self) -> int | None:
        """Width of the table's integer type in bytes; None for other types."""
        return {IntegerType: 4, LongType: 8}.get(builtins.type(self.type))

    def value_where_missing(self, field_ids: Container[int]) -> tuple[Any, int | None]:
        """The value of the leaf in a file that lacks it.

        Args:
            field_ids: Ids of the fields in the file, structs included.

        Returns:
            The value, and the field id of a struct where the leaf is null instead if the struct is null; the id is None
            if the value applies to all rows.
        """
        present = [parent for parent in self.parents if parent.field_id in field_ids]
        missing = self.parents[len(present) :]
        if self.initial_default is None or not all(parent.has_default for parent in missing):
            return None, None
        within = None if all(parent.required for parent in present) else present[-1].field_id
        return self.initial_default, within

    def constant(self, value: Any) -> pa.Array:
        """A partition value or default as an array of one, of the column's own precision."""
        if isinstance(self.type, NANOS):
            return pa.array([value], pa.timestamp("ns", "UTC" if isinstance(self.type, TimestamptzNanoType) else None))
        return typed_array([value], self.logical)


def logical_text(type: IcebergType) -> str:
    """The canonical logical type; VARIANT for types without statistics, such as unknown and geometry."""
    if isinstance(type, DecimalType):
        return f"DECIMAL({type.precision},{type.scale})"
    return next((word for kind, word in _WORDS.items() if isinstance(type, kind)), "VARIANT")


def to_schema(schema: IcebergSchema) -> Schema:
    """All columns of an Iceberg schema in depth-first order, containers before their leaves."""
    return Schema(tuple(column for column, _, _ in _walk(schema.fields)))


def leaves(
    schema: IcebergSchema, column_names: frozenset[str] | None = None, *, containers: bool = False
) -> list[IcebergLeaf]:
    """The leaf columns of a schema with these names or keys, with `containers` those of these names too; all leaf
    columns if the names are None."""
    return [
        IcebergLeaf(
            nested.field_id, column, nested.field_type, parse(column.logical_type), nested.initial_default, parents
        )
        for column, nested, parents in _walk(schema.fields)
        if (column.is_leaf and column_names is None)
        or (column_names is not None and (column.is_leaf or containers) and column.is_among(column_names))
    ]


def schema_of(metadata: TableMetadata, snapshot: Snapshot) -> IcebergSchema:
    """The schema by which a snapshot is read: its own; the table's current one for the current snapshot, and if the
    snapshot has none, as in v1 tables."""
    is_older = snapshot.snapshot_id != metadata.current_snapshot_id and snapshot.schema_id is not None
    schema = metadata.schema_by_id(snapshot.schema_id) if is_older else None
    return schema or metadata.schema()


def leaf_of(metadata: TableMetadata, schema: IcebergSchema, field_id: int) -> IcebergLeaf | None:
    """A leaf by its field id, from the schema, else from the table's other schemas, newest first; None if not found."""
    for candidate in (schema, *sorted(metadata.schemas, key=lambda s: -s.schema_id)):
        for leaf in leaves(candidate):
            if leaf.field_id == field_id:
                return leaf
    return None


def _walk(
    fields: tuple[NestedField, ...],
    path: tuple[str, ...] = (),
    optional: bool = False,
    parents: tuple[Parent, ...] = (),
) -> Iterator[tuple[Column, NestedField, tuple[Parent, ...]]]:
    for nested in fields:
        here, nullable = (*path, nested.name), optional or not nested.required
        column = Column(".".join(here), logical_text(nested.field_type), nullable, nested.field_id, here)
        yield column, nested, parents
        if isinstance(nested.field_type, StructType):
            parent = Parent(nested.field_id, nested.required, nested.doc == STRUCT_DEFAULT)
            yield from _walk(nested.field_type.fields, here, nullable, (*parents, parent))


def partition_keys(spec: PartitionSpec, schema: IcebergSchema) -> tuple[str, ...]:
    """Partition fields as column names or `transform(column)`."""
    keys = []
    for part in spec.fields:
        source = schema.find_column_name(part.source_id) or part.name
        keys.append(source if isinstance(part.transform, IdentityTransform) else f"{part.transform}({source})")
    return tuple(keys)


def bucket_specs(metadata: TableMetadata) -> dict[str, str]:
    """The property with all partition specs of a table that has buckets; nothing for other tables."""
    specs = metadata.partition_specs
    if not any(isinstance(part.transform, BucketTransform) for spec in specs for part in spec.fields):
        return {}
    return {PARTITION_SPECS: f"[{', '.join(spec.model_dump_json() for spec in specs)}]"}


def identity_values(spec: PartitionSpec, partition: tuple[Any, ...]) -> dict[int, Any]:
    """Column id → value, for partition fields with identity transform."""
    return {
        part.source_id: value
        for part, value in zip(spec.fields, partition, strict=False)
        if isinstance(part.transform, IdentityTransform)
    }


def partition_json(spec: PartitionSpec, schema: IcebergSchema, partition: tuple[Any, ...]) -> str | None:
    """A partition as JSON: integers as numbers, other values as canonical text; None for an unpartitioned spec."""
    if not spec.fields:
        return None
    values: dict[str, str | int | None] = {}
    for part, value in zip(spec.fields, partition, strict=False):
        try:
            type = part.transform.result_type(schema.find_type(part.source_id))
            logical = logical_text(type)
        except ValueError:  # the source column was dropped since
            type, logical = None, "VARIANT"
        if isinstance(type, NANOS) and value is not None:
            value //= 1000
        values[part.name] = None if value is None else _partition_value(value, logical)
    return json.dumps(values, ensure_ascii=False)


def _partition_value(value: Any, logical: str) -> str | int:
    if logical == "VARIANT" or (logical == "INT" and isinstance(value, int)):
        return value if isinstance(value, int) else str(value)
    kind = parse(logical)
    text: str | None = bounds.encode_array(typed_array([value], kind), kind)[0].as_py()
    return str(value) if text is None else text


def typed_array(values: list[Any], kind: LogicalType) -> pa.Array:
    """Converts values in pyiceberg's form, or as days and microseconds, to an Arrow array of the logical type."""
    type = to_arrow(kind)
    if pa.types.is_temporal(type):
        numbers = pa.array([_number(v) for v in values], pa.int32() if pa.types.is_date32(type) else pa.int64())
        return numbers.cast(type)
    return pa.array([v.bytes if isinstance(v, UUID) else v for v in values], type)


def _number(value: Any) -> int | None:
    """Days of a date, microseconds of a time or timestamp."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Paths of the fields in one data or delete file: field id → key of its path (`store.model.names.column_key`)."""

    paths: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: pa.Schema, metadata: TableMetadata) -> FileLayout:
        """The layout by the file's field ids, else by the table's name mapping, else by position as in Java."""
        paths = dict(_by_field_id(schema, ()))
        if paths:
            return cls(paths)
        if mapping := metadata.name_mapping():
            return cls(dict(_by_name(schema, mapping.root, ())))
        return cls({number: column_key([column.name]) for number, column in enumerate(schema, 1)})


def names_in_files(metadata: TableMetadata) -> dict[int, frozenset[str]] | None:
    """Column id → the names, without those of its parents, by which it is found in files without field ids; None for a
    table without a name mapping."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return None
    found: dict[int, frozenset[str]] = {}

    def note(fields: Any) -> None:
        for mapped in fields:
            if mapped.field_id is not None:
                found[mapped.field_id] = found.get(mapped.field_id, frozenset()) | frozenset(mapped.names)
            note(mapped.fields)

    note(mapping.root)
    return found


def _by_field_id(fields: Any, parents: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for column in fields:
        path = (*parents, column.name)
        if field_id := (column.metadata or {}).get(_FIELD_ID):
            yield int(field_id), column_key(path)
        if pa.types.is_struct(column.type):
            yield from _by_field_id(column.type.fields, path)


def _by_name(fields: Any, mapping: Any, parents: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    by_name = {name: mapped for mapped in mapping for name in mapped.names}
    for column in fields:
        path = (*parents, column.name)
        mapped = by_name.get(column.name)
        if mapped is not None:  # one without inner fields is falsy
            if mapped.field_id is not None:
                yield mapped.field_id, column_key(path)
            if pa.types.is_struct(column.type):
                yield from _by_name(column.type.fields, mapped.fields, path)
