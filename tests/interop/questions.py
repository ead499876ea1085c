"""Questions in SQL that clients of other people ask a server, with answers computed from the rows of its tables.

The tables are one table in three formats, of `tests/flight_server/faces/iceberg_rest/questions.py`. A client is a
program that reads questions as lines of `told`, and writes a JSON object a line: `name`, and `rows`, or `error` with
the message of a refusal. Values come in whatever form the client has; `same` compares them by the expected type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tests.flight_server.faces.iceberg_rest.questions import FORMATS, OF_PARTITION, PARTS, SCHEMA, Row, whole
from tests.flight_server.live_server import Client

TYPES: Final = ("INT", "DECIMAL(9,2)", "DOUBLE", "STRING", "TIMESTAMP", "DATE", "STRING")
"""Logical types of the columns, in the order of `SCHEMA`."""
TEXT: Final = 'é "quoted" \\ 日本'


@dataclass(frozen=True)
class Lake:
    """The table in each format.

    Attributes:
        names: Format → full name of the table.
        snapshots: Format → id of its snapshot; not of Parquet, which has none of its own.
        sizes: Format → bytes of its data files.
    """

    names: dict[str, str]
    snapshots: dict[str, int]
    sizes: dict[str, int]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Asked:
    """A question.

    Attributes:
        rows: The answer, in its order.
        refused: Word of the refusal where there is no answer.
    """

    name: str
    sql: str
    rows: Sequence[tuple[Any, ...]] = ()
    parameters: tuple[str | int | float, ...] = ()
    refused: str = ""


def captured(root: Path, client: Client) -> Lake:
    """Writes the table in each format below a directory, and has a server capture all columns."""
    names, snapshots, sizes = {}, {}, {}
    for format, make in FORMATS.items():
        uri, schema = make(root / format, with_nan=False)
        client.act("register_connector", {"catalog": format, "format": format, "uri": str(uri)})
        client.act("discover", {"catalog": format})
        names[format] = f"{format}.{schema}.t"
        sizes[format] = sum(path.stat().st_size for path in (root / format).rglob("*.parquet"))
        columns = client.get({"table": "information_schema.columns", "columns": ["table_catalog", "column_id"]})
        ids = [row["column_id"] for row in columns.to_pylist() if row["table_catalog"] == format]
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": id} for id in ids)]
        requests = [{"table": names[format], "target": target} for target in targets]
        assert {outcome["outcome"] for outcome in client.act("capture", {"requests": requests})} == {"CAPTURED"}
    snapshots["delta"] = len(PARTS) - 1  # the version after as many appends
    newest = max((root / "iceberg").rglob("*.metadata.json"), key=lambda path: path.name)
    snapshots["iceberg"] = json.loads(newest.read_text())["current-snapshot-id"]
    return Lake(names, snapshots, sizes, whole(with_nan=False))


def told(question: Asked) -> str:
    """A question as clients read it: name, statement, and parameters with their types, separated by tabs."""
    kinds = {str: "text", int: "int", float: "double"}
    return "\t".join([question.name, question.sql, *(f"{kinds[type(p)]}:{p}" for p in question.parameters)])


def questions(lake: Lake) -> list[Asked]:
    """The questions about what is captured of a lake."""
    return [*_of_tables(lake), *_of_columns(lake), *_of_files(lake), *_of_sql(lake), *_statements(lake), *_refused()]


def _values(lake: Lake, column: str) -> list[Any]:
    return [row[column] for row in lake.rows if row[column] is not None]


def _distinct(lake: Lake) -> dict[str, float]:
    return {name: float(len(set(_values(lake, name)))) for name in SCHEMA.names}


def _nulls(lake: Lake) -> dict[str, int]:
    return {name: len(lake.rows) - len(_values(lake, name)) for name in SCHEMA.names}


def _of_tables(lake: Lake) -> list[Asked]:
    count = len(lake.rows)
    return [
        Asked(
            "tables",
            "SELECT table_catalog, table_schema, table_name, row_count, data_file_count FROM stats.tables ORDER BY 1",
            [(*name.split("."), count, len(PARTS)) for _, name in sorted(lake.names.items())],
        ),
        Asked(
            "sizes",
            "SELECT table_catalog, total_size_bytes FROM stats.tables ORDER BY table_catalog",
            sorted(lake.sizes.items()),
        ),
        Asked(
            "ids of snapshots",  # beyond 2^53, where doubles round
            "SELECT table_catalog, snapshot_id FROM stats.tables WHERE table_catalog <> 'parquet' ORDER BY 1",
            sorted(lake.snapshots.items()),
        ),
        Asked(
            "lists",
            "SELECT partition_keys FROM sys.tables WHERE table_catalog = 'delta'",
            [(list(OF_PARTITION),)],
        ),
        Asked(
            "instants",
            "SELECT count(*) AS n FROM stats.tables WHERE captured_at > TIMESTAMP '2020-01-01 00:00:00'",
            [(3,)],
        ),
    ]


def _of_columns(lake: Lake) -> list[Asked]:
    distinct, nulls, count = _distinct(lake), _nulls(lake), len(lake.rows)
    days, prices, ids = (_values(lake, name) for name in ("day", "price", "id"))
    of_delta = "FROM stats.columns WHERE table_catalog = 'delta'"
    most = sorted(distinct.items(), key=lambda item: (-item[1], item[0]))
    return [
        Asked(
            "distinct values",
            f"SELECT column_name, ndv, ndv_exact {of_delta} ORDER BY column_id",
            [(name, ndv, True) for name, ndv in distinct.items()],
        ),
        Asked(
            "nulls",
            "SELECT column_name, null_count / row_count AS share FROM stats.columns"
            " WHERE table_catalog = 'iceberg' ORDER BY column_id",
            [(name, nulls[name] / count) for name in SCHEMA.names],
        ),
        Asked(
            "bounds of integers",
            "SELECT CAST(min AS BIGINT) AS low, CAST(max AS BIGINT) AS high FROM stats.columns"
            " WHERE column_name = 'id' AND table_catalog = 'parquet'",
            [(min(ids), max(ids))],
        ),
        Asked(
            "bounds of dates",
            f"SELECT CAST(min AS DATE) AS low, CAST(max AS DATE) AS high {of_delta} AND logical_type = 'DATE'",
            [(min(days), max(days))],
        ),
        Asked(
            "bounds of decimals",
            f"SELECT CAST(max AS DECIMAL(9, 2)) AS high {of_delta} AND column_name = 'price'",
            [(max(prices),)],
        ),
        Asked("means", f"SELECT mean {of_delta} AND column_name = 'id'", [(sum(ids) / len(ids),)]),
        Asked(
            "a page",
            f"SELECT column_name, ndv {of_delta} ORDER BY ndv DESC, column_name LIMIT 3 OFFSET 1",
            most[1:4],
        ),
        Asked(
            "patterns",
            f"SELECT column_name {of_delta} AND column_name LIKE '%o%' AND column_name NOT IN ('word', 'day')"
            " AND nan_count IS NULL ORDER BY 1",
            [(name,) for name in sorted(SCHEMA.names) if "o" in name and name not in ("word", "ratio")],
        ),
    ]


def _of_files(lake: Lake) -> list[Asked]:
    count = len(lake.rows)
    return [
        Asked(
            "files",
            "SELECT count(*) AS files, sum(row_count) AS all_rows, sum(size_bytes) AS size FROM stats.files"
            " WHERE table_catalog = 'parquet'",
            [(len(PARTS), count, lake.sizes["parquet"])],
        ),
        Asked(
            "bounds of files",
            "SELECT count(*) AS files FROM stats.file_columns"
            " WHERE table_catalog = 'delta' AND column_name = 'id' AND CAST(min AS INTEGER) >= 30",
            [(sum(10 * part >= 30 for part in range(len(PARTS))),)],
        ),
        Asked(
            "partitions",
            "SELECT count(*) AS parts, sum(file_count) AS files, max(row_count) AS most FROM stats.partitions"
            " WHERE table_catalog = 'delta'",
            [(len(set(PARTS)), len(PARTS), 10)],
        ),
    ]


def _of_sql(lake: Lake) -> list[Asked]:
    distinct, nulls, count = _distinct(lake), _nulls(lake), len(lake.rows)
    first = max(distinct, key=lambda name: distinct[name])
    with_nulls = sorted(name for name in SCHEMA.names if nulls[name])
    above = [name for name in SCHEMA.names if distinct[name] > 5.0][:3]
    return [
        Asked(
            "a join",
            "SELECT c.table_catalog, c.column_name FROM stats.columns c JOIN stats.tables t"
            " USING (table_catalog, table_schema, table_name) WHERE c.ndv = t.row_count ORDER BY 1",
            [(format, name) for format in sorted(lake.names) for name in SCHEMA.names if distinct[name] == count],
        ),
        Asked(
            "groups",
            "SELECT table_catalog, count(*) AS n, sum(null_count) AS nulls FROM stats.columns GROUP BY table_catalog"
            " HAVING sum(ndv) > 10 ORDER BY table_catalog",
            [(format, len(SCHEMA), sum(nulls.values())) for format in sorted(lake.names)],
        ),
        Asked(
            "ranks",
            "SELECT table_catalog, column_name FROM (SELECT *, row_number() OVER (PARTITION BY table_catalog"
            " ORDER BY ndv DESC) AS place FROM stats.columns) WHERE place = 1 ORDER BY 1",
            [(format, first) for format in sorted(lake.names)],
        ),
        Asked(
            "a union",
            "WITH holes AS (SELECT DISTINCT column_name FROM stats.columns WHERE null_count > 0)"
            " SELECT column_name FROM holes UNION ALL SELECT 'zz' AS column_name ORDER BY 1",
            [(name,) for name in [*with_nulls, "zz"]],
        ),
        Asked(
            "literals",
            f"SELECT NULL AS nothing, 1 = 1 AS truth, '{TEXT}' AS word, CAST(12.5 AS DECIMAL(9, 2)) AS price,"
            " DATE '2026-02-28' AS day, TIMESTAMP '2026-02-28 01:02:03.004005' AS moment,"
            " 9007199254740993 AS large, x'00FF' = x'00FE' AS bytes",
            [
                (
                    None,
                    True,
                    TEXT,
                    Decimal("12.50"),
                    date(2026, 2, 28),
                    datetime(2026, 2, 28, 1, 2, 3, 4005),
                    2**53 + 1,
                    False,
                )
            ],
        ),
        Asked(
            "parameters",
            "SELECT column_name FROM stats.columns WHERE table_catalog = ? AND ndv > ? AND column_id <= ?"
            " ORDER BY column_id LIMIT 3",
            [(name,) for name in above],
            ("parquet", 5.0, 7),
        ),
        Asked(
            "a parameter that is cast",
            "SELECT ?::DATE AS day, CAST(? AS BIGINT) + 1 AS next",
            [(date(2026, 3, 1), 42)],
            ("2026-03-01", "41"),
        ),
        Asked(
            "a parameter of a function",
            "SELECT round(ndv / 7, ?) AS rounded FROM stats.columns"
            " WHERE table_catalog = 'delta' AND column_name = 'id'",
            [(round(count / 7, 2),)],
            (2,),
        ),
    ]


def _statements(lake: Lake) -> list[Asked]:
    distinct, nulls, count = _distinct(lake), _nulls(lake), len(lake.rows)
    described = list(zip(SCHEMA.names, TYPES, strict=True))
    name = lake.names["delta"]
    return [
        Asked("SHOW TABLES", "SHOW TABLES IN delta", [tuple(name.split("."))]),
        Asked("SHOW COLUMNS", f"SHOW COLUMNS IN {name}", described),
        Asked("DESCRIBE", f"DESCRIBE TABLE {lake.names['iceberg']}", described),
        Asked("DESCRIBE a flight", "DESCRIBE sys.column_usage", USAGE),
        Asked("EXPLAIN", "EXPLAIN SELECT ndv FROM stats.columns", [("read stats.columns: ndv",)]),
        Asked(
            "ANALYZE",
            f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR COLUMNS",
            [(name, lake.snapshots["delta"], list(SCHEMA.names), count, ANY, "CAPTURED", "")],
        ),
        Asked(
            "SHOW STATS",
            f"SHOW STATS FOR {name}",
            [
                *((column, ANY, distinct[column], nulls[column] / count, None, ANY, ANY) for column in SCHEMA.names),
                (None, ANY, None, None, float(count), None, None),
            ],
        ),
    ]


def _refused() -> list[Asked]:
    return [
        Asked("an unknown column", "SELECT nvd FROM stats.columns", refused='did you mean "ndv"?'),
        Asked("an unknown table", "SELECT 1 AS one FROM stats.colums", refused="[UNKNOWN_TABLE]"),
        Asked("a write", "DROP TABLE stats.columns", refused="[BAD_SQL] DROP is not allowed"),
    ]


ANY: Final = object()
"""A value that is not compared."""
USAGE: Final = [
    ("table_catalog", "VARCHAR"),
    ("table_schema", "VARCHAR"),
    ("table_name", "VARCHAR"),
    ("column_name", "VARCHAR"),
    ("reads", "BIGINT"),
    ("last_read_at", "TIMESTAMP"),
]


def same(expected: Any, found: Any) -> bool:
    """True if a client's value is the expected one, in whatever form the client has it."""
    if expected is ANY:
        return True
    if expected is None or found is None:
        return expected is found
    match expected:
        case bool():
            return str(found).lower() == str(expected).lower()
        case int() | Decimal():
            return Decimal(str(found)) == expected
        case float():
            return math.isclose(float(found), expected, rel_tol=1e-12)
        case datetime():
            return datetime.fromisoformat(str(found).replace("Z", "")) == expected
        case date():
            return str(found)[:10] == str(expected)
        case list():
            return len(found) == len(expected) and all(map(same, expected, found))
    return bool(found == expected)


def wrong(asked: Sequence[Asked], output: str) -> dict[str, Any]:
    """Name of each question that a client did not answer as expected → what it wrote.

    Args:
        output: Lines of JSON.
    """
    answers = {answer["name"]: answer for answer in map(json.loads, output.splitlines())}
    assert answers.keys() <= {question.name for question in asked}
    return {each.name: answers.get(each.name) for each in asked if not _is_right(each, answers.get(each.name, {}))}


def _is_right(question: Asked, answer: dict[str, Any]) -> bool:
    if question.refused:
        return question.refused in answer.get("error", "")
    rows = answer.get("rows")
    return rows is not None and same([list(row) for row in question.rows], rows)
