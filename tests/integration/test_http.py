"""HTTP of a real server whose callers without a token send half a request each."""

from __future__ import annotations

import re
import resource
import socket
import time
import urllib.request
from contextlib import ExitStack
from hashlib import sha256
from urllib.parse import urlsplit

import pytest

from flight_server.process.http import CONNECTIONS, CONNECTIONS_OF_ADDRESS
from tests.flight_server.live_server import serving

OPEN = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.skipif(OPEN < 4 * CONNECTIONS, reason="too few open files are allowed")
@pytest.mark.parametrize(
    "half_sent", [CONNECTIONS_OF_ADDRESS + 200, pytest.param(CONNECTIONS + 500, marks=pytest.mark.benchmark)]
)
def test_half_sent_requests_of_one_caller_leave_room_for_others(tmp_path, half_sent):
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN, OPEN))
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "t"\nsha256 = "{sha256(b"t").hexdigest()}"\nscopes = ["stats.read"]\n')
    with serving(tmp_path, "--http-port", 0, "--metrics-port", 0, "--auth", tokens) as server, ExitStack() as sockets:
        bases = re.findall(r"(?:metrics|pages) on (http://[^/]+/)", server.log.read_text())
        assert len(bases) == 2
        with server.connect(authorization="Bearer t") as client:
            for base in bases:
                where = urlsplit(base)
                for number in range(half_sent):
                    half = sockets.enter_context(socket.create_connection((where.hostname, where.port), timeout=20))
                    half.sendall(b"GET /health HTTP/1.1\r\n")
                    if number % 300 == 299 or number == half_sent - 1:
                        for path in ("health", "metrics", *([""] if base == bases[1] else [])):
                            request = urllib.request.Request(base + path, headers={"Authorization": "Bearer t"})
                            started = time.monotonic()
                            with urllib.request.urlopen(request, timeout=10) as answer:
                                assert answer.status == 200, path
                            assert time.monotonic() - started < 5, path
            assert client.act("health")[0]["status"] == "ok"
