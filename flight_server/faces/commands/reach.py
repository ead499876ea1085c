"""Tables within reach of a command: of a server, or of paths, which are captured in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from flight_server.faces.commands.connection import ConnectionOptions, connect
from flight_server.faces.commands.output import CommandError, misuse, note, warn
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.targets import is_path, near_files

if TYPE_CHECKING:
    from flight_server.client import StatsClient

Keep = Annotated[
    Path | None,
    option("--db", metavar="FILE", help="Of paths: keep what is captured in this database, and read only new files."),
]
Wanted = Sequence["str | int"]
FLIGHTS_ALONE: Final = frozenset[str]()
"""Parts of the server for a command that only reads flights: none."""
PLANS: Final = frozenset({"planning"})
"""Parts of the server for a command that plans scans."""


class Reached(NamedTuple):
    """Tables within reach.

    Attributes:
        client: The client of their server, or of this process.
        targets: The targets as they were given; of paths the full names of their tables.
        failed: Number of paths that are reported on standard error, because they cannot be read.
    """

    client: StatsClient
    targets: list[str]
    failed: int = 0


@contextmanager
def reach(
    connection: ConnectionOptions,
    targets: Sequence[str],
    wanted: Wanted = ("current",),
    db: Path | None = None,
    needs: frozenset[str] | None = None,
) -> Iterator[Reached]:
    """Opens a client for the length of a block: of the server, or if the targets are paths, of this process, in which
    their tables are captured.

    Args:
        targets: Names and patterns, or paths, which `check_targets` has checked.
        wanted: Snapshots that the command reads: words, ids, or `newest`.
        db: Database in which captures of paths stay.
        needs: Names of the parts of a server that answer about paths besides its flights; None for all.
    """
    paths = [target for target in targets if is_path(target)]
    if not paths:
        if db is not None:
            misuse(f"--db keeps captures of paths, and {targets[0]} is a name; a server keeps those of names")
        try:
            with connect(connection) as client:
                yield Reached(client, list(targets))
        except CommandError as error:
            raise CommandError(f"{error}{near_files(targets)}") from None
        return
    if len(paths) < len(targets):
        named = next(target for target in targets if target not in paths)
        misuse(f"{paths[0]} is a path and {named} a name of a table on a server; ask about them one after the other")
    for path in paths:
        if "/" not in path and not path.lower().endswith(".parquet"):
            note(f"{path}: the one in this directory; a table of a server goes by its full name")
    with _captured(paths, wanted, db, needs) as reached:
        yield reached


@contextmanager
def _captured(paths: Sequence[str], wanted: Wanted, db: Path | None, needs: frozenset[str] | None) -> Iterator[Reached]:
    """Captures the tables of paths in this process."""
    from flight_server.process.runtime import postpone_pandas

    postpone_pandas()
    from flight_server.faces.commands.progress import line_on_terminal
    from flight_server.faces.local.tables import LocalTables
    from store.model.errors import StatflightError

    names: list[str] = []
    failed = 0
    with line_on_terminal() as progress:
        tables = LocalTables(db, progress, needs)
        try:
            for path in paths:
                try:
                    names.append(tables.add(path, wanted))
                except StatflightError as error:
                    if len(paths) == 1:
                        raise
                    warn(f"statflight: {error}")
                    failed += 1
            progress("")
            for line in tables.failed():
                warn(f"statflight: {line}")
                failed += 1
            yield Reached(tables.client, names, failed)
        except StatflightError as error:
            for name, path in zip(names, paths, strict=False) if not failed else ():
                error.message = error.message.replace(name, path)
            if error.hint.startswith("run: statflight"):
                error.hint = ""  # there is no server to run it for
            raise
        finally:
            tables.close()
