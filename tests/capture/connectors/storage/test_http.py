"""JSON requests: responses, error statuses, redirects, timeouts."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.request import Request

import pytest

from capture.connectors.storage.http import NoProxyHere, NotJson, Refused, Unanswered, ask_json


class Service(BaseHTTPRequestHandler):
    requests: ClassVar[list[tuple[str, str | None, bytes]]] = []

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append((self.path, self.headers.get("Authorization"), body))
        status = int(self.path.strip("/").split("-")[0])
        answers = {"text": b"hello", "list": b"[1]", "cut": b'{"a": '}
        answer = answers.get(self.path.partition("-")[2], json.dumps({"is": self.path}).encode())
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture
def service():
    Service.requests.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_response_is_parsed_and_headers_and_data_are_sent(service):
    assert ask_json(f"{service}/200", timeout_seconds=5, headers={"Authorization": "Bearer t"}) == {"is": "/200"}
    assert ask_json(f"{service}/201", timeout_seconds=5, data=b"x=1") == {"is": "/201"}
    assert Service.requests == [("/200", "Bearer t", b""), ("/201", None, b"x=1")]


@pytest.mark.parametrize(("status", "may_pass"), [(400, False), (403, False), (429, True), (503, True)])
def test_error_has_the_status_and_whether_it_may_pass(service, status, may_pass):
    with pytest.raises(Refused) as refusal:
        ask_json(f"{service}/{status}", timeout_seconds=5)
    assert (refusal.value.status, refusal.value.may_pass) == (status, may_pass)


def test_redirect_is_not_followed(service):
    with pytest.raises(Refused, match="302"):
        ask_json(f"{service}/302", timeout_seconds=5, headers={"Authorization": "Bearer t"})
    assert len(Service.requests) == 1


@pytest.mark.parametrize("kind", ["text", "list", "cut"])
def test_response_that_is_not_a_json_object_is_refused(service, kind):
    with pytest.raises(NotJson):
        ask_json(f"{service}/200-{kind}", timeout_seconds=5)


def test_timeout_is_distinguished_from_a_refused_connection():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(Unanswered) as error:
            ask_json(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_seconds=0.05)
        assert error.value.timed_out
        port = silent.getsockname()[1]
    with pytest.raises(Unanswered) as error:
        ask_json(f"http://127.0.0.1:{port}/", timeout_seconds=5)
    assert not error.value.timed_out
    with pytest.raises(ValueError, match="not a web address"):
        ask_json("file:///etc/passwd", timeout_seconds=5)


def test_no_proxy_is_used_for_this_machine():
    handler = NoProxyHere({"http": "http://proxy:3128"})
    here, there = (Request(f"http://{host}/x") for host in ("127.0.0.1:1", "example.org"))
    for request in (here, there):
        handler.proxy_open(request, "http://proxy:3128", "http")
    assert (here.host, there.host) == ("127.0.0.1:1", "proxy:3128")
