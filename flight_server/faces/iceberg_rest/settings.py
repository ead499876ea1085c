"""Settings of the Iceberg catalog. Imports nothing heavy: every command that reads settings loads it."""

from __future__ import annotations

from typing import Final

from flight_server.core.config import Setting
from flight_server.core.setting_readers import as_path_or_url

MANIFESTS: Final = Setting(
    as_path_or_url,
    None,
    "Directory or bucket of the server's own, which engines can read, for manifests of tables whose metadata is made"
    " up; None means that there are none.",
)
