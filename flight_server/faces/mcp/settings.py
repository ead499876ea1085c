"""Settings of the tools for agents. Imports nothing heavy: every command that reads settings loads it."""

from __future__ import annotations

from typing import Final

from flight_server.core.config import Setting
from flight_server.core.setting_readers import as_truth

VALUES: Final = Setting(
    as_truth, False, "Tells agents values of the data: minima, quantiles, common values, results that are values."
)
