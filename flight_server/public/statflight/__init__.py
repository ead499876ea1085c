"""Statistics about data, from a statflight server.

    import statflight

    with statflight.connect() as client:
        client.columns("lake.sales.orders", snapshot="current")

Needs pyarrow only. `StatsClient` has the details.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flight_server.client import DEFAULT_URI, StatsClient, connect, reason
    from flight_server.client.dataset import FlightDataset
    from flight_server.client.spark_reader import StatflightDataSource

    __version__: str

with suppress(ImportError):  # a wheel has the packages themselves
    import_module(f"{__name__}._checkout").install()

__all__ = ["DEFAULT_URI", "StatflightDataSource", "StatsClient", "__version__", "connect", "dataset", "reason"]


def dataset(
    flight: str, snapshot: str | int | None = None, uri: str | None = None, token: str | None = None, **options: Any
) -> FlightDataset:
    """A flight of the server at `uri` as a `pyarrow.dataset.Dataset`; the options are those of `connect`."""
    from flight_server.client import connect

    return connect(uri, token, **options).dataset(flight, snapshot)


def __getattr__(name: str) -> Any:
    """Loads a public name when it is asked for: the command line starts without pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("statflight")
        except PackageNotFoundError:  # code that was sent without its installation
            raise AttributeError("statflight is not installed, so its version is not known") from None
    module = "flight_server.client.spark_reader" if name == "StatflightDataSource" else "flight_server.client"
    return getattr(import_module(module), name)
