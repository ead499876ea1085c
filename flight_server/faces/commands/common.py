"""Options shared by commands, the connection, and table names and patterns."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

from flight_server.faces.commands.output import CommandError, misuse, note, warn
from flight_server.faces.commands.parameters import argument, option
from store.model.names import dotted_name, is_pattern, matcher, split_name

if TYPE_CHECKING:
    from flight_server.client import StatsClient
    from flight_server.core.views.reader import Reader

T = TypeVar("T")
DEFAULT_URI: Final = "grpc://127.0.0.1:8815"
MAX_CANDIDATES: Final = 5  # most tables that the message about an ambiguous name lists
_LISTED: Final = re.compile(r'(?:"(?:[^"]|"")*"|[^,])+')  # a name of a list
_IN_QUOTES: Final = re.compile(r'"(?:[^"]|"")+"')
COMPLETION_SECONDS: Final = 2.0  # for the server to list its tables for shell completion


class ConnectionOptions(NamedTuple):
    """The options of the connection to a server."""

    server: Annotated[str, option("--server", envvar="STATFLIGHT_SERVER", metavar="URI", help="The server.")] = (
        DEFAULT_URI
    )
    token: Annotated[str | None, option("--token", envvar="STATFLIGHT_TOKEN", help="Bearer token.")] = None
    tls_roots: Annotated[
        Path | None,
        option(
            "--tls-roots",
            envvar="STATFLIGHT_TLS_ROOTS",
            metavar="FILE",
            help="PEM certificates to check the server's with.",
        ),
    ] = None

    @property
    def addresses(self) -> list[str]:
        """The addresses, each with its scheme, `grpc://` where it has none."""
        given = [address.strip() for address in self.server.split(",")]
        return [address if "://" in address else f"grpc://{address}" for address in given]

    def credentials(self) -> dict[str, Any]:
        """Arguments of a client besides the address: `token`, `tls_roots`, and for mutual TLS the client's `tls_cert`
        and `tls_key`, from the files that two variables name.

        Raises:
            UsageError: The address is not a Flight address, or a file cannot be read.
        """
        for address in self.addresses:
            if (why := _wrong_with(address)) is not None:
                misuse(
                    f"--server {address!r} is not a Flight address{why}; must be {DEFAULT_URI} or grpc+tls://host:port"
                )
        variables = {"tls_cert": "STATFLIGHT_TLS_CLIENT_CERT", "tls_key": "STATFLIGHT_TLS_CLIENT_KEY"}
        paths = {name: path for name, variable in variables.items() if (path := os.environ.get(variable, "").strip())}
        if len(paths) == 1:
            misuse(" and ".join(variables.values()) + " go together")
        try:
            own = {name: Path(path).expanduser().read_bytes() for name, path in paths.items()}
            roots = None if self.tls_roots is None else self.tls_roots.read_bytes()
        except OSError as error:
            given = self.tls_roots is not None and error.filename == str(self.tls_roots)
            misuse(f"{'--tls-roots ' if given else ''}{error.filename}: {error.strerror}")
        return {"token": self.token, "tls_roots": roots} | own


def _wrong_with(address: str) -> str | None:
    """Why an address is not one of Flight, for the end of a message (empty: nothing more to say); None if it is."""
    scheme, _, place = address.partition("://")
    if scheme in ("http", "https"):
        return "; that is the address of pages"
    if not re.fullmatch(r"grpc(\+tcp|\+tls|\+unix)?", scheme):
        return ""
    if scheme == "grpc+unix":
        return None
    if not place.strip("/"):
        return ": it is empty"
    if re.fullmatch(r":?\d+", place):
        return f": it names no host; for this machine say 127.0.0.1:{place.removeprefix(':')}"
    port = _port_of(address)
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        return ": its port is not a number from 1 to 65535"
    return None


def _port_of(address: str) -> str:
    """The port of an address, as it is written; empty if it has none."""
    found = re.fullmatch(r".*://(?:[^/]*@)?(?:\[[^]]*\]|[^:/]*)(?::([^/]*))?/*", address)
    return (found and found[1]) or ""


CONNECTION: Final = ConnectionOptions()


class Answer(StrEnum):
    """Formats of what a command did."""

    TEXT = "text"
    JSON = "json"


AnswerFormat = Annotated[Answer, option("--format", "-f", help="How the outcome is written.")]


@contextmanager
def connect(connection: ConnectionOptions) -> Iterator[StatsClient]:
    """Opens a client for the length of a block."""
    credentials, server = connection.credentials(), ",".join(connection.addresses)
    from flight_server.process.runtime import hush_grpc, leave_pandas_out, realign_buffers

    leave_pandas_out()
    realign_buffers()
    hush_grpc()
    import pyarrow.flight as flight

    from flight_server.client import StatsClient, reason
    from flight_server.client.errors import UNAVAILABLE

    note(f"server: {server}")
    started = time.monotonic()
    try:
        with StatsClient(server, **credentials) as client:
            yield client
    except flight.FlightUnavailableError as error:
        message = reason(error)
        # gRPC's own connection errors have no code; the server's errors have one.
        if not message.startswith(UNAVAILABLE):
            raise
        raise CommandError(no_server(server, message.removeprefix(UNAVAILABLE).strip())) from None
    note(f"took {time.monotonic() - started:.2f} s")


Keep = Annotated[
    Path | None,
    option("--db", metavar="FILE", help="Of paths: keep what is captured in this database, and read only new files."),
]
Wanted = Sequence["str | int"]
FLIGHTS_ALONE: Final = frozenset[str]()
"""Parts of the server for a command that only reads flights: none."""
PLANS: Final = frozenset({"planning"})
"""Parts of the server for a command that plans scans."""


def is_path(target: str) -> bool:
    """True for an argument that is the path or URI of a table, not a name: one with a slash, the name of a file or a
    directory that is there, or one that ends in `.parquet`."""
    return "/" in target or target.lower().endswith(".parquet") or os.path.exists(target)  # noqa: PTH110  never raises


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
            raise CommandError(f"{error}{_near_files(targets)}") from None
        return
    if len(paths) < len(targets):
        named = next(target for target in targets if target not in paths)
        misuse(f"{paths[0]} is a path and {named} a name of a table on a server; ask about them one after the other")
    for path in paths:
        if "/" not in path and not path.lower().endswith(".parquet"):
            note(f"{path}: the one in this directory; a table of a server goes by its full name")
    with _captured(paths, wanted, db, needs) as reached:
        yield reached


def _near_files(targets: Sequence[str]) -> str:
    """A remark on files in this directory that names may be misspelt names of; empty if there are none."""
    here = [entry.name for entry in Path().iterdir()] if any("." in target for target in targets) else []
    near = [name for target in targets for name in difflib.get_close_matches(target, here, 1, 0.8)]
    return f"; if a file is meant: there is none of that name here; did you mean ./{near[0]}?" if near else ""


@contextmanager
def _captured(paths: Sequence[str], wanted: Wanted, db: Path | None, needs: frozenset[str] | None) -> Iterator[Reached]:
    """Captures the tables of paths in this process."""
    from flight_server.process.runtime import postpone_pandas

    postpone_pandas()
    from flight_server.faces.commands.progress import line_on_terminal
    from flight_server.local.tables import LocalTables
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


def no_server(server: str, detail: str) -> str:
    """The message for an unreachable server: what is in the way if that is known, else how to start or name one."""
    from flight_server.client.unreachable import CANNOT

    detail = detail.splitlines()[0]
    if detail.startswith(CANNOT):
        return detail
    if server == DEFAULT_URI:
        return (
            f"no server at {server}. Start one in another terminal: statflight serve --db stats.duckdb\n"
            "or name a running one with --server URI or STATFLIGHT_SERVER; `statflight demo` shows what comes out"
        )
    usual = f"write {server.rstrip('/')}:{_port_of(DEFAULT_URI)} if `serve` has its usual port; "
    lacks_port = "," not in server and not server.startswith("grpc+unix") and not _port_of(server)
    return (
        f"no server at {server} ({detail}); {usual if lacks_port else ''}"
        "check --server, or start one with `statflight serve`"
    )


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


SNAPSHOT_WORDS: Final = ("current", "previous", "first")
Snapshot = Annotated[str, option(metavar="SNAPSHOT", help="An id, 'current', 'previous' or 'first'.")]


def snapshot_of(text: str, *more: str) -> str | int:
    """Parses a snapshot option: a word, one of `more`, or an id."""
    words = (*SNAPSHOT_WORDS, *more)
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        misuse(f"snapshot {text!r}: must be {', '.join(words)} or an id")


def pairs_of(texts: Iterable[str] | None, hint: str = "") -> dict[str, str]:
    """The values of the repeatable option `-o KEY=VALUE`."""
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            misuse(f"--option {text!r}: must be KEY=VALUE{hint}")
        pairs[key.strip()] = value
    return pairs


def names_of(texts: Sequence[str] | None) -> list[str] | None:
    """The names in the values of a repeatable option, each `a,b`: with commas in double quotes, any other may be too.
    None when the option is absent."""
    if not texts:
        return None
    names = [name.strip() for text in texts for name in _LISTED.findall(text) if name.strip()]
    names = [dotted_name(name) if set(",.") & set(name) or _IN_QUOTES.fullmatch(name) else name for name in names]
    return names or misuse("a list of names is empty")


# Patterns of table names.


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
            warn(f"statflight: {error}{_near_files([target])}")
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
