"""Trino and DuckDB read Delta and Parquet tables through the Iceberg REST catalog, by manifests that the server wrote:
rows of brute force for generated questions, and no file is opened that partitions or bounds leave out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.flight_server.faces.iceberg_rest import questions as generated
from tests.flight_server.live_server import serving
from tests.interop import duckdb_peer, trino_server
from tests.interop.duckdb_peer import DuckDBPeer
from tests.interop.questions import captured
from tests.interop.test_iceberg_rest import QUESTIONS, attached
from tests.interop.test_zoo_door import plain, statements
from tests.interop.trino_server import Trino

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
]

FORMATS: Final = ("delta", "parquet")
DISTINCT: Final = 2  # the number of distinct values in a row of SHOW STATS
EXTENSIONS: Final = ("httpfs", "avro", "iceberg")
TABLE: Final = 'door."{}.default".t'
SKIPPED: Final = {
    "partition": ("day = DATE '2026-01-03'", range(50, 60)),
    "partition and null": ("day IS NULL AND code IS NULL", range(40, 50)),
    "bounds": ("id BETWEEN 23 AND 25", range(23, 26)),
    "bounds of a decimal": ("price >= 14.5", (51,)),
    "bounds of an instant": ("moment = TIMESTAMP '2026-01-01 03:00:00'", None),
}
"""Why files are left out → a condition, and the ids of its rows; None where brute force has to find them."""


class Served(NamedTuple):
    pages: str
    root: Path

    def files(self, format: str) -> list[Path]:
        """The table's data files."""
        return sorted((self.root / format).rglob("*.parquet"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("lake")
    place = f"iceberg-manifests={tmp_path_factory.mktemp('manifests')}"
    with serving(tmp_path_factory.mktemp("door"), "--http-port", 0, "--workers", 1, "-o", place) as server:
        (pages,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        with server.connect() as client:
            client.timeout = 300.0
            captured(root, client)
        yield Served(pages, root)


@pytest.fixture(scope="module")
def trino(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    address = f"{served.pages}iceberg"
    with trino_server.running(tmp_path_factory.mktemp("trino"), 2, ("door",), address) as server:
        yield server


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory: pytest.TempPathFactory) -> DuckDBPeer:
    return duckdb_peer.installed(tmp_path_factory.mktemp("duckdb") / "peer", EXTENSIONS)


def asked() -> tuple[list[generated.Question], dict[str, Any]]:
    """Generated questions, and their answers by brute force."""
    rows = generated.whole(with_nan=False)
    questions = list(generated.questions(QUESTIONS, 1, rows))
    return questions, {generated.named(each): each.answer(rows, generated.Reader()) for each in questions}


@pytest.mark.parametrize("format", FORMATS)
def test_trino_answers_generated_questions(trino, format):
    questions, expected = asked()
    table = TABLE.format(format)
    answers = [trino.query(statement, "door.none").rows for statement in statements(questions, table)]
    assert generated.told(questions, [[plain(row) for row in answer] for answer in answers]) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_duckdb_answers_generated_questions(served, duckdb, format):
    questions, expected = asked()
    asking = generated.statements(questions, TABLE.format(format))
    _, *answers = duckdb.run(EXTENSIONS, attached(served.pages), *asking)
    assert generated.told(questions, answers) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_trino_knows_counts_bounds_and_the_rows_of_joins(trino, format):
    table, rows = TABLE.format(format), generated.whole(with_nan=False)
    stats = {name: values for name, *values in trino.query(f"SHOW STATS FOR {table}", "door.none").rows}
    assert stats[None][3] == len(rows)
    for name in generated.SCHEMA.names:
        known = [row[name] for row in rows if row[name] is not None]
        assert stats[name][DISTINCT - 1] == len(set(known)), name
        assert stats[name][2] == pytest.approx(1 - len(known) / len(rows)), name
    assert stats["id"][4:] == ["0", str(len(rows) - 1)]
    plan = trino.text(f"EXPLAIN SELECT * FROM {table} a JOIN {table} b ON a.word = b.word", "door.none")
    lines = iter(plan.splitlines())
    next(line for line in lines if "Join[" in line)
    assert re.search(r"rows: \d", next(line for line in lines if "Estimates" in line)), plan


@pytest.mark.parametrize("engine", ["trino", "duckdb"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("reason", SKIPPED)
def test_files_that_are_left_out_are_not_opened(served, request, engine, format, reason):
    """All files but those with a row are gone while the query runs."""
    where, ids = SKIPPED[reason]
    if ids is None:
        moment = generated.START.replace(hour=3)
        ids = [row["id"] for row in generated.whole(with_nan=False) if row["moment"] == moment]
    assert ids
    gone = [
        path for path in served.files(format) if not set(pq.ParquetFile(path).read(["id"])["id"].to_pylist()) & set(ids)
    ]
    assert len(gone) == len(generated.PARTS) - 1
    if engine == "duckdb" and reason == "partition":  # it opens files of partitions that are null, and finds no row
        gone = [path for path in gone if "day=__HIVE_DEFAULT_PARTITION__" not in str(path)]
    statement = f"SELECT id FROM {TABLE.format(format)} WHERE {where}"
    for path in gone:
        path.rename(path.with_suffix(".gone"))
    try:
        if engine == "trino":
            found: Sequence[Any] = request.getfixturevalue("trino").query(statement, "door.none").rows
        else:
            peer = request.getfixturevalue("duckdb")
            _, found = peer.run(EXTENSIONS, attached(served.pages), statement)
    finally:
        for path in gone:
            path.with_suffix(".gone").rename(path)
    assert sorted(id for (id,) in found) == sorted(ids)


def test_trino_deletes_nothing_of_a_lake(served, trino):
    """Not even what it takes for orphans: files that no manifest names, of any age."""
    for format in FORMATS:
        for folder in ("data", "metadata"):
            orphan = served.root / format / "t" / folder / "orphan.parquet"
            orphan.parent.mkdir()
            orphan.write_bytes(b"not of the table")
    before = {path: path.read_bytes() for path in served.root.rglob("*") if path.is_file()}
    for path in before:
        os.utime(path, (0, 0))
    for format in FORMATS:
        table = TABLE.format(format)
        for statement in (
            f"INSERT INTO {table} SELECT * FROM {table}",
            f"DELETE FROM {table} WHERE id = 5",
            f"ALTER TABLE {table} EXECUTE remove_orphan_files(retention_threshold => '7d')",
            f"ALTER TABLE {table} EXECUTE expire_snapshots(retention_threshold => '7d')",
            f"DROP TABLE {table}",
        ):
            try:
                trino.query(statement, "door.none")
            except RuntimeError as refusal:
                print(statement, "→", refusal)  # pytest -s
            else:
                print(statement, "→ done")
        assert trino.query(f"SELECT count(*) FROM {table}", "door.none").rows == [[60]]
    assert {path: path.read_bytes() for path in served.root.rglob("*") if path.is_file()} == before
