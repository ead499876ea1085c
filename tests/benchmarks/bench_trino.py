"""The value of published statistics to Trino: plans, estimates and cost of queries without and with them.

The tables of TPC-H or TPC-DS as Delta or Iceberg tables, or as Parquet tables in a Hive metastore, written without
Trino, three times: with the statistics of their writer alone; with those of `publish`; with those of Trino's own
ANALYZE. Of Iceberg tables by our REST catalog ("door") nothing is written: Trino reads the same files without and with
statistics. Of Delta tables by it ("delta_door") the server writes manifests to a place of its own, and Trino reads the
same files by its Delta connector and by its Iceberg connector. Each query runs on all three in turns, in the other
order every other time. The least processor time counts, which depends less on other load than run times do. Rows of
operators are those that EXPLAIN ANALYZE estimates and counts; the plan is that of EXPLAIN without numbers.

`python -m pytest tests/benchmarks/bench_trino.py -m benchmark -s`; needs mvn and Java 24. STATFLIGHT_BENCH_SUITE is
tpch or tpcds, STATFLIGHT_BENCH_SCALE makes it smaller (default 1), STATFLIGHT_BENCH_FORMAT is delta, iceberg, hive,
door or delta_door, STATFLIGHT_BENCH_QUERIES=1,2,3 runs some of the queries, STATFLIGHT_BENCH_DIR keeps the tables and
measurements, STATFLIGHT_TRINO the unpacked server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlglot
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from sqlglot import exp

from capture.connectors.spi import ConnectorConfig
from tests.benchmarks.bench_plans import (
    CHOSEN,
    INLINE,
    RUNS,
    SCALE,
    capture,
    capture_and_publish,
    lake_of,
    median_text,
    tpch_files,
)
from tests.benchmarks.tpch_queries import QUERIES
from tests.flight_server.live_server import serving
from tests.interop import duckdb_peer, metastore_server
from tests.interop.trino_server import Trino, running

pytestmark = pytest.mark.benchmark

SUITE = os.environ.get("STATFLIGHT_BENCH_SUITE", "tpch")
FORMAT = os.environ.get("STATFLIGHT_BENCH_FORMAT", "delta")
OF_DOORS = {"door": "iceberg", "delta_door": "delta"}  # the format of the tables behind the door
WRITTEN = OF_DOORS.get(FORMAT, FORMAT)
HOMES = {"delta": "trino", "iceberg": "iceberg", "hive": "hive"}
SIDES = ("without", "published", "analyzed")
DOOR = "lake.default"  # the schema that the catalog `door` has the tables in
HIVE_TYPES = {
    pa.string_view(): "varchar",
    pa.string(): "varchar",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.date32(): "date",
}
_ALIAS = re.compile(r"HAVING value\b")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_WORDS = {  # of DuckDB's text of TPC-DS that Trino does not know, by those that it does
    r"(\w+\.d_date) \+ (\d+)\b": r"\1 + INTERVAL '\2' DAY",
    r"grouping\(\w+\)\+grouping\(\w+\) = 0": "lochierarchy = 0",  # in ORDER BY, the name of the same sum
}
_NODE = re.compile(r"^[\s│├└─]*(\w+)\[")
_ESTIMATE = re.compile(r"Estimates: \{rows: ([\d?]+)")
_OUTPUT = re.compile(r"Output: (\d+) rows")


class Suite(NamedTuple):
    """A benchmark's tables as directories of Parquet files, and its queries by their numbers."""

    parquet: Path
    queries: Mapping[int, str]

    @property
    def tables(self) -> list[str]:
        return sorted(path.name for path in self.parquet.iterdir())


def tpch(folder: Path) -> Suite:
    return Suite(tpch_files(folder), {number: in_trino(sql) for number, sql in QUERIES.items()})


def in_trino(sql: str) -> str:
    """The query without the alias in HAVING, which Trino does not know."""
    return _ALIAS.sub("HAVING sum(ps_supplycost * ps_availqty)", sql)


def tpcds(folder: Path) -> Suite:
    """Tables and queries of DuckDB's extension."""
    lake, peer = folder / "lake", duckdb_peer.installed(folder / "duckdb", ("tpcds",))
    if not lake.exists():
        made, names = f"CALL dsdgen(sf = {SCALE})", "SELECT table_name FROM duckdb_tables() ORDER BY 1"
        *_, tables = peer.run(["tpcds"], "CALL dsdgen(sf = 0)", names)
        (folder / "made").mkdir(exist_ok=True)
        for (table,) in tables:
            (folder / "made" / table).mkdir(exist_ok=True)
        copies = [f"COPY {name} TO '{folder / 'made' / name / 'part.parquet'}' (FORMAT parquet)" for (name,) in tables]
        peer.run(["tpcds"], made, *copies)
        (folder / "made").rename(lake)
    (queries,) = peer.run(["tpcds"], "SELECT query_nr, query FROM tpcds_queries()")
    return Suite(lake, {n: in_dialect_of_trino(sql.strip(" ;\n")) for n, sql in queries})


def in_dialect_of_trino(sql: str) -> str:
    """A query of DuckDB, which takes text for a date where it is compared with one."""
    for pattern, known in _WORDS.items():
        sql = re.sub(pattern, known, sql)
    query = sqlglot.parse_one(sql, dialect="duckdb")
    for literal in list(query.find_all(exp.Literal)):
        if literal.is_string and _DATE.fullmatch(literal.this) and not isinstance(literal.parent, exp.Cast):
            literal.replace(exp.cast(literal.copy(), "date"))
    return query.sql("trino")


SUITES = {"tpch": tpch, "tpcds": tpcds}


def test_queries(tmp_path):
    shared = Path(os.environ.get("STATFLIGHT_BENCH_DIR") or tmp_path) / SUITE
    folder = shared / FORMAT
    folder.mkdir(parents=True, exist_ok=True)
    suite = SUITES[SUITE](shared)
    results = folder / "trino.json"
    found = {int(n): sides for n, sides in json.loads(results.read_text()).items()} if results.exists() else {}
    refused = {}
    with lake(suite, folder) as trino:
        for number in CHOSEN or suite.queries:
            if number not in found:
                try:
                    found[number] = measure(trino, suite.queries[number])
                except RuntimeError as error:
                    refused[number] = str(error).splitlines()[0]
                results.write_text(json.dumps(found))
    report(dict(sorted(found.items())))
    print("refused by Trino:", refused or "none")


@contextmanager
def lake(suite: Suite, folder: Path) -> Iterator[Trino]:
    """Trino with the tables of all sides, published and analyzed.

    Args:
        suite: The tables.
        folder: Directory of what is made of them, for one format.
    """
    with ExitStack() as stack:
        uri, catalogs, sides = None, [FORMAT], list(SIDES)
        if FORMAT == "hive":
            uri = stack.enter_context(metastore_server.running(folder / "metastore"))
        elif FORMAT in OF_DOORS:
            if not (folder / "written").exists():
                write_sides(suite, folder / "written")
            uri = stack.enter_context(door(suite, folder))
            catalogs, sides = [WRITTEN, "door"], [SIDES[0], SIDES[2]]
        elif not (folder / "written").exists():
            write_sides(suite, folder / "written")
            publish_side(suite, folder, lake_of(folder / "written" / SIDES[1], FORMAT), {})
        trino = stack.enter_context(running(folder / "server", 4, catalogs, uri))
        for side in sides:
            trino.query(f"CREATE SCHEMA IF NOT EXISTS {catalogs[0]}.{side}")
            for table in suite.tables:
                if FORMAT != "hive":
                    location, call = (folder / "written" / side / table).as_uri(), f"CALL {catalogs[0]}.system"
                    trino.query(f"{call}.unregister_table('{side}', '{table}')", ignoring="not found")
                    trino.query(f"{call}.register_table('{side}', '{table}', '{location}')")
                else:
                    schema = pq.ParquetDataset(suite.parquet / table).schema
                    columns = ", ".join(f"{field.name} {hive_type(field.type)}" for field in schema)
                    external = f"external_location = '{(suite.parquet / table).as_uri()}', format = 'PARQUET'"
                    trino.query(f"CREATE TABLE hive.{side}.{table} ({columns}) WITH ({external})")
        if FORMAT == "hive":
            assert uri is not None
            publish_side(suite, folder, lake_of(suite.parquet), {"uri": uri, "database": SIDES[1]})
        started = time.monotonic()
        answers = [trino.query(f"ANALYZE {place_of(SIDES[2])}.{table}") for table in suite.tables]
        print(f"ANALYZE: {time.monotonic() - started:.1f} s (processors {sum(a.cpu for a in answers):.1f} s)")
        yield trino


@contextmanager
def door(suite: Suite, folder: Path) -> Iterator[str]:
    """The address of our Iceberg REST catalog, of the tables of the side without statistics, captured."""
    place = ("-o", f"iceberg-manifests={folder / 'manifests'}")
    with serving(folder, "--workers", 1, "--http-port", 0, *place, env=INLINE) as server, server.connect() as client:
        (pages,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())[-1:]
        taken = capture(server, client, lake_of(folder / "written" / SIDES[0], WRITTEN), suite.tables, False)
        print(f"\n{SUITE}, door, scale {SCALE}: capture {taken}")
        yield f"{pages}iceberg"


def place_of(side: str) -> str:
    """Catalog and schema of the tables of a side."""
    if FORMAT in OF_DOORS:
        return f"door.{DOOR}" if side == SIDES[1] else f"{WRITTEN}.{side}"
    return f"{FORMAT}.{side}"


def hive_type(type: pa.DataType) -> str:
    return HIVE_TYPES.get(type) or f"decimal({type.precision}, {type.scale})"


def write_sides(suite: Suite, written: Path) -> None:
    """Writes the tables of each side without statistics other than those every writer leaves."""
    for table in suite.tables:
        rows = pq.ParquetDataset(suite.parquet / table).read()
        columns = [
            column.cast(pa.string()) if pa.types.is_string_view(column.type) else column for column in rows.columns
        ]
        plain = pa.table(columns, rows.column_names)
        if WRITTEN == "delta":
            write_deltalake(written / SIDES[0] / table, plain, target_file_size=32 << 20)
            continue
        for side in SIDES if FORMAT == "iceberg" else (SIDES[0], SIDES[2]):  # their metadata has absolute paths
            (written / side).mkdir(parents=True, exist_ok=True)
            place = written / side / table
            catalog = SqlCatalog("c", uri=f"sqlite:///{written}/{side}.db", warehouse=str(written / side))
            catalog.create_namespace_if_not_exists("n")
            catalog.create_table(f"n.{table}", plain.schema, location=place.as_uri()).append(plain)
            catalog.close()
    if WRITTEN == "delta":
        for side in SIDES[1:]:
            shutil.copytree(written / SIDES[0], written / side, copy_function=os.link)


def publish_side(suite: Suite, folder: Path, lake: ConnectorConfig, options: dict[str, str]) -> None:
    captured, published = capture_and_publish(None, folder, lake, suite.tables, HOMES[FORMAT], False, options)
    print(f"\n{SUITE}, {FORMAT}, scale {SCALE}: capture {captured}, publish {published}")


def measure(trino: Trino, sql: str) -> dict[str, Any]:
    """By side: the plan, the rows of its joins and filters, and the least costs of the runs."""
    found: dict[str, Any] = {}
    for side in SIDES:
        plan = trino.text(f"EXPLAIN (TYPE LOGICAL) {sql}", place_of(side))
        analyzed = trino.text(f"EXPLAIN ANALYZE {sql}", place_of(side))
        found[side] = {"plan": plan_of(plan), "joins": joins_of(plan), "rows": rows_of(analyzed)}
    for number in range(RUNS):
        for side in SIDES[:: -1 if number % 2 else 1]:
            answer = trino.query(sql, place_of(side))
            costs = {"cpu": answer.cpu, "wall": answer.wall, "peak": answer.peak}
            best = found[side].setdefault("best", costs)
            found[side]["best"] = {name: min(best[name], cost) for name, cost in costs.items()}
            found[side].setdefault("answer", sorted(map(str, answer.rows)))
    answers = [found[side].pop("answer") for side in SIDES]
    assert [len(answer) for answer in answers] == [len(answers[0])] * len(SIDES)
    return found


def plan_of(text: str) -> str:
    """A plan without what differs from side to side though the operators are the same."""
    lines = [line for line in text.splitlines() if not re.search(r"Estimates:|Trino version|Layout:|Queued:", line)]
    plain = re.sub(r"_\d+\b|schemaName\w*|\$data@\d+|dynamicFilter\w* = \{[^}]*\}|df_\d+", "", "\n".join(lines))
    names = "|".join([*SIDES, re.escape(DOOR)])
    return re.sub(rf"\b(delta|iceberg|hive|door):|\b({names})\b[.:]?", "", plain)


def joins_of(text: str) -> list[str]:
    """Joins in the order of the plan with their distribution, and the tables below them."""
    shown = []
    for line in text.splitlines():
        if found := re.search(r"(\w*Join)\[.*?(?:distribution = (\w+))?\]", line):
            shown.append(f"{found[1]} {found[2] or ''}".strip())
        elif found := re.search(r"table = \w+:(?:\w+[.:])+(\w+)", line):
            shown.append(found[1])
    return shown


def rows_of(text: str) -> list[tuple[str, int | None, int]]:
    """Operator, estimated and counted rows of each join and filter of an analyzed plan."""
    found, kind, estimate = [], "", None
    for line in text.splitlines():
        if node := _NODE.search(line):
            kind, estimate = node[1], None
        if rows := _ESTIMATE.search(line):
            estimate = None if rows[1] == "?" else int(rows[1])
        if (output := _OUTPUT.search(line)) and kind:
            if "Join" in kind or "Filter" in kind:
                found.append((kind, estimate, int(output[1])))
            kind = ""
    return found


def q_errors(rows: list[Any], word: str) -> tuple[list[float], int]:
    """The q-errors of operators whose kind has a word, and the number of those without an estimate."""
    of_kind = [(estimate, true) for kind, estimate, true in rows if word in kind]
    known = [(max(estimate, 1), max(true, 1)) for estimate, true in of_kind if estimate is not None]
    return [max(e / t, t / e) for e, t in known], len(of_kind) - len(known)


def report(found: dict[int, Any]) -> None:
    print(
        f"\n{SUITE} on Trino, {FORMAT}, scale {SCALE}, the least of {RUNS} runs\n\n| query | without | published"
        " | ANALYZE | less by | memory, without | published | plan |\n|" + "---|" * 8
    )
    best = {number: {side: sides[side]["best"] for side in SIDES} for number, sides in found.items()}
    plans = {number: [sides[side]["plan"] for side in SIDES] for number, sides in found.items()}
    changed = {number for number, (first, ours, _) in plans.items() if first != ours}
    for number in found:
        costs = best[number]
        shown = [f"{costs[side]['cpu']:.2f} s" for side in SIDES]
        shown.append(f"{costs['without']['cpu'] / costs['published']['cpu']:.2f} ×")
        shown += [f"{costs[side]['peak'] / 2**20:.0f} MB" for side in SIDES[:2]]
        print(f"| {number} | {' | '.join(shown)} | {'changed' if number in changed else 'same'} |")
    print("another plan after ANALYZE than published:", [n for n, (_, ours, theirs) in plans.items() if ours != theirs])
    for unit in ("cpu", "wall", "peak"):
        for other in ("without", "analyzed"):
            gains = {n: costs[other][unit] / max(costs["published"][unit], 1e-3) for n, costs in best.items()}
            of_changed = [gains[n] for n in changed] or [1.0]
            print(
                f"{unit}: {other} takes {statistics.geometric_mean(gains.values()):.2f} × of published, in the"
                f" {len(changed)} queries with another plan {statistics.geometric_mean(of_changed):.2f} ×; sums"
                f" {sum(c[other][unit] for c in best.values()):.1f}"
                f" to {sum(c['published'][unit] for c in best.values()):.1f}"
            )
    for side in SIDES:
        for word in ("Join", "Filter"):
            parts = [q_errors(sides[side]["rows"], word) for sides in found.values()]
            errors, unknown = [error for known, _ in parts for error in known], sum(missing for _, missing in parts)
            print(
                f"{side}: {word}s {len(errors) + unknown}, without an estimate {unknown}, off by"
                f" {median_text(errors)} (median), {max(errors, default=0):,.0f} at most"
            )
    for number in sorted(changed):
        for side in SIDES:
            print(f"{number} {side}: {', '.join(found[number][side]['joins'])}")
