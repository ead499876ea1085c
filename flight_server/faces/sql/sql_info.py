"""Facts about the server for `GetSqlInfo`, with the numbers and types of the Flight SQL standard.

All facts about syntax and limits are present, because the JDBC driver fails on missing ones and tools request them all
when they connect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from flight_server.core.wire.dense_union import dense_union
from flight_server.faces.sql import language


class Bits(int):
    """A bitmask: bit n is set for value n of the standard's enumeration."""


VALUES: Final = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
_UNKNOWN: Final = 0  # no limit, or an unknown one
_BIGINT, _BIT, _DATE, _DECIMAL, _FLOAT, _INTEGER, _NUMERIC, _REAL, _SMALLINT = 0, 2, 4, 5, 6, 7, 12, 13, 14
_TIMESTAMP, _TINYINT, _VARCHAR = 16, 17, 19  # these and the above: types of SQL_SUPPORTS_CONVERT
_NUMBERS: Final = (_BIGINT, _DECIMAL, _FLOAT, _INTEGER, _NUMERIC, _REAL, _SMALLINT, _TINYINT)
_CONVERSIONS: Final = {
    **{number: [*_NUMBERS, _BIT, _VARCHAR] for number in _NUMBERS},
    _BIT: [*_NUMBERS, _BIT, _VARCHAR],
    _DATE: [_DATE, _TIMESTAMP, _VARCHAR],
    _TIMESTAMP: [_DATE, _TIMESTAMP, _VARCHAR],
    _VARCHAR: [*_NUMBERS, _BIT, _DATE, _TIMESTAMP, _VARCHAR],
}
_FACTS: Final[dict[int, Any]] = {
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
    507: 3,  # SQL_NULL_ORDERING: at the end
    508: [
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP",
        "HAVING",
        "QUALIFY",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "DISTINCT",
        "JOIN",
        "WITH",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "OVER",
    ],  # SQL_KEYWORDS
    509: sorted(language.NUMBERS),  # SQL_NUMERIC_FUNCTIONS
    510: sorted(language.TEXTS),  # SQL_STRING_FUNCTIONS
    511: sorted(language.CHOICES),  # SQL_SYSTEM_FUNCTIONS
    512: sorted(language.INSTANTS),  # SQL_DATETIME_FUNCTIONS
    513: "\\",  # SQL_SEARCH_STRING_ESCAPE
    514: "",  # SQL_EXTRA_NAME_CHARACTERS
    515: True,  # SQL_SUPPORTS_COLUMN_ALIASING
    516: True,  # SQL_NULL_PLUS_NULL_IS_NULL
    517: _CONVERSIONS,  # SQL_SUPPORTS_CONVERT
    518: True,  # SQL_SUPPORTS_TABLE_CORRELATION_NAMES
    519: False,  # SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES
    520: True,  # SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY
    521: True,  # SQL_SUPPORTS_ORDER_BY_UNRELATED
    522: Bits(0b11),  # SQL_SUPPORTED_GROUP_BY: unrelated, beyond SELECT
    523: True,  # SQL_SUPPORTS_LIKE_ESCAPE_CLAUSE
    524: False,  # SQL_SUPPORTS_NON_NULLABLE_COLUMNS: none can be defined
    525: Bits(0b001),  # SQL_SUPPORTED_GRAMMAR: minimum
    526: Bits(0b001),  # SQL_ANSI92_SUPPORTED_LEVEL: entry
    527: False,  # SQL_SUPPORTS_INTEGRITY_ENHANCEMENT_FACILITY
    528: Bits(0b110),  # SQL_OUTER_JOINS_SUPPORT_LEVEL: limited, full
    529: "schema",  # SQL_SCHEMA_TERM
    530: "procedure",  # SQL_PROCEDURE_TERM
    531: "catalog",  # SQL_CATALOG_TERM
    532: True,  # SQL_CATALOG_AT_START
    533: Bits(0),  # SQL_SCHEMAS_SUPPORTED_ACTIONS: in procedure calls, index and privilege definitions: none
    534: Bits(0),  # SQL_CATALOGS_SUPPORTED_ACTIONS
    535: Bits(0),  # SQL_SUPPORTED_POSITIONED_COMMANDS
    536: False,  # SQL_SELECT_FOR_UPDATE_SUPPORTED
    537: False,  # SQL_STORED_PROCEDURES_SUPPORTED
    538: Bits(0b0111),  # SQL_SUPPORTED_SUBQUERIES: in comparisons, EXISTS, IN
    539: True,  # SQL_CORRELATED_SUBQUERIES_SUPPORTED
    540: Bits(0b11),  # SQL_SUPPORTED_UNIONS: UNION, UNION ALL
    **dict.fromkeys(range(541, 557), _UNKNOWN),  # SQL_MAX_BINARY_LITERAL_LENGTH … SQL_MAX_ROW_SIZE
    556: False,  # SQL_MAX_ROW_SIZE_INCLUDES_BLOBS
    557: language.MAX_BYTES,  # SQL_MAX_STATEMENT_LENGTH
    558: _UNKNOWN,  # SQL_MAX_STATEMENTS
    559: _UNKNOWN,  # SQL_MAX_TABLE_NAME_LENGTH
    560: language.MAX_TABLES,  # SQL_MAX_TABLES_IN_SELECT
    561: _UNKNOWN,  # SQL_MAX_USERNAME_LENGTH
    562: 0,  # SQL_DEFAULT_TRANSACTION_ISOLATION: none
    563: False,  # SQL_TRANSACTIONS_SUPPORTED
    564: Bits(0b1),  # SQL_SUPPORTED_TRANSACTIONS_ISOLATION_LEVELS: none
    565: False,  # SQL_DATA_DEFINITION_CAUSES_TRANSACTION_COMMIT
    566: False,  # SQL_DATA_DEFINITIONS_IN_TRANSACTIONS_IGNORED
    567: Bits(0b10),  # SQL_SUPPORTED_RESULT_SET_TYPES: forward only
    568: Bits(0b10),  # SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_UNSPECIFIED: read only
    569: Bits(0b10),  # …_FORWARD_ONLY
    570: Bits(0),  # …_SCROLL_SENSITIVE
    571: Bits(0),  # …_SCROLL_INSENSITIVE
    572: False,  # SQL_BATCH_UPDATES_SUPPORTED
    573: False,  # SQL_SAVEPOINTS_SUPPORTED
    574: False,  # SQL_NAMED_PARAMETERS_SUPPORTED
    575: False,  # SQL_LOCATORS_UPDATE_COPY
    576: False,  # SQL_STORED_FUNCTIONS_USING_CALL_SYNTAX_SUPPORTED
}


def answer(asked: Sequence[int], release: str, schema: pa.Schema) -> pa.Table:
    """The result of `GetSqlInfo`: of each fact its number, and its value as a dense union.

    Args:
        asked: Numbers of the requested facts; empty for all. Unknown numbers are ignored.
        release: The server's version.
    """
    facts = _FACTS | {1: release}
    wanted = [number for number in dict.fromkeys(asked) if number in facts] if asked else sorted(facts)
    values = dense_union([facts[number] for number in wanted], _kind, VALUES)
    return pa.Table.from_arrays([pa.array(wanted, pa.uint32()), values], schema=schema)


def _kind(value: Any) -> int:
    """The index of a value's type in VALUES."""
    match value:
        case bool():
            return 1
        case Bits():
            return 3
        case int():
            return 2
        case list():
            return 4
        case dict():
            return 5
    return 0
