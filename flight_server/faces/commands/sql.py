"""The command sql: one statement, those on standard input, or a prompt."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.client import full_name, reason
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import in_flags, misuse, say, warn
from flight_server.faces.commands.parameters import argument
from flight_server.faces.commands.reading import FormatOption
from flight_server.faces.present import render
from flight_server.faces.present.render import Format
from store.model.schemas import FLIGHTS

if TYPE_CHECKING:
    from flight_server.client import StatsClient

PROMPT, CONTINUED = "sql> ", "  -> "
HISTORY_LINES: Final = 1000
KEYWORDS: Final = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "ORDER BY",
    "LIMIT",
    "JOIN",
    "HAVING",
    "WITH",
    "UNION",
    "DISTINCT",
    "ANALYZE TABLE",
    "SHOW TABLES",
    "SHOW STATS FOR",
    "DESCRIBE",
    "EXPLAIN",
)
# Quoted texts and comments hold no end of a statement; an open one reaches to the end of the text.
_PART = re.compile(r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|(--[^\n]*|/\*.*?(?:\*/|\Z)|\s)|(;)|.""", re.DOTALL)


def sql(
    statement: Annotated[
        str | None, argument(metavar="STATEMENT", help="From standard input, or a prompt, when absent.")
    ] = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Run SQL statements; several are separated by semicolons."""
    asks = statement is None and sys.stdin.isatty()
    if asks and not sys.stdout.isatty():
        misuse("no statement: give one as the argument, or on standard input")
    with connect(connection) as client:

        def run(one: str) -> None:
            render.write(client.sql(one, stream=True), format)

        if asks:
            _prompt(client, run)
            return
        complete, rest = split(sys.stdin.read() if statement is None else statement)
        statements = [*complete, *([rest] if rest else [])]
        if not statements:
            misuse("no statement")
        for one in statements:
            run(one)


def split(text: str) -> tuple[list[str], str]:
    """Splits statements at the semicolons outside of quotes and comments.

    Returns:
        Those that end with a semicolon, without it; and what follows the last one, empty if it is only a comment.
    """
    statements, start, blank = [], 0, True
    for part in _PART.finditer(text):
        if part[2]:
            if not blank:
                statements.append(text[start : part.start()].strip())
            start, blank = part.end(), True
        elif not part[1]:
            blank = False
    return statements, "" if blank else text[start:].strip()


def _prompt(client: StatsClient, run: Callable[[str], None]) -> None:
    """Reads statements from the terminal until `exit` or Ctrl-D; Ctrl-C drops what is typed, or ends what runs."""
    say("SELECT, SHOW TABLES, SHOW STATS FOR, DESCRIBE, EXPLAIN or ANALYZE, ended by ';'; exit or Ctrl-D leaves")
    save = _remember(_Words(client))
    typed = ""
    try:
        while True:
            try:
                typed += input(CONTINUED if typed else PROMPT) + "\n"
                if typed.strip().rstrip(";").strip().lower() in ("exit", "quit", "\\q"):
                    return
                statements, rest = split(typed)
                typed = f"{rest}\n" if rest else ""
                for one in statements:
                    run(one)
            except EOFError:
                say("")
                return
            except KeyboardInterrupt:
                typed = ""
                say("")
            except (pa.ArrowException, flight.FlightError) as error:
                warn(in_flags(reason(error)))
    finally:
        save()


class _Words:
    """The completions of a word: keywords, flights and their columns, and the catalog's tables."""

    def __init__(self, client: StatsClient):
        self._client = client

    @cached_property
    def _known(self) -> list[str]:
        columns = {name for known in FLIGHTS.values() for name in known.schema.names}
        tables: list[str] = []
        with suppress(pa.ArrowException, flight.FlightError):
            tables = [full_name(row) for row in self._client.tables().to_pylist()]
        return [*KEYWORDS, *sorted({*FLIGHTS, *tables} | columns)]

    def __call__(self, word: str, place: int) -> str | None:
        fitting = [known for known in self._known if known.lower().startswith(word.lower())]
        return fitting[place] if place < len(fitting) else None


def _remember(words: _Words) -> Callable[[], None]:
    """Line editing, completion and the history of former sessions; returns the function that saves the history."""
    try:
        import readline
    except ImportError:  # not on every system
        return lambda: None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    path = state / "statflight" / "sql_history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer(words)
    readline.parse_and_bind("tab: complete")

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)

    return save
