"""The part of the server that tells what lakes cost, and is told what changed in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flight_server.core.app import App
from flight_server.core.control.housekeeping import Background
from flight_server.core.part import Action, HttpContext, Part
from flight_server.faces.costs import actions
from flight_server.faces.costs.ledger import Ledger
from flight_server.faces.costs.news import News


class Costs(Part):
    """`sys.costs`, the action `changed`, and `POST /changed`."""

    def attach(self, *, app: App) -> None:
        """Takes the lakes, and where costs are kept."""
        self._app = app
        self.ledger = Ledger(app.database)
        self.news = News(app.lakes.changed)

    @staticmethod
    def actions() -> Sequence[Action]:
        return (actions.changed, actions.note_costs)

    def background(self) -> Iterable[Background]:
        return (Background("looking at what changed", self.news.step, self.news.wait),)

    def http(self, mounts: Mapping[str, Any], context: HttpContext) -> Mapping[str, Any]:  # noqa: ARG002
        from flight_server.faces.costs.door import PATH, Door

        return {PATH: Door(self._app, context.guard, self.news)}
