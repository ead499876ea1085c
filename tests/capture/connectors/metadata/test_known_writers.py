"""Known writers: the types that the declaration names are those whose bounds hold, by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import datafusion
import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.footers.writers import Writer
from capture.connectors.metadata import known_writers
from capture.connectors.metadata.known_writers import (
    DELTA,
    ENGINE_INFO,
    ICEBERG,
    ICEBERG_VERSION,
    PARQUET,
    WriterName,
    bound_type,
    doubt,
)
from store.model.logical_types import Kind
from tests.capture.connectors.parquet.written_files import claims_of, random_table

SEEDS = 25
GUIDE = Path(__file__).parents[4] / "flight_server/guides/skip_files.md"


def by_arrow(table: pa.Table, path: Path, rng: random.Random) -> None:
    pq.write_table(
        table,
        path,
        row_group_size=rng.choice((50, 1000)),
        data_page_size=rng.choice((64, 1 << 20)),
        use_dictionary=rng.random() < 0.5,
        store_decimal_as_integer=rng.random() < 0.5,
        data_page_version=rng.choice(("1.0", "2.0")),
    )


def by_polars(table: pa.Table, path: Path, rng: random.Random) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=rng.choice((50, 1000)), data_page_size=rng.choice((64, 1 << 20)))


def by_duckdb(table: pa.Table, path: Path, rng: random.Random) -> None:
    with duckdb.connect() as connection:
        connection.register("given", table)
        size = rng.choice((2048, 122_880))
        connection.execute(f"COPY given TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {size})")


def by_delta_rs(table: pa.Table, path: Path, rng: random.Random) -> None:
    folder = path.with_suffix(".delta")
    deltalake.write_deltalake(str(folder), table)
    (file,) = folder.glob("*.parquet")
    path.write_bytes(file.read_bytes())


def by_datafusion(table: pa.Table, path: Path, rng: random.Random) -> None:
    folder = path.with_suffix(".files")
    datafusion.SessionContext().from_arrow(table).write_parquet(str(folder))
    (file,) = [folder] if folder.is_file() else folder.glob("*.parquet")
    path.write_bytes(file.read_bytes())


OF_DELTA = frozenset({"half", "uuid", "uint8", "uint16", "uint32", "uint64", "time_us", "time_ns", "time_ms"})
WRITERS: dict[str, tuple[Callable[[pa.Table, Path, random.Random], None], frozenset[str]]] = {
    "parquet-cpp-arrow": (by_arrow, frozenset()),
    "polars": (by_polars, frozenset({"half", "uuid", "three"})),
    "duckdb": (by_duckdb, frozenset({"half"})),
    "delta-rs": (by_delta_rs, OF_DELTA | {"ts_ns", "tz_ns"}),
    "datafusion": (by_datafusion, frozenset({"uuid"})),
}
"""Name of a writer → how it writes, and the columns of `random_table` that it lacks."""
SAME_LIBRARY = {"delta-rs": "datafusion"}  # the types that one of them lacks are shown by the other
UNLIKE = {"duckdb": {"BINARY in FIXED_LEN_BYTE_ARRAY"}, "polars": {"BINARY in FIXED_LEN_BYTE_ARRAY"}}
"""Types that the writer stores otherwise: a declaration of them says nothing."""


def shown_types(name: str, folder: Path, seeds: range) -> set[str]:
    """The types of which a writer's bounds hold in random files; fails for bounds without a doubt that do not."""
    write, lacks = WRITERS[name]
    shown: set[str] = set()
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        path = folder / f"{name}{seed}.parquet"
        write(random_table(rng, rng.choice((3, 40, 600)), lacks), path, rng)
        for claim in claims_of(path):
            assert claim.leaf.writer.name == name
            assert claim.leaf.doubt == "" or claim.leaf.bound_type not in types_of(name)
            assert not claim.wrong, f"seed {seed}: {claim.leaf.name}: {claim.wrong}"
            if claim.of == "bounds":
                shown.add(claim.leaf.bound_type)
    return shown


def types_of(name: str) -> set[str]:
    return {type for known in PARQUET if known.name == name for type in known.types}


@pytest.mark.parametrize("name", WRITERS)
def test_declared_types_of_installed_writers_are_right(name, tmp_path):
    shown = shown_types(name, tmp_path, range(SEEDS))
    if other := SAME_LIBRARY.get(name):
        shown |= shown_types(other, tmp_path, range(SEEDS))
    assert types_of(name) - UNLIKE.get(name, set()) == shown


@pytest.mark.parametrize("name", WRITERS)
def test_a_version_that_was_not_shown_is_not_known(name):
    newest = max((known for known in PARQUET if known.name == name), key=lambda known: known.until)
    if newest.until:
        version = ".".join(map(str, newest.until))
        assert (
            Writer.of(f"{name} version {version}", {}).doubt("INT") == f"writer {name} {version} is not known for INT"
        )


@pytest.mark.parametrize(
    ("created_by", "type", "expected"),
    [
        ("Polars", "INT", ""),
        ("Polars", "DECIMAL in FIXED_LEN_BYTE_ARRAY", "writer Polars is not known for DECIMAL in FIXED_LEN_BYTE_ARRAY"),
        ("DuckDB version v1.2.2 (build 7c03)", "STRING", ""),
        ("delta-rs version py-1.6.6", "STRING", ""),
        ("parquet-mr version 1.12.3-databricks-0002 (build a69)", "STRING", ""),
        ("parquet-mr version 1.8.2 (build c65)", "INT", ""),
        ("parquet-mr version 1.8.2 (build c65)", "STRING", "writer parquet-mr 1.8.2 is not known for STRING"),
        (
            "parquet-mr compatible Photon version 0.2",
            "INT",
            "writer parquet-mr compatible Photon 0.2 is not known for INT",
        ),
        ("parquet-mr", "INT", "writer parquet-mr is not known for INT"),
        ("acme version 1.0", "INT", "writer acme 1.0 is not known for INT"),
        ("", "INT", "writer (not named) is not known for INT"),
        (None, "INT", "writer (not named) is not known for INT"),
    ],
)
def test_a_footer_names_its_writer(created_by, type, expected):
    assert Writer.of(created_by, {}).doubt(type) == expected


def test_logs_and_manifests_name_their_writers():
    spark = WriterName.of("Apache-Spark/4.1.4 Delta-Lake/4.4.0", ENGINE_INFO)
    assert (spark.name, spark.version, doubt(DELTA, spark, "INT")) == ("apache-spark", (4, 1, 4), "")
    assert doubt(DELTA, WriterName.of("delta-rs:py-1.1.0", ENGINE_INFO), "DECIMAL") == ""
    assert doubt(DELTA, WriterName.of("Databricks-Runtime/17.0.x-photon", ENGINE_INFO), "INT") == ""
    other = WriterName.of("ACME/1.0", ENGINE_INFO)
    assert doubt(DELTA, other, "INT") == "writer ACME 1.0 is not known for INT"
    java = WriterName.of("Apache Iceberg 1.8.1 (commit 9ce0)", ICEBERG_VERSION)
    assert (java.version, doubt(ICEBERG, java, "UUID")) == ((1, 8, 1), "")


@pytest.mark.parametrize("pattern", ["*", "acme", "ACME*", "acme 1.*", "acme version 1.0"])
def test_trusted_patterns_are_known(pattern):
    acme = Writer.of("Acme version 1.0", {})
    assert acme.doubt("INT")
    known_writers.trust([pattern])
    try:
        assert acme.doubt("INT") == ""
        assert pattern == "*" or Writer.of("other version 1.0", {}).doubt("INT")
    finally:
        known_writers.trust([])
    assert acme.doubt("INT")


def test_types_differ_where_writers_do():
    assert bound_type(Kind.DECIMAL, "INT64") == "DECIMAL in INT64"
    assert bound_type(Kind.INT, "INT32", unsigned=True) == "INT unsigned"
    assert bound_type(Kind.STRING, "BYTE_ARRAY") == "STRING"


def test_the_guide_has_the_declaration():
    assert known_writers.table() in GUIDE.read_text("utf-8")
