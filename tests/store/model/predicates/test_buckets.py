"""Buckets of literals: those of pyiceberg's transform, and the condition on a file's partition."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    TimestampType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from store.model.logical_types import parse
from store.model.predicates import buckets
from store.model.predicates.buckets import Bucket
from store.model.predicates.file_counts import COLUMNS, UNKNOWN, ColumnCounts, FileDecisions
from store.model.predicates.plain_conditions import AnyOf, Column, Comparison
from store.model.predicates.tree import Op
from tests.store.model.bounds.forms import text_of

COUNT = 97
VALUES = {
    "INT": (LongType(), st.integers(-(1 << 63), (1 << 63) - 1), lambda value: value),
    "DATE": (DateType(), st.dates(), date_to_days),
    "TIME": (TimeType(), st.times(), time_to_micros),
    "TIMESTAMP": (TimestampType(), st.datetimes(), datetime_to_micros),
    "DECIMAL(38,10)": (DecimalType(38, 10), st.decimals(-(10**27), 10**27, places=10), lambda value: value),
    "STRING": (StringType(), st.text(), lambda value: value),
    "BINARY": (BinaryType(), st.binary(), lambda value: value),
    "UUID": (UUIDType(), st.uuids(), lambda value: value),
}


@pytest.mark.parametrize("type", VALUES)
@given(data=st.data())
def test_buckets_are_those_of_pyiceberg(type, data):
    source, values, stored = VALUES[type]
    value = data.draw(values)
    expected = BucketTransform(COUNT).transform(source)(stored(value))
    hashed = buckets.hash_of(text_of(value, parse(type)), parse(type))
    assert hashed is not None and hashed % COUNT == expected


@pytest.mark.parametrize(
    ("literal", "type", "same"),
    [
        (205.0, "INT", 205),
        (Decimal("1.50"), "DECIMAL(10,2)", "1.5"),
        ("2026-01-31", "DATE", "2026-01-31"),
        (-0, "INT", "0"),
    ],
)
def test_forms_of_one_value_have_one_bucket(literal, type, same):
    assert buckets.hash_of(literal, parse(type)) == buckets.hash_of(same, parse(type)) is not None


@pytest.mark.parametrize(
    ("literal", "type"),
    [
        (205.5, "INT"),
        (1 << 63, "INT"),
        ("abc", "INT"),
        ("NaN", "INT"),
        (Decimal("1.005"), "DECIMAL(10,2)"),
        (1.0, "DOUBLE"),
        ("Infinity", "DECIMAL(10,2)"),
        ("1e999999999", "DECIMAL(10,2)"),
        ("2026-01-31T00:00:00.0000001", "TIMESTAMP"),
        (None, "INT"),
        (True, "BOOLEAN"),
    ],
)
def test_other_literals_have_none(literal, type):
    assert buckets.hash_of(literal, parse(type)) is None


def test_known_vectors_of_the_specification():
    vectors = {
        ("34", "INT"): 2017239379,
        ("14.20", "DECIMAL(9,2)"): -500754589,
        ("2017-11-16", "DATE"): -653330422,
        ("22:31:08", "TIME"): -662762989,
        ("2017-11-16T22:31:08", "TIMESTAMP"): -2047944441,
        ("iceberg", "STRING"): 1210000089,
        ("f79c3e09-677c-4bbd-a479-3f349cb785e7", "UUID"): 1488055340,
        ("AAECAw==", "BINARY"): -188683207,
    }
    for (text, type), hashed in vectors.items():
        assert buckets.hash_of(text, parse(type)) == hashed & 0x7FFF_FFFF, (text, type)


_TYPES = {name: pa.string() for name in ("completeness", "logical_type", "min", "max")} | {
    "confidence_level": pa.float64(),
    "ndv": pa.float64(),
}


def kept(partition: str | None, spec_id: int | None, fields: list[Bucket], *values: int | str) -> bool:
    sql = buckets.condition(fields, values, parse("INT"))
    row = "(SELECT ?::VARCHAR AS partition_data_json, ?::INTEGER AS partition_spec_id) f"
    ((found,),) = duckdb.sql(f"SELECT {sql} FROM {row}", params=[partition, spec_id]).fetchall()
    assert found is not None
    own_buckets = ", ".join(f"coalesce({buckets.bucket_sql(field, 'f')}, {UNKNOWN})" for field in fields)
    (own,) = duckdb.sql(f"SELECT {own_buckets} FROM {row}", params=[partition, spec_id]).fetchall()
    column = Column(1, "id", parse("INT"))
    tree = AnyOf(tuple(Comparison(column, Op.EQ, (value,), False) for value in values))
    nothing = pa.table({name: pa.nulls(1, _TYPES.get(name, pa.int64())) for name in COLUMNS})
    counts = ColumnCounts.of(nothing, column.type)
    partitions = {field: np.array([bucket]) for field, bucket in zip(fields, own, strict=True)}
    in_memory = FileDecisions(tree, np.array([UNKNOWN]), {1: counts}, partitions, {1: fields})
    assert in_memory.may[0] == found
    return bool(found)


def test_only_partitions_with_the_bucket_are_kept():
    field = Bucket(3, "id ~/'bucket", 16)
    bucket = BucketTransform(16).transform(LongType())(34)
    name = '{"id ~/\'bucket": %s}'
    assert kept(name % bucket, 3, [field], 34)
    assert not kept(name % (bucket + 1), 3, [field], 34)
    assert kept(name % (bucket + 1), 2, [field], 34)  # another spec
    assert not kept(name % (bucket + 1), 3, [Bucket(2, "x", 4), field], 34)
    for partition in (None, "{}", name % "null", name % '"x"'):
        assert kept(partition, 3, [field], 34)
    assert kept(name % bucket, None, [field], 34)
    other = BucketTransform(16).transform(LongType())(35)
    assert {at for at in range(16) if kept(name % at, 3, [field], 34, "35")} == {bucket, other}


def test_literals_without_a_bucket_say_nothing():
    assert buckets.condition([Bucket(0, "b", 4)], [34, 0.5], parse("INT")) == ""
    assert buckets.condition([], [34], parse("INT")) == ""
