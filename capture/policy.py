"""Auto-analyze: what of a table is stale enough to be worth a capture. Pure functions; off unless a policy is given.

A policy is a text: `on`, `off`, `metadata` (the table's own statistics, no scans), or rules such as
`max_age=1d, changed=0.2, min_interval=10m, columns=used`. Rules for some tables only come after a pattern on
`schema.table`: `sales.*: on; *: off`. The first pattern that fits counts.

Metadata is cheap, so a new snapshot's table statistics are captured at once; only what was tried in vain waits for
`min_interval`. Scanning columns is not: that is done when enough of the rows changed, when the schema did, or when
statistics grow too old, no sooner than `min_interval` after the last scan; and never for what is fresh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from store.errors import InvalidField

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXPECTED: Final = (
    "on, off, metadata, or rules such as max_age=1d, changed=0.2, min_interval=10m, columns=used|all|none, wide=100"
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Conditions under which the columns of a table are captured again.

    Attributes:
        max_age: Statistics of an earlier snapshot are renewed once they are so old, however little changed.
        changed: … or once this share of the rows is in files that came or went since.
        min_interval: But not sooner than so long after the last try; of the table's own statistics, after the last try
            at the same snapshot.
        columns: `used`: of a table with more than `wide` columns only those that readers ask for; `all`: every one;
            `none`: the table's own statistics are captured, which come from metadata, and no column is scanned.
        wide: How many columns make a table wide.
    """

    max_age: timedelta = timedelta(days=1)
    changed: float = 0.1
    min_interval: timedelta = timedelta(minutes=5)
    columns: str = "used"
    wide: int = 100


@dataclass(frozen=True, slots=True)
class Policy:
    """Patterns on `schema.table` and their rules, in order; None = off."""

    entries: tuple[tuple[str, Rules | None], ...] = ()

    def rules(self, schema: str, name: str) -> Rules | None:
        """The rules for a table, those of the first pattern that its name matches.

        Args:
            schema: The table's schema, dotted when nested.
            name: The table's name. Case counts.

        Returns:
            None where the pattern says off, and where no pattern matches.
        """
        full = f"{schema}.{name}"
        return next((rules for pattern, rules in self.entries if fnmatchcase(full, pattern)), None)

    @property
    def is_off(self) -> bool:
        """True when no table is captured by itself."""
        return all(rules is None for _, rules in self.entries)


def parse(text: str) -> Policy:
    """Reads a policy.

    Args:
        text: As the head of this file describes it; an empty text is a policy that is off.

    Raises:
        InvalidField: A rule is unknown or its value cannot be read; names the rule.
    """
    entries = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        pattern, colon, rules = part.rpartition(":")
        entries.append((pattern.strip() if colon else "*", _rules(rules.strip())))
    return Policy(tuple(entries))


def _rules(text: str) -> Rules | None:
    if text.lower() in ("off", "false", "no", "0"):
        return None
    if text.lower() in ("on", "true", "yes", "1", "auto"):
        return Rules()
    if text.lower() == "metadata":
        return Rules(columns="none")
    rules: dict[str, Any] = {}
    for item in text.split(","):
        name, _, value = (piece.strip() for piece in item.partition("="))
        try:
            rules[name] = _READ[name](value)
        except (KeyError, ValueError):
            raise InvalidField("policy", f'cannot read "{item.strip()}"', expected=_EXPECTED, actual=text) from None
    return replace(Rules(), **rules)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if not match:
        raise ValueError
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def _share(text: str) -> float:
    share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _word(text: str) -> str:
    if text not in ("used", "all", "none"):
        raise ValueError
    return text


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "max_age": _duration, "changed": _share, "min_interval": _duration, "columns": _word, "wide": int,
}  # fmt: skip
assert set(_READ) == {f.name for f in fields(Rules)}


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table when a policy is applied. `captured_…` is of the newest scan of its columns."""

    snapshot_id: int | None
    schema_hash: str | None
    columns: tuple[int, ...]  # leaves of the current schema
    has_table_record: bool = False  # at the current snapshot
    captured_snapshot_id: int | None = None
    captured_schema_hash: str | None = None
    captured_at: datetime | None = None
    captured_columns: frozenset[int] = frozenset()  # at the current snapshot
    changed_share: float | None = None  # of the rows, in files that came or went since then; None = not known
    used: Mapping[int, int] = field(default_factory=dict)  # column id → reads
    tried_at: datetime | None = None
    tried_snapshot_id: int | None = None
    busy: bool = False  # a job of the table is active


class Because(StrEnum):
    """Reasons of a verdict, as people read them."""

    NO_SNAPSHOT = "the table has no snapshot"
    FRESH = "captured at the current snapshot"
    BUSY = "a job of the table is active"
    TOO_SOON = "tried a short while ago"
    NEW_SNAPSHOT = "the snapshot is new"
    NEVER = "never captured"
    SCHEMA = "the schema changed"
    CHANGED = "enough rows changed"
    AGE = "the statistics are old"
    LITTLE = "little changed"
    METADATA = "the policy is about metadata alone"
    UNUSED = "the table is wide and nobody asks for its columns"
    ASKED = "readers ask for columns that are not captured"
    UNKNOWN = "not known how much changed, and not old yet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Capture now or not, and why. `columns` are those to capture; None for the table's own statistics."""

    capture: bool
    because: Because
    columns: tuple[int, ...] | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """The verdict and its reason, one line."""
        word = "now" if self.capture else "not now"
        return f"{word}, because: {self.because}" + (f" ({self.detail})" if self.detail else "")


def table_verdict(rules: Rules, state: TableState, now: datetime) -> Verdict:
    """Decides about the table's own statistics, which come from metadata.

    Args:
        rules: Of the table.
        state: `tried_…` of the last try at the table's own statistics.
        now: With a time zone, as the times of `state`.

    Returns:
        A verdict whose `columns` is None.
    """
    if state.snapshot_id is None:
        return Verdict(False, Because.NO_SNAPSHOT)
    if state.has_table_record:
        return Verdict(False, Because.FRESH)
    if state.tried_snapshot_id != state.snapshot_id:
        state = replace(state, tried_at=None)
    return _held_back(rules, state, now, None) or Verdict(True, Because.NEW_SNAPSHOT)


def columns_verdict(rules: Rules, state: TableState, now: datetime) -> Verdict:
    """Decides about scanning columns.

    Args:
        rules: Of the table.
        state: `tried_at` of the last scan that was tried.
        now: With a time zone, as the times of `state`.

    Returns:
        A verdict with the ids of the columns to scan: those wanted that are not captured at the current snapshot.
    """
    if state.snapshot_id is None:
        return Verdict(False, Because.NO_SNAPSHOT, ())
    if rules.columns == "none":
        return Verdict(False, Because.METADATA, ())
    wide = rules.columns == "used" and len(state.columns) > rules.wide
    columns = tuple(i for i in sorted(state.columns) if not wide or state.used.get(i))
    if not columns:
        return Verdict(False, Because.UNUSED, ())
    missing = tuple(i for i in columns if i not in state.captured_columns)
    if not missing:
        return Verdict(False, Because.FRESH, ())
    because, detail = _stale(rules, state, now)
    if because in (Because.LITTLE, Because.UNKNOWN):
        return Verdict(False, because, (), detail)
    return _held_back(rules, state, now, ()) or Verdict(True, because, missing, detail)


def _stale(rules: Rules, state: TableState, now: datetime) -> tuple[Because, str]:
    if state.captured_at is None or state.captured_snapshot_id is None:
        return Because.NEVER, ""
    if state.captured_snapshot_id == state.snapshot_id:
        return Because.ASKED, ""
    if state.captured_schema_hash != state.schema_hash:
        return Because.SCHEMA, ""
    share = state.changed_share
    if share is not None and share > 0 and share >= rules.changed:
        return Because.CHANGED, f"{share:.0%}, of {rules.changed:.0%}"
    if now - state.captured_at >= rules.max_age:
        return Because.AGE, f"since {state.captured_at:%Y-%m-%d %H:%M}"
    if share is None:
        return Because.UNKNOWN, ""
    return Because.LITTLE, f"{share:.0%}, of {rules.changed:.0%}"


def _held_back(rules: Rules, state: TableState, now: datetime, columns: tuple[int, ...] | None) -> Verdict | None:
    if state.busy:
        return Verdict(False, Because.BUSY, columns)
    if state.tried_at is not None and now - state.tried_at < rules.min_interval:
        return Verdict(False, Because.TOO_SOON, columns)
    return None
