"""The declared types of parquet-java hold in files that Spark writes, by brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from capture.connectors.metadata.known_writers import PARQUET
from capture.spark.session import Spark
from tests.capture.connectors.parquet.written_files import TYPES, claims_of, random_table

pytestmark = pytest.mark.spark

FILES = 12
LACKS = frozenset({"half", "uuid", "three", "time_us", "time_ns", "time_ms", "ts_ns", "tz_ns", "ts_ms"})
NOT_WRITTEN = {"UUID in FIXED_LEN_BYTE_ARRAY"}
"""Types that Spark does not write: they hold in files of the test lakes."""
SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    holder = Spark("local[2]", settings=SETTINGS)
    yield holder
    holder.stop()


def test_declared_types_of_parquet_java_are_right(spark, tmp_path):
    for seed in range(FILES):
        rng = random.Random(f"parquet-mr {seed}")
        pq.write_table(random_table(rng, rng.choice((3, 40, 2000)), LACKS), tmp_path / f"given{seed}.parquet")

    def write(session: Any) -> None:
        for seed in range(FILES):
            small = {"parquet.block.size": "4096", "parquet.page.size": "64"} if seed % 2 else {}
            given = session.read.parquet(str(tmp_path / f"given{seed}.parquet"))
            given.coalesce(1).write.options(**small).parquet(str(tmp_path / f"written{seed}"))

    spark.call(write)
    shown: set[str] = set()
    for path in sorted(Path(tmp_path).glob("written*/*.parquet")):
        for claim in claims_of(path):
            assert claim.leaf.writer.name == "parquet-mr" and claim.leaf.doubt == ""
            assert not claim.wrong, f"{path}: {claim.leaf.name}: {claim.wrong}"
            if claim.of == "bounds":
                shown.add(claim.leaf.bound_type)
    declared = {type for known in PARQUET if known.name == "parquet-mr" for type in known.types}
    assert shown == declared - NOT_WRITTEN
    assert set(TYPES) > LACKS
