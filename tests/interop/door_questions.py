"""Twenty questions about a table that clients read by the Iceberg REST catalog, in Trino's SQL and to pyiceberg.

The table is that of `tests/flight_server/faces/iceberg_rest/questions.py`; the answers are computed from its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.rest import RestCatalog

from tests.flight_server.faces.iceberg_rest.questions import PARTS, SCHEMA, Row

NAME: Final = ("iceberg", "db", "t")
_TABLE: Final = 'door."iceberg.db".t'
_DAY: Final = date(2026, 1, 2)


@dataclass(frozen=True)
class DoorQuestion:
    """A question; each client's rows are `rows`, in this order.

    Attributes:
        sql: The question in Trino's SQL.
        ask: Asks pyiceberg.
    """

    name: str
    sql: str
    ask: Callable[[RestCatalog], Any]
    rows: Sequence[Sequence[Any]]


def questions(rows: Sequence[Row], snapshots: Sequence[int]) -> list[DoorQuestion]:
    """The questions.

    Args:
        rows: All rows of the table.
        snapshots: Ids of its snapshots, each of which adds ten rows, the oldest first.
    """
    return [*_of_catalog(), *_of_rows(rows), *_of_parts(rows), *_of_metadata(rows, snapshots)]


def _read(catalog: RestCatalog, where: str = "", *columns: str, snapshot: int | None = None) -> pa.Table:
    given = {"row_filter": where} if where else {}
    fields = columns or ("*",)
    return catalog.load_table(NAME).scan(selected_fields=fields, snapshot_id=snapshot, **given).to_arrow()


def _listed(table: pa.Table) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]


def _of_catalog() -> list[DoorQuestion]:
    return [
        DoorQuestion(
            "schemas",
            "SELECT schema_name FROM door.information_schema.schemata WHERE schema_name LIKE 'iceberg%' ORDER BY 1",
            lambda catalog: [[".".join(levels)] for levels in [("iceberg",), *catalog.list_namespaces(("iceberg",))]],
            [["iceberg"], ["iceberg.db"]],
        ),
        DoorQuestion(
            "tables",
            'SHOW TABLES FROM door."iceberg.db"',
            lambda catalog: [[name] for *_, name in catalog.list_tables(NAME[:-1])],
            [["t"]],
        ),
        DoorQuestion(
            "columns",
            "SELECT column_name FROM door.information_schema.columns"
            " WHERE table_schema = 'iceberg.db' AND table_name = 't' ORDER BY ordinal_position",
            lambda catalog: [[field.name] for field in catalog.load_table(NAME).schema().fields],
            [[name] for name in SCHEMA.names],
        ),
    ]


def _of_rows(rows: Sequence[Row]) -> list[DoorQuestion]:
    prices = [row["price"] for row in rows if row["price"] is not None]
    words = {row["word"] for row in rows if row["word"] is not None}
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    large = sorted((row["id"], row["price"]) for row in rows if row["price"] is not None and row["price"] > 10)
    return [
        DoorQuestion(
            "count",
            f"SELECT count(*) FROM {_TABLE}",
            lambda catalog: [[catalog.load_table(NAME).scan().count()]],
            [[len(rows)]],
        ),
        DoorQuestion(
            "range",
            f"SELECT id FROM {_TABLE} WHERE id BETWEEN 8 AND 12 ORDER BY id",
            lambda catalog: _listed(_read(catalog, "id BETWEEN 8 AND 12", "id").sort_by("id")),
            [[id] for id in range(8, 13)],
        ),
        DoorQuestion(
            "least and greatest",
            f"SELECT min(id), max(id) FROM {_TABLE}",
            lambda catalog: [list(pc.min_max(_read(catalog, "", "id")["id"]).as_py().values())],
            [[0, len(rows) - 1]],
        ),
        DoorQuestion(
            "sum of decimals",
            f"SELECT sum(price) FROM {_TABLE}",
            lambda catalog: [[pc.sum(_read(catalog, "", "price")["price"]).as_py()]],
            [[sum(prices)]],
        ),
        DoorQuestion(
            "decimals",
            f"SELECT id, price FROM {_TABLE} WHERE price > 10 ORDER BY id",
            lambda catalog: _listed(_read(catalog, "price > 10", "id", "price").sort_by("id")),
            large,
        ),
        DoorQuestion(
            "distinct texts",
            f"SELECT count(DISTINCT word) FROM {_TABLE}",
            lambda catalog: [[pc.count_distinct(_read(catalog, "", "word")["word"]).as_py()]],
            [[len(words)]],
        ),
        DoorQuestion(
            "empty texts",
            f"SELECT count(*) FROM {_TABLE} WHERE word = ''",
            lambda catalog: [[len(_read(catalog, "word = ''", "id"))]],
            [[sum(row["word"] == "" for row in rows)]],
        ),
        DoorQuestion(
            "doubles",
            f"SELECT count(*), max(ratio) FROM {_TABLE} WHERE ratio >= 1",
            lambda catalog: [[len(found := _read(catalog, "ratio >= 1.0", "ratio")), pc.max(found["ratio"]).as_py()]],
            [[sum(ratio >= 1 for ratio in ratios), max(ratios)]],
        ),
        DoorQuestion(
            "instants",
            f"SELECT count(*) FROM {_TABLE} WHERE moment > TIMESTAMP '2026-01-01 02:00:00.000001'",
            lambda catalog: [[len(_read(catalog, "moment > '2026-01-01T02:00:00.000001'", "id"))]],
            [[sum(str(row["moment"]) > "2026-01-01 02:00:00.000001" for row in rows if row["moment"])]],
        ),
        DoorQuestion(
            "nothing",
            f"SELECT id FROM {_TABLE} WHERE id > 1000",
            lambda catalog: _listed(_read(catalog, "id > 1000", "id")),
            [],
        ),
    ]


def _of_parts(rows: Sequence[Row]) -> list[DoorQuestion]:
    of_day = [[row["id"]] for row in rows if row["day"] == _DAY]
    no_code = [[row["id"]] for row in rows if row["code"] is None and row["day"] is None]
    return [
        DoorQuestion(
            "a partition",
            f"SELECT id FROM {_TABLE} WHERE day = DATE '{_DAY}' ORDER BY id",
            lambda catalog: _listed(_read(catalog, f"day = '{_DAY}'", "id").sort_by("id")),
            of_day,
        ),
        DoorQuestion(
            "null partitions",
            f"SELECT id FROM {_TABLE} WHERE day IS NULL AND code IS NULL ORDER BY id",
            lambda catalog: _listed(_read(catalog, "day IS NULL AND code IS NULL", "id").sort_by("id")),
            no_code,
        ),
        DoorQuestion(
            "days",
            f"SELECT day, count(*) FROM {_TABLE} WHERE day IS NOT NULL GROUP BY day ORDER BY day",
            lambda catalog: [
                [each["day"], each["id_count"]]
                for each in _read(catalog, "day IS NOT NULL", "day", "id")
                .group_by("day")
                .aggregate([("id", "count")])
                .sort_by("day")
                .to_pylist()
            ],
            [[day, 10 * sum(day == other for other, _ in PARTS)] for day in sorted({day for day, _ in PARTS if day})],
        ),
    ]


def _of_metadata(rows: Sequence[Row], snapshots: Sequence[int]) -> list[DoorQuestion]:
    return [
        DoorQuestion(
            "snapshots",
            'SELECT snapshot_id FROM door."iceberg.db"."t$snapshots" ORDER BY committed_at',
            lambda catalog: [[each.snapshot_id] for each in catalog.load_table(NAME).snapshots()],
            [[id] for id in snapshots],
        ),
        DoorQuestion(
            "an old snapshot",
            f"SELECT count(*), max(id) FROM {_TABLE} FOR VERSION AS OF {snapshots[1]}",
            lambda catalog: [
                [len(found := _read(catalog, "", "id", snapshot=snapshots[1])), pc.max(found["id"]).as_py()]
            ],
            [[20, 19]],
        ),
        DoorQuestion(
            "total records",
            """SELECT summary['total-records'] FROM door."iceberg.db"."t$snapshots" """
            f"WHERE snapshot_id = {snapshots[-1]}",
            lambda catalog: [[catalog.load_table(NAME).current_snapshot().summary["total-records"]]],
            [[str(len(rows))]],
        ),
        DoorQuestion(
            "distinct counts",
            f"SHOW STATS FOR {_TABLE}",
            _distinct_counts,
            _distinct(rows),
        ),
    ]


def _distinct(rows: Sequence[Row]) -> list[list[Any]]:
    return [[name, float(len({row[name] for row in rows if row[name] is not None}))] for name in SCHEMA.names]


def _distinct_counts(catalog: RestCatalog) -> list[list[Any]]:
    """The counts in the metadata, as planners find them."""
    table = catalog.load_table(NAME)
    (entry,) = (each for each in table.metadata.statistics if each.snapshot_id == table.current_snapshot().snapshot_id)
    counts = {blob.fields[0]: float(blob.properties["ndv"]) for blob in entry.blob_metadata}
    return [[field.name, counts[field.field_id]] for field in table.schema().fields]
