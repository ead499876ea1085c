"""Limits of the texts that a statement builds and of the patterns it searches them for.

DuckDB evaluates an expression without looking whether it was interrupted, and not within its memory limit: a few nested
`replace` of constants make gigabytes. What an expression may build is estimated from the statement alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

from flight_server.faces.sql.language import Query, refusal
from store.model.schemas import FLIGHTS

MAX_TEXT_BYTES: Final = 1 << 20  # of one value
MAX_TEXTS_BYTES: Final = 16 << 20  # of all expressions of a statement, once each
MAX_PATTERN: Final = 1000  # steps of a regular expression, its repetitions written out
MAX_SEARCH: Final = 32 << 20  # steps times bytes of text, of all regular expressions
COLUMN_BYTES: Final = 1024  # estimate for a value of a flight's column
_NUMBER_BYTES: Final = 32
_FORMAT_GROWTH: Final = 32  # bytes per byte of a format of instants
_COLUMNS: Final = frozenset(name for flight in FLIGHTS.values() for name in flight.schema.names)
_NO_TEXT: Final = (exp.Predicate, exp.Connector, exp.Not, exp.Length, exp.DataType, exp.Interval, exp.Identifier)
_PATTERNS: Final = (exp.RegexpLike, exp.RegexpFullMatch, exp.RegexpExtract, exp.RegexpReplace)


def check(statement: Query) -> None:
    """Refuses a statement whose expressions may build huge texts or search for huge patterns.

    Raises:
        InvalidArgument: A limit is exceeded; the message names it.
    """
    sizes: dict[int, int] = {}  # by node
    columns = _ColumnSizes()
    built, searched = 0, 0
    for node in _inner_first(statement):
        parts = [sizes.pop(id(child)) for child in node.iter_expressions()]
        if isinstance(node, _PATTERNS):
            searched += parts[0] * _steps(node.args.get("expression"))
        size = _size(node, parts, columns)
        if isinstance(node, exp.Func | exp.DPipe) and not isinstance(node, _NO_TEXT):
            built += size
        if size > MAX_TEXT_BYTES:
            raise refusal(f"the statement may build texts of more than {MAX_TEXT_BYTES} bytes")
        if built > MAX_TEXTS_BYTES:
            raise refusal(f"the statement may build texts of more than {MAX_TEXTS_BYTES} bytes in all")
        if searched > MAX_SEARCH:
            raise refusal("the regular expressions of the statement are too large for their texts")
        sizes[id(node)] = size
        columns.note(node, size)


class _ColumnSizes:
    """Estimates for the texts that columns refer to, by the nodes that were seen before them."""

    def __init__(self) -> None:
        self.largest = COLUMN_BYTES  # of all nodes
        self._named: dict[str, int] = {}  # of aliases, the largest of equal ones

    def of(self, column: exp.Column) -> int:
        """Bytes of a column's text: those of its alias, of a flight's column, or else of the largest text."""
        name = column.name.lower()
        return self._named.get(name, COLUMN_BYTES if name in _COLUMNS else self.largest)

    def note(self, node: exp.Expression, size: int) -> None:
        """Notes the size of a node for the columns that refer to it."""
        self.largest = max(self.largest, size)
        for name in _named(node):
            self._named[name] = max(size, self._named.get(name, 0))


def _size(node: exp.Expression, parts: Sequence[int], columns: _ColumnSizes) -> int:
    """The most bytes of text that a node may build from parts of these sizes."""
    if isinstance(node, exp.Column):
        return columns.of(node)
    if isinstance(node, exp.Literal):
        return len(node.name.encode("utf-8", "replace"))
    if isinstance(node, exp.Star):
        return columns.largest
    if isinstance(node, exp.Placeholder):
        return COLUMN_BYTES
    if isinstance(node, _PATTERNS):
        text = parts[0]
        return (text + 1) * (parts[2] + 1) if isinstance(node, exp.RegexpReplace) else text
    if isinstance(node, _NO_TEXT):
        return _NUMBER_BYTES
    if isinstance(node, exp.Replace):
        return _replaced_size(node, parts)
    if isinstance(node, exp.TimeToStr):
        return max(parts, default=0) * _FORMAT_GROWTH
    if isinstance(node, exp.ConcatWs):
        return sum(parts) + parts[0] * len(parts)
    if isinstance(node, exp.DPipe | exp.Concat | exp.Anonymous):
        return sum(parts)
    return max(parts, default=_NUMBER_BYTES)


def _replaced_size(node: exp.Replace, parts: Sequence[int]) -> int:
    """The most bytes of a text all of which is replaced."""
    before = node.args.get("expression")
    least = len(before.name.encode()) if isinstance(before, exp.Literal) else 1
    return parts[0] * max(1, -(-parts[-1] // max(1, least)))


def _inner_first(root: exp.Expression) -> Iterator[exp.Expression]:
    """Yields the nodes of a tree, each after those it refers to: of a SELECT first WITH, then FROM, then the rest."""
    open_: list[tuple[exp.Expression, bool]] = [(root, False)]
    while open_:
        node, ready = open_.pop()
        if ready:
            yield node
            continue
        open_.append((node, True))
        children = list(node.iter_expressions())
        if isinstance(node, exp.Query):
            children.sort(key=_order)
        open_ += [(child, False) for child in reversed(children)]


def _order(child: exp.Expression) -> int:
    if isinstance(child, exp.With):
        return 0
    return 1 if isinstance(child, exp.From | exp.Join) else 2


def _named(node: exp.Expression) -> list[str]:
    """The names by which columns refer to the texts of a node, in lower case."""
    if isinstance(node, exp.Alias):
        return [node.alias.lower()]
    if isinstance(node, exp.SetOperation):  # the names of the first query stand for all
        return [name.lower() for name in node.named_selects]
    alias = node.args.get("alias")
    columns = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    return [column.name.lower() for column in columns or ()]


def _steps(pattern: exp.Expression | None) -> int:
    """The size of a regular expression; refuses one that is too large, or that is not known before it runs."""
    if not isinstance(pattern, exp.Literal):
        raise refusal("the pattern of a regular expression must be a constant", hint="write it into the statement")
    steps = pattern_steps(pattern.name)
    if steps > MAX_PATTERN:
        raise refusal(f"a regular expression has {steps} steps with its repetitions; at most {MAX_PATTERN} are allowed")
    return max(1, steps)


def pattern_steps(pattern: str) -> int:
    """The number of characters of a regular expression with its counted repetitions written out."""
    groups, last, at = [0], 0, 0  # sizes of the open groups; of the last item of the innermost
    while at < len(pattern):
        char = pattern[at]
        count, end = _repetition(pattern, at) if char == "{" else (0, at + 1)
        if count:
            groups[-1] += last * (count - 1)
            last *= count
            at = end
            continue
        if char == "(":
            groups.append(1)
            last = 0
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            at += 1 if char == "\\" else 0
            groups[-1] += 1
            last = 1 if char not in "*+?" else last
        at += 1
    return sum(groups)


def _repetition(pattern: str, at: int) -> tuple[int, int]:
    """The largest count of `{n}`, `{n,}` or `{n,m}` at a position, and its end; 0 if there is none."""
    end = pattern.find("}", at, at + 16)
    numbers = pattern[at + 1 : end].split(",") if end > 0 else []
    if not numbers or not all(number.isdecimal() or (number == "" and index) for index, number in enumerate(numbers)):
        return 0, at
    return max(1, *(int(number) for number in numbers if number)) if len(numbers) <= 2 else 0, end + 1
