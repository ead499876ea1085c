"""The metadata that Flight SQL clients ask for: schemas as the standard has them, to the non-null flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from flight_server.sql.plan import CATALOG, TABLES, Table, naive
from flight_server.wire.flight_sql import Message

TABLE_TYPE: Final = "BASE TABLE"
MAX_NAME: Final = 64  # characters of the longest schema or table
_NOT_NULL: Final = False

_TEXT, _INT = pa.string(), pa.int32()


def _field(name: str, type_: pa.DataType = _TEXT, nullable: bool = True) -> pa.Field:
    return pa.field(name, type_, nullable)


def _needed(name: str, type_: pa.DataType = _TEXT) -> pa.Field:
    return pa.field(name, type_, _NOT_NULL)


_VALUES: Final = (
    pa.field("string_value", pa.string()), pa.field("bool_value", pa.bool_()), pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()), pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)  # fmt: skip
_FOREIGN: Final = pa.schema([
    _field("pk_catalog_name"), _field("pk_db_schema_name"), _needed("pk_table_name"), _needed("pk_column_name"),
    _field("fk_catalog_name"), _field("fk_db_schema_name"), _needed("fk_table_name"), _needed("fk_column_name"),
    _needed("key_sequence", _INT), _field("fk_key_name"), _field("pk_key_name"), _needed("update_rule", pa.uint8()),
    _needed("delete_rule", pa.uint8()),
])  # fmt: skip
_TABLES: Final = pa.schema([
    _field("catalog_name"), _field("db_schema_name"), _needed("table_name"), _needed("table_type"),
])  # fmt: skip
SCHEMAS: Final[dict[str, pa.Schema]] = {
    "CommandGetCatalogs": pa.schema([_needed("catalog_name")]),
    "CommandGetDbSchemas": pa.schema([_field("catalog_name"), _needed("db_schema_name")]),
    "CommandGetTables": _TABLES,
    "CommandGetTableTypes": pa.schema([_needed("table_type")]),
    "CommandGetSqlInfo": pa.schema([_needed("info_name", pa.uint32()), _needed("value", pa.dense_union(_VALUES))]),
    "CommandGetPrimaryKeys": pa.schema([
        _field("catalog_name"), _field("db_schema_name"), _needed("table_name"), _needed("column_name"),
        _needed("key_sequence", _INT), _field("key_name"),
    ]),
    "CommandGetImportedKeys": _FOREIGN,
    "CommandGetExportedKeys": _FOREIGN,
    "CommandGetCrossReference": _FOREIGN,
    "CommandGetXdbcTypeInfo": pa.schema([
        _needed("type_name"), _needed("data_type", _INT), _field("column_size", _INT), _field("literal_prefix"),
        _field("literal_suffix"), _field("create_params", pa.list_(pa.field("item", _TEXT, _NOT_NULL))),
        _needed("nullable", _INT), _needed("case_sensitive", pa.bool_()), _needed("searchable", _INT),
        _field("unsigned_attribute", pa.bool_()), _needed("fixed_prec_scale", pa.bool_()),
        _field("auto_increment", pa.bool_()), _field("local_type_name"), _field("minimum_scale", _INT),
        _field("maximum_scale", _INT), _needed("sql_data_type", _INT), _field("datetime_subcode", _INT),
        _field("num_prec_radix", _INT), _field("interval_precision", _INT),
    ]),
}  # fmt: skip


def schema_of(command: Message) -> pa.Schema:
    """The schema of a metadata command's answer."""
    schema = SCHEMAS[command.name]
    if command.name == "CommandGetTables" and command.flag(5):
        schema = schema.append(_needed("table_schema", pa.binary()))
    return schema


def answer(command: Message, release: str) -> pa.Table:
    """The rows of a metadata command; nothing is known of keys and types, so of these there are none."""
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
            return _sql_info(command.integers(1), release, schema)
        case _:
            rows = []
    return pa.Table.from_pylist(rows, schema)


def _of_catalog(command: Message) -> list[Table]:
    return list(TABLES.values()) if command.text(1) in (None, "", CATALOG) else []


def _tables(command: Message) -> Iterator[dict[str, Any]]:
    schemas, names, types = _pattern(command.text(2)), _pattern(command.text(3)), command.texts(4)
    if types and TABLE_TYPE not in types:
        return
    tables = [t for t in _of_catalog(command) if schemas.fullmatch(t.schema) and names.fullmatch(t.name)]
    for table in sorted(tables, key=lambda each: (each.schema, each.name)):
        row = {"catalog_name": CATALOG, "db_schema_name": table.schema, "table_name": table.name,
               "table_type": TABLE_TYPE}  # fmt: skip
        yield row | ({"table_schema": _serialized(table.flight.name)} if command.flag(5) else {})


@cache
def _serialized(flight: str) -> bytes:
    schema: pa.Schema = TABLES[flight].flight.schema
    return naive(schema).serialize().to_pybytes()


_NOTHING: Final = re.compile(r"(?!)")


def _pattern(text: str | None) -> re.Pattern[str]:
    """A LIKE pattern; the time it takes grows with its length alone: no part of a name is tried twice."""
    if text is None:
        return re.compile(".*", re.DOTALL)
    if len(text.replace("%", "")) > MAX_NAME:
        return _NOTHING  # as good as any pattern that no name is long enough for
    first, *middle = (re.escape(part).replace("_", ".") for part in re.split("%+", text))
    if not middle:
        return re.compile(first, re.DOTALL)
    *middle, last = middle
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last, re.DOTALL)


# SqlInfo. Numbers, names and kinds are the standard's; only what a client may want to know is told.

_INFO: Final[dict[int, Any]] = {
    0: "statflight",  # FLIGHT_SQL_SERVER_NAME
    1: None,  # FLIGHT_SQL_SERVER_VERSION
    2: pa.__version__,  # FLIGHT_SQL_SERVER_ARROW_VERSION
    3: True,  # …_READ_ONLY
    4: True,  # …_SQL
    5: False,  # …_SUBSTRAIT
    8: 0,  # …_TRANSACTION: none
    9: True,  # …_CANCEL
    100: 0,  # …_STATEMENT_TIMEOUT: the server's own
    101: 0,  # …_TRANSACTION_TIMEOUT
    500: False,  # SQL_DDL_CATALOG
    501: False,  # SQL_DDL_SCHEMA
    502: False,  # SQL_DDL_TABLE
    503: 1,  # SQL_IDENTIFIER_CASE: insensitive
    504: '"',  # SQL_IDENTIFIER_QUOTE_CHAR
    505: 1,  # SQL_QUOTED_IDENTIFIER_CASE: insensitive
    506: False,  # SQL_ALL_TABLES_ARE_SELECTABLE: rows of hidden tables are left out
    507: 1,  # SQL_NULL_ORDERING: at the end
    508: ["SELECT", "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "DISTINCT", "JOIN",
          "WITH", "UNION", "OVER"],
    509: ["abs", "ceil", "floor", "round", "sqrt", "ln", "log", "pow", "mod", "sign"],  # SQL_NUMERIC_FUNCTIONS
    510: ["upper", "lower", "length", "trim", "substring", "replace", "concat", "strpos"],  # SQL_STRING_FUNCTIONS
    511: [],  # SQL_SYSTEM_FUNCTIONS
    512: ["date_trunc", "date_part", "year", "month", "day", "hour", "now"],  # SQL_DATETIME_FUNCTIONS
    513: "\\",  # SQL_SEARCH_STRING_ESCAPE
    515: True,  # SQL_SUPPORTS_COLUMN_ALIASING
    516: True,  # SQL_NULL_PLUS_NULL_IS_NULL
    519: False,  # SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES
    520: True,  # SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY
    521: True,  # SQL_SUPPORTS_ORDER_BY_UNRELATED
    529: "schema",  # SQL_SCHEMA_TERM
    530: "procedure",  # SQL_PROCEDURE_TERM
    531: "catalog",  # SQL_CATALOG_TERM
    532: True,  # SQL_CATALOG_AT_START
    564: 0,  # SQL_DEFAULT_TRANSACTION_ISOLATION: none
    565: False,  # SQL_TRANSACTIONS_SUPPORTED
    572: False,  # SQL_BATCH_UPDATES_SUPPORTED
    573: False,  # SQL_SAVEPOINTS_SUPPORTED
}  # fmt: skip


def _sql_info(asked: Sequence[int], release: str, schema: pa.Schema) -> pa.Table:
    """The infos asked for; all where none are named. Numbers that are not known are left out."""
    infos = _INFO | {1: release}
    wanted = [number for number in dict.fromkeys(asked) if number in infos] if asked else sorted(infos)
    kinds: list[int] = []
    offsets: list[int] = []
    children: list[list[Any]] = [[] for _ in _VALUES]
    for number in wanted:
        value = infos[number]
        kind = 1 if isinstance(value, bool) else 2 if isinstance(value, int) else 4 if isinstance(value, list) else 0
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()),
        [pa.array(child, field.type) for child, field in zip(children, _VALUES, strict=True)],
        [field.name for field in _VALUES],
    )  # fmt: skip
    return pa.Table.from_arrays([pa.array(wanted, pa.uint32()), values], schema=schema)
