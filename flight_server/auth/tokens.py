"""Bearer tokens: the token file, its reloading, and the principal of a token.

The token file holds hashes, so it is not a secret itself. No message shows a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from flight_server.auth.oidc import Oidc
from flight_server.auth.principal import ALL_SCOPES, ANONYMOUS, EVERYTHING, Permission, Principal
from flight_server.config import check_keys, read_toml
from flight_server.reloading import Reloaded
from store.model.errors import InvalidArgument, InvalidField, Unauthenticated


@dataclass(frozen=True)
class Authenticator:
    """Finds the principal of a bearer token; without entries and `oidc` every caller is `ANONYMOUS`.

    Attributes:
        entries: SHA-256 digest of a token → its principal.
        is_open: True if no token is needed.
    """

    entries: tuple[tuple[bytes, Principal], ...] = field(default=(), repr=False)
    oidc: Oidc | None = None
    is_open: bool = False

    @classmethod
    def open(cls) -> Authenticator:
        """The authenticator of a server without a token file."""
        return cls(is_open=True)

    def with_internal(self, token: str, name: str = "internal") -> Authenticator:
        """A copy with one more token, in memory only, that has every scope: that of the server's own worker."""
        return replace(self, entries=(*self.entries, (_digest(token), Principal(name, ALL_SCOPES, is_own=True))))

    def authenticate(self, bearer: str | None) -> Principal:
        """The principal of a header `authorization`: `Bearer` with a token, or `Basic` with it as password.

        Raises:
            Unauthenticated: The token is missing or invalid.
        """
        if bearer is None and self.is_open:  # nothing to compare
            return ANONYMOUS
        token = token_of(bearer or "")
        digest, found = _digest(token), None
        # Every entry is compared in constant time, so that timing reveals nothing about the tokens.
        for entry, principal in self.entries:
            if hmac.compare_digest(entry, digest):
                found = principal
        if found:
            return found
        if self.is_open:
            return ANONYMOUS
        if not token:
            raise Unauthenticated("no credentials", hint="send the header authorization: Bearer <token>")
        if self.oidc and token.count(".") == 2:
            return self.oidc.verify(token)
        raise Unauthenticated("the bearer token is not known here")


class Guard:
    """The authenticator of a token file plus one more token, reloaded when the file changes; without a file every
    caller is accepted."""

    def __init__(self, path: Path | None, internal: str):
        def load() -> Authenticator:
            return (Authenticator.open() if path is None else load_tokens(path)).with_internal(internal)

        self._file = Reloaded("tokens", [path], load)

    def authenticate(self, bearer: str | None) -> Principal:
        """The principal of an `authorization` header, by the token file last read.

        Raises:
            Unauthenticated: The token is missing or invalid.
        """
        return self._file.value.authenticate(bearer)

    def renew(self) -> bool:
        """Reads the file again if it has changed."""
        return self._file.renew()


def token_of(header: str) -> str:
    """The token in a header `authorization`; empty if there is none."""
    scheme, _, rest = header.strip().partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip()
        case "basic":
            try:
                padded = rest + "=" * (-len(rest) % 4)  # Go's driver leaves the padding out
                return base64.b64decode(padded, validate=True).decode().partition(":")[2]
            except ValueError:
                return ""
    return header.strip()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


# The token file.

_TOKEN_KEYS: Final = ("name", "sha256", "scopes", "tables")


def load_tokens(path: Path | str) -> Authenticator:
    """The authenticator of a token file.

    Raises:
        InvalidArgument: The file does not exist, is not TOML, or has a wrong entry; names entry and field.
    """
    body = read_toml(Path(path), "token file")
    check_keys(body, ("token", "oidc"), "the token file")
    tokens, oidc = body.get("token", []), body.get("oidc")
    if not isinstance(tokens, list) or not all(isinstance(entry, dict) for entry in tokens):
        raise InvalidField("token", "must be an array of tables", expected="[[token]]", actual=type(tokens).__name__)
    if oidc is not None and not isinstance(oidc, dict):
        raise InvalidField("oidc", "must be a table", expected="[oidc]", actual=oidc)
    if not tokens and oidc is None:
        raise InvalidArgument("the token file lets nobody in", hint="it needs a [[token]] or an [oidc]")
    entries = tuple(_entry(entry, number) for number, entry in enumerate(tokens, 1))
    digests = [digest for digest, _ in entries]
    for number, digest in enumerate(digests, 1):
        if digests.index(digest) + 1 < number:
            raise InvalidArgument(f"token {number}: sha256 is that of token {digests.index(digest) + 1}, too")
    return Authenticator(entries, None if oidc is None else Oidc.of(oidc, Path(path).parent))


def _entry(entry: Mapping[str, Any], number: int) -> tuple[bytes, Principal]:
    name = entry.get("name")
    where = f'token {number} "{name}"' if isinstance(name, str) else f"token {number}"
    check_keys(entry, _TOKEN_KEYS, where)
    if not isinstance(name, str) or not name.strip():
        raise InvalidField("name", "is missing", expected="a name for the logs", actual=name, where=where)
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        # The value may be the token itself, so messages do not repeat it.
        actual = f"{len(digest)} characters" if isinstance(digest, str) else "nothing of the kind"
        expected = "the SHA-256 of the token, 64 hexadecimal digits"
        raise InvalidField("sha256", "is not a hash", expected=expected, actual=actual, where=where)
    scopes = _texts(entry.get("scopes"), "scopes", where)
    for scope in scopes:
        if scope not in ALL_SCOPES:
            raise InvalidField("scopes", "unknown scope", expected=" | ".join(Permission), actual=scope, where=where)
    tables = _texts(entry.get("tables", list(EVERYTHING)), "tables", where)
    return bytes.fromhex(digest), Principal(name.strip(), frozenset(scopes), tuple(tables))


def _texts(value: Any, name: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise InvalidField(name, "must be an array of strings", expected='["…"]', actual=value, where=where)
    return [text.strip() for text in value]
