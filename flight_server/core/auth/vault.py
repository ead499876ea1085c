"""Secret connector options, kept out of the store: in memory, and in a file beside the database that only its owner can
read, so that they survive a restart. The database holds masked values."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_URI: Final = ""  # key of an address with a secret in it; no option has this name


class Vault:
    """Secrets by catalog."""

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self._options: dict[str, dict[str, str]] = {}
        if path is not None and path.exists():
            self._options = json.loads(path.read_text())

    def get(self, catalog: str, masked: Mapping[str, str]) -> dict[str, str]:
        """The options with their secrets; `masked` itself if there are none."""
        return {name: value for name, value in self._options.get(catalog, masked).items() if name != _URI}

    def uri(self, catalog: str, masked: str) -> str:
        """The address with its secret; `masked` itself if there is none."""
        return self._options.get(catalog, {}).get(_URI, masked)

    def set(self, catalog: str, options: Mapping[str, str], masked: Mapping[str, str], uri: str, shown: str) -> None:
        """Keeps a connector's secrets.

        Args:
            masked: Its options as the store holds them.
            uri: Its address with secrets.
            shown: Its address as the store holds it.
        """
        with self._lock:
            self._options.pop(catalog, None)
            if dict(options) != dict(masked) or uri != shown:
                self._options[catalog] = dict(options) | ({_URI: uri} if uri != shown else {})
            self._write()

    def drop(self, catalog: str) -> None:
        """Forgets a connector's secrets."""
        with self._lock:
            if self._options.pop(catalog, None) is not None:
                self._write()

    def _write(self) -> None:
        if self._path is None or (not self._options and not self._path.exists()):
            return
        draft = self._path.with_name(self._path.name + ".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self._options, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
