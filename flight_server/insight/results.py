"""Results of rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from flight_server.insight.rules import Level
from store.model.columns import WAITING


class State(StrEnum):
    """Results of a rule; a rule of level warn does not fail. Only the server, which waits, calls a rule waiting, and in
    the end late.

    A rule passes if it holds for every value that is possible by what is known, fails if for none, and else is UNKNOWN.
    """

    PASSED = "PASSED"
    UNKNOWN = "UNKNOWN"
    WARNED = "WARNED"
    FAILED = "FAILED"
    WAITING = WAITING
    LATE = "LATE"

    @classmethod
    def of(cls, level: Level, *, passed: bool | None) -> State:
        """The state of a rule of a level; None if what is known does not decide."""
        if passed is None:
            return cls.UNKNOWN
        return cls.PASSED if passed else cls.FAILED if level is Level.FAIL else cls.WARNED

    @property
    def is_miss(self) -> bool:
        """True if the rule is known not to hold."""
        return self in (State.FAILED, State.WARNED)


@dataclass(frozen=True)
class Result:
    """The result of a rule on one table or column.

    Attributes:
        table: Full name.
        column: Its name, None for a rule about the table.
        value: Value of the measure, or its estimate, as canonical text where it is no number; None if unknown.
        detail: The ends between which an estimate lies, or why the value is unknown.
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

    def fails(self, *, strict: bool) -> bool:
        """True if a check with this result fails; with `strict` what is unknown fails too, but of no warning."""
        is_unknown = self.state in (State.UNKNOWN, State.WAITING, State.LATE) and self.level is Level.FAIL
        return self.state is State.FAILED or (strict and is_unknown)

    def to_json(self) -> dict[str, Any]:
        """The result as an object of JSON values."""
        return asdict(self)
