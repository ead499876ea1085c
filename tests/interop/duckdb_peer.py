"""An older DuckDB with the extensions that PyPI has wheels of, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.processes import downloaded

VERSION = "1.5.5"
EXTENSIONS = ("avro", "delta", "ducklake", "httpfs", "iceberg", "sqlite_scanner")  # iceberg needs avro loaded before it
_PROGRAM = """
import json, sys
from pathlib import Path
import duckdb
files = {path.name.partition(".")[0]: path for path in Path(duckdb.__file__).parents[1].rglob("*.duckdb_extension")}
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute("SET enable_progress_bar = false")  # it would be among the output
wanted, statements = json.load(sys.stdin)
for name in wanted:
    connection.execute(f"LOAD '{files[name]}'")
answers = [connection.execute(sql).fetchall() for sql in statements]
print(json.dumps(answers, default=str))
"""


@dataclass(frozen=True)
class DuckDBPeer:
    """The other DuckDB; each call is a process."""

    python: Path

    def run(self, extensions: Sequence[str], *statements: str) -> list[list[list[Any]]]:
        """The rows of each statement, as JSON has them, all in one connection."""
        done = subprocess.run(
            [self.python, "-c", _PROGRAM],
            input=json.dumps([list(extensions), list(statements)]),
            text=True,
            capture_output=True,
            timeout=900,
            env=os.environ | {"TZ": "UTC"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found: list[list[list[Any]]] = json.loads(done.stdout)
        return found


def installed(folder: Path, extensions: Sequence[str] = EXTENSIONS) -> DuckDBPeer:
    """Installs DuckDB and extensions into a folder; skips the test where they cannot be had."""
    wheels = [
        f"duckdb=={VERSION}",
        "pytz",
        *(f"duckdb-extension-{name.replace('_', '-')}=={VERSION}" for name in extensions),
    ]
    for command in ([sys.executable, "-m", "venv", folder], [folder / "bin/pip", "install", "-q", *wheels]):
        downloaded(f"DuckDB {VERSION} and its extensions", command)
    return DuckDBPeer(folder / "bin/python")
