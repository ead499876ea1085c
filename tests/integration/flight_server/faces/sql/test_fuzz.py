"""Mutated statements against one server: each returns rows or a one-line error, and none reads anything but flights."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

import random
import re

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_server.core.wire.flight_sql import write_any
from tests.flight_server.faces.sql.test_plan import ACCEPTED, REJECTED
from tests.flight_server.live_server import Client

SECRET = "a line that is in no flight"
SEEDS = [
    *ACCEPTED,
    *(sql for sql in REJECTED if len(sql) < 500 and "read" not in sql),
    *ACCEPTED,
    "SELECT * FROM stats.columns WHERE column_name = ? AND ndv IN (1, 2.5)",
    "WITH x AS (SELECT table_name, max(ndv) m FROM stats.columns GROUP BY 1) SELECT * FROM x JOIN stats.tables USING (table_name)",
    "SELECT * FROM read_text('{secret}')",
    "COPY (SELECT 1) TO '{secret}.out'",
    "SELECT content FROM '{secret}'",
    "ATTACH '{secret}' AS x",
]
WORDS = [
    "SELECT",
    "FROM",
    "stats.columns",
    "stats_all.files",
    "'{secret}'",
    "read_text('{secret}')",
    "glob('/*')",
    "*",
    "(",
    ")",
    ",",
    ";",
    "--",
    "/*",
    "'",
    '"',
    "?",
    "$1",
    "NULL",
    "1",
    "-1",
    "1e400",
    "WHERE",
    "OR 1 = 1",
    "UNION",
    "JOIN",
    "ON",
    "ndv",
    "CAST(",
    "AS",
    "::",
    "INTERVAL",
    "CASE",
    "END",
    "getenv('HOME')",
    "duckdb_settings()",
    "pragma_version()",
    "\x00",
    "é",
    "LIMIT",
    "OFFSET",
    "GROUP BY",
    "HAVING",
    "OVER ()",
    "COLUMNS(*)",
    "[",
    "{",
    "}",
]
NAMES = [
    "ndv",
    "column_name",
    "column_id",
    "stats.columns",
    "stats_all.tables",
    "1",
    "'x'",
    "NULL",
    "count(*)",
    "upper('a')",
    "a.ndv",
    "(1 + 1)",
    "TRUE",
]
POOL = sorted({word for sql in SEEDS for word in re.findall(r"[\w.]+|'[^']*'|[^\w\s]", sql)})


def mutant(rng: random.Random) -> str:
    """A statement with one or two words replaced, which is often valid, or with random damage."""
    sql = rng.choice(SEEDS)
    if rng.random() < 0.7:
        words = re.findall(r"[\w.]+|'[^']*'|\s+|[^\w\s]", sql)
        for _ in range(rng.randint(1, 2)):
            places = [at for at, word in enumerate(words) if re.fullmatch(r"[\w.]+|'[^']*'", word)]
            if places:
                words[rng.choice(places)] = rng.choice(NAMES if rng.random() < 0.8 else POOL)
        return "".join(words)
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randint(0, len(sql)) for _ in range(2))
        match rng.randint(0, 4):
            case 0:
                sql = sql[:at] + " " + rng.choice(WORDS) + " " + sql[at:]
            case 1:
                sql = sql[:at] + sql[to:]
            case 2:
                sql = sql[:at] + chr(rng.choice([rng.randint(32, 126), rng.randint(0, 0x2FFF)])) + sql[at + 1 :]
            case 3:
                other = rng.choice(SEEDS)
                sql = sql[:at] + other[rng.randint(0, len(other)) :]
            case _:
                sql = sql[:to] + sql[at:to] + sql[to:]
    return sql


def send_mutants(client: Client, secret: str, count: int, seed: int) -> tuple[int, int]:
    """Sends mutants and checks each result; counts of the answered and the refused ones."""
    rng, answered, refused = random.Random(seed), 0, 0
    client.timeout = 20.0
    for _ in range(count):
        sql = mutant(rng).replace("{secret}", secret)
        try:
            found = client.get(write_any("CommandStatementQuery", (1, sql.encode("utf-8", "replace"))))
        except (pa.ArrowException, flight.FlightError) as refusal:
            refused += 1
            message = str(refusal)
            assert not isinstance(refusal, flight.FlightInternalError), (sql, message)
            assert "[" in message and "Traceback" not in message and SECRET not in message, (sql, message)
        else:
            answered += 1
            assert SECRET not in str(found.slice(0, 100).to_pylist()), sql
    return answered, refused


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text(SECRET)
    return path


def test_mutated_statements_succeed_or_fail_in_one_line_without_reading_files(live_client, secret):
    answered, refused = send_mutants(live_client, str(secret), 400, 1)
    assert answered > 8 and refused > 100
    assert [path.name for path in secret.parent.iterdir()] == ["secret.csv"]
    assert live_client.get(write_any("CommandStatementQuery", (1, b"SELECT 1"))).num_rows == 1
