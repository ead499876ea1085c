"""The statements besides SELECT: ANALYZE in Spark's and Trino's forms, SHOW, DESCRIBE and EXPLAIN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from flight_server.conditions.words import Name, Words
from flight_server.sql import language
from flight_server.sql.language import refusal

FORMS: Final = {
    "ANALYZE": "ANALYZE t, or ANALYZE TABLE t COMPUTE STATISTICS [NOSCAN | FOR COLUMNS a, b | FOR ALL COLUMNS]",
    "SHOW": "SHOW STATS FOR t, or SHOW TABLES",
    "DESCRIBE": "DESCRIBE t",
    "EXPLAIN": "EXPLAIN SELECT …",
}  # t is catalog.schema.table
_FIRST: Final = re.compile(rf"(?:\s+|--[^\n]*|/\*.*?\*/)*+({'|'.join(FORMS)}|DESC)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Analyze:
    """Captures a table; `columns` are those to capture with it, None for all."""

    table: Name
    columns: tuple[Name, ...] | None


@dataclass(frozen=True)
class ShowStats:
    """Shows the statistics of a table in Trino's columns."""

    table: Name


@dataclass(frozen=True)
class ShowTables:
    """Shows the tables of all lakes."""


@dataclass(frozen=True)
class Describe:
    """Shows the columns of a table."""

    table: Name


@dataclass(frozen=True)
class Explain:
    """Shows how a SELECT would run."""

    sql: str


Statement: TypeAlias = Analyze | ShowStats | ShowTables | Describe | Explain


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
    return Describe(words.name("a table"))


def _show(words: Words) -> Statement:
    if words.accept("TABLES"):
        return ShowTables()
    words.expect("STATS", "FOR")
    return ShowStats(words.name("a table"))


def _analyze(words: Words) -> Statement:
    if not words.accept("TABLE"):
        return Analyze(words.name("a table"), None)
    table = words.name("a table")
    words.expect("COMPUTE", "STATISTICS")
    if words.accept("NOSCAN") or not words.accept("FOR"):
        return Analyze(table, ())
    if words.accept("ALL"):
        words.expect("COLUMNS")
        return Analyze(table, None)
    words.expect("COLUMNS")
    columns = [words.name("a column")]
    while words.accept(","):
        columns.append(words.name("a column"))
    return Analyze(table, tuple(columns))
