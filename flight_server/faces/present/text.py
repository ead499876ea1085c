"""Text tables: aligned on a pipe; on a terminal elided to its width or as blocks, and paged."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

GAP = "  "
NARROWEST = 12  # minimum characters of an elided cell
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def harmless(text: str) -> str:
    """Text without control characters, which could move a terminal's cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text
    )


def write_text(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: BinaryIO | None = None,
    right: Sequence[bool] = (),
    whole: Collection[str] = (),
    heading: str = "",
    spare: Sequence[str] = (),
    dim: Collection[int] = (),
) -> list[str]:
    """Writes a table: complete lines on a pipe, else fitted to the terminal; returns the headers of columns left out.

    Args:
        out: Output stream; None means standard output.
        right: True for each right-aligned column.
        whole: Headers of columns never elided, because users copy them.
        heading: A line above.
        spare: Headers of columns that a narrow terminal leaves out, in this order.
        dim: Places of rows that a terminal shows in grey.
    """
    right = [*right, *[False] * (len(headers) - len(right))]
    safe = [[harmless(cell) for cell in row] for row in rows]
    if out is None and sys.stdout.isatty():
        size = shutil.get_terminal_size()
        kept = without(headers, safe, size.columns, whole, spare)
        left_out = [header for place, header in enumerate(headers) if place not in kept]
        headers, safe = [headers[place] for place in kept], [[row[place] for place in kept] for row in safe]
        right = [right[place] for place in kept]
        styled = "NO_COLOR" not in os.environ
        lines = list(fit(headers, safe, right, size.columns, whole, styled=styled, dim=dim))
        page([*([harmless(heading)] if heading else []), *lines], size.lines)
        return left_out
    target = out or sys.stdout.buffer
    if heading:
        target.write(harmless(heading).encode() + b"\n")
    for line in _aligned([list(headers), *safe], right):
        target.write(line.encode() + b"\n")
    target.flush()
    return []


def without(
    headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int, whole: Collection[str], spare: Sequence[str]
) -> list[int]:
    """Positions of the columns to write: spare ones are dropped until the rest fits; all stay if it never fits."""
    least = [
        width if header in whole else min(width, max(NARROWEST, width_of(header)))
        for place, header in enumerate(headers)
        for width in [max(map(width_of, (header, *(row[place] for row in rows))))]
    ]
    kept = list(range(len(headers)))
    for header in (None, *spare):
        kept = [place for place in kept if headers[place] != header]
        if sum(least[place] for place in kept) + len(GAP) * (len(kept) - 1) <= columns:
            return kept
    return list(range(len(headers)))


def fit(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    columns: int,
    whole: Collection[str] = (),
    styled: bool = False,
    dim: Collection[int] = (),
) -> Iterator[str]:
    """The lines of a table on a terminal with `columns` characters.

    In a table that is too wide, the widest cells are elided; when too little would be left, each row is written as a
    block. No line is longer than the terminal, unless a single word is.
    """
    bold, grey, plain = (_BOLD, _DIM, _PLAIN) if styled else ("", "", "")
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(map(width_of, cells)) for cells in zip(*table, strict=True)]
    gaps = len(GAP) * (len(widths) - 1)
    least = [
        width if name in whole else min(width, max(NARROWEST, width_of(name)))
        for name, width in zip(headers, widths, strict=True)
    ]
    if sum(least) + gaps > columns and len(headers) > 1:
        yield from _blocks(headers, rows, columns, styled)
        return
    widths = _narrowed(widths, least, columns - gaps)
    lines = _aligned([[elide(cell, width) for cell, width in zip(row, widths, strict=True)] for row in table], right)
    yield f"{bold}{next(lines)}{plain}"
    for place, line in enumerate(lines):
        yield f"{grey}{line}{plain}" if place in dim else line


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths that fit into the room, as far as `least` allows: the widest are cut to the next one, again and again."""
    narrowed = list(widths)
    while (excess := sum(narrowed) - room) > 0 and narrowed != list(least):
        reducible = [place for place, width in enumerate(narrowed) if width > least[place]]
        widest = max(narrowed[place] for place in reducible)
        place = next(place for place in reducible if narrowed[place] == widest)
        second = max((narrowed[other] for other in reducible if narrowed[other] < widest), default=least[place])
        narrowed[place] = max(least[place], min(second, widest - 1), widest - excess)
    return narrowed


def _blocks(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int, styled: bool) -> Iterator[str]:
    """Each row as lines of name and value; long values are wrapped between words."""
    bold, dim, plain = (_BOLD, _DIM, _PLAIN) if styled else ("", "", "")
    names = max(map(width_of, headers), default=0)
    room = max(columns - names - len(GAP), 20)
    for number, row in enumerate(rows, 1):
        title = f"── {number} " + "─" * max(columns - 6 - len(str(number)), 0)
        yield f"{dim}{title[:columns]}{plain}"
        for header, cell in zip(headers, row, strict=True):
            if cell == "":
                continue
            parts = textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [cell]
            for place, part in enumerate(parts):
                name = header if place == 0 else ""
                yield f"{bold}{name}{plain}{' ' * (names - width_of(name))}{GAP}{part}"


def page(lines: Sequence[str], height: int) -> None:
    """Prints lines on a terminal, through a pager (`PAGER`, else `less`) if they do not fit."""
    text = "".join(line + "\n" for line in lines)
    pager = os.environ.get("STATFLIGHT_PAGER", os.environ.get("PAGER", "less -FRX"))
    if len(lines) >= height and sys.stdin.isatty() and pager.strip() and os.environ.get("TERM") != "dumb":
        with suppress(OSError, ValueError), subprocess.Popen(shlex.split(pager), stdin=subprocess.PIPE) as process:  # noqa: S603  the user's own
            with suppress(BrokenPipeError):  # the pager was closed early
                process.communicate(text.encode())
            return
    sys.stdout.write(text)
    sys.stdout.flush()


def elide(text: str, width: int) -> str:
    """Shortens text to a width; an ellipsis marks the cut end."""
    if width_of(text) <= width:
        return text
    kept = ""
    for char in text:
        if width_of(kept + char) > width - 1:
            break
        kept += char
    return kept + "…"


def short_names(names: Sequence[str]) -> list[str]:
    """Full names; on a narrow terminal their middles are elided, because names differ at the ends."""
    room = shutil.get_terminal_size().columns
    names = [harmless(name) for name in names]
    if not sys.stdout.isatty() or max(map(width_of, names), default=0) <= 0.6 * room:
        return names
    return [elide_middle(name, max(int(0.4 * room), 24)) for name in names]


def elide_middle(text: str, width: int) -> str:
    """Shortens text to a width; an ellipsis replaces its middle."""
    if width_of(text) <= width:
        return text
    tail = elide(text[::-1], (width + 1) // 2)[-2::-1]
    return elide(text, width - width_of(tail)) + tail


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    widths = [max(map(width_of, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for cell, width, on_the_right in zip(row, widths, right, strict=True):
            blank = " " * (width - width_of(cell))
            cells.append(blank + cell if on_the_right else cell + blank)
        yield GAP.join(cells).rstrip()


def width_of(text: str) -> int:
    """Width of a text on a terminal, in columns."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
