"""Settings of the tools for agents. Imports nothing heavy: every command that reads settings loads it."""

from __future__ import annotations

from typing import Final

from flight_server.core.config import Setting, truth

VALUES: Final = Setting(
    truth, False, "Tells agents values of the data: minima, quantiles, common values, results that are values."
)
