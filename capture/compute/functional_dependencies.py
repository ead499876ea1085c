"""Degrees of functional dependencies: how far one column of a group determines the others.

The degree of `a → b, c` is ndv(a) / ndv(a, b, c), a null counting as one more value of a column: the share of tuples
that would be left if each value of `a` came with one tuple only. It is 1 if and only if `a` determines the others, and
1/n where each of its values comes with n tuples. For determinants of several columns ask for two groups: the degree of
`a, b → c` is ndv(a, b) / ndv(a, b, c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store import sketches


def degrees(column_ids: Sequence[int], tuples: bytes, members: Mapping[int, bytes]) -> list[dict[str, Any]]:
    """The degree for each column of a group as the determinant of the others.

    Args:
        column_ids: The group.
        tuples: Theta sketch of its distinct tuples.
        members: By column id, the theta sketch of the column's distinct values, null counted as one.

    Returns:
        Objects with `determinant` and `dependent` (lists of column ids), `degree` and its limits `degree_lower` and
        `degree_upper` (each sketch's own at 95 %; equal to `degree` where both are exact), all in (0, 1]. Nothing of
        no rows, where no degree is known.
    """
    whole = sketches.estimate(tuples)
    if not whole.ndv:
        return []
    dependencies = []
    for column_id in column_ids:
        part = sketches.estimate(members[column_id])
        dependencies.append({
            "determinant": [column_id],
            "dependent": [other for other in column_ids if other != column_id],
            "degree": min(1.0, part.ndv / whole.ndv),
            "degree_lower": min(1.0, part.lower / whole.upper),
            "degree_upper": min(1.0, part.upper / whole.lower),
        })  # fmt: skip
    return dependencies
