"""Degrees of functional dependencies between one column of a group and the others.

The degree of `a → b, c` is ndv(a) / ndv(a, b, c), with null as one more value of a column. It is 1 if and only if `a`
determines the others, and 1/n if each value of `a` occurs with n tuples. For determinants of several columns capture
two groups: the degree of `a, b → c` is ndv(a, b) / ndv(a, b, c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.model import sketches


def degrees(column_ids: Sequence[int], tuples: bytes, members: Mapping[int, bytes]) -> list[dict[str, Any]]:
    """Computes the degree of each column of a group as determinant of the others.

    Args:
        tuples: Theta sketch of its distinct tuples.
        members: Column id → theta sketch of the column's distinct values, null included.

    Returns:
        Objects with `determinant` and `dependent` (lists of column ids), `degree` and its limits `degree_lower` and
        `degree_upper` (from the sketches' 95 % bounds; equal to `degree` if both sketches are exact), all in (0, 1].
        Empty if there are no rows.
    """
    whole = sketches.estimate(tuples)
    if not whole.ndv:
        return []
    dependencies = []
    for column_id in column_ids:
        part = sketches.estimate(members[column_id])
        dependencies.append(
            {
                "determinant": [column_id],
                "dependent": [other for other in column_ids if other != column_id],
                "degree": min(1.0, part.ndv / whole.ndv),
                "degree_lower": min(1.0, part.lower / whole.upper),
                "degree_upper": min(1.0, part.upper / whole.lower),
            }
        )
    return dependencies
