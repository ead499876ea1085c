"""Spark reads tables of every format that the Iceberg REST catalog serves, planned by the server: its rows are those of
brute force, and it opens no file that the plan leaves out. DuckDB reads those of Iceberg."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, DoubleType, LongType, NestedField, StringType, TimestampType

from tests.capture.connectors import iceberg_tables as built
from tests.flight_server.faces.iceberg_rest import questions
from tests.flight_server.live_server import serving
from tests.interop import spark
from tests.interop.duckdb_peer import installed
from tests.interop.java import jars

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"),
]

SPARK: Final = "4.1.4"
JAR: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
PARTS: Final = 6
CONDITIONS: Final = int(os.environ.get("STATFLIGHT_CONDITIONS", "20"))  # of each of four tables
QUESTIONS: Final = int(os.environ.get("STATFLIGHT_QUESTIONS", "200"))  # of each of three tables
AT_ONCE: Final = 25  # conditions in one statement
START: Final = datetime(2026, 1, 1)
WORDS: Final = ("", "a", "ab", "b", "é", "z" * 40)


def rows(part: int) -> pa.Table:
    """Ten rows of a part: ids in order, every other column in any order, with nulls. Without NaN and -0.0, which are
    other numbers to Iceberg's reader of Parquet than to Spark: it skips row groups that have them, whatever is planned.
    """
    rng = random.Random(part)
    ids = range(10 * part, 10 * part + 10)

    def some(values: Any) -> list[Any]:
        return [None if rng.random() < 0.2 else rng.choice(values) for _ in ids]

    near = [Decimal(10 * part + i) / 4 for i in range(10)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "price": pa.array(some(near), pa.decimal128(9, 2)),
            "ratio": pa.array(some([0.0, 0.5 * part, float(part)]), pa.float64()),
            "word": pa.array(some(WORDS[part % 3 : part % 3 + 3])),
            "day": pa.array([date(2026, 1, 1 + part % 3)] * 10),
            "moment": pa.array(
                some([START + timedelta(hours=part, microseconds=i) for i in range(3)]), pa.timestamp("us")
            ),
        }
    )


SCHEMA: Final = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "price", DecimalType(9, 2)),
    NestedField(3, "ratio", DoubleType()),
    NestedField(4, "word", StringType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "moment", TimestampType()),
)


@dataclass(frozen=True)
class Lake:
    """A table `t`: format and place of its catalog, schema, and the rows that readers see."""

    format: str
    uri: Path
    schema: str
    rows: pa.Table


def iceberg_deletes(root: Path) -> Lake:
    """Rows deleted by position and by equality; a column renamed and one added halfway."""
    days = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "day"))
    table = built.simple_table(root, SCHEMA, *map(rows, range(3)), partition_spec=days)
    with table.update_schema() as update:
        update.rename_column("ratio", "share")
    with table.update_schema() as update:
        update.add_column("note", StringType())
    whole = [rows(part).rename_columns({"ratio": "share"}) for part in range(PARTS)]
    whole = [
        part.append_column("note", pa.array([f"n{at}" if at > 2 else None] * len(part), pa.string()))
        for at, part in enumerate(whole)
    ]
    for part in whole[3:]:
        table.append(part)
    (path, partition), (_, other), *_ = built.data_paths(table)
    gone = [ids_of(path)[0], *ids_of(built.data_paths(table)[1][0])[:1]]
    built.commit_deletes(table, built.position_deletes(table, [(path, 0)], partition))
    built.commit_deletes(table, built.equality_deletes(table, {"id": gone[1:]}, other))
    return Lake("iceberg", root / "warehouse", "db", without(pa.concat_tables(whole), gone))


def ids_of(path: str) -> list[int]:
    found: list[int] = pq.read_table(path.removeprefix("file://"))["id"].to_pylist()
    return found


def without(live: pa.Table, ids: list[int]) -> pa.Table:
    return live.filter(pc.invert(pc.is_in(live["id"], pa.array(ids))))


def iceberg_vectors(root: Path) -> Lake:
    table = built.simple_table(root, SCHEMA, *map(rows, range(PARTS)))
    first, second, *_ = (path for path, _ in built.data_paths(table))
    built.commit_deletes(table, *built.deletion_vectors(table, {first: [1], second: [0, 9]}), format_version=3)
    gone = [ids_of(first)[1], ids_of(second)[0], ids_of(second)[9]]
    return Lake("iceberg", root / "warehouse", "db", without(pa.concat_tables(map(rows, range(PARTS))), gone))


def delta(root: Path) -> Lake:
    """Partitions of days; the last column came later."""
    from deltalake import write_deltalake

    parts = [rows(part) for part in range(PARTS)]
    for at, part in enumerate(parts):
        if at > 2:
            parts[at] = part.append_column("note", pa.array([f"n{at}"] * len(part)))
        write_deltalake(root / "t", parts[at], mode="append", partition_by=["day"], schema_mode="merge")
    return Lake("delta", root, "default", pa.concat_tables(parts, promote_options="default"))


def parquet(root: Path) -> Lake:
    """Partitions of days in directories, one of them null."""
    parts = []
    for at in range(PARTS):
        day = date(2026, 1, 1 + at) if at else None
        folder = root / f"t/day={day or '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir(parents=True)
        part = rows(at).drop_columns("day")
        pq.write_table(part, folder / f"{at}.parquet")
        parts.append(part.append_column("day", pa.array([day] * len(part), pa.date32())))
    return Lake("parquet", root, "default", pa.concat_tables(parts))


LAKES: Final = {
    "deletes": iceberg_deletes,
    "vectors": iceberg_vectors,
    "delta": delta,
    "files": parquet,
    "gap": parquet,
}


def conditions(live: pa.Table, seed: str) -> Iterator[str]:
    """Random conditions in SQL that DuckDB and Spark read alike, with literals near the values."""
    rng = random.Random(seed)

    def literal(column: str) -> str:
        value = rng.choice([value for value in live[column].to_pylist() if value is not None and value == value])
        if isinstance(value, float):
            return f"CAST({value} AS DOUBLE)"
        kind = {date: "DATE ", datetime: "TIMESTAMP "}.get(type(value), "")
        return str(value) if isinstance(value, int | Decimal) else f"{kind}'{value}'"

    def tree(depth: int) -> str:
        kind = rng.random()
        if depth < 2 and kind < 0.5:
            if kind < 0.1:
                return f"NOT ({tree(depth + 1)})"
            return f"({tree(depth + 1)} {rng.choice(('AND', 'OR'))} {tree(depth + 1)})"
        column = rng.choice(live.column_names)
        if kind > 0.92:
            return f"{column} IS {rng.choice(('', 'NOT '))}NULL"
        if kind > 0.84:
            return f"{column} IN ({', '.join(literal(column) for _ in range(3))})"
        return f"{column} {rng.choice(('=', '<>', '<', '<=', '>', '>='))} {literal(column)}"

    for _ in range(CONDITIONS):
        yield tree(0)


def asked(table: str, wheres: list[str]) -> list[str]:
    """Statements of the matching ids for each condition, with the number of the condition."""
    each = [f"SELECT {at} AS number, id FROM {table} WHERE {where}" for at, where in enumerate(wheres)]
    return [" UNION ALL ".join(each[start : start + AT_ONCE]) for start in range(0, len(each), AT_ONCE)]


def by_condition(answers: Iterable[list[Any]], wheres: list[str]) -> dict[str, list[int]]:
    """Condition → the ids that the statements of `asked` found, in order."""
    found: list[list[int]] = [[] for _ in wheres]
    for rows in answers:
        for at, id in rows:
            found[at].append(id)
    return {f"{at}: {where}": sorted(ids) for at, (where, ids) in enumerate(zip(wheres, found, strict=True))}


def by_brute_force(lake: Lake, wheres: list[str]) -> dict[str, list[int]]:
    with duckdb.connect() as database:
        database.register("live", lake.rows)
        return by_condition([database.execute(text).fetchall() for text in asked("live", wheres)], wheres)


def test_spark_reads_what_the_server_plans(tmp_path):
    lakes = {name: make(tmp_path / name) for name, make in LAKES.items()}
    wheres = {name: list(conditions(lake.rows, name)) for name, lake in lakes.items()}
    wheres["gap"] = ["id < 20 OR day = DATE '2026-01-05'"]
    expected = {name: by_brute_force(lake, wheres[name]) for name, lake in lakes.items()}
    (jar,) = (jar for jar in jars(tmp_path / "jars", [JAR]) if jar.name.startswith("iceberg-spark"))
    packages = spark.pyspark(tmp_path / "packages", SPARK)
    with (
        serving(tmp_path, "--http-port", 0, "--workers", 1, "--engine", "local") as server,
        server.connect() as client,
    ):
        client.timeout = 600.0
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        statements = {}
        for name, lake in lakes.items():
            client.act("register_connector", {"catalog": name, "format": lake.format, "uri": str(lake.uri)})
            client.act("discover", {"catalog": name})
            body = {"table": f"{name}.{lake.schema}.t", "target": {"kind": "TABLE"}}
            assert {o["outcome"] for o in client.act("capture", {"requests": [body]})} == {"CAPTURED"}
            statements[name] = asked(f"door.{name}.{lake.schema}.t", wheres[name])
        next(lakes["gap"].uri.glob("t/day=2026-01-03/*.parquet")).unlink()  # no reader can open it any more
        settings = spark_settings(jar, base)
        texts = [text for of_lake in statements.values() for text in of_lake]
        answers = iter(spark.run(packages, settings, texts, timeout_seconds=900 + 5 * CONDITIONS))
        used = client.read({"table": "sys.column_usage"})
    for name in lakes:
        assert by_condition([next(answers) for _ in statements[name]], wheres[name]) == expected[name], name
    assert list(expected["gap"].values()) == [[*range(20), *range(40, 50)]]
    assert {"id", "day"} <= set(used["column_name"].to_pylist())


def spark_settings(jar: Path, base: str) -> dict[str, str]:
    """Settings of a session with the server's catalog as `door`."""
    return {
        "spark.jars": str(jar),
        "spark.sql.catalog.door": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.door.type": "rest",
        "spark.sql.catalog.door.uri": f"{base}iceberg",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than these queries
    }


def attached(base: str) -> str:
    """DuckDB's statement that attaches the server's catalog as `door`."""
    return (
        f"ATTACH 'any' AS door (TYPE iceberg, ENDPOINT '{base}iceberg', AUTHORIZATION_TYPE 'none',"
        " ACCESS_DELEGATION_MODE 'none')"
    )


def test_the_same_questions_to_spark_and_duckdb(tmp_path):
    """Those that pyiceberg is asked in tests/integration/flight_server/test_iceberg_questions.py."""
    rows = questions.whole(with_nan=False)
    asked = list(questions.questions(QUESTIONS, 1, rows))
    expected = {questions.named(question): question.answer(rows, questions.Reader()) for question in asked}
    (jar,) = (jar for jar in jars(tmp_path / "jars", [JAR]) if jar.name.startswith("iceberg-spark"))
    packages, peer = spark.pyspark(tmp_path / "packages", SPARK), installed(tmp_path / "duckdb")
    with serving(tmp_path, "--http-port", 0, "--workers", 1) as server, server.connect() as client:
        client.timeout = 600.0
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        statements = {}
        for format, make in questions.FORMATS.items():
            uri, schema = make(tmp_path / format, with_nan=False)
            client.act("register_connector", {"catalog": format, "format": format, "uri": str(uri)})
            client.act("discover", {"catalog": format})
            statements[format] = questions.statements(asked, f"door.{format}.{schema}.t")
        texts = [text for of_format in statements.values() for text in of_format]
        settings = spark_settings(jar, base)
        answers = iter(spark.run(packages, settings, texts, timeout_seconds=900 + 5 * QUESTIONS))
        by_duckdb = questions.statements(asked, 'door."iceberg.db".t')
        _, *of_duckdb = peer.run(("httpfs", "avro", "iceberg"), attached(base), *by_duckdb)
    assert questions.told(asked, of_duckdb) == expected
    # Conditions on partitions alone Spark leaves to Iceberg, to which null is unequal to all values: of a table with
    # metadata of its own, in which a null is a value of the partition, such rows are Iceberg's.
    to_iceberg = questions.Reader(null_in=False, null_compares=False)
    unlike = {questions.named(q) for q in asked if q.answer(rows, to_iceberg) != expected[questions.named(q)]}
    assert len(unlike) < QUESTIONS / 2
    for format, texts in statements.items():
        found = questions.told(asked, [next(answers) for _ in texts])
        skipped = unlike if format == "iceberg" else set()
        assert {q: of for q, of in found.items() if q not in skipped} == {
            q: of for q, of in expected.items() if q not in skipped
        }, format


def test_duckdb_plans_iceberg_tables_by_itself(tmp_path):
    """Its extension reads the manifests that the catalog's metadata names."""
    peer = installed(tmp_path / "duckdb")
    lake = iceberg_deletes(tmp_path / "deletes")
    wheres = list(conditions(lake.rows, "duckdb"))
    with serving(tmp_path, "--http-port", 0, "--workers", 1) as server, server.connect() as client:
        client.timeout = 600.0
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        client.act("register_connector", {"catalog": "lake", "format": "iceberg", "uri": str(lake.uri)})
        client.act("discover", {"catalog": "lake"})
        _, *answers = peer.run(("httpfs", "avro", "iceberg"), attached(base), *asked('door."lake.db".t', wheres))
    assert by_condition(answers, wheres) == by_brute_force(lake, wheres)
