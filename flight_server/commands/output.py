"""The output of commands: data on standard output, notes and errors on standard error. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
import time
from typing import Final, NoReturn

STARTED: Final = time.monotonic()  # cli imports this file before anything heavy, so it is when the command began
_level = 0  # -1 quiet, 0 as usual, 1 verbose
_OF_HEADERS = (
    ("send the header authorization: Bearer <token>", "give --token, or set STATFLIGHT_TOKEN"),
    ("authorization header", "--token (or STATFLIGHT_TOKEN)"),
)


class CommandError(Exception):
    """A command could not do what it was asked; the message is all the user needs."""


class UsageError(Exception):
    """The command line itself is wrong."""


def set_level(level: int) -> None:
    """Quiet (-1), as usual (0) or verbose (1)."""
    global _level
    _level = level


def misuse(message: str) -> NoReturn:
    """Ends the command with this usage error.

    Raises:
        UsageError: Always.
    """
    raise UsageError(message)


def warn(message: str) -> None:
    """A line about trouble, on standard error, however quiet."""
    sys.stderr.write(_harmless(message) + "\n")
    sys.stderr.flush()


def say(message: str) -> None:
    """A line for people, on standard error, unless quiet."""
    if _level >= 0:
        warn(message)


def note(message: str) -> None:
    """A line on standard error when verbose."""
    if _level > 0:
        warn(message)


def tell(line: str) -> None:
    """A line of data, on standard output: as it is on a pipe, without control characters on a terminal."""
    shown = _harmless(line) if sys.stdout.isatty() else line
    sys.stdout.buffer.write(shown.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def _harmless(message: str) -> str:
    """Lines without control characters: a name of a lake must not move the cursor."""
    if message.isprintable():
        return message
    from flight_server.present.text import harmless

    return "\n".join(map(harmless, message.split("\n")))


def quiet() -> bool:
    """True with `--quiet`."""
    return _level < 0


def debug() -> bool:
    """True if errors are shown with their tracebacks."""
    return bool(os.environ.get("STATFLIGHT_DEBUG"))


def in_flags(message: str) -> str:
    """A server's message with the command line's words in place of the protocol's."""
    for theirs, ours in _OF_HEADERS:
        message = message.replace(theirs, ours)
    if message.startswith("[UNAUTHENTICATED]") and "--token" not in message:
        message += "; give --token, or set STATFLIGHT_TOKEN"
    return message
