"""The questions of `door_questions.py`, asked by pyiceberg and Trino; and the generated ones, asked by Trino."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.flight_server.faces.iceberg_rest import questions as generated
from tests.flight_server.live_server import LiveServer, serving
from tests.interop import clients, trino_server
from tests.interop.door_questions import NAME, DoorQuestion, questions
from tests.interop.questions import captured, same
from tests.interop.test_iceberg_rest import QUESTIONS, attached, spark_settings
from tests.interop.trino_server import Trino

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
]

TYPES: Final = ("bigint", "decimal(9,2)", "double", "varchar", "varchar", "date", "varchar")
"""Trino's types of the table's columns; instants are texts, whose microseconds its protocol would cut off."""
TABLE: Final = 'door."iceberg.db".t'
DISTINCT: Final = 2  # the number of distinct values in a row of SHOW STATS


class Served(NamedTuple):
    server: LiveServer
    door: str
    asked: list[DoorQuestion]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("door"), "--http-port", 0, "--workers", 1) as server:
        (pages,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        root = tmp_path_factory.mktemp("lake")
        with server.connect() as client:
            client.timeout = 300.0
            lake = captured(root, client)
        newest = max((root / "iceberg").rglob("*.metadata.json"), key=lambda path: path.name)
        snapshots = [each["snapshot-id"] for each in json.loads(newest.read_text())["snapshots"]]
        yield Served(server, f"{pages}iceberg", questions(lake.rows, snapshots))


@pytest.fixture(scope="module")
def trino(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    with trino_server.running(tmp_path_factory.mktemp("trino"), 2, ("door",), served.door) as server:
        yield server


def is_right(question: DoorQuestion, found: Sequence[Sequence[Any]]) -> bool:
    return same([list(row) for row in question.rows], [list(row) for row in found])


def test_pyiceberg_answers_all(served):
    catalog = RestCatalog("door", uri=served.door)
    found = {question.name: question.ask(catalog) for question in served.asked}
    assert {q.name: (q.rows, found[q.name]) for q in served.asked if not is_right(q, found[q.name])} == {}
    assert len(found) >= 20


def test_catalog_of_the_clients_page_is_that_of_these_tests():
    assert clients.block("properties").replace(clients.DOOR, "{address}") == trino_server.CATALOGS["door"]
    assert clients.block("sql duckdb").splitlines()[0].rstrip(";") == attached(clients.DOOR.removesuffix("iceberg"))
    documented = dict(line.split() for line in clients.block("properties spark").splitlines())
    settings = spark_settings(Path("jar"), clients.DOOR.removesuffix("iceberg"))
    assert (
        documented.items() <= {name.replace(".door", ".statflight"): value for name, value in settings.items()}.items()
    )


def test_trino_answers_all(served, trino):
    found = {question.name: trino.query(question.sql, "door.none").rows for question in served.asked}
    of_columns = [row for row in found["distinct counts"] if row[0] is not None]
    found["distinct counts"] = [[name, row[DISTINCT - 1]] for name, *row in of_columns]
    assert {q.name: (q.rows, found[q.name]) for q in served.asked if not is_right(q, found[q.name])} == {}


def test_trino_answers_generated_questions_about_every_subset_of_columns(trino):
    rows = generated.whole(with_nan=False)
    asked = list(generated.questions(QUESTIONS, 1, rows))
    expected = {generated.named(question): question.answer(rows, generated.Reader()) for question in asked}
    answers = [trino.query(statement, "door.none").rows for statement in statements(asked)]
    assert generated.told(asked, [[plain(row) for row in answer] for answer in answers]) == expected


def test_trino_joins_by_distinct_counts_and_writes_nothing(served, trino):
    join = f"EXPLAIN SELECT * FROM {TABLE} a JOIN {TABLE} b ON a.word = b.word"
    plan = trino.text(join, "door.none")
    lines = iter(plan.splitlines())
    next(line for line in lines if "Join[" in line)
    estimate = next(line for line in lines if "Estimates" in line)
    assert re.search(r"rows: \d", estimate), plan
    with pytest.raises(RuntimeError, match="read-only"):
        trino.query(f"INSERT INTO {TABLE} SELECT * FROM {TABLE}", "door.none")
    catalog = RestCatalog("door", uri=served.door)
    assert len(catalog.load_table(NAME).snapshots()) == len(generated.PARTS)


def test_trino_refuses_tables_without_manifests(trino):
    """It plans from manifests, which made-up metadata has not: an error, never another answer."""
    for schema in ("delta.default", "parquet.default"):
        assert ["id", "bigint", "", ""] in trino.query(f'DESCRIBE door."{schema}".t', "door.none").rows
        with pytest.raises(RuntimeError, match=r"(?i)metadata|manifest"):
            trino.query(f'SELECT count(*) FROM door."{schema}".t WHERE id = 5', "door.none")


def statements(asked: Sequence[generated.Question], table: str = TABLE) -> list[str]:
    """Questions in Trino's SQL, several in a statement: each row has the number of its question, then all columns, null
    for those that are not asked for.
    """
    each = []
    for number, question in enumerate(asked):
        columns = ", ".join(
            f"CAST({name if name in question.columns else 'NULL'} AS {type})"
            for name, type in zip(generated.SCHEMA.names, TYPES, strict=True)
        )
        each.append(f"SELECT {number}, {columns} FROM {table} WHERE {question.where.sql(typed=True)}")
    size = generated.AT_ONCE
    return [" UNION ALL ".join(each[start : start + size]) for start in range(0, len(each), size)]


def plain(row: Sequence[Any]) -> list[Any]:
    """A row with instants as Python writes them."""
    return [value.removesuffix(".000000") if isinstance(value, str) else value for value in row]
