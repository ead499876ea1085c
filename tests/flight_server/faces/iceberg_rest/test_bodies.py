"""Bodies of requests that arrive in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from flight_server.core.wire.scan_request import MAX_COMMAND_BYTES
from flight_server.faces.iceberg_rest.door import Bodies
from store.model.errors import ResourceExhausted


async def parts(*sent: bytes, then: anyio.Event | None = None) -> AsyncIterator[bytes]:
    """Parts of a body; the rest comes after an event."""
    for part in sent:
        yield part
    if then is not None:
        await then.wait()


def test_a_body_is_read_whole_unless_it_is_too_large():
    bodies = Bodies(100)

    async def read() -> None:
        assert await bodies.read(parts(b"ab", b"", b"c")) == b"abc"
        assert await bodies.read(parts()) == b""

    anyio.run(read)
    large = Bodies(2 * MAX_COMMAND_BYTES)
    assert anyio.run(large.read, parts(bytes(MAX_COMMAND_BYTES))) == bytes(MAX_COMMAND_BYTES)
    assert anyio.run(large.read, parts(bytes(MAX_COMMAND_BYTES), b"a")) is None
    assert anyio.run(large.read, parts(bytes(MAX_COMMAND_BYTES))) is not None, "the budget is free again"


def test_the_oldest_half_bodies_make_room_for_whole_ones():
    bodies, given_up = Bodies(100), list[int]()

    async def half(number: int, rest: anyio.Event) -> None:
        try:
            assert await bodies.read(parts(bytes(40), then=rest)) == bytes(40)
        except ResourceExhausted:
            given_up.append(number)

    async def run() -> None:
        rest = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(half, number, rest)
                await anyio.wait_all_tasks_blocked()
            assert given_up == [0, 1]
            assert await bodies.read(parts(bytes(60))) == bytes(60)
            await anyio.wait_all_tasks_blocked()
            assert given_up == [0, 1, 2]
            rest.set()
        assert await bodies.read(parts(bytes(100))) == bytes(100)

    anyio.run(run)


def test_a_body_larger_than_the_budget_is_given_up():
    with pytest.raises(ResourceExhausted):
        anyio.run(Bodies(10).read, parts(bytes(11), b"a"))
