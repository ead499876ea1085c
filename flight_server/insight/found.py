"""Values that rules compare, and how surely they are known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from flight_server.core.views.numbers import number
from flight_server.core.views.table_summary import Row
from flight_server.insight import measures
from flight_server.insight.limits import Limit


@dataclass(frozen=True)
class Found:
    """A value of a measure or of a limit.

    Attributes:
        value: The value, or its estimate.
        extent: The least and the greatest value that it may truly be, None for no end; None if it is certain.
        note: What is to be said of it.
        at: The snapshot that it is inherited from; None if it is of the one judged.
        decides: False if it may decide nothing: a distribution of another snapshot, where that is not allowed.
    """

    value: Any
    extent: tuple[Any, Any] | None = None
    note: str = ""
    at: int | None = None
    decides: bool = True

    @property
    def is_certain(self) -> bool:
        """True if it is exactly this value."""
        return self.extent is None

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest value that it may be."""
        return (self.value, self.value) if self.extent is None else self.extent

    @property
    def told(self) -> str:
        """The value and what is to be said of it."""
        notes = ", ".join(filter(None, (self.between, self.note, self.origin)))
        return measures.text_of(self.value) + (f" ({notes})" if notes else "")

    @property
    def between(self) -> str:
        """The ends between which it lies, in words; empty if it is certain, or has no end."""
        return "" if self.extent in (None, (None, None)) else measures.text_between(*self.ends)

    @property
    def origin(self) -> str:
        """The snapshot that it is inherited from, in words."""
        return "" if self.at is None else f"inherited from {self.at}"

    def share(self, limit: Limit, row: Row | None) -> Found:
        """The limit that is a share of this value.

        Args:
            row: Record of the column that it is a limit of; None for a limit of the table.
        """
        ends = None
        if self.extent is not None:
            low, high = (None if end is None else _share(limit, row, end) for end in self.extent)
            ends = (high, low) if isinstance(limit.value, Fraction) and limit.value < 0 else (low, high)
        return replace(self, value=_share(limit, row, self.value), extent=ends)

    def change_since(self, before: Found) -> tuple[Found, Found | None]:
        """The difference from an earlier value, and its share of that value; no share of zero."""
        change = self.value - before.value
        share = change / abs(before.value) if before.value else None
        at = before.at if self.at is None else self.at
        decides = self.decides and before.decides
        if self.is_certain and before.is_certain:
            of_share = None if share is None else Found(share, None, "", at, decides)
            return Found(change, None, "", at, decides), of_share
        (low, high), (least, most) = self.ends, before.ends
        ends = (
            None if low is None or most is None else low - most,
            None if high is None or least is None else high - least,
        )
        shares = (None, None)
        if low is not None and most is not None and least is not None and least > 0 and low >= 0:
            shares = (low / most - 1, None if high is None else high / least - 1)
        of_share = None if share is None else Found(share, shares, "", at, decides)
        return Found(change, ends, "", at, decides), of_share


def _share(limit: Limit, row: Row | None, value: Any) -> Any:
    """A share of a value; a value that is no number, in the order of a column's type."""
    if isinstance(value, measures.Ordered):
        return value if row is None else measures.ordered(value.text, measures.type_of(row))
    assert isinstance(limit.value, Fraction)
    if limit.value == 1:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise measures.NeverKnown(f"{number(value)} has no share to compare with")
    return Fraction(value) * limit.value
