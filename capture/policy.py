"""Auto-analyze policies: decide which statistics of a table are stale enough to capture. Pure functions.

A policy is a string: `on`, `off`, `metadata` (the table's own statistics, no scans), or rules such as
`max_age=1d, changed=0.2, min_interval=10m, columns=used`. Rules may be prefixed with a pattern on `schema.table`:
`sales.*: on; *: off`. The first matching pattern applies. The default is off.

Table statistics come from metadata and are cheap: every new snapshot is captured at once, and after a failure again
once `min_interval` has passed. Columns are scanned when enough rows changed, the schema changed, or statistics are
older than `max_age` or behind by more than `max_snapshots_behind` snapshots; never when they are fresh, and at most
once per `min_interval`, except that a new snapshot in which half of the rows changed does not wait. Columns that a rule
judges are read of each new snapshot at once, however little changed, since a load is to be judged when it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from store.model.errors import InvalidField

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXPECTED: Final = (
    "on, off, metadata, or rules such as max_age=1d, max_snapshots_behind=3, changed=0.2, min_interval=10m,"
    " columns=used|all|none, wide=100"
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Conditions for capturing the columns of a table again.

    Attributes:
        max_age: Age at which statistics of an earlier snapshot are renewed, however little changed.
        changed: Share of rows (0 to 1) in files added or removed since, at which they are renewed before `max_age`.
        max_snapshots_behind: Number of snapshots by which statistics may be behind the current one; more renew them,
            however little changed, and until then an inherited distribution that old is STALE. None for any.
        min_interval: Minimum time since the last attempt; for table statistics, and where half of the rows changed,
            since the last attempt at the same snapshot.
        columns: `used`: in tables with more than `wide` columns only those that readers request; `all`: every column;
            `none`: only the table's own statistics, from metadata.
        wide: Number of columns above which a table is wide.
    """

    max_age: timedelta = timedelta(days=1)
    changed: float = 0.1
    min_interval: timedelta = timedelta(minutes=5)
    columns: str = "used"
    wide: int = 100
    max_snapshots_behind: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Patterns on `schema.table` and their rules, in order; None = off."""

    entries: tuple[tuple[str, Rules | None], ...] = ()

    def rules(self, schema: str, name: str) -> Rules | None:
        """The rules of the first pattern that matches a table, case-sensitive; None if it says off or none matches."""
        full = f"{schema}.{name}"
        return next((rules for pattern, rules in self.entries if fnmatchcase(full, pattern)), None)

    @property
    def is_off(self) -> bool:
        """True if the policy captures no table."""
        return all(rules is None for _, rules in self.entries)


def parse(text: str) -> Policy:
    """Parses a policy in the syntax of the module docstring; empty for off.

    Raises:
        InvalidField: A rule is unknown or its value invalid; names the rule.
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


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _word(text: str) -> str:
    if text not in ("used", "all", "none"):
        raise ValueError
    return text


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "max_age": _duration,
    "changed": _share,
    "min_interval": _duration,
    "columns": _word,
    "wide": int,
    "max_snapshots_behind": _count,
}
_HALF: Final = 0.5  # share of changed rows at which a new snapshot does not wait
assert set(_READ) == {f.name for f in fields(Rules)}


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table when a policy is applied. `captured_…` describe the newest scan of its columns."""

    snapshot_id: int | None
    schema_hash: str | None
    columns: tuple[int, ...]  # leaves of the current schema
    has_table_record: bool = False  # at the current snapshot
    captured_snapshot_id: int | None = None
    captured_schema_hash: str | None = None
    captured_at: datetime | None = None
    captured_columns: frozenset[int] = frozenset()  # at the current snapshot
    snapshots_behind: int | None = None  # snapshots since the newest scan, the current one included; None: unknown
    changed_share: float | None = None  # share of rows in files added or removed since then; None: unknown
    least_changed_share: float = 0.0  # the same by row counts alone: rows that were replaced are not seen
    used: Mapping[int, int] = field(default_factory=dict)  # column id → reads
    ruled: frozenset[int] = frozenset()  # ids of the columns that a rule of the server's checks is about
    tried_at: datetime | None = None
    tried_snapshot_id: int | None = None
    busy: bool = False  # the table has an active job


class Because(StrEnum):
    """Reasons of a verdict, in words."""

    NO_SNAPSHOT = "the table has no snapshot"
    FRESH = "captured at the current snapshot"
    BUSY = "a job of the table is active"
    TOO_SOON = "tried a short while ago"
    NEW_SNAPSHOT = "the snapshot is new"
    NEVER = "never captured"
    SCHEMA = "the schema changed"
    CHANGED = "enough rows changed"
    AGE = "the statistics are old"
    BEHIND = "the statistics are of too old a snapshot"
    LITTLE = "little changed"
    METADATA = "the policy is about metadata alone"
    UNUSED = "the table is wide and no reader requests its columns"
    RULE = "a rule judges the columns"
    ASKED = "readers request columns that are not captured"
    UNKNOWN = "not known how much changed, and not old yet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision whether to capture now. `columns` are the ids to capture; None for the table's own statistics."""

    capture: bool
    because: Because
    columns: tuple[int, ...] | None = None
    detail: str = ""

    @property
    def text(self) -> str:
        """The verdict and its reason in one line."""
        word = "now" if self.capture else "not now"
        return f"{word}, because: {self.because}" + (f" ({self.detail})" if self.detail else "")


def table_verdict(rules: Rules, state: TableState, now: datetime) -> Verdict:
    """Decides about the table's own statistics, which come from metadata; the verdict's `columns` is None. `tried_…` of
    the state describe the last attempt at these; `now` has a time zone like the times of the state."""
    if state.snapshot_id is None:
        return Verdict(False, Because.NO_SNAPSHOT)
    if state.has_table_record:
        return Verdict(False, Because.FRESH)
    if state.tried_snapshot_id != state.snapshot_id:
        state = replace(state, tried_at=None)
    return _blocked(rules, state, now, None) or Verdict(True, Because.NEW_SNAPSHOT)


def columns_verdict(rules: Rules, state: TableState, now: datetime) -> Verdict:
    """The same about scanning columns; the verdict has the ids of those not yet captured at the current snapshot. The
    last attempt is that of a scan."""
    if state.snapshot_id is None:
        return Verdict(False, Because.NO_SNAPSHOT, ())
    if needed := tuple(sorted(state.ruled - state.captured_columns)):
        at_once = state if state.tried_snapshot_id == state.snapshot_id else replace(state, tried_at=None)
        if _blocked(rules, at_once, now, ()) is None:
            return Verdict(True, Because.RULE, needed)
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
    if because is Because.CHANGED and _changed(state) >= _HALF and state.tried_snapshot_id != state.snapshot_id:
        state = replace(state, tried_at=None)
    return _blocked(rules, state, now, ()) or Verdict(True, because, missing, detail)


def _stale(rules: Rules, state: TableState, now: datetime) -> tuple[Because, str]:
    if state.captured_at is None or state.captured_snapshot_id is None:
        return Because.NEVER, ""
    if state.captured_snapshot_id == state.snapshot_id:
        return Because.ASKED, ""
    if state.captured_schema_hash != state.schema_hash:
        return Because.SCHEMA, ""
    share = state.changed_share
    if (known := _changed(state)) > 0 and known >= rules.changed:
        return Because.CHANGED, f"{'' if share is not None else 'at least '}{known:.0%}, of {rules.changed:.0%}"
    if now - state.captured_at >= rules.max_age:
        return Because.AGE, f"since {state.captured_at:%Y-%m-%d %H:%M}"
    behind, most = state.snapshots_behind, rules.max_snapshots_behind
    if behind is not None and most is not None and behind > most:
        return Because.BEHIND, f"{behind} snapshots, of {most}"
    if share is None:
        return Because.UNKNOWN, ""
    return Because.LITTLE, f"{share:.0%}, of {rules.changed:.0%}"


def _changed(state: TableState) -> float:
    return state.least_changed_share if state.changed_share is None else state.changed_share


def _blocked(rules: Rules, state: TableState, now: datetime, columns: tuple[int, ...] | None) -> Verdict | None:
    if state.busy:
        return Verdict(False, Because.BUSY, columns)
    if state.tried_at is not None and now - state.tried_at < rules.min_interval:
        return Verdict(False, Because.TOO_SOON, columns)
    return None
