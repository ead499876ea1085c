"""The tables and snapshots that a command is about: names, their ends, patterns; work for each table."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from flight_server.faces.commands.connection import DEFAULT_URI, ConnectionOptions
from flight_server.faces.commands.output import CommandError, misuse, warn
from flight_server.faces.commands.parameters import argument, option
from store.model.names import is_pattern, matcher, split_name

if TYPE_CHECKING:
    from flight_server.client import StatsClient
    from flight_server.core.views.reader import Reader

T = TypeVar("T")
MAX_CANDIDATES: Final = 5  # most tables that the message about an ambiguous name lists
COMPLETION_SECONDS: Final = 2.0  # for the server to list its tables for shell completion
SNAPSHOT_WORDS: Final = ("current", "previous", "first")
Snapshot = Annotated[str, option(metavar="SNAPSHOT", help="An id, 'current', 'previous' or 'first'.")]


def is_path(target: str) -> bool:
    """True for an argument that is the path or URI of a table, not a name: one with a slash, the name of a file or a
    directory that is there, or one that ends in `.parquet`."""
    return "/" in target or target.lower().endswith(".parquet") or os.path.exists(target)  # noqa: PTH110  never raises


def near_files(targets: Sequence[str]) -> str:
    """A remark on files in this directory that names may be misspelt names of; empty if there are none."""
    here = [entry.name for entry in Path().iterdir()] if any("." in target for target in targets) else []
    near = [name for target in targets for name in difflib.get_close_matches(target, here, 1, 0.8)]
    return f"; if a file is meant: there is none of that name here; did you mean ./{near[0]}?" if near else ""


def table_name(name: str) -> str:
    """Checks a full table name before the server is called."""
    try:
        split_name(name)
    except ValueError as error:
        misuse(str(error))
    return name


def known_name(name: str) -> str:
    """Checks a table name, which may leave out catalog and schema, before the server is called."""
    try:
        split_name(name if _is_full(name) else f"_._.{name}")
    except ValueError:
        misuse(f"not a table name: {name!r}; expected catalog.schema.table, or the end of one")
    return name


def _is_full(name: str) -> bool:
    try:
        return bool(split_name(name))
    except ValueError:
        return False


def find_table(client: StatsClient, name: str) -> str:
    """The full name of the one table whose name ends with the given one; a full name is returned as it is.

    Raises:
        CommandError: No table ends so, or several do.
    """
    return name if _is_full(name) else _pick(name, _full_names(client))


def _pick(name: str, tables: Sequence[str]) -> str:
    candidates = [table for table in tables if table.endswith(f".{name}")]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        more = f" and {len(candidates) - MAX_CANDIDATES} more" if len(candidates) > MAX_CANDIDATES else ""
        raise CommandError(f"'{name}' may be {', '.join(candidates[:MAX_CANDIDATES])}{more}; say which")
    if inside := sum(table.startswith(f"{name}.") for table in tables):
        raise CommandError(f"no table '{name}'; '{name}.*' matches {inside}")
    ends = {".".join(table.split(".")[-name.count(".") - 1 :]): table for table in tables}
    near = difflib.get_close_matches(name, ends, 1)
    hint = f"did you mean {ends[near[0]]}?" if near else f"`statflight ls` lists {len(tables)}"
    raise CommandError(f"no table '{name}'; {hint}")


def _full_names(client: StatsClient) -> list[str]:
    from flight_server.client.table_names import full_name

    return sorted(full_name(row) for row in client.tables().to_pylist())


def complete_table(ctx: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Completes full table names for a shell; nothing if no server answers in time."""
    return [name for name in _asked(ctx, _full_names) if name.startswith(incomplete)]


def complete_column(ctx: Any, _parameter: Any, incomplete: str) -> list[str]:
    """Completes column names of the table given before."""
    from flight_server.client.table_names import of_table

    def names_in(client: StatsClient) -> list[str]:
        where = of_table(find_table(client, ctx.params["table"]))
        names: list[str] = client.read("information_schema.columns", ["column_name"], where)["column_name"].to_pylist()
        return names

    return [name for name in _asked(ctx, names_in) if name.startswith(incomplete)]


def _asked(ctx: Any, ask: Callable[[StatsClient], list[str]]) -> list[str]:
    from flight_server.client import StatsClient

    try:
        given = ctx.params
        server = given.get("server") or os.environ.get("STATFLIGHT_SERVER") or DEFAULT_URI
        token = given.get("token") or os.environ.get("STATFLIGHT_TOKEN")
        credentials = ConnectionOptions(server, token, given.get("tls_roots")).credentials()
        with StatsClient(server, **credentials, timeout=COMPLETION_SECONDS) as client:
            return ask(client)
    except Exception:  # shell completion cannot show an error
        return []


TableName = Annotated[
    str,
    argument(
        metavar="TABLE", help="catalog.schema.table, a unique end of it, or a path.", shell_complete=complete_table
    ),
]

TableNames = Annotated[
    list[str],
    argument(
        metavar="TABLE",
        help="Names, unique ends of names, patterns such as 'lake.sales.*', or paths.",
        shell_complete=complete_table,
    ),
]


def check_targets(targets: Iterable[str], *, paths: bool = False) -> list[str]:
    """Checks names and patterns before the server is called, and removes repetitions.

    Args:
        paths: Paths are taken too, and stay as they are.
    """
    names = list(dict.fromkeys(targets))
    for target in names:
        if "/" in target and not paths:
            misuse(f"{target}: a path, and this command takes names; `statflight serve {target}` serves what is there")
        if not (paths and is_path(target)) and not is_pattern(target):
            known_name(target)
    return names


def expand(client: StatsClient, targets: Iterable[str], errors: dict[str, str] | None = None) -> tuple[list[str], int]:
    """Finds the tables that names, their unique ends, and patterns match.

    Args:
        errors: Receives the message of each target that stands for no table.

    Returns:
        Full names, without repetitions; and the number of targets that stand for no table, each reported on standard
        error.
    """
    tables: list[str] | None = None
    names: list[str] = []
    missing = 0
    for target in targets:
        if not is_pattern(target) and _is_full(target):
            names.append(target)
            continue
        tables = _full_names(client) if tables is None else tables
        try:
            if is_pattern(target):
                matching = [name for name in tables if matcher((target,)).fullmatch(name)]
                if not matching:
                    raise CommandError(f"no table matches '{target}'; `statflight ls` lists {len(tables)}")
            else:
                matching = [_pick(target, tables)]
        except CommandError as error:
            warn(f"statflight: {error}{near_files([target])}")
            missing += 1
            if errors is not None:
                errors[target] = str(error)
        else:
            names += matching
    return list(dict.fromkeys(names)), missing


def for_each(
    client: StatsClient,
    targets: Iterable[str],
    work: Callable[[Reader, str], object],
    errors: dict[str, str] | None = None,
    whole: Collection[str] = (),
) -> int:
    """Does the work for each table that the targets match; a failure is reported and does not stop the others.

    Args:
        targets: Names, their unique ends, and patterns.
        work: See `each`.
        errors: Receives the message of each failure, by table.
        whole: See `ReadAhead`.

    Returns:
        The number of tables that failed, and of targets that stand for no table.
    """
    names, failed = expand(client, targets)
    errors = {} if errors is None else errors
    for _ in each(client, names, work, errors, whole):
        pass
    return failed + len(errors)


def each(
    client: StatsClient,
    names: Sequence[str],
    work: Callable[[Reader, str], T],
    errors: dict[str, str],
    whole: Collection[str] = (),
) -> Iterator[T]:
    """The results of the work for each table, without those that failed, which are reported.

    Args:
        names: Full names.
        work: Called with a reader, which reads the same of many tables at once, and the name of a table.
        errors: Receives the message of each failure, by table.
        whole: See `ReadAhead`.
    """
    import pyarrow as pa
    import pyarrow.flight as flight

    from flight_server.client import reason
    from flight_server.core.views.reader import ReadAhead
    from store.model.errors import StatflightError

    reader = ReadAhead(client, names, whole)
    for name in names:
        try:
            result = work(reader, name)
        except (flight.FlightUnavailableError, flight.FlightUnauthenticatedError):
            raise  # the next table would fail too
        except (pa.ArrowException, flight.FlightError, StatflightError, CommandError) as error:
            errors[name] = str(error) if isinstance(error, CommandError | StatflightError) else reason(error)
            warn(f"statflight: {name}: {errors[name]}")
        else:
            yield result


def snapshot_of(text: str, *more: str) -> str | int:
    """Parses a snapshot option: a word, one of `more`, or an id."""
    words = (*SNAPSHOT_WORDS, *more)
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        misuse(f"snapshot {text!r}: must be {', '.join(words)} or an id")
