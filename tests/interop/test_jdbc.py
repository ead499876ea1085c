"""The Arrow Flight SQL JDBC driver in a JVM: the calls that DBeaver, Tableau and others make."""

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
from tests.interop.clients import HERE, block, served
from tests.interop.java import jars
from tests.interop.processes import require

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
def found(driver: str, server: LiveServer) -> dict[str, str]:
    """The program's output: name → value."""
    done = subprocess.run(java(HERE / "Jdbc.java", driver, server), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_metadata_calls_of_sql_tools_succeed(found: dict[str, str]) -> None:
    assert found["done"] == "true"
    assert {name: value for name, value in found.items() if "FAILED" in value} == {}
    assert sum(name.startswith("meta ") for name in found) > 100
    assert found["meta supportsUnionAll"] == found["meta supportsFullOuterJoins"] == found["meta isReadOnly"] == "true"
    assert found["meta supportsTransactions"] == found["meta supportsSelectForUpdate"] == "false"


def test_catalogs_schemas_tables_and_columns_are_listed(found: dict[str, str]) -> None:
    assert found["catalogs"] == "[statflight]" and found["table types"] == "[BASE TABLE]"
    assert found["schemas"] == "[adbc, information_schema, stats, stats_all, sys]"
    assert found["schemas like"] == "[stats, stats_all]" and found["no tables"] == "[]"
    assert found["tables"] == "[stats|column_groups|BASE TABLE, stats|columns|BASE TABLE]"
    assert "column_ids" in found["escaped"].split(", ")
    assert found["columns like"].startswith("[ndv|DOUBLE|8|12, ndv_exact|BOOLEAN|16|13")
    assert found["primary keys"] == "[table_catalog, table_schema, table_name, snapshot_id, column_id]"


def test_every_flight_can_be_read_as_a_grid(found: dict[str, str]) -> None:
    assert found["rows of stats.columns"] == "2" and found["rows of stats.files"] == "1"
    assert sum(name.startswith("rows of ") for name in found) > 40 and int(found["values"]) > 500


def test_statements_and_prepared_statements_return_rows(found: dict[str, str]) -> None:
    assert found["constant"] == "[1|x]" and found["select"] == "[id|1000.0, region|3.0]"
    assert found["union"] == "[another, orders]" and found["max rows"] == "1"
    assert found["instant"] == "[2026-05-01 12:30:00.0]"
    assert [found[f"parameter {n}"] for n in (1, 2, 3)] == ["Utf8", "FloatingPoint(DOUBLE)", "Int(64, true)"]
    assert [found[f"prepared {n}"] for n in ("2.0", "100.0", "1.0E9")] == ["[id, region]", "[id]", "[]"]
    assert found["prepared instant"] == "[2]"


def test_error_names_the_mistake_and_keeps_the_connection_open(found: dict[str, str]) -> None:
    assert '[UNKNOWN_COLUMN] no column "nvd"; did you mean "ndv"?' in found["refused SELECT nvd FROM stats.columns"]
    assert '[UNKNOWN_TABLE] no table "stats.colums"' in found["refused SELECT 1 FROM stats.colums"]
    assert "[BAD_SQL] DROP is not allowed" in found["refused DROP TABLE stats.columns"]
    assert (
        "[BAD_SQL]" in found["refused SELEC 1"] and "read_csv" in found["refused SELECT * FROM read_csv('/etc/passwd')"]
    )
    assert found["after refusals"] == "[1]" and found["valid"] == "true"


def test_block_of_the_clients_page_runs(driver: str, server: LiveServer, tmp_path: Path) -> None:
    program = tmp_path / "Columns.java"
    program.write_text(block("java"), encoding="utf-8")
    done = subprocess.run(java(program, driver, server), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "id 1000.0\nregion 3.0\n"), done.stderr[-3000:]


def resident_bytes(server: LiveServer) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_idle_sessions_use_little_memory(driver: str, server: LiveServer) -> None:
    """64 connections with a prepared statement each, after the first 8 have filled the caches."""
    command = java(HERE / "Jdbc.java", driver, server, "sessions", "64")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
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


def test_token_is_accepted_as_the_password(driver: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "tokens.toml").write_text(f'[[token]]\nname = "t"\nsha256 = "{digest}"\nscopes = ["stats.read"]\n')
    (tmp_path / "Columns.java").write_text(block("java"), encoding="utf-8")
    with serving(tmp_path, "--auth", tmp_path / "tokens.toml") as server:
        command = java(tmp_path / "Columns.java", driver, server)
        for login, mention in (
            ("&user=any&password=secret", ""),
            ("&token=secret", ""),
            ("&user=any&password=wrong", "UNAUTHENTICATED"),
            ("", "UNAUTHENTICATED"),
        ):
            done = subprocess.run([*command[:-1], command[-1] + login], capture_output=True, text=True, timeout=300)
            assert (done.returncode == 0) == (not mention) and mention in done.stderr, (login, done.stderr[-3000:])


def test_tls_verifies_the_certificate_unless_disabled(driver: str, tmp_path: Path) -> None:
    """The certificate is verified with given roots or not at all; a client without TLS fails, and others are served."""
    cert, key = make("server").write(tmp_path)
    (tmp_path / "Columns.java").write_text(block("java"), encoding="utf-8")
    with serving(tmp_path, "--tls-cert", cert, "--tls-key", key) as server:
        command = java(tmp_path / "Columns.java", driver, server)
        for option, succeeds in (
            (f"&tlsRootCerts={cert}", True),
            ("&disableCertificateVerification=true", True),
            ("", False),
        ):
            done = subprocess.run([*command[:-1], command[-1] + option], capture_output=True, text=True, timeout=300)
            assert (done.returncode == 0) is succeeds, (option, done.stderr[-3000:])
        plain = command[-1].replace("useEncryption=true", "useEncryption=false")
        assert subprocess.run([*command[:-1], plain], capture_output=True, timeout=300).returncode != 0
        with StatsClient(server.uri, tls_roots=cert) as client:
            assert client.tables().num_rows == 0
