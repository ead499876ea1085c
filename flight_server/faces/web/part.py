"""The part of the server that shows pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flight_server.core.app import App
from flight_server.core.part import HttpContext, Part


class Web(Part):
    """The pages, with what other parts serve below paths of theirs."""

    def attach(self, *, app: App) -> None:
        """Takes what the pages show."""
        self._app = app

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:
        from flight_server.faces.web.site import Site

        parts = self._app.parts
        select = parts.select if "sql" in parts else None
        return {"": Site(self.settings, self._app, context.guard, context.probes, select, mounts).asgi}
