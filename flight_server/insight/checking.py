"""Checks rules after each capture, stores the results, and posts each change of state to a webhook."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.part import Select
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reloading import Reloaded
from flight_server.core.views.reader import ReadAhead, read_table
from flight_server.insight import learned
from flight_server.insight import rules as grammar
from flight_server.insight.alarms import Alarms
from flight_server.insight.evaluate import check
from flight_server.insight.results import Result, State
from store.catalog.catalog import Catalog
from store.catalog.checks import CheckRow, CheckStore, StateChange
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound, StatflightError

log = logging.getLogger("statflight.server")

SETTLE_SECONDS: Final = 1.0  # after the last capture of a table
STEP_SECONDS: Final = 0.5  # between two looks for them
TIMELY_SECONDS: Final = 60.0  # between two looks at rules that time alone may turn
_QUIET: Final = frozenset({None, State.PASSED, State.UNKNOWN})  # no change between these is news
STORED_AT_ONCE: Final = 256  # tables whose results are stored in one transaction


def unrestricted(scanner: Scanner, select: Select, unique: Callable[[str, int, str | int], bool]) -> LocalReader:
    """The reader for rules, which the server's operator writes: it sees all tables.

    Args:
        unique: Reads a column of a table at a snapshot.
    """
    return LocalReader(scanner, ANONYMOUS, lambda statement: select(statement, ANONYMOUS), unique)


class Checking:
    """Checks tables in a thread of its own.

    Args:
        reader: Reads statistics, runs a rule's SELECT, and reads columns.
        late_seconds: Time after a table's first look at a snapshot in which a rule waits for what it is about.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        reader: LocalReader,
        rules: Reloaded[grammar.File],
        alarms: Alarms,
        late_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._catalog, self._file, self._alarms, self._clock = catalog, rules, alarms, clock
        self._store, self._reader = CheckStore(database), reader
        alarms.silences = rules.value.silences
        self._late_seconds = late_seconds
        self._captured: dict[int, float] = {}  # table key → when it was last captured, or is to be looked at again
        self._waiting: dict[int, _Wait] = {}  # by table key
        self._pending: dict[int, list[Result]] = {}  # results that wait, by table key
        self._referring: set[int] = set()  # tables with values that a referenced table lacks, by key
        self._timely: dict[int, float] = {}  # by table key: when rules about the time are due
        self._lock = threading.Lock()
        self.results: dict[str, list[Result]] = {}

    def captured(self, table: TableEntry) -> None:
        """Notes that a table was captured."""
        if self._file.value.rules:
            with self._lock:
                self._captured[table.table_key] = self._clock()

    def judges(self, table: str, column: str) -> bool:
        """True if a rule about a table, by its full name, needs statistics of a column."""
        return any(rule.is_about(table) and rule.judges(column) for rule in self._file.value.rules)

    def run(self) -> int:
        """Checks the tables whose captures have ended; returns how many. Called periodically."""
        now = self._clock()
        self._alarms.flush()
        ready = self._ready(now)
        due = [key for key, at in self._timely.items() if now >= at and key not in ready]
        tables = list(map(self._catalog.by_key, [*ready, *due]))
        reader = ReadAhead(self._reader, [table.full_name for table in tables])
        for start in range(0, len(tables), STORED_AT_ONCE):
            found = [
                (table, self._results(reader, table, only_timely=table.table_key not in ready))
                for table in tables[start : start + STORED_AT_ONCE]
            ]
            try:
                self._store_results(reader, found)
            except StatflightError as error:  # a full disk, say
                log.warning("checks: their results cannot be stored, they run again in a minute: %s", error)
                with self._lock:
                    for table, _ in found:
                        self._captured.setdefault(table.table_key, self._clock() + TIMELY_SECONDS)
        return len(ready)

    def _ready(self, now: float) -> list[int]:
        """Keys of the tables whose captures have ended, or that have waited long enough for one."""
        with self._lock:
            ready = [key for key, since in self._captured.items() if now - since >= SETTLE_SECONDS]
            for key in ready:
                del self._captured[key]
        waited = [key for key, wait in self._waiting.items() if now >= wait.until and not wait.over]
        ready += [key for key in waited if key not in ready]
        if ready:
            if self._file.renew():
                self._alarms.silences = self._file.value.silences
            ready += self._referring.difference(ready)  # what was captured may be what they refer to
        return ready

    def _results(self, reader: ReadAhead, table: TableEntry, *, only_timely: bool) -> list[Result]:
        """The results of a table to store."""
        try:
            return (self._check_time if only_timely else self._check)(reader, table)
        except (NotFound, pa.ArrowKeyError):  # it was dropped since
            self._waiting.pop(table.table_key, None)
            self._pending.pop(table.table_key, None)
            self._timely.pop(table.table_key, None)
            self._referring.discard(table.table_key)
        except StatflightError as error:
            log.warning("checks: %s", error)
        return []

    def expect(self, table: TableEntry, snapshot_id: int, column: str | None, measure: str) -> None:
        """Takes a value of a learned rule for expected, and checks the table again.

        Args:
            column: Its column; None for measures of the table.
            measure: One of `learned.MEASURES`.
        """
        self._store.expect(table.table_key, snapshot_id, column, learned.rule_of(measure), measure)
        self.captured(table)

    def _check_time(self, reader: ReadAhead, table: TableEntry) -> list[Result]:
        """Checks the rules that time alone may turn; no results if none has turned."""
        self._timely[table.table_key] = self._clock() + TIMELY_SECONDS
        before = self.results.get(table.full_name, [])
        news = check(reader, table.full_name, self._file.value.rules, grammar.PREVIOUS, only_timely=True)
        found = {(result.rule, result.column): result for result in news if not result.pending}
        if all(old.state == found.get((old.rule, old.column), old).state for old in before):
            return []
        self.results[table.full_name] = [found.get((old.rule, old.column), old) for old in before]
        return self._with_waiting(table)

    def _check(self, reader: ReadAhead, table: TableEntry) -> list[Result]:
        found = check(reader, table.full_name, self._file.value.rules, grammar.PREVIOUS)
        results = [result for result in found if not result.pending]
        pending = [result for result in found if result.pending]
        self._pending.pop(table.table_key, None)
        if self._waits_no_longer(table, bool(pending)):
            results += map(_late, pending)
            self.results[table.full_name] = results
        else:
            self._pending[table.table_key] = [_waiting(result, table.current_snapshot_id) for result in pending]
            self.results[table.full_name] = [*results, *self._still_standing(table, results, pending)]
        lacking = any(
            one.measure == grammar.CONTAINMENT and (one.pending or one.state != State.PASSED) for one in found
        )
        (self._referring.add if lacking else self._referring.discard)(table.table_key)
        if any(result.measure in learned.TIMELY for result in results):
            self._timely[table.table_key] = self._clock() + TIMELY_SECONDS
        return [*results, *self._pending.get(table.table_key, ())]

    def _still_standing(
        self, table: TableEntry, results: Sequence[Result], pending: Sequence[Result]
    ) -> Iterator[Result]:
        """Earlier results of the rules that wait: they still stand, for those who count failures."""
        names = {result.rule for result in pending}
        known = {(result.rule, result.column) for result in results}
        for old in self.results.get(table.full_name, ()):
            if old.rule in names and (old.rule, old.column) not in known:
                yield old

    def _with_waiting(self, table: TableEntry) -> list[Result]:
        """The known results of a table, with those that wait in place of the ones before."""
        waiting = self._pending.get(table.table_key, [])
        rules = {(result.rule, result.column) for result in waiting}
        return [*(one for one in self.results[table.full_name] if (one.rule, one.column) not in rules), *waiting]

    def _store_results(self, reader: ReadAhead, found: Sequence[tuple[TableEntry, Sequence[Result]]]) -> None:
        at, given, tables = datetime.now(UTC), [], []
        for table, results in found:
            if table.current_snapshot_id is not None and results:
                given.append((table.table_key, table.current_snapshot_id, list(map(_row, results))))
                tables.append(table)
        for table, changes in zip(tables, self._store.put(given, at), strict=True):
            reported = [change for change in changes if not {change.before, change.row.state} <= _QUIET]
            for change in reported:
                log.info("check of %s: %s is %s", table.full_name, _name(change), change.row.state)
            if reported:
                self._alarms.post(
                    {
                        "table": table.full_name,
                        "owner": _owner(reader, table),
                        "snapshot_id": table.current_snapshot_id,
                        "checked_at": at.isoformat(),
                        "changes": [_change_json(change) for change in reported],
                    }
                )

    def _waits_no_longer(self, table: TableEntry, pending: bool) -> bool:
        """True once rules have waited for a table's current snapshot for `late_seconds`."""
        now, wait = self._clock(), self._waiting.get(table.table_key)
        if not pending:
            self._waiting.pop(table.table_key, None)
            return True
        if wait is None or wait.snapshot_id != table.current_snapshot_id:
            wait = self._waiting[table.table_key] = _Wait(table.current_snapshot_id, now + self._late_seconds)
        wait.over = now >= wait.until
        return wait.over


def _owner(reader: ReadAhead, table: TableEntry) -> str | None:
    """The owner of a table; None if it cannot be read, because an alarm without an owner is better than none."""
    try:
        owners = read_table(reader, "sys.tables", table.full_name, ["owner"])["owner"].to_pylist()
    except StatflightError as error:
        log.warning("checks: the owner of %s cannot be read: %s", table.full_name, error)
        return None
    return owners[0] if owners else None


@dataclass
class _Wait:
    """The wait of a table's rules for statistics of its current snapshot."""

    snapshot_id: int | None
    until: float  # seconds of the clock
    over: bool = False


def _waiting(result: Result, snapshot_id: int | None) -> Result:
    """The result of a rule whose columns are not captured at the current snapshot yet."""
    return replace(result, state=State.WAITING, value=None, detail=f"waits for snapshot {snapshot_id}")


def _late(result: Result) -> Result:
    """The result of a rule that has waited long enough.

    Counts and bounds of an earlier snapshot are judged as they are, for a policy may leave small changes uncaptured;
    a distribution of an earlier snapshot decides nothing.
    """
    if result.value is not None:
        return result
    return replace(result, state=State.LATE)


def _row(result: Result) -> CheckRow:
    number, detail = result.value, result.detail
    if isinstance(number, str):
        number, detail = None, "; ".join(filter(None, (number, detail)))
    return CheckRow(result.column, result.rule, result.measure, result.level, result.state, number, detail)


def _name(change: StateChange) -> str:
    return change.row.rule if change.row.column_name is None else f"{change.row.column_name}: {change.row.rule}"


def _change_json(change: StateChange) -> dict[str, Any]:
    row = change.row
    return {
        "column": row.column_name,
        "rule": row.rule,
        "level": row.level,
        "before": change.before,
        "after": row.state,
        "value": row.value,
        "detail": row.detail,
    }
