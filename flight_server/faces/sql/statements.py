"""The statements besides SELECT: ANALYZE in Spark's and Trino's forms, SHOW, DESCRIBE and EXPLAIN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from flight_server.client.conditions.words import Name, Words
from flight_server.faces.sql import language
from flight_server.faces.sql.language import refusal

FORMS: Final = {
    "ANALYZE": "ANALYZE t, ANALYZE TABLE t COMPUTE STATISTICS [NOSCAN | FOR COLUMNS [a, b] | FOR ALL COLUMNS], "
    "or ANALYZE TABLES [IN s] COMPUTE STATISTICS [NOSCAN]",
    "SHOW": "SHOW STATS FOR t, SHOW TABLES [IN s], or SHOW COLUMNS IN t",
    "DESCRIBE": "DESCRIBE [TABLE] t",
    "EXPLAIN": "EXPLAIN SELECT …",
}  # t is catalog.schema.table, s catalog.schema or catalog
_PARTITIONS: Final = "statflight capture --partition does; leave PARTITION out for the whole table"
_FIRST: Final = re.compile(rf"(?:\s+|--[^\n]*|/\*.*?\*/)*+({'|'.join(FORMS)}|DESC)\b", re.IGNORECASE | re.DOTALL)


class Columns(Enum):
    """Columns of an ANALYZE that does not list them."""

    ALL = "all"
    AS_USUAL = "as usual"
    NONE = "none"


@dataclass(frozen=True)
class Analyze:
    """Captures a table.

    `columns` are those to capture with it: a list, or how they follow without one; AS_USUAL is as the format of the
    table has it. `ignored` are the words that have no effect, for a warning.
    """

    table: Name
    columns: tuple[Name, ...] | Columns
    ignored: str = ""


@dataclass(frozen=True)
class AnalyzeTables:
    """Captures the tables of a schema, None for all, without columns."""

    schema: Name | None


@dataclass(frozen=True)
class ShowStats:
    """Shows the statistics of a table in Trino's columns."""

    table: Name


@dataclass(frozen=True)
class ShowTables:
    """Shows the tables of a schema or catalog, or of all lakes."""

    schema: Name | None = None


@dataclass(frozen=True)
class Describe:
    """Shows the columns of a table or flight."""

    table: Name


@dataclass(frozen=True)
class Explain:
    """Shows how a SELECT would run."""

    sql: str


Statement: TypeAlias = Analyze | AnalyzeTables | ShowStats | ShowTables | Describe | Explain


def parse(sql: str) -> Statement | None:
    """Parses a statement; None if its first word is none of these, as that of SELECT.

    Raises:
        InvalidArgument: It is too long or malformed; the hint has the allowed forms.
    """
    if len(sql) > language.MAX_BYTES or (first := _FIRST.match(sql)) is None:
        return None
    kind = "DESCRIBE" if first[1].upper() == "DESC" else first[1].upper()
    rest = sql[first.end() :]
    if kind == "EXPLAIN":
        if (other := _FIRST.match(rest)) is not None or not rest.strip():
            raise refusal(f"EXPLAIN {other[1].upper() if other else 'of nothing'} is not allowed", hint=FORMS[kind])
        return Explain(rest)
    words = Words(kind, rest, FORMS[kind])
    statement = {"ANALYZE": _analyze, "DESCRIBE": _describe, "SHOW": _show}[kind](words)
    words.end()
    return statement


def _describe(words: Words) -> Statement:
    words.accept("TABLE")
    return Describe(words.name("a table"))


def _show(words: Words) -> Statement:
    if words.accept("TABLES"):
        return ShowTables(_schema(words))
    if words.accept("COLUMNS"):
        if not words.accept("FROM"):
            words.expect("IN")
        return Describe(words.name("a table"))
    words.expect("STATS", "FOR")
    return ShowStats(words.name("a table"))


def _schema(words: Words) -> Name | None:
    return words.name("a schema") if words.accept("IN") or words.accept("FROM") else None


def _analyze(words: Words) -> Statement:
    if words.accept("TABLES"):
        schema = _schema(words)
        words.expect("COMPUTE", "STATISTICS")
        words.accept("NOSCAN")
        return AnalyzeTables(schema)
    if not words.accept("TABLE"):
        return Analyze(words.name("a table"), Columns.ALL)
    table = words.name("a table")
    partition = words.in_parentheses("PARTITION")
    words.expect("COMPUTE", "STATISTICS")
    if partition and not words.are_at("FOR"):
        raise refusal("statistics of a part of a table cannot be captured by ANALYZE", hint=_PARTITIONS)
    if words.accept("NOSCAN"):
        return Analyze(table, Columns.NONE)
    if not words.accept("FOR"):
        return Analyze(table, Columns.AS_USUAL)
    ignored = f"PARTITION {partition} is ignored: statistics of columns are of the whole table" if partition else ""
    return Analyze(table, _columns(words), ignored)


def _columns(words: Words) -> tuple[Name, ...] | Columns:
    """What follows FOR."""
    if words.accept("ALL"):
        words.expect("COLUMNS")
        return Columns.ALL
    words.expect("COLUMNS")
    if words.is_at_end():
        return Columns.ALL
    columns = [words.name("a column")]
    while words.accept(","):
        columns.append(words.name("a column"))
    return tuple(columns)
