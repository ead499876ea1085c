"""Progress on a terminal: captures (tables, files and bytes done, rate, time left) and inspections of a lake."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow.flight as flight

from flight_server.client.background import in_background
from flight_server.client.capture_requests import new_among
from flight_server.core.views.numbers import count, number
from flight_server.core.views.reader import ReadAhead
from flight_server.faces.commands.output import quiet
from flight_server.faces.present.text import harmless

if TYPE_CHECKING:
    from flight_server.client import StatsClient

T = TypeVar("T")
Requests = list[dict[str, Any]]
Outcomes = list[dict[str, Any]]
Ask = Callable[[ReadAhead, str], Requests]
AT_ONCE = 4  # concurrent calls of one command
TOGETHER = 32  # tables in one call, if there are many
MAX_REQUESTS = 10_000  # in one call of several tables
POLL_SECONDS = 0.5
LINE_SECONDS = 0.1  # between two lines on a terminal


@contextmanager
def line_on_terminal() -> Iterator[Callable[[str], None]]:
    """Shows one line at a time on standard error, if that is a terminal; an empty one clears it."""
    if quiet() or not sys.stderr.isatty():
        yield lambda _: None
        return
    shown = 0.0

    def show(words: str) -> None:
        nonlocal shown
        if words and time.monotonic() - shown < LINE_SECONDS:
            return
        shown = time.monotonic()
        sys.stderr.write(f"\r\033[K{harmless(words)[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


def capture_each(
    client: StatsClient, names: Sequence[str], ask: Ask, capture: Callable[[Requests], Outcomes]
) -> Iterator[tuple[str, Outcomes | Exception]]:
    """Captures tables with a few concurrent calls; many tables share calls, which workers run in bundles.

    Args:
        client: Reads columns, and the progress of the jobs.
        names: Full names of the tables.
        ask: The requests for a table, by what is known of it. It is asked once more after the capture, which looks at
            the lake, and what is new then is captured too.
        capture: Sends requests and waits; returns one outcome per request.

    Yields:
        Each table, in order of completion, with its outcomes or its error.
    """
    size = TOGETHER if len(names) > AT_ONCE else 1
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    left, ended = iter(parts), SimpleQueue[list[tuple[str, Outcomes | Exception]]]()
    stopped = threading.Event()

    def capture_unless_stopped(requests: Requests) -> Outcomes:
        if stopped.is_set():
            raise flight.FlightCancelledError("the command was interrupted")
        return capture(requests)

    def work() -> None:
        for part in left:
            ended.put(_capture_together(client, part, ask, capture_unless_stopped))

    for _ in parts[:AT_ONCE]:  # not a pool of threads: Python would wait for them, also after Ctrl-C
        threading.Thread(target=work, daemon=True, name="capture").start()
    try:
        with _bar(client, names) as done:
            for _ in parts:
                for name, outcomes in ended.get():
                    done(name)
                    yield name, outcomes
    finally:
        stopped.set()


def _capture_together(
    client: StatsClient, names: Sequence[str], ask: Ask, capture: Callable[[Requests], Outcomes]
) -> list[tuple[str, Outcomes | Exception]]:
    """Each table with its outcomes or its error. A refused call is repeated for each table alone."""
    outcomes_of = _captured(client, names, ask, capture)
    captured = {name: outcomes for name, outcomes in outcomes_of.items() if not isinstance(outcomes, Exception)}

    def ask_for_new(reader: ReadAhead, name: str) -> Requests:
        return new_among(ask(reader, name), captured[name])

    for name, more in _captured(client, list(captured), ask_for_new, capture).items():
        outcomes_of[name] = more if isinstance(more, Exception) else captured[name] + more
    return [(name, outcomes_of[name]) for name in names]


def _captured(
    client: StatsClient, names: Sequence[str], ask: Ask, capture: Callable[[Requests], Outcomes]
) -> dict[str, Outcomes | Exception]:
    outcomes_of: dict[str, Outcomes | Exception] = {}
    groups: list[dict[str, Requests]] = [{}]
    reader = ReadAhead(client, names)
    for name in names:
        try:
            requests = ask(reader, name)
        except Exception as error:
            outcomes_of[name] = error
            continue
        if groups[-1] and sum(map(len, groups[-1].values())) + len(requests) > MAX_REQUESTS:
            groups.append({})
        if requests:
            groups[-1][name] = requests
    for group in groups:
        outcomes_of |= _by_one_call(group, capture) if len(group) > 1 else _one_by_one(group, capture)
    return outcomes_of


def _by_one_call(
    group: Mapping[str, Requests], capture: Callable[[Requests], Outcomes]
) -> dict[str, Outcomes | Exception]:
    try:
        outcomes = iter(capture([request for requests in group.values() for request in requests]))
    except flight.FlightUnavailableError as error:
        return dict.fromkeys(group, error)
    except Exception:  # one of the tables is at fault
        return _one_by_one(group, capture)
    return {name: list(islice(outcomes, len(requests))) for name, requests in group.items()}


def _one_by_one(
    group: Mapping[str, Requests], capture: Callable[[Requests], Outcomes]
) -> dict[str, Outcomes | Exception]:
    outcomes_of: dict[str, Outcomes | Exception] = {}
    for name, requests in group.items():
        try:
            outcomes_of[name] = capture(requests)
        except Exception as error:
            outcomes_of[name] = error
    return outcomes_of


@contextmanager
def _bar(client: StatsClient, names: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal, and the function that marks a table as done."""
    if not sys.stderr.isatty() or quiet():
        yield lambda _name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    details = Column(no_wrap=True, overflow="ellipsis")
    words = (
        TextColumn("{task.description}", markup=False, table_column=details),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[details]}", markup=False, table_column=details),
    )
    left, ended = dict.fromkeys(names, Running(0.0, "")), threading.Event()
    started = time.monotonic()
    with Progress(*words, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(names), details="")

        def show() -> None:
            done, description, details = described(names, left, time.monotonic() - started)
            progress.update(task, completed=done, description=description, details=details)

        def poll() -> None:
            while not ended.wait(POLL_SECONDS):
                left.update({name: running for name, running in _progress_of(client).items() if name in left})
                show()

        def done(name: str) -> None:
            left.pop(name, None)
            show()

        show()
        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield done
        finally:
            ended.set()
            thread.join(POLL_SECONDS)


class Running(NamedTuple):
    """Progress of a table's capture: its share from 0 to 1, and the worker's message."""

    share: float
    message: str


def described(names: Sequence[str], left: Mapping[str, Running], seconds: float) -> tuple[float, str, str]:
    """The text of the bar.

    Args:
        names: All tables of the command.
        left: Names of those not done.
        seconds: Time since the command began.

    Returns:
        Number of tables done, counting the shares of running ones; number of running tables and their rate, or the name
        of the only one; files, bytes and rate of a running one.
    """
    ended = len(names) - len(left)
    done = ended + sum(running.share for running in left.values())
    name, running = next(((n, r) for n, r in left.items() if r.message), ("", Running(0.0, "")))
    if len(names) == 1:
        return done, names[0], running.message
    rate = f", {number(ended / seconds * 60, 3)}/min" if ended and seconds > 0 else ""
    return done, f"{count(ended)} of {count(len(names))} tables{rate}", f"{name}: {running.message}" if name else ""


def while_looking(client: StatsClient, catalog: str, work: Callable[[], T]) -> T:
    """Does the work in a thread, so that Ctrl-C ends the command at once; on a terminal a line shows the progress.

    Returns:
        The result of the work; its exceptions are raised.
    """
    looked = in_background(work, "looking")
    wait([looked], POLL_SECONDS)
    if not looked.done() and sys.stderr.isatty() and not quiet():
        _show_look(client, catalog, looked)
    return looked.result()


def _show_look(client: StatsClient, catalog: str, looked: Future[T]) -> None:
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(f"{catalog}: looking")) as status:
        while wait([looked], POLL_SECONDS).not_done:
            for job in _running(client):
                if (job["table_catalog"], job["mode"]) == (catalog, "LOOK") and job["message"]:
                    status.update(escape(f"{catalog}: {job['message']}"))


def _progress_of(client: StatsClient) -> dict[str, Running]:
    """The progress of running captures by table."""
    from flight_server.client.table_names import full_name

    return {
        full_name(job): Running(job["progress"] or 0.0, job["message"] or "")
        for job in _running(client)
        if job["mode"] != "LOOK"
    }


def _running(client: StatsClient) -> list[dict[str, Any]]:
    """Running jobs; none if they cannot be read: the work itself reports that error."""
    import pyarrow as pa
    import pyarrow.flight as flight

    try:
        running = [{"column": "state", "op": "EQ", "values": ["RUNNING"]}]
        return client.read("sys.capture_jobs", where=running).to_pylist()
    except (pa.ArrowException, flight.FlightError):
        return []
