"""The Arrow Flight SQL JDBC driver in a JVM: what DBeaver, Tableau and others call of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_server.client import StatsClient
from tests.flight_server.certificates import make
from tests.flight_server.live_server import LiveServer, serving
from tests.interop.clients import HERE, block, require, served
from tests.interop.java import jars

pytestmark = pytest.mark.interop

DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
OPENS = "--add-opens=java.base/java.nio=ALL-UNNAMED"
MAX_IDLE_BYTES = 5_000_000  # of 64 sessions, on the server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with served(tmp_path_factory.mktemp("jdbc")) as server:
        yield server


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return os.pathsep.join(map(str, jars(tmp_path_factory.mktemp("driver"), [DRIVER])))


def java(program: Path, driver: str, server: LiveServer, *arguments: str) -> list[str]:
    scheme, _, address = server.uri.partition("://")
    url = f"jdbc:arrow-flight-sql://{address}?useEncryption={str(scheme == 'grpc+tls').lower()}"
    return [require("java"), OPENS, "-Xmx256m", "-cp", driver, str(program), url, *arguments]


@pytest.fixture(scope="module")
def said(driver: str, server: LiveServer) -> dict[str, str]:
    """The program's findings, by name."""
    done = subprocess.run(java(HERE / "Jdbc.java", driver, server), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_nothing_that_tools_ask_for_fails(said: dict[str, str]) -> None:
    assert said["done"] == "true"
    assert {name: value for name, value in said.items() if "FAILED" in value} == {}
    assert sum(name.startswith("meta ") for name in said) > 100
    assert said["meta supportsUnionAll"] == said["meta supportsFullOuterJoins"] == said["meta isReadOnly"] == "true"
    assert said["meta supportsTransactions"] == said["meta supportsSelectForUpdate"] == "false"


def test_the_tree_of_tables(said: dict[str, str]) -> None:
    assert said["catalogs"] == "[statflight]" and said["table types"] == "[BASE TABLE]"
    assert said["schemas"] == "[adbc, information_schema, stats, stats_all, sys]"
    assert said["schemas like"] == "[stats, stats_all]" and said["no tables"] == "[]"
    assert said["tables"] == "[stats|column_groups|BASE TABLE, stats|columns|BASE TABLE]"
    assert "column_ids" in said["escaped"].split(", ")
    assert said["columns like"].startswith("[ndv|DOUBLE|8|12, ndv_exact|BOOLEAN|16|13")
    assert said["primary keys"] == "[table_catalog, table_schema, table_name, snapshot_id, column_id]"


def test_grids_show_every_flight(said: dict[str, str]) -> None:
    assert said["rows of stats.columns"] == "2" and said["rows of stats.files"] == "1"
    assert sum(name.startswith("rows of ") for name in said) > 40 and int(said["values"]) > 500


def test_statements(said: dict[str, str]) -> None:
    assert said["constant"] == "[1|x]" and said["select"] == "[id|1000.0, region|3.0]"
    assert said["union"] == "[another, orders]" and said["max rows"] == "1"
    assert said["instant"] == "[2026-05-01 12:30:00.0]"
    assert [said[f"parameter {n}"] for n in (1, 2, 3)] == ["Utf8", "FloatingPoint(DOUBLE)", "Int(64, true)"]
    assert [said[f"prepared {n}"] for n in ("2.0", "100.0", "1.0E9")] == ["[id, region]", "[id]", "[]"]
    assert said["prepared instant"] == "[2]"


def test_mistakes_are_told_and_the_connection_goes_on(said: dict[str, str]) -> None:
    assert '[UNKNOWN_COLUMN] no column "nvd"; did you mean "ndv"?' in said["refused SELECT nvd FROM stats.columns"]
    assert '[UNKNOWN_TABLE] no table "stats.colums"' in said["refused SELECT 1 FROM stats.colums"]
    assert "[BAD_SQL] DROP is not allowed" in said["refused DROP TABLE stats.columns"]
    assert (
        "[BAD_SQL]" in said["refused SELEC 1"] and "read_csv" in said["refused SELECT * FROM read_csv('/etc/passwd')"]
    )
    assert said["after refusals"] == "[1]" and said["valid"] == "true"


def test_the_block_of_the_document(driver: str, server: LiveServer, tmp_path: Path) -> None:
    program = tmp_path / "Columns.java"
    program.write_text(block("java"), encoding="utf-8")
    done = subprocess.run(java(program, driver, server), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "id 1000.0\nregion 3.0\n"), done.stderr[-3000:]


def resident_bytes(server: LiveServer) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_idle_sessions_cost_little(driver: str, server: LiveServer) -> None:
    """64 connections with a prepared statement each, after the first 8 have loaded what stays."""
    command = java(HERE / "Jdbc.java", driver, server, "sessions", "64")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        sizes = []
        for batch in ("8", "64"):
            assert process.stdout.readline() == f"open={batch}\n"
            sizes.append(resident_bytes(server))
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "done=true\n"
        assert process.wait(60) == 0
    print(f"64 idle sessions: {(sizes[1] - sizes[0]) / 1e6:.1f} MB")
    assert sizes[1] - sizes[0] < MAX_IDLE_BYTES


def test_a_token_is_the_password(driver: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "tokens.toml").write_text(f'[[token]]\nname = "t"\nsha256 = "{digest}"\nscopes = ["stats.read"]\n')
    (tmp_path / "Columns.java").write_text(block("java"), encoding="utf-8")
    with serving(tmp_path, "--auth", tmp_path / "tokens.toml") as server:
        command = java(tmp_path / "Columns.java", driver, server)
        for login, mention in (("&user=any&password=secret", ""), ("&token=secret", ""),
                               ("&user=any&password=wrong", "UNAUTHENTICATED"), ("", "UNAUTHENTICATED")):  # fmt: skip
            done = subprocess.run([*command[:-1], command[-1] + login], capture_output=True, text=True, timeout=300)
            assert (done.returncode == 0) == (not mention) and mention in done.stderr, (login, done.stderr[-3000:])


def test_tls(driver: str, tmp_path: Path) -> None:
    """The certificate is checked against roots, or not at all; a caller without TLS fails, and the server lives on."""
    cert, key = make("server").write(tmp_path)
    (tmp_path / "Columns.java").write_text(block("java"), encoding="utf-8")
    with serving(tmp_path, "--tls-cert", cert, "--tls-key", key) as server:
        command = java(tmp_path / "Columns.java", driver, server)
        for way, works in (
            (f"&tlsRootCerts={cert}", True),
            ("&disableCertificateVerification=true", True),
            ("", False),
        ):
            done = subprocess.run([*command[:-1], command[-1] + way], capture_output=True, text=True, timeout=300)
            assert (done.returncode == 0) is works, (way, done.stderr[-3000:])
        plain = command[-1].replace("useEncryption=true", "useEncryption=false")
        assert subprocess.run([*command[:-1], plain], capture_output=True, timeout=300).returncode != 0
        with StatsClient(server.uri, tls_roots=cert) as client:
            assert client.tables().num_rows == 0
