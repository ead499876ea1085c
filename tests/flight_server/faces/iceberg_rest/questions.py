"""Generated questions about a table: a condition and columns; the rows that answer them; the table in three formats.

Subsets of the columns are asked for in turn, 127 of them, those of the partition among them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, DoubleType, LongType, NestedField, StringType, TimestampType

from tests.capture.connectors import iceberg_tables as built

START: Final = datetime(2026, 1, 1)
WORDS: Final = ("", "a", "ab", "b", "é", "z" * 40)
PARTS: Final[Sequence[tuple[date | None, str | None]]] = (
    (date(2026, 1, 1), "x y"),
    (date(2026, 1, 2), "zz"),
    (date(2026, 1, 2), None),
    (None, "x y"),
    (None, None),
    (date(2026, 1, 3), "é/="),
)
"""Day and code of each partition."""
SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("ratio", pa.float64()),
        ("word", pa.string()),
        ("moment", pa.timestamp("us")),
        ("day", pa.date32()),
        ("code", pa.string()),
    ]
)
OF_PARTITION: Final = ("day", "code")
AT_ONCE: Final = 25  # questions in a statement

Row = Mapping[str, Any]


def rows_of(part: int, *, with_nan: bool) -> pa.Table:
    """Ten rows of a partition: ids in order, the other columns in any, with nulls."""
    rng = random.Random(part)
    ids = range(10 * part, 10 * part + 10)

    def some(values: Sequence[Any]) -> list[Any]:
        return [None if rng.random() < 0.2 else rng.choice(values) for _ in ids]

    day, code = PARTS[part]
    return pa.table(
        {
            "id": list(ids),
            "price": some([Decimal(10 * part + i) / 4 for i in range(10)]),
            "ratio": some([0.0, 0.5 * part, float(part), *([float("nan")] if with_nan else [])]),
            "word": some(WORDS[part % 3 : part % 3 + 3]),
            "moment": some([START + timedelta(hours=part, microseconds=i) for i in range(3)]),
            "day": [day] * 10,
            "code": [code] * 10,
        },
        SCHEMA,
    )


def whole(*, with_nan: bool) -> list[Row]:
    """All rows of the table."""
    rows: list[Row] = pa.concat_tables(rows_of(part, with_nan=with_nan) for part in range(len(PARTS))).to_pylist()
    return rows


# The table `t` in each format: the directory of its catalog, and the schema that it is in.


def delta(root: Path, *, with_nan: bool) -> tuple[Path, str]:
    from deltalake import write_deltalake

    for part in range(len(PARTS)):
        write_deltalake(root / "t", rows_of(part, with_nan=with_nan), mode="append", partition_by=list(OF_PARTITION))
    return root, "default"


def parquet(root: Path, *, with_nan: bool) -> tuple[Path, str]:
    for part, values in enumerate(PARTS):
        names = (
            f"{name}={'__HIVE_DEFAULT_PARTITION__' if value is None else quote(str(value), safe='')}"
            for name, value in zip(OF_PARTITION, values, strict=True)
        )
        folder = root.joinpath("t", *names)
        folder.mkdir(parents=True)
        pq.write_table(rows_of(part, with_nan=with_nan).drop_columns(list(OF_PARTITION)), folder / f"{part}.parquet")
    return root, "default"


def iceberg(root: Path, *, with_nan: bool) -> tuple[Path, str]:
    types = [LongType(), DecimalType(9, 2), DoubleType(), StringType(), TimestampType(), DateType(), StringType()]
    fields = [NestedField(at, name, type) for at, (name, type) in enumerate(zip(SCHEMA.names, types, strict=True), 1)]
    spec = [PartitionField(at, 994 + at, IdentityTransform(), fields[at - 1].name) for at in (6, 7)]
    parts = (rows_of(part, with_nan=with_nan) for part in range(len(PARTS)))
    built.simple_table(root, Schema(*fields), *parts, partition_spec=PartitionSpec(*spec))
    return root / "warehouse", "db"


FORMATS: Final = {"delta": delta, "parquet": parquet, "iceberg": iceberg}


# Questions.


@dataclass(frozen=True)
class Reader:
    """What readers differ in.

    Attributes:
        null_in: `NULL IN (…)`: None in SQL; False in pyiceberg, by Arrow's kernel.
        null_compares: Any comparison with null: None in SQL; False to Iceberg, so that its negation is true.
    """

    null_in: bool | None = None
    null_compares: bool | None = None


@dataclass(frozen=True)
class Test:
    """A comparison of a column with literals, or a test for null."""

    column: str
    op: str
    values: tuple[Any, ...] = ()

    def holds(self, row: Row, reader: Reader) -> bool | None:
        value = row[self.column]
        if self.op in ("IS NULL", "IS NOT NULL"):
            return (value is None) is (self.op == "IS NULL")
        if value is None:
            if self.op == "<>":
                return None if reader.null_compares is None else not reader.null_compares
            return reader.null_in if self.op == "IN" else reader.null_compares
        if self.op == "IN":
            return value in self.values
        (other,) = self.values
        return bool(
            {
                "=": value == other,
                "<>": value != other,
                "<": value < other,
                "<=": value <= other,
                ">": value > other,
                ">=": value >= other,
            }[self.op]
        )

    @property
    def columns(self) -> set[str]:
        return {self.column}

    def sql(self, *, typed: bool) -> str:
        """The test in SQL, or as pyiceberg reads it, without the types of literals."""
        told = [_literal(value, typed=typed) for value in self.values]
        if self.op == "IN":
            return f"{self.column} IN ({', '.join(told)})"
        return " ".join([self.column, self.op, *told])


@dataclass(frozen=True)
class Not:
    child: Condition

    def holds(self, row: Row, reader: Reader) -> bool | None:
        truth = self.child.holds(row, reader)
        return None if truth is None else not truth

    @property
    def columns(self) -> set[str]:
        return self.child.columns

    def sql(self, *, typed: bool) -> str:
        return f"NOT ({self.child.sql(typed=typed)})"


@dataclass(frozen=True)
class Join:
    word: str
    left: Condition
    right: Condition

    def holds(self, row: Row, reader: Reader) -> bool | None:
        sides = self.left.holds(row, reader), self.right.holds(row, reader)
        decisive = self.word == "OR"
        return decisive if decisive in sides else None if None in sides else not decisive

    @property
    def columns(self) -> set[str]:
        return self.left.columns | self.right.columns

    def sql(self, *, typed: bool) -> str:
        return f"({self.left.sql(typed=typed)} {self.word} {self.right.sql(typed=typed)})"


Condition = Test | Not | Join


def _literal(value: Any, *, typed: bool) -> str:
    if isinstance(value, float):
        return f"CAST({value} AS DOUBLE)" if typed else str(value)
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value}'" if typed else f"'{value.isoformat()}'"
    if isinstance(value, date):
        return f"DATE '{value}'" if typed else f"'{value}'"
    return str(value) if isinstance(value, int | Decimal) else f"'{value}'"


@dataclass(frozen=True)
class Question:
    """Columns of the rows for which a condition holds."""

    columns: tuple[str, ...]
    where: Condition

    def answer(self, rows: Sequence[Row], reader: Reader) -> Counter[tuple[Any, ...]]:
        """The rows by brute force, as `found` has them."""
        return found([row[name] for name in self.columns] for row in rows if self.where.holds(row, reader))


def found(rows: Iterator[Sequence[Any]] | Sequence[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    """Rows in no order, comparable however a client writes their values."""
    return Counter(tuple(None if value is None else str(value) for value in row) for row in rows)


def questions(count: int, seed: int, rows: Sequence[Row]) -> Iterator[Question]:
    """Questions about rows, with literals among their values. NaN equals nothing here and has no order, and is in no
    test that is negated or unequal: readers of Parquet skip row groups by bounds that leave it out.
    """
    rng = random.Random(seed)
    values = {
        name: [v for v in dict.fromkeys(row[name] for row in rows) if v is not None and v == v] for name in SCHEMA.names
    }
    subsets = [some for size in range(1, len(SCHEMA) + 1) for some in combinations(SCHEMA.names, size)]
    rng.shuffle(subsets)
    chosen = cycle(subsets)

    def tree(depth: int, negated: bool) -> Condition:
        kind = rng.random()
        if depth < 2 and kind < 0.5:
            if kind < 0.12:
                return Not(tree(depth + 1, True))
            return Join(rng.choice(("AND", "OR")), tree(depth + 1, negated), tree(depth + 1, negated))
        column = rng.choice([name for name in SCHEMA.names if not (negated and name == "ratio")] + list(OF_PARTITION))
        if kind > 0.9:
            return Test(column, rng.choice(("IS NULL", "IS NOT NULL")))
        if kind > 0.8:
            return Test(column, "IN", tuple(rng.sample(values[column], 2)))
        ops = ["=", "<", "<=", ">", ">=", *(["<>", "<>"] if column != "ratio" else [])]
        return Test(column, rng.choice(ops), (rng.choice(values[column]),))

    for _ in range(count):
        yield Question(next(chosen), tree(0, False))


def statements(asked: Sequence[Question], table: str) -> list[str]:
    """Questions in SQL that Spark and DuckDB read alike, several in a statement: each row has the number of its
    question, then all columns as texts, null for those that are not asked for.
    """
    each = []
    for number, question in enumerate(asked):
        told = (name if name in question.columns else "NULL" for name in SCHEMA.names)
        columns = ", ".join(f"CAST({name} AS VARCHAR(99)) AS c{at}" for at, name in enumerate(told))
        each.append(f"SELECT {number} AS number, {columns} FROM {table} WHERE {question.where.sql(typed=True)}")
    return [" UNION ALL ".join(each[start : start + AT_ONCE]) for start in range(0, len(each), AT_ONCE)]


def told(asked: Sequence[Question], answers: Sequence[Sequence[Sequence[Any]]]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Condition and columns → the rows that `statements` found."""
    rows: list[list[list[Any]]] = [[] for _ in asked]
    for number, *values in (row for answer in answers for row in answer):
        by_name = dict(zip(SCHEMA.names, values, strict=True))
        rows[number].append([by_name[name] for name in asked[number].columns])
    return {named(question): found(of) for question, of in zip(asked, rows, strict=True)}


def named(question: Question) -> str:
    """A question as a failing test shows it; two that are named alike are the same."""
    return f"{', '.join(question.columns)} WHERE {question.where.sql(typed=True)}"
