"""Literals and comparisons for the translators of conditions: SQL of `--where` and Flight SQL, Arrow expressions.

Imports nothing, because the client requires only pyarrow.
"""

from __future__ import annotations

from typing import Any, Final

FLIPPED: Final = {"EQ": "EQ", "NEQ": "NEQ", "LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE"}
"""Comparison → the one that holds with both sides exchanged. sqlglot's classes have the same names."""


def chained(node: Any) -> list[Any]:
    """The terms of `a AND b AND c`, or of ORs, which sqlglot nests to the left, one level for each."""
    found, open_ = [], [node]
    while open_:
        term = open_.pop()
        if type(term) is type(node):
            open_ += [term.expression, term.this]
        else:
            found.append(term)
    return found
