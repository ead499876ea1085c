"""`statflight`: the table of commands, loaded when called, and the messages of failures.

Exit status: 0 success, 1 failure, 2 usage error, 3 more to read than `scan --max-bytes`, 130 interrupted. A reader of
the output that leaves, as `head` does, is no failure.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast

try:
    import click
except ImportError:
    sys.exit("statflight: the command line needs more than pyarrow: pip install 'statflight[server]'")

from flight_server.faces.commands import output, parameters
from flight_server.faces.commands.examples import EXAMPLES
from flight_server.process.runtime import (
    collect_less_often,
    leave_azure_cli_out,
    leave_blas_threads_out,
    leave_numpy_out,
    open_standard_streams,
    report_crashes,
)

if TYPE_CHECKING:
    from store.plugins import Plugins

HELP = "Statistics about data: captured from lakes, kept in DuckDB, served as Arrow streams."
_FLAGS = frozenset({"-q", "--quiet", "-v", "--verbose", "--paths", "--allow-stale", "--"})  # options without a value
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


class Entry(NamedTuple):
    """A command: its section of the help, its function, its help line, and whether it needs NumPy."""

    panel: str
    function: str
    help: str
    computes: bool = False


RUN, LAKE, READ, WATCH, OF_PARTS = "Run", "Lake", "Read", "Watch over", "Of parts"
COMMANDS = {
    "demo": Entry(RUN, "running:demo", "Make a small lake, serve it, capture it, and show what comes out.", True),
    "serve": Entry(RUN, "running:serve", "Run the server and its capture worker.", True),
    "worker": Entry(RUN, "running:worker", "Run another capture worker, here or on another machine.", True),
    "doctor": Entry(
        RUN,
        "running:doctor",
        "Check Python, Java, the libraries of each format, and the server; or a database.",
        True,
    ),
    "config": Entry(RUN, "settings:config", "Print the effective settings and where each comes from.", True),
    "backup": Entry(RUN, "keeping:backup", "Copy the database to a file while the server serves."),
    "upgrade": Entry(RUN, "keeping:upgrade", "Bring a database of an older release to the layout of this one.", True),
    "export": Entry(RUN, "transferring:export", "Write all statistics as Parquet, of a server or a database.", True),
    "import": Entry(RUN, "transferring:import_", "Store what `export` has written in an empty server."),
    "replicas": Entry(RUN, "keeping:replicas", "List what can be restored of a replica."),
    "restore": Entry(RUN, "keeping:restore", "Make a database of a replica, as of now or of a time.", True),
    "connect": Entry(LAKE, "lakes:connect_lake", "Connect a lake and list its tables."),
    "discover": Entry(LAKE, "lakes:discover", "Look for new tables and snapshots of a connected lake."),
    "disconnect": Entry(LAKE, "lakes:disconnect", "Forget a connected lake and its tables."),
    "capture": Entry(LAKE, "capturing:capture", "Capture statistics of tables and their columns."),
    "resolve": Entry(LAKE, "capturing:resolve", "Get statistics from the store, or capture them within a budget."),
    "publish": Entry(LAKE, "publishing:publish", "Write statistics where other engines find them.", True),
    "withdraw": Entry(LAKE, "publishing:withdraw", "Remove published statistics again."),
    "explain": Entry(
        LAKE, "explaining:explain", "Show Spark's plan of a query without and with published statistics.", True
    ),
    "describe": Entry(LAKE, "describing:describe", "Say whose a table is and what to know of it."),
    "emit": Entry(LAKE, "emitting:emit", "Send profiles to OpenLineage, DataHub or OpenMetadata."),
    "expire": Entry(LAKE, "keeping:expire", "Delete statistics of snapshots that the lake has expired."),
    "ls": Entry(READ, "browsing:ls", "List tables with their rows, sizes and age."),
    "show": Entry(READ, "reading:show", "Show the statistics of tables, a line for each column."),
    "joins": Entry(READ, "describing:joins", "List foreign keys between tables, declared or told by the values."),
    "history": Entry(READ, "browsing:history", "Show a column's statistics over the snapshots of its table."),
    "diff": Entry(READ, "comparing:diff", "Show what changed between two snapshots.", True),
    "query": Entry(READ, "reading:query", "Print the rows of any flight."),
    "sql": Entry(READ, "sql:sql", "Run SQL over all flights: a statement, standard input, or a prompt."),
    "scan": Entry(READ, "scanning:scan", "List the files that a condition needs, without opening any."),
    "estimate": Entry(READ, "scanning:estimate", "Estimate what a condition leaves: rows, bytes, distinct values."),
    "answer": Entry(READ, "scanning:answer", "Answer counts, minima and maxima that statistics know exactly."),
    "jobs": Entry(READ, "jobs:jobs", "List jobs, and the captures of the last hour, newest first."),
    "check": Entry(WATCH, "checking:check", "Check rules against the statistics of tables.", True),
    "report": Entry(READ, "reporting:report", "Write pages about tables as files, for any browser.", True),
}
_FACES: Final = output.__name__.removesuffix(".commands.output")
_OF_PARTS: Final = {"mcp": f"{_FACES}.mcp.lines:mcp"}


@cache
def _parts() -> Plugins:
    """Commands of parts that can be taken away, and of other packages: functions as `parameters.of` takes them, whose
    docstring begins with their help line. They may compute."""
    from store.plugins import Plugins

    return Plugins("statflight.commands", field="command", noun="command", built_in=_OF_PARTS)


class Commands(click.Group):
    """The commands by name; a module is imported when one of its commands is called, so that help starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's own
        return [*COMMANDS, *_of_parts()]

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's own
        entry = COMMANDS.get(cmd_name)
        if entry is not None:
            module, _, name = entry.function.partition(":")
            function = getattr(import_module(f"flight_server.faces.commands.{module}"), name)
            help = entry.help
        elif cmd_name in _parts().known:
            function = _of_part(cmd_name)
            help = _help_of(function)
        else:
            return None
        call, given = parameters.of(function)
        return click.Command(cmd_name, _CONTEXT, call, [*given, *_of_all()], help, _examples(cmd_name))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in COMMANDS and not COMMANDS[args[0]].computes and not _names_path(args[1:]):
            leave_numpy_out()
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with output.until_the_reader_leaves():  # click itself would exit with 1
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's own
        panels = {panel: list[tuple[str, str]]() for panel in (RUN, LAKE, READ, WATCH)}
        for name, entry in COMMANDS.items():
            panels[entry.panel].append((name, entry.help))
        if of_parts := _of_parts():
            panels[OF_PARTS] = list(of_parts.items())
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _of_part(name: str) -> Callable[..., Any]:
    """The function of a command of a part.

    Raises:
        CommandError: It cannot be loaded.
    """
    from store.model.errors import InvalidArgument

    try:
        function: Callable[..., Any] = _parts().load(name)
    except InvalidArgument as missing:
        raise output.CommandError(str(missing)) from None
    return function


def _of_parts() -> dict[str, str]:
    """The help lines of the commands of parts, by name; without those that cannot be loaded."""
    found = {}
    for name in _parts().known:
        with suppress(output.CommandError):
            found[name] = _help_of(_of_part(name))
    return found


def _help_of(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").partition("\n")[0]


def _examples(name: str) -> str:
    """The end of a command's help."""
    lines = EXAMPLES.get(name, ())
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""  # \b: lines stay as they are


def _names_path(arguments: list[str]) -> bool:
    """True if an argument, not the value of an option, may be the path of a table, whose capture needs NumPy."""
    from flight_server.faces.commands.targets import is_path

    before = ["", *arguments]
    return any(
        not word.startswith("-") and (last in _FLAGS or not last.startswith("-")) and is_path(word)
        for last, word in zip(before, arguments, strict=False)
    )


def _of_all() -> list[click.Parameter]:
    """Options of the program and of each command."""
    return [
        _flag(["-q", "--quiet"], lambda: output.set_level(-1), "Write data and errors only."),
        _flag(["-v", "--verbose"], lambda: output.set_level(1), "Show details; STATFLIGHT_DEBUG=1 shows tracebacks."),
    ]


def _flag(names: list[str], act: Callable[[], None], help: str) -> click.Option:
    return click.Option(
        names,
        is_flag=True,
        expose_value=False,
        callback=lambda _context, _option, given: act() if given else None,
        help=help,
    )


def _print_version() -> None:
    from importlib.metadata import version

    output.tell(version("statflight"))
    sys.exit()


app = Commands(
    "statflight",
    help=HELP,
    context_settings=_CONTEXT,
    no_args_is_help=True,
    commands=cast(Any, dict.fromkeys([*COMMANDS, *_OF_PARTS])),  # their names are suggested for a misspelt one
    params=[*_of_all(), _flag(["--version"], _print_version, "Print the version.")],
)


def main() -> NoReturn:
    """Run a command line. A user's mistake gives one line on standard error, never a traceback."""
    open_standard_streams()
    report_crashes()
    collect_less_often()
    leave_azure_cli_out()
    leave_blas_threads_out()
    output.set_level(0)  # a process may run several command lines
    try:
        sys.exit(app.main(prog_name="statflight", standalone_mode=False))
    except SystemExit:
        raise
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BaseException as error:
        if output.debug():
            raise
        words = _words(error)
        if words is None:
            raise
        status, message = words
        output.warn(f"statflight: {message}")
        sys.exit(status)


def _words(error: BaseException) -> tuple[int, str] | None:
    """Exit status and message of an error that is not a bug of this program."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return 130, "interrupted"
    if isinstance(error, output.UsageError):
        return 2, str(error)
    if isinstance(error, output.CommandError):
        return 1, str(error)
    if isinstance(error, ImportError):
        return 1, f"{error}; pip install 'statflight[all]' brings everything"
    if isinstance(error, OSError):
        return 1, _of_system(error)
    # Imported here to start fast: only code that imports these modules raises their errors.
    import pyarrow as pa
    import pyarrow.flight as flight

    from flight_server.client import reason
    from store.model.errors import StatflightError

    if isinstance(error, StatflightError):
        return 1, str(error)
    if isinstance(error, pa.ArrowException | flight.FlightError):
        return 1, output.in_flags(reason(error))
    return None


def _of_system(error: OSError) -> str:
    """The message of an error of the system, with the file that it is about if that is known."""
    if error.strerror is None:
        return str(error)
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the output cannot be written: {error.strerror}; free space where it goes"
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


if __name__ == "__main__":
    main()
