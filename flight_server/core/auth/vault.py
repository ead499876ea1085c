"""Secret connector options, kept out of the database: in memory, and in a file beside it that only its owner can read,
so that they survive a restart. The database holds masked values. Where several servers share a store, it keeps them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from capture.connectors.storage.secrets import MASK
from store.role import Role

_URI: Final = ""  # key of an address with a secret in it; no option has this name


class Vault:
    """Secrets by catalog.

    Args:
        path: The file; None for memory alone.
        role: The server's, whose store may keep them in place of the file.
    """

    def __init__(self, path: Path | None, role: Role | None = None):
        self._role = role if role is not None and role.shares_secrets else None
        self._path = path = path if self._role is None else None
        self._lock = threading.Lock()
        self._options: dict[str, dict[str, str]] = {}
        if path is not None and path.exists():
            self._options = json.loads(path.read_text())

    def get(self, catalog: str, masked: Mapping[str, str]) -> dict[str, str]:
        """The options with their secrets; `masked` itself if there are none."""
        return {name: value for name, value in self._of(catalog, masked).items() if name != _URI}

    def uri(self, catalog: str, masked: str) -> str:
        """The address with its secret; `masked` itself if there is none."""
        return self._of(catalog, {_URI: masked}).get(_URI, masked)

    def _of(self, catalog: str, masked: Mapping[str, str]) -> Mapping[str, str]:
        """The options of a connector with secrets, and its address if that has one; `masked` if it has none."""
        if self._role is None:
            return self._options.get(catalog, masked)
        if not any(MASK in value for value in masked.values()):
            return masked
        secrets = self._role.read_secrets(catalog)
        return masked if secrets is None else json.loads(secrets)

    def set(self, catalog: str, options: Mapping[str, str], masked: Mapping[str, str], uri: str, shown: str) -> None:
        """Keeps a connector's secrets.

        Args:
            masked: Its options as the store holds them.
            uri: Its address with secrets.
            shown: Its address as the store holds it.
        """
        has_any = dict(options) != dict(masked) or uri != shown
        secrets = dict(options) | ({_URI: uri} if uri != shown else {})
        if self._role is not None:
            self._role.write_secrets(catalog, json.dumps(secrets) if has_any else None)
            return
        with self._lock:
            self._options.pop(catalog, None)
            if has_any:
                self._options[catalog] = secrets
            self._write()

    def drop(self, catalog: str) -> None:
        """Forgets a connector's secrets."""
        if self._role is not None:
            self._role.write_secrets(catalog, None)
            return
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
