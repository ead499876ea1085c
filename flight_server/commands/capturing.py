"""Commands that change what the server knows: connect, discover, disconnect, capture, resolve, publish, expire."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_server.client import StatsClient, full_name, reason, split_name
from flight_server.commands.common import (
    SERVER,
    CommandError,
    Server,
    TlsRoots,
    Token,
    connect,
    misuse,
    names_of,
    say,
    snapshot_of,
    table_name,
    tell,
)
from store.schemas import KINDS

_TableNames = Annotated[list[str], typer.Argument(metavar="TABLE…", help="catalog.schema.table")]
_Catalog = Annotated[str, typer.Argument(metavar="CATALOG", help="The name the lake is known by.")]
_Columns = Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")]
SAMPLES = {"random": "RANDOM_ROW_GROUP", "guided": "METADATA_GUIDED"}
GOOD = frozenset({"CAPTURED", "QUEUED", "HIT"})
POLL_SECONDS = 0.3


def connect_lake(
    catalog: _Catalog,
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="delta, iceberg, lance, parquet or paimon.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="A table, a directory of tables, or a catalog.")],
    option: Annotated[list[str] | None, typer.Option("-o", "--option", metavar="KEY=VALUE", help="Repeatable.")] = None,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Connect a lake and list its tables."""
    options = dict(_pair(text) for text in option or ())
    with connect(server, token, tls_roots) as client:
        client.actions.register_connector(catalog=catalog, format=format, uri=_absolute(uri), options=options)
        client.actions.discover(catalog=catalog)
        _tell_tables(client, catalog)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        misuse(f"-o {text!r}: expected key=value")
    return key.strip(), value


def _absolute(uri: str) -> str:
    """A local path that is there, from the root: the server may run in another directory."""
    return str(Path(uri).resolve()) if "://" not in uri and Path(uri).exists() else uri


def _tell_tables(client: StatsClient, catalog: str) -> None:
    names = sorted(full_name(row) for row in client.tables(catalog).to_pylist())
    for name in names:
        tell(name)
    if not names:
        say(f"{catalog}: no tables found")


def discover(
    catalog: _Catalog,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this one.")] = None,
    full_rescan: Annotated[bool, typer.Option("--full-rescan", help="Look at known snapshots again.")] = False,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Look for new tables and snapshots of a connected lake."""
    body: dict[str, Any] = {"catalog": catalog} | ({"full_rescan": True} if full_rescan else {})
    if table is not None:
        body["table"] = table_name(table)
    with connect(server, token, tls_roots) as client:
        client.actions.call("discover", body)
        _tell_tables(client, catalog)


def disconnect(catalog: _Catalog, server: Server = SERVER, token: Token = None, tls_roots: TlsRoots = None) -> None:
    """Forget a connected lake and its tables."""
    with connect(server, token, tls_roots) as client:
        client.actions.drop_connector(catalog=catalog)
    say(f"{catalog}: disconnected")


def capture(
    tables: _TableNames,
    snapshot: Annotated[str, typer.Option(help="An id, 'current' or 'all'.")] = "current",
    columns: _Columns = None,
    kinds: Annotated[str | None, typer.Option(metavar="A,B", help=f"Of {', '.join(KINDS)}; any when absent.")] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE,…", help="Only the files of this partition, and no totals. Repeatable."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Read some row groups of the columns: random, or guided.")
    ] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="The most rows that a sample reads.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="The most compressed bytes that it reads.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.001, help="When it has read enough.")] = None,
    asynchronous: Annotated[bool, typer.Option("--async", help="Do not wait: print the job ids.")] = False,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Capture statistics of tables and their columns."""
    names = list(dict.fromkeys(map(table_name, tables)))
    at = snapshot_of(snapshot, "current", "all")
    asked = _kinds(kinds)
    partitions = [_partition(text) for text in partition] if partition else None
    budget = {"max_rows": max_rows, "max_bytes": max_bytes, "max_seconds": max_seconds}
    sampling = _sampling(sample, {name: most for name, most in budget.items() if most is not None})
    mode = "ASYNC" if asynchronous else "SYNC"
    with connect(server, token, tls_roots) as client:
        requests, unknown = [], 0
        for name in names:
            try:
                requests += client.capture_requests(
                    name, snapshot=at, columns=names_of(columns), kinds=asked, mode=mode, partitions=partitions,
                    sampling=sampling,
                )  # fmt: skip
            except pa.ArrowKeyError as error:
                say(f"statflight: {reason(error)}")
                unknown += 1
        started = time.monotonic()
        outcomes = _with_progress(client, names, lambda: client.capture(requests)) if requests else []
        elapsed = time.monotonic() - started
    if at != "current" and columns is None:
        outcomes = [outcome for outcome in outcomes if not _of_no_column(outcome)]
    if asynchronous:
        for job in dict.fromkeys(outcome["job_id"] for outcome in outcomes if outcome.get("job_id")):
            tell(job)
    failed = _summarise(names, outcomes, quiet=asynchronous)
    if sys.stderr.isatty() and not asynchronous:
        say(f"took {elapsed:.1f} s")
    if unknown or failed:
        raise typer.Exit(1)


def _partition(text: str) -> dict[str, str | None]:
    """`day=2024-05-01,region=eu` as an object; nothing after the equals sign is null."""
    found = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            misuse(f"--partition {text!r}: expected field=value,…")
        found[name.strip()] = value or None
    return found


def _sampling(method: str | None, budget: Mapping[str, float]) -> str | dict[str, Any] | None:
    if method is None:
        if budget:
            misuse(f"--{next(iter(budget)).replace('_', '-')} limits a sample: say --sample random, or guided")
        return None
    if method not in SAMPLES:
        misuse(f"--sample {method!r}: expected {' or '.join(SAMPLES)}")
    return {"method": SAMPLES[method], **budget} if budget else SAMPLES[method]


def _kinds(text: str | None) -> list[str] | None:
    kinds = names_of(text.upper() if text else text)
    if kinds is not None and (strange := [kind for kind in kinds if kind not in KINDS]):
        misuse(f"--kinds {strange[0]!r}: expected of {', '.join(KINDS)}")
    return kinds


def _of_no_column(outcome: Mapping[str, Any]) -> bool:
    """Whether the column is not of the snapshot: the columns asked for are today's, an older snapshot may lack some."""
    return outcome["outcome"] not in GOOD and "no column with id" in (outcome.get("detail") or "")


def _summarise(names: list[str], outcomes: list[dict[str, Any]], quiet: bool) -> int:
    """Writes a line for each table; answers how many outcomes are no success."""
    failed = 0
    for name in names:
        mine = [outcome for outcome in outcomes if outcome["table"] == name]
        if not mine:
            continue
        if not quiet:
            words = ", ".join(f"{many} {word.lower()}" for word, many in Counter(o["outcome"] for o in mine).items())
            engines = sorted({o["engine_id"] for o in mine if o.get("engine_id")})
            tell(f"{name}: {words}{' by ' + ', '.join(engines) if engines else ''}")
        for outcome in mine:
            if outcome["outcome"] not in GOOD:
                failed += 1
                what = " ".join(str(part) for part in outcome["target"].values())
                say(f"{name}: {what}: {outcome['outcome']} {outcome.get('detail') or ''}".rstrip())
    return failed


def _with_progress(
    client: StatsClient, names: list[str], work: Callable[[], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Does the work; on a terminal its jobs' progress is seen meanwhile."""
    if not sys.stderr.isatty():
        return work()
    done: list[list[dict[str, Any]]] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    _show_progress(client, {split_name(name): name for name in names}, thread)
    if trouble:
        raise trouble[0]
    return done[0]


def _show_progress(client: StatsClient, names: Mapping[tuple[str, str, str], str], thread: threading.Thread) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    words = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*words, console=Console(stderr=True), transient=True) as progress:
        bars = {key: progress.add_task(name, total=None) for key, name in names.items()}
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            try:
                running = [{"column": "state", "op": "EQ", "values": ["RUNNING"]}]
                jobs = client.read("sys.capture_jobs", where=running).to_pylist()
            except (pa.ArrowException, pa.flight.FlightError):
                continue  # the capture itself tells what is wrong
            for job in jobs:
                bar = bars.get((job["table_catalog"], job["table_schema"], job["table_name"]))
                if bar is not None and job["progress"] is not None:
                    progress.update(bar, total=1.0, completed=job["progress"])


def resolve(
    tables: _TableNames,
    snapshot: Annotated[str, typer.Option(help="An id, or 'current'.")] = "current",
    columns: _Columns = None,
    budget: Annotated[int | None, typer.Option("--budget-ms", min=0, help="How long a capture may take.")] = None,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Statistics from the store, or captured within a budget: the outcome for each target."""
    names, at = [table_name(name) for name in tables], snapshot_of(snapshot, "current")
    with connect(server, token, tls_roots) as client:
        requests = [
            request | ({} if budget is None else {"latency_budget_ms": budget})
            for name in names
            for request in client.capture_requests(name, snapshot=at, columns=names_of(columns))
        ]
        outcomes = client.resolve(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        record = outcome.get("record") or {}
        target = record.get("column_name") or " ".join(str(part) for part in request["target"].values())
        tell("  ".join(filter(None, (request["table"], target, outcome["outcome"], outcome.get("detail") or ""))))
    if any(outcome["outcome"] not in GOOD for outcome in outcomes):
        raise typer.Exit(1)


def publish(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="catalog.schema.table")],
    to: Annotated[str, typer.Option("--to", help="iceberg (Puffin), paimon, lance or spark.")],
    snapshot: Annotated[str, typer.Option(help="An id, or 'current'.")] = "current",
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Write a table's statistics where other engines find them."""
    body = {"table": table_name(table), "snapshot": snapshot_of(snapshot, "current"), "to": to}
    with connect(server, token, tls_roots) as client:
        for written in client.actions.call("publish", body):
            tell(_words(written))


def expire(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Only tell what would go.")] = True,
    server: Server = SERVER,
    token: Token = None,
    tls_roots: TlsRoots = None,
) -> None:
    """Delete statistics of snapshots that the lake itself has expired."""
    body: dict[str, Any] = {"dry_run": dry_run} | ({} if table is None else {"table": table_name(table)})
    with connect(server, token, tls_roots) as client:
        for gone in client.actions.call("expire", body):
            tell(_words(gone))
    if dry_run:
        say("nothing was deleted; --no-dry-run deletes")


def _words(answer: Any) -> str:
    """An action's answer in a line: `key=value` of what it says."""
    if not isinstance(answer, Mapping):
        return str(answer)
    if not answer:
        raise CommandError("the server answered nothing")
    return "  ".join(f"{key}={value}" for key, value in answer.items() if value not in (None, "", [], {}))
