"""The connection of a worker to its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flight_server.client.connection import Connection

ACTION_SECONDS: Final = 60.0


class Server(Connection):
    """A connection whose actions time out after a minute by default, so that a worker never hangs on a call.

    Errors are pyarrow's own; each of a worker's threads decides how to wait for an unreachable server.
    """

    def act(
        self, name: str, body: Mapping[str, Any] | None = None, timeout: float | None = ACTION_SECONDS,
        correlation_id: str | None = None,
    ) -> list[Any]:  # fmt: skip
        """Calls an action.

        Args:
            name: The action's name.
            body: The action's JSON; Arrow buffers in it are sent as streams.
            timeout: Seconds; None waits as long as it takes.
            correlation_id: See `options`.

        Returns:
            All results, in order.
        """
        return super().act(name, body, timeout, correlation_id)


def first_line(error: BaseException) -> str:
    """The first line of an error, for messages.

    Args:
        error: Any exception.

    Returns:
        At most 500 characters; the name of its type if it has no text.
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]
