"""Commands that capture: capture, resolve."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.client import reason
from flight_server.client.capture_requests import requests_for, without_missing
from flight_server.core.views import numbers
from flight_server.core.views.reader import ReadAhead, read_table
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.core.views.table_summary import require
from flight_server.faces.commands.common import Answer, AnswerFormat, names_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import STARTED, in_flags, misuse, say, tell, tell_json, warn
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.progress import capture_each
from flight_server.faces.commands.targets import TableNames, check_targets, expand, snapshot_of
from store.model.columns import KINDS

if TYPE_CHECKING:
    from flight_server.client import StatsClient

_Columns = Annotated[list[str] | None, option(metavar="A,B", help="Only these columns; '\"a,b\"' is one. Repeatable.")]
SAMPLES = {"random": "RANDOM_ROW_GROUP", "guided": "METADATA_GUIDED"}
GOOD = frozenset({"CAPTURED", "QUEUED", "HIT"})


def capture(
    tables: TableNames,
    snapshot: Annotated[
        str, option(metavar="SNAPSHOT", help="An id, 'current', 'previous', 'first' or 'all'.")
    ] = "current",
    columns: _Columns = None,
    kinds: Annotated[str | None, option(metavar="A,B", help=f"Some of {', '.join(KINDS)}; all when absent.")] = None,
    partition: Annotated[
        list[str] | None,
        option(metavar="FIELD=VALUE,…", help="Only this partition's files, without totals; '\"a=b,c\"' is one."),
    ] = None,
    sample: Annotated[
        str | None, option(metavar="METHOD", help="Read some row groups of the columns: random, or guided.")
    ] = None,
    max_rows: Annotated[int | None, option(min=1, help="Limit of a sample, in rows.")] = None,
    max_bytes: Annotated[int | None, option(min=1, help="Limit of a sample, in compressed bytes.")] = None,
    max_seconds: Annotated[float | None, option(min=0.001, help="Limit of a sample, in seconds.")] = None,
    engine: Annotated[str | None, option(metavar="ENGINE", help="Where data is read: auto, spark or local.")] = None,
    asynchronous: Annotated[bool, option("--async", help="Do not wait: print the job ids.")] = False,
    every: Annotated[
        str | None, option(metavar="DURATION", help="Repeat at this interval, such as 15m, until Ctrl-C.")
    ] = None,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Capture each table that the targets stand for; one that fails does not stop the others."""
    budget = {"max_rows": max_rows, "max_bytes": max_bytes, "max_seconds": max_seconds}
    asked = _Asked(
        targets=check_targets(tables),
        at=snapshot_of(snapshot, "all"),
        kinds=_kinds(kinds),
        columns=names_of(columns),
        partitions=[_partition(text) for text in partition] if partition else None,
        sampling=_sampling(sample, {name: most for name, most in budget.items() if most is not None}),
        engine=engine,
        asynchronous=asynchronous,
        format=format,
    )
    pause = None if every is None else _seconds(every)
    if engine not in (None, "auto", "spark", "local"):
        misuse(f"--engine {engine!r}: must be auto, spark or local")
    with connect(connection) as client:
        try:
            failed = _capture_once(client, asked, STARTED)
            while pause is not None:
                time.sleep(pause)
                try:
                    _capture_once(client, asked, time.monotonic())
                except (pa.ArrowException, flight.FlightError) as error:  # the server may be back the next time
                    warn(f"statflight: {in_flags(reason(error)).splitlines()[0]}; tried again in {every}")
        except KeyboardInterrupt:
            ended = client.captures.cancel()
            warn("statflight: the running captures are " + ("CANCELLED" if ended else "cancelled as this command ends"))
            raise
    if failed:
        sys.exit(1)


class _Asked(NamedTuple):
    """A capture as it was asked for.

    Attributes:
        at: The snapshot: an id, `current` or `all`.
        kinds: Kinds of statistics; None for all.
        columns: Names of columns; None for all.
        partitions: Values of the partitions whose files alone are captured; None for the whole table.
        sampling: The sample to read instead of the data: its method, or that with its limits; None for none.
        asynchronous: Do not wait for the jobs.
    """

    targets: list[str]
    at: str | int
    kinds: list[str] | None
    columns: list[str] | None
    partitions: list[dict[str, str | None]] | None
    sampling: str | dict[str, Any] | None
    engine: str | None
    asynchronous: bool
    format: Answer

    def requests(self, reader: ReadAhead, name: str) -> list[dict[str, Any]]:
        """The requests for a table, by its columns that are known.

        Raises:
            pa.ArrowInvalid: The table lacks a column that was asked for.
        """
        mode = "ASYNC" if self.asynchronous else "SYNC"
        at = snapshot_at(reader, name, self.at, captured=False)
        common: dict[str, Any] = {"table": name, "snapshot": at, "mode": mode}
        common |= {} if self.partitions is None else {"partitions": self.partitions}
        columns = read_table(reader, "information_schema.columns", name, ["column_name", "column_id", "data_type"])
        if not columns.num_rows:
            require(reader, name)
        return requests_for(common, columns.to_pylist(), self.columns, self.kinds, self.sampling)


def _capture_once(client: StatsClient, asked: _Asked, started: float) -> int:
    """Captures the tables and tells the outcomes.

    Args:
        started: The time it began, by `time.monotonic`.

    Returns:
        The number of targets that failed.
    """
    names, failed = expand(client, asked.targets)
    ready: dict[str, list[dict[str, Any]]] = {}
    if asked.columns is not None:  # a column that a table lacks fails before anything is captured
        reader = ReadAhead(client, names)
        ready = {name: asked.requests(reader, name) for name in names}

    def ask(reader: ReadAhead, name: str) -> list[dict[str, Any]]:
        return ready[name] if name in ready else asked.requests(reader, name)

    rows: list[dict[str, Any]] = []
    for name, ended in capture_each(client, names, ask, partial(client.capture, engine=asked.engine)):
        if isinstance(ended, flight.FlightUnavailableError | flight.FlightUnauthenticatedError):
            raise ended  # the other calls would fail too
        if isinstance(ended, Exception):
            words = in_flags(reason(ended))
            warn(f"statflight: {name}: {words}")
            rows.append({"table": name, "error": words})
            failed += 1
            continue
        outcomes = ended if asked.columns is not None else without_missing(ended, asked.at, client.column_ids)
        rows += [{"table": name, **outcome} for outcome in outcomes]
        if asked.format is Answer.TEXT:
            _tell(name, outcomes, asked.asynchronous)
        failed += _warn(name, outcomes)
    _tell_end(asked, rows, started)
    return failed


def _tell_end(asked: _Asked, rows: list[dict[str, Any]], started: float) -> None:
    """Prints what is told once of all tables: their outcomes as JSON, what partitions lack, and the time it took."""
    if asked.format is Answer.JSON:
        tell_json(rows)
    elif asked.partitions is not None:
        say(
            "--partition captures files alone, which stats.files and stats.partitions show; statistics of a whole "
            "table come with a capture of it"
        )
    if sys.stderr.isatty() and not asked.asynchronous:
        say(f"took {time.monotonic() - started:.1f} s")


def _seconds(text: str) -> float:
    """`90s`, `15m`, `2h` or `1d` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None or not float(match[1]):
        misuse(f"--every {text!r}: must be a duration such as 30s, 15m or 2h")
    if not match[2]:
        misuse(f"--every {text!r}: has no unit; write {match[1]}s, {match[1]}m, {match[1]}h or {match[1]}d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def _partition(text: str) -> dict[str, str | None]:
    """Parses `day=2024-05-01,region=eu`, with pairs quoted as by `names_of`; an empty value means null."""
    values = {}
    for pair in names_of([text]) or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            misuse(f"--partition {text!r}: must be FIELD=VALUE,…")
        values[name.strip()] = value or None
    return values


def _sampling(method: str | None, budget: Mapping[str, float]) -> str | dict[str, Any] | None:
    if method is None:
        if budget:
            misuse(f"--{next(iter(budget)).replace('_', '-')} limits a sample: say --sample random, or guided")
        return None
    if method not in SAMPLES:
        misuse(f"--sample {method!r}: must be {' or '.join(SAMPLES)}")
    return {"method": SAMPLES[method], **budget} if budget else SAMPLES[method]


def _kinds(text: str | None) -> list[str] | None:
    kinds = names_of([text.upper()] if text is not None else None)
    if kinds is not None and (strange := [kind for kind in kinds if kind not in KINDS]):
        misuse(f"--kinds {strange[0]!r}: must be of {', '.join(KINDS)}")
    return kinds


def _tell(name: str, outcomes: list[dict[str, Any]], asynchronous: bool) -> None:
    """Prints the outcomes of a table's targets in a line, or its job ids."""
    if asynchronous:
        for job in dict.fromkeys(outcome["job_id"] for outcome in outcomes if outcome.get("job_id")):
            tell(job)
    elif outcomes:
        tell(f"{name}: {summary_of(outcomes)}{_read(outcomes)}")


def _read(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """The number of files that the engines read, as `, 2 of 30 files read`; empty if no engine reports it."""
    told = [outcome.get("attributes") or {} for outcome in outcomes]
    known = [each for each in told if "files_read" in each and "files" in each]
    if not known:
        return ""
    files, read = (max(each[key] for each in known) for key in ("files", "files_read"))
    return f", {read} of {numbers.counted(files, 'file')} read" if read else ", unchanged: no file read"


def _warn(name: str, outcomes: list[dict[str, Any]]) -> int:
    """Prints what failed, and which files a capture lacks, on standard error; returns how much failed."""
    reasons: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for outcome in outcomes:
        word, detail = outcome["outcome"], outcome.get("detail") or ""
        if word not in GOOD:
            reasons.setdefault((word, detail), []).append(outcome)
        elif (outcome.get("attributes") or {}).get("files_failed"):
            reasons.setdefault((f"{word}, but", detail), []).append(outcome)
    for (word, detail), mine in reasons.items():
        targets = " ".join(map(str, mine[0]["target"].values())) if len(mine) == 1 else _counted(mine)
        warn(f"statflight: {name}: {targets}: {word} {detail}".rstrip())
    return sum(outcome["outcome"] not in GOOD for outcome in outcomes)


def summary_of(outcomes: list[dict[str, Any]]) -> str:
    """`table and 4 columns captured by native, spark`; other outcomes are listed one by one."""
    parts = []
    for word in dict.fromkeys(outcome["outcome"] for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome["outcome"] == word]
        engines = sorted({outcome["engine_id"] for outcome in mine if outcome.get("engine_id")})
        by = f" by {', '.join(engines)}" if engines and word in GOOD else ""
        parts.append(f"{_counted(mine)} {word.lower()}{by}")
    return "; ".join(parts)


_NOUNS: Final = {
    "TABLE": "table",
    "COLUMN": "column",
    "COLUMN_GROUP": "column group",
    "EXPRESSION": "expression",
    "FILE": "file",
}


def _counted(outcomes: list[dict[str, Any]]) -> str:
    """`table and 4 columns`."""
    kinds = Counter(outcome["target"]["kind"] for outcome in outcomes)
    nouns = [
        "table" if kind == "TABLE" and many == 1 else f"{many} {_NOUNS[kind]}{'s' if many > 1 else ''}"
        for kind in _NOUNS
        if (many := kinds[kind])
    ]
    return " and ".join(nouns)


def resolve(
    tables: TableNames,
    snapshot: Annotated[str, option(metavar="SNAPSHOT", help="An id, or 'current'.")] = "current",
    columns: _Columns = None,
    where: Annotated[
        str | None, option(metavar="SQL", help='A condition, such as "id = 5"; estimates what it leaves.')
    ] = None,
    budget: Annotated[
        int | None, option("--budget-ms", min=0, help="How long a capture may take, in milliseconds.")
    ] = None,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Get statistics from the store, or capture them within a budget; prints the outcome of each target."""
    targets, at = check_targets(tables), snapshot_of(snapshot)
    with connect(connection) as client:
        names, missing = expand(client, targets)
        requests = [
            request | ({} if budget is None else {"latency_budget_ms": budget})
            for name in names
            for request in client.capture_requests(
                name, snapshot=snapshot_at(client, name, at, captured=False), columns=names_of(columns)
            )
        ]
        outcomes = client.resolve(requests, where=where) if requests else []
    answers = list(zip(requests, outcomes, strict=True))
    if format is Answer.JSON:
        tell_json({"table": request["table"], **outcome} for request, outcome in answers)
    else:
        for request, outcome in answers:
            record = outcome.get("record") or {}
            target = record.get("column_name") or " ".join(str(part) for part in request["target"].values())
            left = _left(outcome.get("estimate"), record.get("column_name"))
            told = (request["table"], target, outcome["outcome"], left, outcome.get("detail") or "")
            tell("  ".join(filter(None, told)))
    if missing or any(outcome["outcome"] not in GOOD for outcome in outcomes):
        sys.exit(1)


def _left(estimate: dict[str, Any] | None, column: str | None) -> str:
    """Text of an estimate: rows of a table, or nulls and distinct values of a column; empty without one."""
    if estimate is None:
        return ""
    of_column = next(iter(estimate["columns"].values()), None)
    if column is None or of_column is None:
        return f"{numbers.interval(estimate['row_count'])} rows left"
    return (
        f"{numbers.interval(of_column['null_count'])} nulls, {numbers.interval(of_column['ndv'])} distinct values left"
    )
