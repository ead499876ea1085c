"""`statflight`: puts the commands together and words their failures. Exit status 0, 1 (failed) or 2 (misused)."""

from __future__ import annotations

import sys
from typing import NoReturn

import pyarrow as pa
import pyarrow.flight as flight

try:
    import typer
except ImportError:
    sys.exit("statflight: the command line needs more than pyarrow: pip install 'statflight[server]'")

from flight_server.client import reason
from flight_server.commands import capturing, keeping, reading, running
from flight_server.commands.common import CommandError, UsageError, debug, say
from store.errors import StatflightError

app = typer.Typer(
    name="statflight",
    help="Statistics about data: captured with PySpark, kept in DuckDB, served as Arrow streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RUN, LAKE, READ = "Run", "Lake", "Read"
for panel, name, command in (
    (RUN, "demo", running.demo),
    (RUN, "serve", running.serve),
    (RUN, "worker", running.worker),
    (RUN, "doctor", running.doctor),
    (RUN, "backup", keeping.backup),
    (LAKE, "connect", capturing.connect_lake),
    (LAKE, "discover", capturing.discover),
    (LAKE, "disconnect", capturing.disconnect),
    (LAKE, "capture", capturing.capture),
    (LAKE, "resolve", capturing.resolve),
    (LAKE, "publish", capturing.publish),
    (LAKE, "expire", capturing.expire),
    (READ, "show", reading.show),
    (READ, "query", reading.query),
    (READ, "diff", reading.diff),
    (READ, "jobs", reading.jobs),
    (READ, "report", reading.report),
):
    app.command(name, rich_help_panel=panel)(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("statflight"))
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Statistics about data: captured with PySpark, kept in DuckDB, served as Arrow streams."""


def main() -> NoReturn:
    """The entry point: a user's mistake ends in one line on standard error, never in a traceback."""
    try:
        app()
    except SystemExit:
        raise
    except BaseException as error:
        if debug():
            raise
        words = _words(error)
        if words is None:
            raise
        status, message = words
        say(f"statflight: {message}")
        sys.exit(status)
    sys.exit(0)


def _words(error: BaseException) -> tuple[int, str] | None:
    """Exit status and message of an error that is not this program's own fault."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, UsageError):
        return 2, str(error)
    if isinstance(error, CommandError | StatflightError):
        return 1, str(error)
    if isinstance(error, pa.ArrowException | flight.FlightError):
        return 1, reason(error)
    if isinstance(error, ImportError):
        return 1, f"{error}; pip install 'statflight[all]' brings everything"
    if isinstance(error, OSError):
        return 1, str(error)
    return None


if __name__ == "__main__":
    main()
