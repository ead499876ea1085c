"""The statements besides SELECT: ANALYZE in Spark's and Trino's forms, SHOW, DESCRIBE and EXPLAIN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from flight_server.sql import language
from flight_server.sql.language import refusal

FORMS: Final = {
    "ANALYZE": "ANALYZE t, or ANALYZE TABLE t COMPUTE STATISTICS [NOSCAN | FOR COLUMNS a, b | FOR ALL COLUMNS]",
    "SHOW": "SHOW STATS FOR t, or SHOW TABLES",
    "DESCRIBE": "DESCRIBE t",
    "EXPLAIN": "EXPLAIN SELECT …",
}  # t is catalog.schema.table
_FIRST: Final = re.compile(rf"(?:\s+|--[^\n]*|/\*.*?\*/)*+({'|'.join(FORMS)}|DESC)\b", re.IGNORECASE | re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|"(?P<double>(?:[^"]|"")+)"|`(?P<back>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>.)""",
    re.DOTALL,
)


class Part(NamedTuple):
    """A part of a name; unless it is quoted, its case does not matter."""

    text: str
    quoted: bool

    def equals(self, name: str) -> bool:
        """True if the part is written like a name."""
        return self.text == name if self.quoted else self.text.casefold() == name.casefold()


Name: TypeAlias = tuple[Part, ...]


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
    reader = _Reader(kind, rest)
    match kind:
        case "ANALYZE":
            return _analyze(reader)
        case "DESCRIBE":
            return reader.end(Describe(reader.name("a table")))
    if reader.accept("TABLES"):
        return reader.end(ShowTables())
    reader.expect("STATS", "FOR")
    return reader.end(ShowStats(reader.name("a table")))


def _analyze(reader: _Reader) -> Statement:
    if not reader.accept("TABLE"):
        return reader.end(Analyze(reader.name("a table"), None))
    table = reader.name("a table")
    reader.expect("COMPUTE", "STATISTICS")
    if reader.accept("NOSCAN") or not reader.accept("FOR"):
        return reader.end(Analyze(table, ()))
    if reader.accept("ALL"):
        reader.expect("COLUMNS")
        return reader.end(Analyze(table, None))
    reader.expect("COLUMNS")
    columns = [reader.name("a column")]
    while reader.accept(","):
        columns.append(reader.name("a column"))
    return reader.end(Analyze(table, tuple(columns)))


class _Reader:
    """Reads the words of a statement from left to right."""

    def __init__(self, kind: str, text: str):
        self._kind, self._at = kind, 0
        self._parts: list[Part] = []  # marks are quoted, so that no word equals them
        for match in _TOKEN.finditer(text):
            if match["space"] is not None:
                continue
            quoted = match["double"] is not None or match["back"] is not None
            name = (match["double"] or "").replace('""', '"') or (match["back"] or "").replace("``", "`")
            self._parts.append(Part(name if quoted else match[0], quoted))

    @property
    def _next(self) -> Part | None:
        return self._parts[self._at] if self._at < len(self._parts) else None

    def accept(self, word: str) -> bool:
        part = self._next
        if part is None or part.quoted or part.text.upper() != word:
            return False
        self._at += 1
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self._refusal(word)

    def name(self, what: str) -> Name:
        """Parts joined by dots."""
        parts = [self._part(what)]
        while self.accept("."):
            parts.append(self._part(what))
        return tuple(parts)

    def _part(self, what: str) -> Part:
        part = self._next
        if part is None or not (part.quoted or re.fullmatch(r"\w+", part.text)):
            raise self._refusal(f"the name of {what}")
        self._at += 1
        return part

    def end(self, statement: Statement) -> Statement:
        self.accept(";")
        if self._next is not None:
            raise self._refusal("the end")
        return statement

    def _refusal(self, expected: str) -> Exception:
        found = f'"{self._next.text[:50]}"' if self._next is not None else "its end"
        return refusal(f"{self._kind} has {found} where {expected} should be", hint=FORMS[self._kind])
