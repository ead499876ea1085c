"""The part of the server that is a catalog to Iceberg's clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from flight_server.core.app import App
from flight_server.core.control.housekeeping import Background
from flight_server.core.part import HttpContext, Part
from flight_server.planning.scans import capture_files
from store.model.errors import InvalidArgument

if TYPE_CHECKING:
    from flight_server.faces.iceberg_rest.manifests import Manifests

_COLLECT_SECONDS: Final = 3600.0


class IcebergRest(Part):
    """The Iceberg REST catalog, below `/iceberg`."""

    def attach(self, *, app: App) -> None:
        """Takes what the catalog reads.

        Raises:
            InvalidArgument: The place of manifests cannot be one.
        """
        self._app = app
        self._manifests = self._made_manifests(app)

    def background(self) -> Iterable[Background]:
        manifests = self._manifests
        if manifests is None:
            return ()
        return [
            Background(
                "manifests",
                lambda: manifests.collect() if self._app.role.keeps_house else None,
                lambda: _COLLECT_SECONDS,
            )
        ]

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:  # noqa: ARG002
        if "planning" not in self._app.parts:
            return {}
        from flight_server.faces.iceberg_rest.door import Door

        capture = partial(capture_files, self._app)
        return {"/iceberg": Door(self._app, context.guard, capture, self._manifests)}

    def _made_manifests(self, app: App) -> Manifests | None:
        """The writer of manifests; None if the settings name no place for them."""
        location = self.settings.of_parts.get("iceberg_manifests")
        if location is None or "planning" not in app.parts:
            return None
        if find_spec("pyiceberg") is None:
            raise InvalidArgument("iceberg-manifests: needs pyiceberg", hint="pip install 'statflight[iceberg]'")
        from flight_server.faces.iceberg_rest.manifest_place import place_at
        from flight_server.faces.iceberg_rest.manifests import Manifests

        manifests = Manifests(place_at(location), app.database, app.parts["planning"].planner)
        manifests.check()
        return manifests
