"""The command `mcp`: tools for an agent that starts it, by standard input and output."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import CommandError, in_flags, misuse
from flight_server.faces.commands.parameters import option


def mcp(
    config: Annotated[
        Path | None, option(metavar="FILE", help="TOML with mcp_values; ./statflight.toml when it exists.")
    ] = None,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Give an agent tools that read statistics, by standard input and output."""
    from flight_server.process.settings import load
    from store.model.errors import InvalidArgument

    connection.credentials()  # refused before the agent asks
    try:
        values = load(config, {}).of_parts["mcp_values"]
    except InvalidArgument as error:
        misuse(str(error))
    _run(connection, values=values)


def _run(connection: ConnectionOptions, *, values: bool) -> None:
    """Answers the messages of standard input until it ends."""
    import anyio
    import pyarrow.flight as flight

    from flight_server.client import reason
    from flight_server.faces.mcp.protocol import server
    from flight_server.faces.mcp.tools import Desk
    from store.model.errors import UpstreamError

    @contextmanager
    def desk() -> Iterator[Desk]:
        try:
            with connect(connection) as client:
                yield Desk(client, values)
        except CommandError as error:
            raise UpstreamError(str(error)) from None
        except flight.FlightUnauthenticatedError as error:
            raise flight.FlightUnauthenticatedError(in_flags(reason(error))) from None

    logging.getLogger("mcp").setLevel(logging.CRITICAL if not os.environ.get("STATFLIGHT_DEBUG") else logging.INFO)
    anyio.run(_serve, server(desk))


async def _serve(protocol: Any) -> None:
    from mcp.server.stdio import stdio_server

    from flight_server.faces.mcp.messages import Messages

    async with stdio_server() as (read, write):
        await protocol.run(Messages(read, write), write, protocol.create_initialization_options())
