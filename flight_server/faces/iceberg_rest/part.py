"""The part of the server that is a catalog to Iceberg's clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flight_server.core.app import App
from flight_server.core.part import HttpContext, Part
from flight_server.planning.scans import capture_files


class IcebergRest(Part):
    """The Iceberg REST catalog, below `/iceberg`."""

    def attach(self, *, app: App) -> None:
        """Takes what the catalog reads."""
        self._app = app

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:  # noqa: ARG002
        if "planning" not in self._app.parts:
            return {}
        from flight_server.faces.iceberg_rest.door import Door

        return {"/iceberg": Door(self._app, context.guard, partial(capture_files, self._app))}
