"""`statflight serve` as writer, standby and follower, each in a process of its own that may be killed or paused."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from tests.flight_server.live_server import STATFLIGHT, Client
from tests.integration.aws_server import KEY, SECRET

LEASE_SECONDS = 4
_STORM = """
import sys
from store.duckdb.database import Database
Database.checkpoint_bytes = 1 << 15
from flight_server.cli import main
sys.exit(main())
"""


def aws_variables(endpoint: str) -> dict[str, str]:
    """The environment that reaches an S3 server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


class Server:
    """A server of a replica; `end` kills it.

    Args:
        db: Its database.
        log: File of its standard error.
        flags: Flags of `statflight serve`.
        durable: Acknowledge writes once they are shipped.
        storm: Make a base each 32 KiB of log, not each 16 MiB.
        env: Further environment.
    """

    def __init__(
        self,
        db: Path,
        log: Path,
        *flags: object,
        durable: bool = True,
        storm: bool = False,
        env: dict[str, str] | None = None,
    ):
        self._log = log
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
        durability = ("-o", "durability=replicated") if durable and "--follow" not in flags else ()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *([sys.executable, "-c", _STORM] if storm else [STATFLIGHT]),
                    "serve",
                    "--db",
                    db,
                    "--port",
                    "0",
                    "--workers",
                    "0",
                    "-o",
                    "watch-seconds=0",
                    "-o",
                    f"writer-lease-seconds={LEASE_SECONDS}",
                    *durability,
                    *map(str, flags),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean | (env or {}),
            )
        line = self.process.stdout.readline()
        found = re.search(r"listening on (grpc\S+)", line)
        if found is None:
            self.end()
        assert found, self.errors()
        self.uri = found[1]

    def errors(self) -> str:
        """The end of its standard error."""
        return self._log.read_text()[-3000:]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def role(self) -> str:
        with Client(self.uri) as client:
            client.timeout = 3.0
            return client.read({"table": "sys.replication"})["role"][0].as_py()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def row(number: int) -> pa.Table:
    """A row of `stats.tables`, of a table of its own."""
    return pa.table(
        {
            "table_catalog": ["c"],
            "table_schema": ["s"],
            "table_name": [f"t{number}"],
            "snapshot_id": [1],
            "row_count": [number],
        }
    )
