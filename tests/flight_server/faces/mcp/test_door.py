"""The tools over HTTP and the messages of standard input, without a port or a process."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("mcp")

import anyio
from mcp.server.stdio import stdio_server
from starlette.requests import Request

from flight_server.core.auth.tokens import Guard
from flight_server.faces.local.tables import LocalTables
from flight_server.faces.mcp.door import Door, _check_origin
from flight_server.faces.mcp.messages import Messages
from store.model.errors import PermissionDenied


@pytest.fixture
def post():
    """`post(body, **headers)`: status and body of the answer."""
    tables = LocalTables(None, lambda _: None)
    door = Door(tables.app, Guard(None, "internal"), values=False)

    def call(body, **headers):
        given = {
            "host": "127.0.0.1:1",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        } | headers
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        sent = []

        async def receive():
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(door(scope, receive, send))
        return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])

    yield call
    tables.close()


def test_a_request_needs_no_session(post):
    status, body = post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert status == 200 and len(json.loads(body)["result"]["tools"]) == 7


def test_errors_of_tools_are_results(post):
    call = {"name": "describe_table", "arguments": {"table": "a.b.c"}}
    status, body = post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    result = json.loads(body)["result"]
    assert status == 200 and result["isError"] and "a.b.c" in result["content"][0]["text"]
    call["name"] = "describe"
    _, body = post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    assert "describe_table" in json.loads(body)["error"]["message"]


def test_what_is_no_message_is_refused(post):
    assert post(b"{ no JSON")[0] == 400
    assert post(b"x" * (2 << 20))[0] == 413


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:2", "http://127.0.0.1:1.evil.example"]
)
def test_other_origins_are_refused(post, origin):
    assert post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, origin=origin)[0] == 403
    with pytest.raises(PermissionDenied):
        _check_origin(Request({"type": "http", "headers": [(b"host", b"127.0.0.1:1"), (b"origin", origin.encode())]}))


def test_own_origin_is_good(post):
    assert post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, origin="http://127.0.0.1:1")[0] == 200


class Written:
    """A text file of lines that were written."""

    def __init__(self):
        self.text = ""

    async def write(self, text):
        self.text += text

    async def flush(self):
        pass


async def lines(*given):
    async def read():
        for line in given:
            yield line

    written, heard = Written(), []
    async with stdio_server(read(), written) as (stream, write), write, Messages(stream, write) as messages:
        heard += [message async for message in messages]
    return heard, [json.loads(line) for line in written.text.splitlines()]


def test_lines_that_are_no_messages_are_answered():
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    heard, written = anyio.run(lines, "{ no JSON\n", '{"a": 1}\n', json.dumps(ping) + "\n")
    assert len(heard) == 1
    assert [message["error"]["code"] for message in written] == [-32700, -32600]
    assert all(message["id"] is None for message in written)
