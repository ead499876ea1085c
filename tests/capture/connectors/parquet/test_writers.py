"""Files of writers known to be wrong: no bound excludes a value as today's readers see it."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute import kernels
from capture.compute.readers import tasks
from capture.connectors.footers.reader import LeafStats, read_footer
from capture.connectors.footers.writers import GREGORIAN_DAY, Writer, rebased_days
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.storage.places import open_place
from store.model import logical_types, sketches

SPARK = {b"org.apache.spark.version": b"3.5.0", b"org.apache.spark.timeZone": b"UTC"}
LEGACY = SPARK | {b"org.apache.spark.legacyDateTime": b"", b"org.apache.spark.legacyINT96": b""}
OLD_SPARK, NEW_SPARK = {b"org.apache.spark.version": b"2.4.8"}, {b"org.apache.spark.version": b"4.1.0-SNAPSHOT"}


def write(path: Path, values: pa.Array, created_by: bytes = b"", metadata: dict[bytes, bytes] | None = None, **how):
    rows = pa.table({"v": values}).replace_schema_metadata(metadata or {})
    pq.write_table(rows, path, **how)
    if created_by:
        data = path.read_bytes()
        own = pq.read_metadata(path).created_by.encode()
        assert data.count(own) == 1 and len(created_by) <= len(own)
        path.write_bytes(data.replace(own, created_by.ljust(len(own))))  # as long, so that no offset changes
    return path


def bounds_of(path: Path) -> LeafStats:
    (statistics,) = read_footer(open_place(str(path), {})).rolled_up()
    assert statistics is not None
    return statistics


def scanned(path: Path, lt: str):
    column = ScanColumn(1, "v", lt, "v")
    reader = tasks.open_task(ScanTask("parquet", "f", str(path), pq.read_metadata(path).num_rows, 1, (column,), "v"))
    (found,) = reader.columns([column])
    reader.close()
    return found.error or kernels.summarise(found.values, logical_types.parse(lt))


@pytest.mark.parametrize(
    ("created_by", "trusted"),
    [
        (b"parquet-cpp version 1.5.1", False),
        (b"parquet-cpp-arrow version 3.0.0", False),
        (b"parquet-rs version 9.1.0", False),
        (b"parquet-mr version 1.7.0", False),
        (b"parquet-cpp-arrow version 4.0.0", True),
        (b"parquet-mr version 1.13.1", True),
    ],
)
def test_decimals_of_old_writers_have_no_bounds(tmp_path, created_by, trusted):
    values = pa.array([Decimal("-1.00"), Decimal("200.00")], pa.decimal128(30, 2))
    found = bounds_of(write(tmp_path / "f", values, created_by))
    assert (found.lower, found.upper) == ((Decimal("-1.00"), Decimal("200.00")) if trusted else (None, None))
    assert found.null_count == 0


@pytest.mark.parametrize(
    ("created_by", "type_", "trusted"),
    [
        (b"parquet-cpp version 1.2.0", pa.string(), False),
        (b"parquet-cpp version 1.2.0", pa.uint32(), False),
        (b"parquet-cpp version 1.2.0", pa.int32(), True),
        (b"parquet-cpp version 1.5.0", pa.string(), True),
        (b"parquet-mr version 1.6.0", pa.string(), False),
        (b"parquet-mr version 1.6.0", pa.int64(), True),
    ],
)
def test_types_that_old_writers_compared_wrongly_have_no_bounds(tmp_path, created_by, type_, trusted):
    found = bounds_of(write(tmp_path / "f", pa.array([1, 2]).cast(type_), created_by))
    assert (found.lower is not None, found.upper is not None) == (trusted, trusted)


@given(st.lists(st.integers(-800_000, 100_000), min_size=1, max_size=50))
def test_rebased_days_keep_their_year_month_and_day(days):
    """Against the two calendars by Julian day numbers."""

    def label(day: int) -> tuple[int, int, int]:
        since = day + 2_440_588 + 32_082
        years = (4 * since + 3) // 1461
        rest = since - 1461 * years // 4
        month = (5 * rest + 2) // 153
        return years - 4800 + month // 10, month + 3 - 12 * (month // 10), rest - (153 * month + 2) // 5 + 1

    def gregorian(year: int, month: int, day: int) -> int:
        ahead = (14 - month) // 12
        years, months = year + 4800 - ahead, month + 12 * ahead - 3
        number = day + (153 * months + 2) // 5 + 365 * years + years // 4 - years // 100 + years // 400
        return number - 32_045 - 2_440_588

    expected = [day if day >= GREGORIAN_DAY else gregorian(*label(day)) for day in days]
    assert rebased_days(np.array(days, np.int64)).tolist() == expected


def test_dates_of_sparks_legacy_calendar_are_rebased_and_have_no_bounds_in_the_footer(tmp_path):
    """Spark reads what looks like 1000-01-01 as 0999-12-27."""
    stored = pa.array([date(1000, 1, 1), date(2026, 1, 1), None])
    legacy = write(tmp_path / "legacy", stored, metadata=LEGACY)
    assert bounds_of(legacy).lower is None
    part = scanned(legacy, "DATE")
    assert (part.min, part.max, part.null_count) == ("0999-12-27", "2026-01-01", 1)
    corrected = write(tmp_path / "corrected", stored, metadata=SPARK)
    assert scanned(corrected, "DATE").min == "1000-01-01"
    assert bounds_of(corrected).lower is not None
    recent = write(tmp_path / "recent", stored[1:], metadata=LEGACY)
    assert bounds_of(recent).lower is not None and scanned(recent, "DATE").min == "2026-01-01"


@pytest.mark.parametrize("int96", [False, True])
def test_timestamps_of_sparks_legacy_calendar_need_their_zone(tmp_path, int96):
    old = pa.array([datetime(1000, 1, 1, 12), datetime(2026, 1, 1)], pa.timestamp("us", None if int96 else "UTC"))
    how = {"use_deprecated_int96_timestamps": int96}
    kind, zone = ("TIMESTAMP", "") if int96 else ("TIMESTAMPTZ", "Z")
    path = write(tmp_path / "utc", old, metadata=LEGACY, **how)
    assert bounds_of(path).lower is None
    assert scanned(path, kind).min == f"0999-12-27T12:00:00{zone}"
    path = write(tmp_path / "zone", old, metadata=LEGACY | {b"org.apache.spark.timeZone": b"Europe/Paris"}, **how)
    assert "timestamps before 1900 in Spark's legacy calendar, of the zone Europe/Paris" in scanned(path, kind)
    newer = write(tmp_path / "newer", old[1:], metadata=LEGACY, **how)
    assert scanned(newer, kind).min == f"2026-01-01T00:00:00{zone}"


@pytest.mark.parametrize("zone", [b"UTC", b"Europe/Paris"])
def test_local_timestamps_have_no_legacy_calendar(tmp_path, zone):
    """Spark rebases a TIMESTAMP, never a TIMESTAMP_NTZ, whatever the mode of the file."""
    old = pa.array([datetime(1000, 1, 1, 12), datetime(2026, 1, 1)], pa.timestamp("us"))
    path = write(tmp_path / "ntz", old, metadata=LEGACY | {b"org.apache.spark.timeZone": zone})
    assert scanned(path, "TIMESTAMP").min == "1000-01-01T12:00:00"
    assert bounds_of(path).lower_exact


@pytest.mark.parametrize(
    ("metadata", "legacy", "int96"),
    [
        ({}, False, False),
        (SPARK, False, False),
        (LEGACY, True, True),
        (OLD_SPARK, True, True),
        ({b"org.apache.spark.version": b"3.0.1"}, False, True),
        (NEW_SPARK, False, False),
    ],
)
def test_calendar_of_a_spark_file_is_known_by_its_metadata(metadata, legacy, int96):
    writer = Writer.of("parquet-mr version 1.13.1 (build db4183109d5b734ec5930d870cdae161e408ddba)", metadata)
    assert (writer.legacy, writer.legacy_int96, writer.is_spark) == (legacy, int96, bool(metadata))


def test_nanoseconds_of_int96_timestamps_are_counted_and_rounded_outwards(tmp_path):
    """Two values within a microsecond; read as microseconds they are one, and above their maximum."""
    ticks = [1_700_000_000_123_456_100, 1_700_000_000_123_456_900, None]
    path = write(tmp_path / "f", pa.array(ticks, pa.timestamp("ns")), use_deprecated_int96_timestamps=True)
    part = scanned(path, "TIMESTAMP")
    assert (part.min, part.max) == ("2023-11-14T22:13:20.123456", "2023-11-14T22:13:20.123457")
    assert (part.min_is_exact, part.max_is_exact, part.null_count) == (False, False, 1)
    assert sketches.estimate(part.theta)[0] == 2


def test_int96_timestamps_far_away_are_read_without_overflow(tmp_path):
    far = pa.array([datetime(9999, 12, 30), datetime(2020, 1, 1)], pa.timestamp("us"))
    path = write(tmp_path / "f", far, use_deprecated_int96_timestamps=True)
    part = scanned(path, "TIMESTAMP")
    assert (part.min, part.max, part.max_is_exact) == ("2020-01-01T00:00:00", "9999-12-30T00:00:00", True)
