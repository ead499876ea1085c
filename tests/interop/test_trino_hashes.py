"""Hashes and HyperLogLogs of each type, compared with Trino's own Java classes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store.model.sketches.airlift_hll import HyperLogLog, hash_values
from tests.interop.java import jars, jvm

pytestmark = pytest.mark.interop

JARS = ("io.trino:trino-spi:470", "io.airlift:stats:322")
EPOCH = dt.datetime(1970, 1, 1)
INSTANTS = [EPOCH, dt.datetime(2026, 5, 1, 12, 30, 1, 999_999), dt.datetime(1931, 1, 1, 0, 0, 0, 1)]
WHOLE = [0, 1, -1, 127, -128]
REALS = [0.0, -0.0, 1.5, -1e30, float("nan"), float("inf"), float("-inf"), 1e-40]
WIDE = [Decimal(0), Decimal("-1.5"), Decimal(10) ** 25, -(Decimal(10) ** 25), Decimal("0.1")]


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    with jvm(jars(tmp_path_factory.mktemp("jars"), JARS)) as found:
        yield found


def hashes(java: Any, type: Any, values: list[Any]) -> list[int]:
    """Hashes by Trino's XX_HASH_64 operator of a type, of values in Trino's representation."""
    spi = java.io.trino.spi
    convention = spi.function.InvocationConvention
    arguments = java.java.util.ArrayList()
    arguments.add(convention.InvocationArgumentConvention.NEVER_NULL)
    returned = convention.InvocationReturnConvention.FAIL_ON_NULL
    shape = convention(arguments, returned, False, False)
    handle = spi.type.TypeOperators().getXxHash64Operator(type, shape)
    found = []
    for value in values:
        boxed = java.java.util.ArrayList()
        boxed.add(value)
        found.append(int(handle.invokeWithArguments(boxed)))
    return found


def micros(at: dt.datetime) -> int:
    return (at - EPOCH) // dt.timedelta(microseconds=1)


def int128(java: Any, value: Decimal) -> Any:
    number = int(value.scaleb(10))
    low = number & (2**64 - 1)
    return java.io.trino.spi.type.Int128.valueOf(number >> 64, low - 2**64 if low >= 2**63 else low)


def cases(java: Any) -> dict[str, tuple[str, pa.Array, Any, list[Any]]]:
    """Name of Trino's type → logical type, Arrow values, Trino's type, values in Trino's representation."""
    types = java.io.trino.spi.type
    packed = types.DateTimeEncoding.packDateTimeWithZone
    utc = types.TimeZoneKey.UTC_KEY
    slices = java.io.airlift.slice.Slices
    texts = ["", "a", "ünïcode", "x" * 31, "y" * 32, "z" * 100, "abcdefgh", "abcdefghijkl"]
    bits = np.array(REALS, np.float32).view(np.int32)
    days = [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 5, 1)]
    zoned = pa.array([at.replace(tzinfo=dt.UTC) for at in INSTANTS], pa.timestamp("us", "UTC"))
    return {
        "tinyint": ("INT", pa.array(WHOLE, pa.int8()), types.TinyintType.TINYINT, WHOLE),
        "smallint": ("INT", pa.array([*WHOLE, -32768], pa.int16()), types.SmallintType.SMALLINT, [*WHOLE, -32768]),
        "integer": ("INT", pa.array([*WHOLE, -(2**31)], pa.int32()), types.IntegerType.INTEGER, [*WHOLE, -(2**31)]),
        "bigint": (
            "INT",
            pa.array([*WHOLE, 2**62, -(2**63)], pa.int64()),
            types.BigintType.BIGINT,
            [*WHOLE, 2**62, -(2**63)],
        ),
        "boolean": ("BOOLEAN", pa.array([True, False]), types.BooleanType.BOOLEAN, [True, False]),
        "double": ("DOUBLE", pa.array(REALS, pa.float64()), types.DoubleType.DOUBLE, REALS),
        "real": ("FLOAT", pa.array(REALS, pa.float32()), types.RealType.REAL, bits.tolist()),
        "decimal(12,2)": (
            "DECIMAL(12,2)",
            pa.array([Decimal("1.25"), Decimal("-0.01")], pa.decimal128(12, 2)),
            types.DecimalType.createDecimalType(12, 2),
            [125, -1],
        ),
        "decimal(38,10)": (
            "DECIMAL(38,10)",
            pa.array(WIDE, pa.decimal128(38, 10)),
            types.DecimalType.createDecimalType(38, 10),
            [int128(java, value) for value in WIDE],
        ),
        "date": ("DATE", pa.array(days), types.DateType.DATE, [day.toordinal() - 719163 for day in days]),
        "timestamp(6)": (
            "TIMESTAMP",
            pa.array(INSTANTS, pa.timestamp("us")),
            types.TimestampType.TIMESTAMP_MICROS,
            [micros(at) for at in INSTANTS],
        ),
        "timestamp(3) with time zone": (
            "TIMESTAMPTZ",
            zoned,
            types.TimestampWithTimeZoneType.TIMESTAMP_TZ_MILLIS,
            [packed(micros(at) // 1000, utc) for at in INSTANTS],
        ),
        "varchar": ("STRING", pa.array(texts), types.VarcharType.VARCHAR, [slices.utf8Slice(text) for text in texts]),
        "varbinary": (
            "BINARY",
            pa.array([b"\x00", b"\xff" * 40]),
            types.VarbinaryType.VARBINARY,
            [slices.wrappedBuffer(data) for data in (b"\x00", b"\xff" * 40)],
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "tinyint",
        "smallint",
        "integer",
        "bigint",
        "boolean",
        "double",
        "real",
        "decimal(12,2)",
        "decimal(38,10)",
        "date",
        "timestamp(6)",
        "timestamp(3) with time zone",
        "varchar",
        "varbinary",
    ],
)
def test_hashes_equal_those_of_trino(java, name):
    logical_type, ours, type, theirs = cases(java)[name]
    found = hash_values(ours, logical_type).view(np.int64).tolist()
    assert sorted(found) == sorted(hashes(java, type, theirs))


def test_sketches_equal_those_of_airlift(java):
    values = pa.array(range(20_000), pa.int64())
    found = HyperLogLog()
    found.add(hash_values(values, "INT"))
    theirs = java.io.airlift.stats.cardinality.HyperLogLog.newInstance(4096)
    theirs.mergeWith(
        java.io.airlift.stats.cardinality.HyperLogLog.newInstance(
            java.io.airlift.slice.Slices.wrappedBuffer(found.serialize())
        )
    )
    assert theirs.cardinality() == pytest.approx(found.estimate(), rel=0.02)
    before = theirs.serialize().getBytes()
    for value in hash_values(values.slice(0, 300), "INT").view(np.int64).tolist():
        theirs.addHash(value)  # already in the sketch
    assert before == theirs.serialize().getBytes() == found.serialize()
