"""Commands that run something: serve, worker, doctor, demo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

from flight_server.faces.commands.common import Answer, AnswerFormat, pairs_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions
from flight_server.faces.commands.output import misuse, say, tell, tell_json
from flight_server.faces.commands.parameters import argument, option

if TYPE_CHECKING:
    from flight_server.core.config import Settings
    from flight_server.process.intake import PathLake

_LogLevel = Annotated[str | None, option(metavar="LEVEL", help="debug, info, warning or error.", show_default="info")]
_LogFormat = Annotated[str | None, option(metavar="FORMAT", help="text or json.", show_default="text")]
_Engine = Annotated[
    str | None, option(metavar="ENGINE", help="Where data is read: auto, spark or local.", show_default="auto")
]
_Port = option(min=0, max=65535, help="0 picks a free one.", show_default="8815")


class ServeOptions(NamedTuple):
    """The settings that have a flag of their own."""

    db: Annotated[Path | None, option(metavar="PATH", help="The DuckDB file.")] = None
    host: Annotated[str | None, option(help="Address to listen on.", show_default="127.0.0.1")] = None
    port: Annotated[int | None, _Port] = None
    workers: Annotated[int | None, option(min=0, help="Capture workers to start.", show_default="1")] = None
    tls_cert: Annotated[Path | None, option(metavar="FILE", help="PEM certificate.")] = None
    tls_key: Annotated[Path | None, option(metavar="FILE", help="PEM key of the certificate.")] = None
    tls_client_ca: Annotated[Path | None, option(metavar="FILE", help="CA of client certificates.")] = None
    auth: Annotated[Path | None, option(metavar="FILE", help="Token file; without it, anyone can do anything.")] = None
    insecure: Annotated[
        bool | None, option("--insecure", help="Allow listening on a network without authentication.")
    ] = None
    metrics_port: Annotated[int | None, option(min=0, max=65535, help="Port for Prometheus metrics and health.")] = None
    health_port: Annotated[int | None, option(min=0, max=65535, help="Port for gRPC health checks.")] = None
    watch_seconds: Annotated[
        float | None, option(min=0, help="Seconds between inspections of a lake; 0 = never.", show_default="60")
    ] = None
    http_port: Annotated[int | None, option(min=0, max=65535, help="Port for pages, metrics and health.")] = None
    checks: Annotated[Path | None, option(metavar="FILE.toml", help="Rules to check after each capture.")] = None
    webhook: Annotated[str | None, option(metavar="URL", help="Receives changed results of rules.")] = None
    engine: _Engine = None
    spark_master: Annotated[str | None, option(help="Spark master of the capture workers.")] = None
    replicate_to: Annotated[str | None, option(metavar="URL", help="Where to ship the database's log.")] = None
    follow: Annotated[str | None, option(metavar="URL", help="Replica to serve, read-only.")] = None
    standby: Annotated[
        bool | None, option("--standby", help="Follow the replica, and take over when its writer ends.")
    ] = None
    log_level: _LogLevel = None
    log_format: _LogFormat = None


def serve(
    paths: Annotated[
        list[str] | None,
        argument(metavar="PATH", help="Tables, or directories of tables, to connect and capture at once."),
    ] = None,
    config: Annotated[Path | None, option(metavar="FILE", help="TOML; ./statflight.toml when it exists.")] = None,
    *,
    options: ServeOptions,
    option: Annotated[
        list[str] | None,
        option("-o", "--option", metavar="KEY=VALUE", help="Any other setting of `statflight config`."),
    ] = None,
) -> None:
    """Run the server and its capture worker."""
    others = pairs_of(option, "; `statflight config` lists the keys")
    settings = _settings(config, options._asdict() | {key.replace("-", "_"): others[key] for key in others})
    from flight_server.process.runtime import leave_pandas_out, limit_arrow_memory

    limit_arrow_memory(settings.arrow_memory_bytes)
    leave_pandas_out()  # before modules are imported that make arrays
    # Imported after the settings are checked, so that a mistake is reported at once.
    from flight_server.process.serve import serve as run

    sys.exit(run(settings, _lakes_at(paths or [])))


def _lakes_at(paths: list[str]) -> list[PathLake]:
    """The lakes of paths; two of one name are a usage error."""
    if not paths:
        return []
    from flight_server.process.intake import lakes_at
    from store.model.errors import InvalidArgument

    try:
        return lakes_at(paths)
    except InvalidArgument as error:
        misuse(str(error))


def _settings(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Loads and checks the settings; a bad one is a usage error, whatever its source."""
    from flight_server.process.settings import load
    from store.model.errors import InvalidArgument

    try:
        settings = load(config, flags)
        settings.check()
        if settings.health_port is not None:
            from flight_server.process.health import check_installed

            check_installed()
    except InvalidArgument as error:
        misuse(str(error))
    return settings


def worker(
    engine: _Engine = None,
    spark_master: Annotated[str | None, option(help="Such as local[*] or spark://host:7077.")] = None,
    spark_conf: Annotated[list[str] | None, option(metavar="KEY=VALUE", help="Spark setting.")] = None,
    connection: ConnectionOptions = CONNECTION,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Run another capture worker, here or on any machine that reaches the server and the lake."""
    from flight_server.process.runtime import WORKER_MEMORY, reuse_memory

    reuse_memory(WORKER_MEMORY)  # before pyarrow is imported
    credentials = connection.credentials()
    settings = _settings(
        None,
        {
            "engine": engine,
            "spark_master": spark_master,
            "spark": spark_conf or None,
            "log_level": log_level,
            "log_format": log_format,
        },
    )
    from flight_server.process.run_worker import run_worker

    status = run_worker(
        connection.server,
        **credentials,
        spark_master=settings.spark_master,
        spark_conf=settings.spark,
        engine=settings.scan_engine,
        inline_max_cells=settings.inline_max_cells,
        file_sketches=settings.file_sketches,
        trust_writers=settings.trust_writers,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
    sys.exit(status)


def doctor(
    db: Annotated[
        Path | None,
        option(metavar="PATH", help="Check the content of this database instead; no server may run on it."),
    ] = None,
    format: AnswerFormat = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Check Python, Java, the libraries of each format, plug-ins, and the server; with --db a database."""
    from dataclasses import asdict

    from flight_server.faces.present.doctor import findings

    if db is not None:
        _check_database(db, format)

    found = []
    for finding in findings(connection.server, connection.credentials()):
        found.append(finding)
        if format is Answer.TEXT:
            tell(f"{finding.state:<7}  {finding.what:<17} {finding.detail}")
            if finding.remedy:
                tell(f"{'':27}→ {finding.remedy}")
    if format is Answer.JSON:
        tell_json(map(asdict, found))
    sys.exit(0 if found[-1].good else 1)  # the last is about the server


def _check_database(path: Path, format: Answer) -> NoReturn:
    """Prints what is wrong with the content of a database; status 1 if something is."""
    from store.invariants import check_file

    found = []
    for violation in check_file(path.expanduser()):
        found.append(violation._asdict())
        if format is Answer.TEXT:
            rows = "" if violation.number is None else f": {violation.number}"
            tell(f"broken   {violation.what}{rows}{violation.where and f' in {violation.where}'}")
            tell(f"{'':7}→ {violation.remedy}")
    if format is Answer.JSON:
        tell_json(found)
    if not found:
        say(f"{path}: nothing is broken")
    sys.exit(1 if found else 0)


def demo(
    directory: Annotated[Path, option("--dir", help="Directory to create the lake in.")] = Path("statflight-demo"),
    keep: Annotated[bool, option("--keep", help="Keep the directory.")] = False,
) -> None:
    """Make a small lake, serve it, capture it, and show what comes out."""
    from flight_server.faces.present.demo import run

    sys.exit(run(directory, keep=keep, say=say))
