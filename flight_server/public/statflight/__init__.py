"""Statistics about data, from a statflight server.

    import statflight

    with statflight.connect() as client:
        client.columns("lake.sales.orders", snapshot="current")

Needs pyarrow only. `flight_server.client` has the details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flight_server.client import DEFAULT_URI, StatsClient, connect, reason

if TYPE_CHECKING:
    from flight_server.client.dataset import FlightDataset

__all__ = ["DEFAULT_URI", "StatsClient", "connect", "dataset", "reason"]


def dataset(
    flight: str, snapshot: str | int | None = None, uri: str | None = None, token: str | None = None, **options: Any
) -> FlightDataset:
    """A flight of the server at `uri` as a `pyarrow.dataset.Dataset`; the options are those of `connect`."""
    return connect(uri, token, **options).dataset(flight, snapshot)
