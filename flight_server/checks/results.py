"""Results of rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from flight_server.checks.rules import Level


class State(StrEnum):
    """Results of a rule; a rule of level warn does not fail. Only the server, which waits, calls a rule late."""

    PASSED = "PASSED"
    WARNED = "WARNED"
    FAILED = "FAILED"
    LATE = "LATE"

    @classmethod
    def of(cls, level: Level, *, passed: bool) -> State:
        """The state of a rule of a level."""
        return cls.PASSED if passed else cls.FAILED if level is Level.FAIL else cls.WARNED


@dataclass(frozen=True)
class Result:
    """The result of a rule on one table or column.

    Attributes:
        table: Full name.
        column: Its name, None for a rule about the table.
        state: UNKNOWN fails a rule like a wrong value does.
        value: Value of the measure, as canonical text where it is no number; None if unknown.
        detail: The error of an estimate, or why the value is unknown.
        pending: True if a capture of the current snapshot may still turn the result: the value is unknown, or of an
            earlier snapshot.
    """

    table: str
    column: str | None
    rule: str
    measure: str
    level: Level
    state: State
    value: float | str | None
    snapshot_id: int | None
    detail: str = ""
    pending: bool = False

    def to_json(self) -> dict[str, Any]:
        """The result as an object of JSON values."""
        return asdict(self)
