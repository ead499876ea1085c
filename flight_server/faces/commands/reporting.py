"""The command that writes pages about tables as files: report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from flight_server.core.views import numbers
from flight_server.core.views.reader import Reader
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions
from flight_server.faces.commands.output import CommandError, say
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.reach import Keep, reach
from flight_server.faces.commands.targets import (
    Snapshot,
    check_targets,
    complete_table,
    find_table,
    for_each,
    is_path,
    snapshot_of,
)
from store.model.names import is_pattern


def report(
    tables: Annotated[list[str], argument(metavar="TABLE", help="Names or patterns.", shell_complete=complete_table)],
    output: Annotated[Path, option("--output", "-o", metavar="FILE.html|DIR", help="A page, or a directory of pages.")],
    snapshot: Snapshot = "current",
    db: Keep = None,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Write a self-contained page about one table, or a directory with an index and a page for each table."""
    from flight_server.faces.web import files

    targets, at = check_targets(tables, paths=True), snapshot_of(snapshot)
    single = (
        len(targets) == 1
        and (is_path(targets[0]) or not is_pattern(targets[0]))
        and output.suffix.lower() in (".html", ".htm")
    )
    with reach(connection, targets, [at], db) as (client, targets, unread):
        if single:
            name = find_table(client, targets[0])
            _write(output, files.alone(client, name, snapshot_at(client, name, at)))
            say(f"wrote {output}")
            if unread:
                sys.exit(1)
            return
        written: list[str] = []

        def work(reader: Reader, name: str) -> None:
            for file, content in files.pages_of(reader, name, snapshot_at(reader, name, at)):
                _write(output / file, content)
            written.append(name)

        _make(output)
        failed = unread + for_each(client, targets, work, whole=files.IN_TURN)
        if written:
            for file, content in files.index(client, written):
                _write(output / file, content)
            say(f"wrote {output / 'index.html'} and pages of {numbers.counted(len(written), 'table')}")
    if failed:
        sys.exit(1)


def _make(directory: Path) -> None:
    """Makes the directory of a report's pages, which is none with data."""
    from capture.connectors.directories.found import lies_in

    if directory.is_dir() and (found := lies_in(str(directory))) is not None:
        what = "is" if Path(found.uri).resolve() == directory.resolve() else f"has {found.name},"
        raise CommandError(
            f"{directory} {what} a table of format {found.format}; a report goes into a directory of its own"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {directory}: {error.strerror}") from None


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8", errors="replace")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
