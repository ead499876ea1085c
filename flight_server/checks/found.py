"""Values that rules compare, and how surely they are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flight_server.checks import measures
from flight_server.checks.limits import Limit
from flight_server.views.numbers import number
from flight_server.views.table_summary import Row


@dataclass(frozen=True)
class Found:
    """A value of a measure or of a limit.

    Attributes:
        value: The value, as far as it is known.
        extent: The least and the greatest value that it may truly be, None for no end; None if it is certain.
        note: What is to be said of it: an error, or the snapshot it is of.
        inherited: True if it is of an earlier snapshot.
    """

    value: Any
    extent: tuple[Any, Any] | None = None
    note: str = ""
    inherited: bool = False

    @classmethod
    def of_share(
        cls, limit: Limit, row: Row | None, value: Any, extent: tuple[Any, Any] | None, error: str, at: int | None
    ) -> Found:
        """A limit that is a share of another measure.

        Args:
            row: Record of the column that it is a limit of; None for a limit of the table.
            value, extent, error: Those of the other measure.
            at: The snapshot that the other measure is inherited from.
        """
        ends = None
        if extent is not None:
            low, high = (None if end is None else _share(limit, row, end) for end in extent)
            ends = (high, low) if isinstance(limit.value, Fraction) and limit.value < 0 else (low, high)
        note = ", ".join(filter(None, (error, "" if at is None else f"inherited from {at}")))
        return cls(_share(limit, row, value), ends, note, at is not None)

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest value that it may be."""
        return (self.value, self.value) if self.extent is None else self.extent

    @property
    def told(self) -> str:
        """The value and what is to be said of it."""
        return measures.text_of(self.value) + (f" ({self.note})" if self.note else "")


def _share(limit: Limit, row: Row | None, value: Any) -> Any:
    """A share of a value; a value that is no number, in the order of a column's type."""
    if isinstance(value, measures.Ordered):
        return value if row is None else measures.ordered(value.text, measures.type_of(row))
    assert isinstance(limit.value, Fraction)
    if limit.value == 1:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise measures.UnknownValue(f"{number(value)} has no share to compare with")
    return Fraction(value) * limit.value
