"""The part of the server that gives agents tools."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from flight_server.core.app import App
from flight_server.core.part import HttpContext, Part


class Mcp(Part):
    """Tools for agents, at `/mcp`; none without planning and insight, whose answers they tell."""

    def attach(self, *, app: App) -> None:
        """Takes what the tools read."""
        self._app = app

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:  # noqa: ARG002
        if not {"planning", "insight"} <= set(self._app.parts):
            return {}
        if find_spec("mcp") is None:
            return {"/mcp": _NotInstalled()}
        from flight_server.faces.mcp.door import Door

        return {"/mcp": Door(self._app, context.guard, values=self.settings.of_parts["mcp_values"])}


class _NotInstalled:
    """An ASGI application that says which library is missing."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        missing = PlainTextResponse("/mcp needs the library mcp on the server: pip install 'statflight[mcp]'\n", 501)
        await missing(scope, receive, send)
