"""Iceberg metadata of Delta and Parquet tables: a schema, a name mapping, one snapshot, and no manifest
(`manifests.py` adds them).

Readers match columns of files by the name mapping, because the files have no field ids, or, where Delta maps columns,
those of the log. A file has the partition spec of its partition values that are not null: pyiceberg 0.12 refuses nulls,
and a column that neither the spec nor the file has is null to every reader.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

from flight_server.planning.scan_plan import FileTotals
from store.model.errors import Unimplemented
from store.model.logical_types import Kind, parse

Partition = Sequence[tuple[str, str]]
"""Columns of the partition: name, Iceberg type."""

SEQUENCE_NUMBER: Final = 1  # of the only snapshot
_FIRST_PARTITION_ID: Final = 1000
NOWHERE: Final = "read-only://this-catalog-takes-no-writes"
"""Where writers are sent: no reader or writer of Iceberg has such a file system, so that they fail before they write.
At the table's own place a file would become one of its files, if it is a directory of Parquet files."""
_WRITES_TO: Final = ("data", "metadata")
_KINDS: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.JSON: "string",
    Kind.UUID: "uuid",
    Kind.BINARY: "binary",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
}
_DELTA: Final = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_PARTS: Final = ("element", "key", "value")
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"


def is_of_spark(schema: Any) -> bool:
    """True if a table's schema, as its format has it, is a StructType in Spark's JSON, as Delta has it."""
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    return bool(fields) and all({"name", "type", "nullable"} <= field.keys() for field in fields)


def delta_type(name: Any) -> str | None:
    """The Iceberg type of a primitive type of Delta; None if there is none."""
    text = str(name)
    return text.replace(",", ", ").replace("  ", " ") if text.startswith("decimal(") else _DELTA.get(text)


def struct_of(columns: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Columns of a snapshot (`capture_facts.snapshot_columns`) as a struct in Delta's form, with Iceberg's types."""
    whole: dict[str, Any] = {"type": "struct", "fields": []}
    structs: dict[tuple[str, ...], dict[str, Any]] = {(): whole}
    for name, type, _, _, *path in columns:
        parts = tuple(path[0]) if path and path[0] else (name,)
        logical = parse(type)
        inner: Any = _KINDS.get(logical.kind, str(type).lower())
        if logical.kind is Kind.STRUCT:
            inner = structs[parts] = {"type": "struct", "fields": []}
        elif logical.kind is Kind.DECIMAL:
            inner = f"decimal({logical.precision}, {logical.scale or 0})" if (logical.precision or 99) <= 38 else None
        if (within := structs.get(parts[:-1])) is not None:
            within["fields"].append({"name": parts[-1], "type": inner})
    return whole


def iceberg_type(name: Any) -> str | None:
    """A type of `struct_of`; None if Iceberg has no such type."""
    return name if name in _KINDS.values() or str(name).startswith("decimal(") else None


class Columns:
    """The schema and the name mapping of a table.

    Attributes:
        left_out: Names of the columns whose type Iceberg lacks, or that a Parquet table does not tell, and of those
            that share a full name, as `a.b` with the field `b` of a struct `a`.

    Args:
        struct: The columns in Delta's form.
        primitive: Converts the types of its columns.
    """

    def __init__(self, struct: dict[str, Any], primitive: Callable[[Any], str | None]):
        self._primitive, self.left_out = primitive, list[str]()
        mapped = list(_mapped_ids(struct))
        self._ids = count(max(mapped, default=0) + 1)
        fields, mapping = self._struct(struct, "")
        unclear = _with_shared_names(fields, mapping)
        self.left_out += [field["name"] for field in fields if field["id"] in unclear]
        self.fields = [field for field in fields if field["id"] not in unclear]
        self.mapping = [mapped for mapped in mapping if mapped["field-id"] not in unclear]
        self.last_id = next(self._ids) - 1
        if not self.fields:
            raise Unimplemented(f"no column has a type of Iceberg: {', '.join(self.left_out) or 'there is none'}")

    def _struct(self, struct: dict[str, Any], prefix: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        fields, mapping = [], []
        for field in struct["fields"]:
            about, name = field.get("metadata") or {}, field["name"]
            id = about.get(_ID) or next(self._ids)
            type, inner = self._type(field["type"], f"{prefix}{name}.")
            if type is None:  # mapped all the same: pyiceberg refuses files with a column that is not
                self.left_out.append(f"{prefix}{name}")
                inner = inner or [{"field-id": next(self._ids), "names": [part]} for part in _PARTS]
            else:
                fields.append({"id": id, "name": name, "required": False, "type": type})
            mapped = {"field-id": id, "names": [about.get(_PHYSICAL, name)]}
            mapping.append(mapped | ({"fields": inner} if inner else {}))
        return fields, mapping

    def _type(self, type: Any, prefix: str) -> tuple[Any, list[dict[str, Any]]]:
        """The Iceberg type, None if there is none, and the mapping of what is in it."""
        match type:
            case {"type": "struct"}:
                fields, mapping = self._struct(type, prefix)
                return ({"type": "struct", "fields": fields} if fields else None), mapping
            case {"type": "array", "elementType": element}:
                inner, below = self._part("element", element, prefix)
                return inner and {
                    "type": "list",
                    "element-id": below["field-id"],
                    "element-required": False,
                    "element": inner,
                }, [below]
            case {"type": "map", "keyType": key, "valueType": value}:
                key_type, of_key = self._part("key", key, prefix)
                value_type, of_value = self._part("value", value, prefix)
                return key_type and value_type and {
                    "type": "map",
                    "key-id": of_key["field-id"],
                    "key": key_type,
                    "value-id": of_value["field-id"],
                    "value-required": False,
                    "value": value_type,
                }, [of_key, of_value]
        return self._primitive(type), []

    def _part(self, name: str, type: Any, prefix: str) -> tuple[Any, dict[str, Any]]:
        id = next(self._ids)
        inner, below = self._type(type, f"{prefix}{name}.")
        return inner, {"field-id": id, "names": [name]} | ({"fields": below} if below else {})

    def partition(self, names: Sequence[str]) -> Partition:
        """Names and types of the columns of the partition, whose values readers take, not those in a file: columns of
        files with these names are mapped to none of the table.

        Raises:
            Unimplemented: One of them has no type of Iceberg.
        """
        types = {field["name"]: field["type"] for field in self.fields}
        for name in names:
            if not isinstance(types.get(name), str) or types[name] in ("binary", "float", "double"):
                raise Unimplemented(f"Iceberg has no partitions by {name}, for its type")
        ids = {field["id"] for field in self.fields if field["name"] in names}
        for mapped in self.mapping:
            if mapped["field-id"] in ids:
                mapped["field-id"] = next(self._ids)
        return [(name, types[name]) for name in names]


def _with_shared_names(fields: Iterable[Mapping[str, Any]], mapping: Iterable[Mapping[str, Any]]) -> set[int]:
    """Ids of the columns with a name, or a name within, that is not theirs alone once names are joined by dots.

    Readers refuse a schema in which two fields have one full name. A name mapping is worse: they look columns of files
    up by full names too, and would take one column for the other. So neither is in the schema or the mapping.
    """
    shared: set[int] = set()
    for names in (_full_names(fields), _mapped_names(mapping)):
        owners: dict[str, int] = {}
        for name, id in names:
            if name in owners:
                shared |= {owners[name], id}
            owners[name] = id
    return shared


def _full_names(fields: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    """Full name of each field of columns, and the id of its column."""
    for field in fields:
        for name in _names_within(field["name"], field["type"]):
            yield name, field["id"]


def _names_within(name: str, type: Any) -> Iterable[str]:
    yield name
    match type:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                yield from _names_within(f"{name}.{field['name']}", field["type"])
        case {"type": "list" | "map"}:
            for part in _PARTS:
                if part in type:
                    yield from _names_within(f"{name}.{part}", type[part])


def _mapped_names(mapping: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    """Full name of each field that is mapped, and the id of its column."""
    for mapped in mapping:
        (name,) = mapped["names"]
        yield name, mapped["field-id"]
        for within, _ in _mapped_names(mapped.get("fields", ())):
            yield f"{name}.{within}", mapped["field-id"]


def _mapped_ids(type: Any) -> Iterable[int]:
    """The field ids that a table's log has."""
    match type:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                if id := (field.get("metadata") or {}).get(_ID):
                    yield id
                yield from _mapped_ids(field["type"])
        case {"type": "array" | "map"}:
            for inner in ("elementType", "keyType", "valueType"):
                yield from _mapped_ids(type.get(inner))


def spec_id(nulls: Sequence[bool]) -> int:
    """The id of the partition spec without the columns that are null: 0 if none is."""
    return sum(1 << at for at, is_null in enumerate(nulls) if is_null)


def totals(files: FileTotals) -> dict[str, str]:
    """Totals of a snapshot's summary, its rows, files and bytes, by which planners estimate; without the rows or
    bytes if those of a file are unknown.

    Args:
        files: Its live files, none with row-level deletes.
    """
    counts = {
        "total-records": files.rows,
        "total-data-files": files.files,
        "total-files-size": files.size_bytes,
        "total-delete-files": 0,
    }
    return {name: str(value) for name, value in counts.items() if value is not None}


def document(
    columns: Columns,
    partition: Partition,
    null_patterns: Iterable[Sequence[bool]],
    *,
    table_id: str,
    location: str,
    snapshot_id: int,
    committed_at: datetime,
    totals: Mapping[str, str],
) -> dict[str, Any]:
    """Metadata of format version 2.

    Args:
        null_patterns: For each kind of partition, which of its values are null.
        snapshot_id: Id of the only snapshot; neither 0 nor -1, which clients take for none.
        committed_at: Time of the snapshot.
        totals: Of its rows, files and bytes, see `totals`.
    """
    try:
        table_uuid = str(uuid.UUID(table_id))
    except ValueError:
        table_uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{location}\0{table_id}"))
    ids = {field["name"]: field["id"] for field in columns.fields}
    specs = {spec_id(nulls): nulls for nulls in [[False] * len(partition), *null_patterns]}
    at_ms = int(committed_at.timestamp() * 1000)
    properties = {"schema.name-mapping.default": json.dumps(columns.mapping)}
    properties |= {f"write.{kind}.path": f"{NOWHERE}/{kind}" for kind in _WRITES_TO}
    if columns.left_out:
        properties["statflight.columns-left-out"] = json.dumps(columns.left_out)
    return {
        "format-version": 2,
        "table-uuid": table_uuid,
        "location": location,
        "last-sequence-number": SEQUENCE_NUMBER,
        "last-updated-ms": at_ms,
        "last-column-id": columns.last_id,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": columns.fields}],
        "partition-specs": [
            {
                "spec-id": id,
                "fields": [
                    {
                        "source-id": ids[name],
                        "field-id": _FIRST_PARTITION_ID + at,
                        "name": name,
                        "transform": "identity",
                    }
                    for at, (name, _) in enumerate(partition)
                    if not nulls[at]
                ],
            }
            for id, nulls in sorted(specs.items())
        ],
        "default-spec-id": 0,
        "last-partition-id": _FIRST_PARTITION_ID - 1 + len(partition),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": properties,
        "current-snapshot-id": snapshot_id,
        "refs": {"main": {"type": "branch", "snapshot-id": snapshot_id}},
        "snapshots": [
            {
                "snapshot-id": snapshot_id,
                "sequence-number": SEQUENCE_NUMBER,
                "timestamp-ms": at_ms,
                "schema-id": 0,
                "manifest-list": f"{location}/metadata/planned-by-the-server.avro",
                "summary": {"operation": "append", **totals},
            }
        ],
        "snapshot-log": [{"snapshot-id": snapshot_id, "timestamp-ms": at_ms}],
        "metadata-log": [],
        "partition-statistics": [],
    }
