"""A Trino server from its Maven artifact, with catalogs over one directory, and its HTTP protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.interop import processes

VERSION = "476"
JAVA = 24  # the oldest that it runs on
PLUGINS = ("delta-lake", "hive", "iceberg")
_FILES = "fs.hadoop.enabled=true\n"  # the file system of file:/ addresses
_METASTORE = "hive.metastore.catalog.dir=file://{warehouse}/{name}\nhive.metastore.user=trino\n"
CATALOGS = {
    "delta": "connector.name=delta_lake\nhive.metastore=file\ndelta.register-table-procedure.enabled=true\n"
    "delta.metadata.cache-ttl=0s\n" + _METASTORE,
    "iceberg": "connector.name=iceberg\niceberg.catalog.type=TESTING_FILE_METASTORE\n"
    "iceberg.register-table-procedure.enabled=true\n" + _METASTORE,
    "hive": "connector.name=hive\nhive.metastore.uri={address}\nhive.non-managed-table-writes-enabled=true\n",
    "door": "connector.name=iceberg\niceberg.catalog.type=rest\niceberg.rest-catalog.uri={address}\n"
    "iceberg.rest-catalog.nested-namespace-enabled=true\n",
}


def java() -> str:
    """The `java` program of an installed JDK that is new enough; skips the test if there is none."""
    homes = [os.environ.get("JAVA_HOME", ""), *map(str, sorted(Path("/usr/lib/jvm").glob("*"), reverse=True))]
    if (found := shutil.which("java")) is not None:
        homes.append(str(Path(found).resolve().parents[1]))
    for home in homes:
        release = Path(home) / "release"
        version = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
        if version is not None and int(version[1]) >= JAVA:
            return str(Path(home) / "bin/java")
    pytest.skip(f"needs Java {JAVA} or later in /usr/lib/jvm or JAVA_HOME")


def unpacked(folder: Path) -> Path:
    """Downloads and unpacks the server, without plugins that no test uses; skips the test where it cannot be had.

    STATFLIGHT_TRINO names a directory that keeps it from one run to the next.
    """
    folder = Path(os.environ.get("STATFLIGHT_TRINO", folder))
    home = folder / f"trino-server-{VERSION}"
    if home.is_dir():
        return home
    folder.mkdir(parents=True, exist_ok=True)
    artifact = f"-Dartifact=io.trino:trino-server:{VERSION}:tar.gz"
    command = [processes.require("mvn"), "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={folder}"]
    processes.downloaded(f"trino-server {VERSION}", command)
    archive = folder / f"trino-server-{VERSION}.tar.gz"
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True)  # jars of a plugin may be links to another's
    archive.unlink()
    for plugin in (home / "plugin").iterdir():
        if plugin.name not in PLUGINS:
            shutil.rmtree(plugin)
    return home


@contextmanager
def running(
    folder: Path, gigabytes: int = 3, catalogs: Sequence[str] = ("delta",), address: str | None = None
) -> Iterator[Trino]:
    """A server with catalogs over one directory.

    Args:
        folder: Its data, its log and its own metastore of files.
        gigabytes: Size of the heap.
        catalogs: Some of `CATALOGS`.
        address: Address of a Hive metastore, for the catalog `hive`, or of an Iceberg REST catalog, for `door`.
    """
    program, home = java(), unpacked(folder / "trino")
    port = processes.free_port()
    etc = folder / "etc"
    (etc / "catalog").mkdir(parents=True, exist_ok=True)
    (etc / "config.properties").write_text(
        f"coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port={port}\n"
        f"discovery.uri=http://127.0.0.1:{port}\nquery.max-memory-per-node={gigabytes * 600}MB\n"
        f"memory.heap-headroom-per-node={gigabytes * 200}MB\n"
    )
    for name in catalogs:
        given = {"warehouse": str(folder / "metastores"), "name": name, "address": address}
        (etc / "catalog" / f"{name}.properties").write_text((CATALOGS[name] + _FILES).format(**given))
    command = [
        program,
        f"-Xmx{gigabytes}g",
        "-Djdk.attach.allowAttachSelf=true",
        "--add-modules=jdk.incubator.vector",
        "--enable-native-access=ALL-UNNAMED",
        f"-Dconfig={etc / 'config.properties'}",
        "-Dnode.environment=interop",
        "-Dnode.id=one",
        f"-Dnode.data-dir={folder / 'data'}",
        f"-Dplugin.dir={home / 'plugin'}",
        "-Dnode.bind-ip=127.0.0.1",
        "-Dnode.internal-address=127.0.0.1",
        f"-Dcatalog.config-dir={etc / 'catalog'}",
        "-cp",
        f"{home / 'lib'}/*",
        "io.trino.server.TrinoServer",
    ]
    trino = Trino(f"http://127.0.0.1:{port}")
    with processes.running(command, folder, port, trino.is_ready):
        yield trino


@dataclass(frozen=True)
class Answer:
    """Rows of a query, and what it took.

    Attributes:
        cpu: Processor time in seconds.
        wall: Seconds from start to end.
        peak: Peak memory in bytes.
    """

    rows: list[list[Any]]
    cpu: float
    wall: float
    peak: int


@dataclass(frozen=True)
class Trino:
    """A client of the server."""

    url: str

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/v1/info", timeout=5) as answer:
                return json.load(answer)["starting"] is False
        except (URLError, OSError):
            return False

    def query(self, sql: str, schema: str = "delta.default", ignoring: str | None = None) -> Answer:
        """Runs a statement to its end.

        Args:
            sql: The statement.
            schema: Catalog and schema of unqualified names.
            ignoring: Words of an error that is none here.

        Raises:
            RuntimeError: Trino's error.
        """
        catalog, _, name = schema.partition(".")
        headers = {"X-Trino-User": "trino", "X-Trino-Catalog": catalog, "X-Trino-Schema": name}
        request: Any = Request(f"{self.url}/v1/statement", sql.encode(), headers, method="POST")
        rows: list[list[Any]] = []
        while True:
            with urlopen(request, timeout=900) as answer:
                page = json.load(answer)
            rows += page.get("data") or []
            if "error" in page and not (ignoring and ignoring in page["error"]["message"]):
                raise RuntimeError(page["error"]["message"])
            if "nextUri" not in page:
                break
            request = Request(page["nextUri"], headers={"X-Trino-User": "trino"})
        about = Request(f"{self.url}/v1/query/{page['id']}", headers={"X-Trino-User": "trino"})
        with urlopen(about, timeout=60) as answer:
            stats = json.load(answer)["queryStats"]
        peak = _bytes(stats["peakUserMemoryReservation"])
        return Answer(rows, _seconds(stats["totalCpuTime"]), _seconds(stats["elapsedTime"]), peak)

    def text(self, sql: str, schema: str = "delta.default") -> str:
        """The only value of a statement, such as a plan."""
        return str(self.query(sql, schema).rows[0][0])


def _seconds(duration: str) -> float:
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", duration).groups()  # type: ignore[union-attr]
    return float(number) * units[unit]


def _bytes(size: str) -> int:
    number, unit = re.fullmatch(r"([\d.]+)([kMGT]?)B", size).groups()  # type: ignore[union-attr]
    return round(float(number) * 1024 ** " kMGT".index(unit or " "))
