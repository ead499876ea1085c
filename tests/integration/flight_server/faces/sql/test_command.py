"""`statflight sql` against a real server: one statement, standard input, and the prompt of a terminal."""

from __future__ import annotations

import os
import pty
import subprocess

from tests.flight_server.live_server import STATFLIGHT


def test_statements_of_the_argument_and_of_standard_input(server_uri):
    command = [STATFLIGHT, "sql", "--server", server_uri, "--format", "csv"]
    given = {"capture_output": True, "text": True, "check": True}
    assert subprocess.run([*command, "SELECT 1 AS n;"], **given).stdout == "n\n1\n"
    script = "SELECT name FROM sys.flights WHERE name = 'stats.tables';\nSELECT ';' AS b"
    assert subprocess.run(command, input=script, **given).stdout == "name\nstats.tables\nb\n;\n"
    refused = subprocess.run([*command, "DROP TABLE x"], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stdout == "" and "Traceback" not in refused.stderr


def test_prompt_keeps_its_history(server_uri, tmp_path):
    ours, theirs = pty.openpty()
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "STATFLIGHT_SERVER": server_uri}
    with subprocess.Popen([STATFLIGHT, "sql"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as prompt:
        os.close(theirs)
        os.write(ours, b"SELECT 40 + 2\nAS answer;\nexit\n")
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end was closed
            pass
    os.close(ours)
    assert prompt.returncode == 0 and b"answer" in shown and b"42" in shown
    assert (tmp_path / "statflight/sql_history").read_text().splitlines()[:2] == ["SELECT 40 + 2", "AS answer;"]
