"""Commands about settings: config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from flight_server.faces.commands.output import misuse, tell
from flight_server.faces.commands.parameters import option
from flight_server.faces.present import text


def config(
    file: Annotated[
        Path | None, option("--config", metavar="FILE", help="TOML; ./statflight.toml when it exists.")
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print each setting of the server, its value, and whether a default, the file or the environment gives it."""
    from capture.connectors.storage.secrets import mask
    from flight_server.process.settings import effective
    from store.model.errors import InvalidArgument

    try:
        settings = effective(file)
    except InvalidArgument as error:
        misuse(str(error))
    settings = [
        (name, mask(value) if isinstance(value, Mapping) else value, source) for name, value, source in settings
    ]
    if as_json:
        shown = {name: {"value": value, "from": source} for name, value, source in settings}
        tell(json.dumps(shown, indent=2, default=str))
        return
    rows = [[name.replace("_", "-"), _shown(value), source] for name, value, source in settings]
    text.write_text(("setting", "value", "from"), rows, whole=("setting",))


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return "" if value is None else str(value)
