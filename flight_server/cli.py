"""`statflight`: the table of commands, loaded when called, and the messages of failures.

Exit status: 0 success, 1 failure, 2 usage error, 3 more to read than `scan --max-bytes`, 130 interrupted. A reader of
the output that leaves, as `head` does, is no failure.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, cast

try:
    import typer
    from typer.core import TyperGroup
    from typer.main import get_command
except ImportError:
    sys.exit("statflight: the command line needs more than pyarrow: pip install 'statflight[server]'")

from flight_server.commands import output
from flight_server.commands.examples import EXAMPLES
from flight_server.process.runtime import report_crashes

HELP = "Statistics about data: captured from lakes, kept in DuckDB, served as Arrow streams."
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Entry(NamedTuple):
    """A command: its section of the help, its function, and its help line."""

    panel: str
    function: str
    help: str


RUN, LAKE, READ, WATCH = "Run", "Lake", "Read", "Watch over"
COMMANDS = {
    "demo": Entry(RUN, "running:demo", "Make a small lake, serve it, capture it, and show what comes out."),
    "serve": Entry(RUN, "running:serve", "Run the server and its capture worker."),
    "worker": Entry(RUN, "running:worker", "Run another capture worker, here or on another machine."),
    "doctor": Entry(
        RUN, "running:doctor", "Check Python, Java, the libraries of each format, and the server; or a database."
    ),
    "config": Entry(RUN, "settings:config", "Print the effective settings and where each comes from."),
    "backup": Entry(RUN, "keeping:backup", "Copy the database to a file while the server serves."),
    "replicas": Entry(RUN, "keeping:replicas", "List what can be restored of a replica."),
    "restore": Entry(RUN, "keeping:restore", "Make a database of a replica, as of now or of a time."),
    "connect": Entry(LAKE, "lakes:connect_lake", "Connect a lake and list its tables."),
    "discover": Entry(LAKE, "lakes:discover", "Look for new tables and snapshots of a connected lake."),
    "disconnect": Entry(LAKE, "lakes:disconnect", "Forget a connected lake and its tables."),
    "capture": Entry(LAKE, "capturing:capture", "Capture statistics of tables and their columns."),
    "resolve": Entry(LAKE, "capturing:resolve", "Get statistics from the store, or capture them within a budget."),
    "publish": Entry(LAKE, "publishing:publish", "Write statistics where other engines find them."),
    "withdraw": Entry(LAKE, "publishing:withdraw", "Remove published statistics again."),
    "explain": Entry(LAKE, "explaining:explain", "Show Spark's plan of a query without and with published statistics."),
    "describe": Entry(LAKE, "describing:describe", "Say whose a table is and what to know of it."),
    "emit": Entry(LAKE, "emitting:emit", "Send profiles to OpenLineage, DataHub or OpenMetadata."),
    "expire": Entry(LAKE, "keeping:expire", "Delete statistics of snapshots that the lake has expired."),
    "ls": Entry(READ, "browsing:ls", "List tables with their rows, sizes and age."),
    "show": Entry(READ, "reading:show", "Show the statistics of tables, a line for each column."),
    "joins": Entry(READ, "describing:joins", "List foreign keys between tables, declared or told by the values."),
    "history": Entry(READ, "browsing:history", "Show a column's statistics over the snapshots of its table."),
    "diff": Entry(READ, "comparing:diff", "Show what changed between two snapshots."),
    "query": Entry(READ, "reading:query", "Print the rows of any flight."),
    "sql": Entry(READ, "sql:sql", "Run SQL over all flights: a statement, standard input, or a prompt."),
    "scan": Entry(READ, "scanning:scan", "List the files that a condition needs, without opening any."),
    "answer": Entry(READ, "scanning:answer", "Answer counts, minima and maxima that statistics know exactly."),
    "jobs": Entry(READ, "reading:jobs", "List capture jobs, the newest first."),
    "check": Entry(WATCH, "checking:check", "Check rules against the statistics of tables."),
    "report": Entry(READ, "browsing:report", "Write pages about tables as files, for any browser."),
}


class Commands(TyperGroup):
    """The commands by name; a module is imported when one of its commands is called, so that help starts at once."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.commands = cast(Any, dict.fromkeys(COMMANDS))  # their names are suggested for a misspelt one

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  click's own
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  click's own
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.function.partition(":")
        function = getattr(import_module(f"flight_server.commands.{module}"), name)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        # \b keeps the lines below it as they are
        examples = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[cmd_name])
        alone.command(cmd_name, help=entry.help, epilog=examples, context_settings=_CONTEXT)(function)
        command = get_command(alone)
        command.params += _common_options()
        return command

    def invoke(self, ctx: Any) -> Any:
        with output.until_the_reader_leaves():  # typer itself would exit with 1
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's own
        for panel in (RUN, LAKE, READ, WATCH):
            rows = [(name, entry.help) for name, entry in COMMANDS.items() if entry.panel == panel]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def _set_level(level: int) -> Any:
    return lambda given: output.set_level(level) if given else None


def _speech(
    quiet: bool = typer.Option(False, "-q", "--quiet", callback=_set_level(-1), expose_value=False,
                               help="Write data and errors only."),
    verbose: bool = typer.Option(False, "-v", "--verbose", callback=_set_level(1), expose_value=False,
                                 help="Show details; STATFLIGHT_DEBUG=1 shows tracebacks."),
) -> None:  # fmt: skip
    """Options of every command."""


def _common_options() -> list[Any]:
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command()(_speech)
    return list(get_command(alone).params)


app = typer.Typer(
    name="statflight",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(version("statflight"))
        raise typer.Exit


@app.callback(help=HELP)
def _options(
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Write data and errors only."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Show details; STATFLIGHT_DEBUG=1 shows tracebacks."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),  # noqa: ARG001  its callback ends the program
) -> None:
    """Options before the command."""
    output.set_level(-1 if quiet else 1 if verbose else 0)  # always set: a process may run several command lines


def main() -> NoReturn:
    """Run a command line. A user's mistake gives one line on standard error, never a traceback."""
    report_crashes()
    try:
        app(prog_name="statflight")
    except SystemExit:
        raise
    except BaseException as error:
        if output.debug():
            raise
        words = _words(error)
        if words is None:
            raise
        status, message = words
        output.warn(f"statflight: {message}")
        sys.exit(status)
    sys.exit(0)


def _words(error: BaseException) -> tuple[int, str] | None:
    """Exit status and message of an error that is not a bug of this program."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, output.UsageError):
        return 2, str(error)
    if isinstance(error, output.CommandError):
        return 1, str(error)
    if isinstance(error, ImportError):
        return 1, f"{error}; pip install 'statflight[all]' brings everything"
    if isinstance(error, OSError):
        return 1, str(error)
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


if __name__ == "__main__":
    main()
