"""Metadata commands of Flight SQL, with the schemas of the standard, including its non-null flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pyarrow as pa

from flight_server.core.wire.protobuf import Message
from flight_server.faces.sql import sql_info
from flight_server.faces.sql.flights import CATALOG, TABLES, Table, naive, sql_type
from store.model.columns import KEY
from store.model.names import with_any_between

TABLE_TYPE: Final = "BASE TABLE"
_TYPE_NAMES: Final = frozenset({TABLE_TYPE, "TABLE"})  # JDBC and ADBC tools ask for TABLE, as their standards name it
MAX_NAME: Final = 64  # upper limit for the length of schema and table names
_NOT_NULL: Final = False

_TEXT, _INT = pa.string(), pa.int32()


def _field(name: str, type_: pa.DataType = _TEXT, nullable: bool = True) -> pa.Field:
    return pa.field(name, type_, nullable)


def _needed(name: str, type_: pa.DataType = _TEXT) -> pa.Field:
    return pa.field(name, type_, _NOT_NULL)


_FOREIGN: Final = pa.schema(
    [
        _field("pk_catalog_name"),
        _field("pk_db_schema_name"),
        _needed("pk_table_name"),
        _needed("pk_column_name"),
        _field("fk_catalog_name"),
        _field("fk_db_schema_name"),
        _needed("fk_table_name"),
        _needed("fk_column_name"),
        _needed("key_sequence", _INT),
        _field("fk_key_name"),
        _field("pk_key_name"),
        _needed("update_rule", pa.uint8()),
        _needed("delete_rule", pa.uint8()),
    ]
)
_TABLES: Final = pa.schema(
    [
        _field("catalog_name"),
        _field("db_schema_name"),
        _needed("table_name"),
        _needed("table_type"),
    ]
)
SCHEMAS: Final[dict[str, pa.Schema]] = {
    "CommandGetCatalogs": pa.schema([_needed("catalog_name")]),
    "CommandGetDbSchemas": pa.schema([_field("catalog_name"), _needed("db_schema_name")]),
    "CommandGetTables": _TABLES,
    "CommandGetTableTypes": pa.schema([_needed("table_type")]),
    "CommandGetSqlInfo": pa.schema(
        [
            _needed("info_name", pa.uint32()),
            _needed("value", sql_info.VALUES),
        ]
    ),
    "CommandGetPrimaryKeys": pa.schema(
        [
            _field("catalog_name"),
            _field("db_schema_name"),
            _needed("table_name"),
            _needed("column_name"),
            _needed("key_sequence", _INT),
            _field("key_name"),
        ]
    ),
    "CommandGetImportedKeys": _FOREIGN,
    "CommandGetExportedKeys": _FOREIGN,
    "CommandGetCrossReference": _FOREIGN,
    "CommandGetXdbcTypeInfo": pa.schema(
        [
            _needed("type_name"),
            _needed("data_type", _INT),
            _field("column_size", _INT),
            _field("literal_prefix"),
            _field("literal_suffix"),
            _field("create_params", pa.list_(pa.field("item", _TEXT, _NOT_NULL))),
            _needed("nullable", _INT),
            _needed("case_sensitive", pa.bool_()),
            _needed("searchable", _INT),
            _field("unsigned_attribute", pa.bool_()),
            _needed("fixed_prec_scale", pa.bool_()),
            _field("auto_increment", pa.bool_()),
            _field("local_type_name"),
            _field("minimum_scale", _INT),
            _field("maximum_scale", _INT),
            _needed("sql_data_type", _INT),
            _field("datetime_subcode", _INT),
            _field("num_prec_radix", _INT),
            _field("interval_precision", _INT),
        ]
    ),
}


def schema_of(command: Message) -> pa.Schema:
    """The schema of a metadata command's result; that of `GetTables` depends on the command."""
    schema = SCHEMAS[command.name]
    if command.name == "CommandGetTables" and command.flag(5):
        schema = schema.append(_needed("table_schema", pa.binary()))
    return schema


def answer(command: Message, release: str) -> pa.Table:
    """The result of a command of SCHEMAS; no rows for foreign keys, which flights do not have."""
    schema = schema_of(command)
    match command.name:
        case "CommandGetCatalogs":
            rows: list[dict[str, Any]] = [{"catalog_name": CATALOG}]
        case "CommandGetTableTypes":
            rows = [{"table_type": TABLE_TYPE}]
        case "CommandGetDbSchemas":
            pattern = _pattern(command.text(2))
            names = sorted({table.schema for table in _of_catalog(command) if pattern.fullmatch(table.schema)})
            rows = [{"catalog_name": CATALOG, "db_schema_name": name} for name in names]
        case "CommandGetTables":
            rows = list(_tables(command))
        case "CommandGetSqlInfo":
            return sql_info.answer(command.integers(1), release, schema)
        case "CommandGetPrimaryKeys":
            rows = list(_primary_keys(command))
        case "CommandGetXdbcTypeInfo":
            rows = list(_types(command))
        case _:
            rows = []
    return pa.Table.from_pylist(rows, schema)


def _of_catalog(command: Message) -> list[Table]:
    return list(TABLES.values()) if command.text(1) in (None, "", CATALOG) else []


def _tables(command: Message) -> Iterator[dict[str, Any]]:
    schemas, names, types = _pattern(command.text(2)), _pattern(command.text(3)), command.texts(4)
    if types and _TYPE_NAMES.isdisjoint(name.upper() for name in types):
        return
    tables = [t for t in _of_catalog(command) if schemas.fullmatch(t.schema) and names.fullmatch(t.name)]
    for table in sorted(tables, key=lambda each: (each.schema, each.name)):
        row = {
            "catalog_name": CATALOG,
            "db_schema_name": table.schema,
            "table_name": table.name,
            "table_type": TABLE_TYPE,
        }
        yield row | ({"table_schema": _serialized(f"{table.schema}.{table.name}")} if command.flag(5) else {})


def _primary_keys(command: Message) -> Iterator[dict[str, Any]]:
    """The columns that identify a stored row; none if one of them may be null."""
    for table in _of_catalog(command):
        if command.text(2) not in (None, "", table.schema) or table.name != command.text(3):
            continue
        if table.flight.writable and table.flight.name != "stats.sketches":
            names = [*(name for name in KEY if name != "table_id"), *table.flight.identity]
            for place, name in enumerate(names, 1):
                yield {
                    "catalog_name": CATALOG,
                    "db_schema_name": table.schema,
                    "table_name": table.name,
                    "column_name": name,
                    "key_sequence": place,
                    "key_name": f"{table.name}_key",
                }


# Types of columns and of expressions: name, number (XdbcDataType), size, radix, quote before and after.
_DATETIME: Final = 9
_TYPES: Final = (
    ("BIGINT", -5, 19, 10, None, None),
    ("BLOB", -3, None, None, None, None),
    ("BOOLEAN", -7, 1, None, None, None),
    ("DATE", 91, 10, None, "DATE '", "'"),
    ("DECIMAL", 3, 38, 10, None, None),
    ("DOUBLE", 8, 53, 2, None, None),
    ("INTEGER", 4, 10, 10, None, None),
    ("TIMESTAMP", 93, 26, None, "TIMESTAMP '", "'"),
    ("VARCHAR", 12, None, None, "'", "'"),
)
_SUBCODES: Final = {91: 1, 93: 3}
_SEARCHABLE_BASIC, _SEARCHABLE_FULL = 2, 3


def _types(command: Message) -> Iterator[dict[str, Any]]:
    wanted = [number - (1 << 64) if number >> 63 else number for number in command.integers(1)]
    for name, number, size, radix, before, after in sorted(_TYPES, key=lambda each: each[1:2]):
        if not wanted or number in wanted:
            yield {
                "type_name": name,
                "data_type": number,
                "column_size": size,
                "literal_prefix": before,
                "literal_suffix": after,
                "nullable": 1,
                "case_sensitive": name == "VARCHAR",
                "searchable": _SEARCHABLE_FULL if name == "VARCHAR" else _SEARCHABLE_BASIC,
                "unsigned_attribute": None if radix is None else False,
                "fixed_prec_scale": False,
                "auto_increment": None if radix is None else False,
                "local_type_name": name,
                "sql_data_type": _DATETIME if number in _SUBCODES else number,
                "datetime_subcode": _SUBCODES.get(number),
                "num_prec_radix": radix,
            }


@cache
def _serialized(label: str) -> bytes:
    """The schema of a table, by its schema and name; its fields say what SQL calls them, for tools that show that."""
    table = TABLES[label]
    fields = [field.with_metadata(_described(field, table)) for field in naive(table.flight.schema)]
    return pa.schema(fields).serialize().to_pybytes()


def _described(field: pa.Field, table: Table) -> dict[str, str]:
    """The metadata that Flight SQL gives a column, by its standard keys."""
    name = sql_type(field.type)
    sizes = {each[0]: each[2] for each in _TYPES}
    facts = {
        "CATALOG_NAME": CATALOG,
        "SCHEMA_NAME": table.schema,
        "TABLE_NAME": table.name,
        "TYPE_NAME": name,
        "IS_AUTO_INCREMENT": "0",
        "IS_CASE_SENSITIVE": str(int(name == "VARCHAR")),
        "IS_READ_ONLY": "1",
        "IS_SEARCHABLE": "1",
    }
    if (size := sizes.get(name)) is not None:
        facts["PRECISION"] = str(size)
    return {f"ARROW:FLIGHT:SQL:{key}": value for key, value in facts.items()}


_NOTHING: Final = re.compile(r"(?!)")


def _pattern(text: str | None) -> re.Pattern[str]:
    """A regular expression for a LIKE pattern, without backtracking, so that no pattern is slow; None matches all.

    A backslash takes the meaning of the character after it: tools write it before each `_` of a name.
    """
    if text is None:
        return re.compile(".*", re.DOTALL)
    parts = [""]
    characters = 0
    for piece in re.findall(r"\\.|%+|.", text, re.DOTALL):
        if piece[0] == "%":
            parts.append("")
        else:
            parts[-1] += "." if piece == "_" else re.escape(piece[-1])
            characters += 1
    if characters > MAX_NAME:
        return _NOTHING  # every name is shorter
    return re.compile(with_any_between(parts), re.DOTALL)
