"""The protocol's server: lists the tools, calls them in threads, and tells their errors as results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import mcp_types as types
import pyarrow as pa
import pyarrow.flight as flight
from anyio import CapacityLimiter, to_thread
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from flight_server.client import reason
from flight_server.core.actions.reads import release
from flight_server.faces.mcp.tools import TOOLS, Desk, Tool
from flight_server.faces.present.render import plain
from store.model.errors import StatflightError, nearest

log = logging.getLogger("statflight.server")

INSTRUCTIONS: Final = (
    "Statistics about the tables of data lakes, kept up to date without reading them. Find tables, describe them, and"
    " estimate a condition before a query runs. Every tool only reads. Ids are texts."
)
Open = Callable[[], AbstractContextManager[Desk]]
"""Opens what a call of a tool has at hand, for the length of a block."""

_TOOLS: Final = types.ListToolsResult(
    tools=[
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.schema,
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
        for tool in TOOLS.values()
    ]
)


def server(open_desk: Open, limiter: CapacityLimiter | None = None) -> Server[Any]:
    """A server of the protocol.

    Args:
        open_desk: Called in a thread for each call of a tool.
        limiter: Limits calls that run at once; None for the threads of the event loop.
    """

    async def list_tools(_context: Any, _page: Any) -> types.ListToolsResult:
        return _TOOLS

    async def call_tool(_context: Any, call: types.CallToolRequestParams) -> types.CallToolResult:
        tool = TOOLS.get(call.name)
        if tool is None:
            hint = nearest(call.name, list(TOOLS)) or f"there are {', '.join(TOOLS)}"
            raise MCPError(types.INVALID_PARAMS, f'no tool "{call.name}"; {hint}')
        return await to_thread.run_sync(_call, open_desk, tool, call.arguments or {}, limiter=limiter)

    return Server(
        "statflight",
        version=release(),
        title="statflight",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _call(open_desk: Open, tool: Tool, arguments: Mapping[str, Any]) -> types.CallToolResult:
    """The result of a call; its error as a result that the agent reads."""
    try:
        with open_desk() as desk:
            found = plain(tool.call(desk, arguments))
    except (StatflightError, ValueError) as error:
        return _failed(reason(error) if isinstance(error, pa.ArrowException) else str(error))
    except (pa.ArrowException, flight.FlightError) as error:
        return _failed(reason(error))
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return _failed("failed; the log says why")
    text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=found)


def _failed(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)
