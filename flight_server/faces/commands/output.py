"""The output of commands: data on standard output, notes and errors on standard error. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

STARTED: Final = time.monotonic()  # the start of the command: cli imports this file first
_level = 0  # -1 quiet, 0 normal, 1 verbose
_OF_HEADERS = (
    ("send the header authorization: Bearer <token>", "give --token, or set STATFLIGHT_TOKEN"),
    ("authorization header", "--token (or STATFLIGHT_TOKEN)"),
)


class CommandError(Exception):
    """Raised when a command fails; the message is shown without a traceback."""


class UsageError(Exception):
    """Raised for a usage error."""


def set_level(level: int) -> None:
    """Sets the verbosity: quiet (-1), normal (0) or verbose (1)."""
    global _level
    _level = level


def misuse(message: str) -> NoReturn:
    """Ends the command with this usage error.

    Raises:
        UsageError: Always.
    """
    raise UsageError(message)


def warn(message: str) -> None:
    """Prints a warning on standard error, even with `--quiet`."""
    sys.stderr.write(_harmless(message) + "\n")
    sys.stderr.flush()


def say(message: str) -> None:
    """Prints a line for people on standard error, unless quiet."""
    if _level >= 0:
        warn(message)


def note(message: str) -> None:
    """Prints a line on standard error when verbose."""
    if _level > 0:
        warn(message)


def tell(line: str) -> None:
    """Prints a line of data on standard output, on a terminal without control characters."""
    shown = _harmless(line) if sys.stdout.isatty() else line
    sys.stdout.buffer.write(shown.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def say_left_out(headers: Sequence[str]) -> None:
    """Names the columns of a table that the terminal has no room for, if any."""
    if headers:
        say(f"no room for {', '.join(headers)}: a wider terminal or --format csv has them")


def tell_json(rows: Iterable[object]) -> None:
    """Prints JSON values as an array on standard output, one per line."""
    from flight_server.faces.present.render import plain  # it loads pyarrow

    tell("[" + ",".join("\n" + json.dumps(plain(row), ensure_ascii=False) for row in rows) + "\n]")


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """Ends a block quietly when the reader of standard output leaves, as `head` does."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _harmless(message: str) -> str:
    """Lines without control characters: a name in a lake must not move the cursor."""
    if message.isprintable():
        return message
    from flight_server.faces.present.text import harmless

    return "\n".join(map(harmless, message.split("\n")))


def quiet() -> bool:
    """True with `--quiet`."""
    return _level < 0


def debug() -> bool:
    """True if errors are shown with their tracebacks."""
    return bool(os.environ.get("STATFLIGHT_DEBUG"))


def in_flags(message: str) -> str:
    """A server's message with the names of fields replaced by those of command-line flags."""
    for theirs, ours in _OF_HEADERS:
        message = message.replace(theirs, ours)
    if message.startswith("[UNAUTHENTICATED]") and "--token" not in message:
        message += "; give --token, or set STATFLIGHT_TOKEN"
    return message
