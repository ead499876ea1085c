"""The questions of `questions.py`, asked by one client of other people each, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from tests.flight_server.live_server import LiveServer, serving
from tests.interop.clients import HERE, block
from tests.interop.go_programs import built
from tests.interop.java import jars
from tests.interop.processes import downloaded, require
from tests.interop.questions import Asked, captured, questions, told, wrong

pytestmark = pytest.mark.interop

ROOT = HERE.parents[1]
ZOO = HERE / "zoo"
PACKAGES = {
    "by_sqlalchemy.py": ("sqlalchemy-adbc==0.3.0", "sqlalchemy==2.1.9", "adbc-driver-flightsql==1.13.0", "pyarrow"),
    "by_ibis.py": ("ibis-framework[duckdb]==12.0.0", "adbc-driver-flightsql==1.13.0", "pyarrow", "sqlglot"),
}
JDBC = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
NO_EXPRESSION = 12  # questions that are none to ibis: statements, refusals, literals, casts of parameters


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("zoo"), "--workers", 1) as server:
        yield server


@pytest.fixture(scope="module")
def asked(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    with server.connect() as client:
        client.timeout = 300.0
        return questions(captured(tmp_path_factory.mktemp("lake"), client))


def output(asked: Sequence[Asked], command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """What a client writes that is handed the questions."""
    done = subprocess.run(
        command,
        input="".join(f"{told(question)}\n" for question in asked),
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def python_with(folder: Path, packages: Collection[str]) -> Path:
    """A Python with packages; the test is skipped where they cannot be had."""
    uv = require(str(Path(sys.executable).with_name("uv")))
    downloaded("Python", [uv, "venv", "-q", "--python", sys.executable, folder])
    downloaded(", ".join(packages), [uv, "pip", "install", "-q", "--python", folder / "bin/python", *packages])
    return folder / "bin/python"


def test_adbc_in_python_answers_all(server, asked, tmp_path):
    assert wrong(asked, output(asked, [sys.executable, ZOO / "by_adbc.py", server.uri], tmp_path)) == {}


def test_sqlalchemy_answers_all(server, asked, tmp_path):
    python = python_with(tmp_path / "python", PACKAGES["by_sqlalchemy.py"])
    assert wrong(asked, output(asked, [python, ZOO / "by_sqlalchemy.py", server.uri], tmp_path)) == {}


def test_ibis_answers_what_is_an_expression(server, asked, tmp_path):
    python = python_with(tmp_path / "python", PACKAGES["by_ibis.py"])
    path = os.pathsep.join(map(str, (ROOT, ROOT / "flight_server/public")))
    found = wrong(asked, output(asked, [python, ZOO / "by_ibis.py", server.uri], tmp_path, PYTHONPATH=path))
    assert {name: answer for name, answer in found.items() if answer is not None} == {}
    assert len(found) == NO_EXPRESSION and len(asked) - len(found) >= 20


def test_blocks_of_the_clients_page_run(server, asked, tmp_path):
    python = python_with(tmp_path / "python", {package for packages in PACKAGES.values() for package in packages})
    program = "\n".join(
        [
            "import warnings; warnings.simplefilter('ignore')",
            "from adbc_driver_flightsql import dbapi",
            f"connection = dbapi.connect({server.uri!r}, autocommit=True)",
            block("python sqlalchemy").replace("127.0.0.1:8815", server.uri.partition("://")[2]),
            "with engine.connect() as by_sqlalchemy: print(len(by_sqlalchemy.execute(large).fetchall()))",
            block("python ibis"),
            "with connection, connection.cursor() as cursor: print(len(cursor.execute(str(sql)).fetchall()))",
        ]
    )
    found = output([], [python, "-c", program.replace("ndv > 100", "ndv > 50")], tmp_path)
    assert found.split() == ["3", "3"]  # the column `id` in each format


def test_adbc_in_go_answers_all(server, asked, tmp_path):
    program = built(tmp_path / "program", (ZOO / "by_adbc.go").read_text(encoding="utf-8"))
    assert wrong(asked, output(asked, [program], tmp_path, STATFLIGHT_SERVER=server.uri)) == {}


def test_jdbc_answers_all(server, asked, tmp_path):
    driver = os.pathsep.join(map(str, jars(tmp_path / "driver", [JDBC])))
    url = f"jdbc:arrow-flight-sql://{server.uri.partition('://')[2]}?useEncryption=false"
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    command = [require("java"), opens, "-Xmx256m", "-cp", driver, str(ZOO / "ByJdbc.java"), url]
    assert wrong(asked, output(asked, command, tmp_path)) == {}
