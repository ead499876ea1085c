"""Messages of standard input. Lines that are none are answered with an error, which the library only logs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

Read = Any  # stream of messages and of errors, by mcp.server.stdio
Write = Any


class Messages:
    """The messages of a stream.

    Args:
        read: Yields messages, and an error for each line that is none.
        write: Takes the answers to those.
    """

    def __init__(self, read: Read, write: Write):
        self._read, self._write = read, write

    @property
    def last_context(self) -> Any:
        """Context of the last message's sender."""
        return getattr(self._read, "last_context", None)

    async def receive(self) -> SessionMessage:
        """The next message.

        Raises:
            anyio.EndOfStream: There are no more.
        """
        while isinstance(item := await self._read.receive(), Exception):
            await self._write.send(SessionMessage(_refusal(item)))
        message: SessionMessage = item
        return message

    async def aclose(self) -> None:
        """Closes the stream."""
        await self._read.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        while isinstance(item := await self._read.__anext__(), Exception):
            await self._write.send(SessionMessage(_refusal(item)))
        message: SessionMessage = item
        return message

    async def __aenter__(self) -> Self:
        await self._read.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._read.__aexit__(kind, error, trace)
        return ended


def _refusal(error: Exception) -> types.JSONRPCError:
    """The answer to a line that is no message."""
    is_json = isinstance(error, ValidationError) and all(one["type"] != "json_invalid" for one in error.errors())
    code, message = (types.INVALID_REQUEST, "not a message") if is_json else (types.PARSE_ERROR, "not JSON")
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(code=code, message=message))
