"""Intervals of looks at tables within a budget of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

DAY_SECONDS: Final = 86_400.0


def intervals(
    weights: Sequence[float], cost: float, listing_cost: float, shortest: float, budget: int | None
) -> list[float]:
    """Seconds between two looks at each table of a lake: the shortest, or, where looks would take more requests than
    the budget allows, in inverse proportion to the tables' weights.

    Args:
        weights: How much sooner than others each table is to be looked at, > 0.
        cost: Requests of a look at one table.
        listing_cost: Requests of a look for new tables, which is as frequent as that at a table of the weight 1.
        shortest: Seconds between two looks without a budget, > 0.
        budget: Requests a day, > 0; None for any number.
    """
    looks = [(cost, weight) for weight in weights] + [(listing_cost, 1.0)]
    if budget is None or sum(each for each, _ in looks) / shortest <= budget / DAY_SECONDS:
        return [shortest] * len(weights)
    left = budget / DAY_SECONDS  # requests a second for looks that are not at the shortest interval
    free = sorted(looks, key=lambda look: -look[1])
    shared = sum(each * weight for each, weight in free)
    scale = shared / left  # interval of a table of the weight 1
    for each, weight in free:
        if scale / weight >= shortest:
            break
        left, shared = left - each / shortest, shared - each * weight
        scale = shared / left
    return [max(shortest, scale / weight) for weight in weights]
