"""Bearer tokens: the token file, its reloading, and the principal of a token.

The token file holds hashes, so it is not a secret itself. No message shows a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, field

from flight_server.core.auth.oidc import Oidc, Trust
from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, EVERYTHING, Permission, Principal
from flight_server.core.config import read_toml
from flight_server.core.reloading import Reloaded
from store.model.errors import InvalidArgument, InvalidField, Unauthenticated, Words
from store.model.structs import Struct, read


@dataclass(frozen=True)
class Authenticator:
    """Finds the principal of a bearer token; without entries and `oidc` every caller is `ANONYMOUS`.

    Attributes:
        entries: SHA-256 digest of a token → its principal.
        is_open: True if no token is needed.
    """

    entries: tuple[tuple[bytes, Principal], ...] = attribute(default=(), repr=False)
    oidc: Oidc | None = None
    is_open: bool = False

    def with_internal(self, token: str) -> Authenticator:
        """A copy with one more token, in memory only, that has every scope: that of the server's own worker."""
        return replace(self, entries=(*self.entries, (_digest(token), Principal("internal", ALL_SCOPES, is_own=True))))

    def _known(self, token: str) -> Principal | None:
        """The principal of a listed token. Every entry is compared in constant time, so that timing reveals nothing
        about the tokens."""
        digest, found = _digest(token), None
        for entry, principal in self.entries:
            if hmac.compare_digest(entry, digest):
                found = principal
        return found

    def authenticate(self, bearer: str | None) -> Principal:
        """The principal of a header `authorization`: `Bearer` with a token, or `Basic` with it as password.

        Raises:
            Unauthenticated: The token is missing or invalid.
        """
        if bearer is None and self.is_open:  # nothing to compare
            return ANONYMOUS
        token = token_of(bearer or "")
        if known := self._known(token):
            return known
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
            return (Authenticator(is_open=True) if path is None else load_tokens(path)).with_internal(internal)

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


class _Token(Struct):
    name: Annotated[str, Meta(pattern=r"\S", title="is missing", description="a name for the logs")]
    scopes: list[Permission]
    sha256: Any = None  # checked by `entry`: it may be the token itself, so messages do not repeat it
    tables: list[Annotated[str, Meta(pattern=r"\S")]] = field(default_factory=lambda: list(EVERYTHING))

    def entry(self) -> tuple[bytes, Principal]:
        """The digest and the principal."""
        if not isinstance(self.sha256, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", self.sha256):
            expected = "the SHA-256 of the token, 64 hexadecimal digits"
            raise InvalidField("sha256", "is not a hash", expected=expected, actual=Words("something else"))
        tables = tuple(pattern.strip() for pattern in self.tables)
        return bytes.fromhex(self.sha256), Principal(self.name.strip(), frozenset(map(str, self.scopes)), tables)


class _File(Struct):
    token: Annotated[list[dict[str, Any]], Meta(title="must be an array of tables", description="[[token]]")] = field(
        default_factory=list
    )
    oidc: Trust | None = None


def load_tokens(path: Path | str) -> Authenticator:
    """The authenticator of a token file.

    Raises:
        InvalidArgument: The file does not exist, is not TOML, or has a wrong entry; names entry and field.
    """
    file = read(read_toml(Path(path), "token file"), _File, "token file")
    if not file.token and file.oidc is None:
        raise InvalidArgument("the token file lets nobody in", hint="it needs a [[token]] or an [oidc]")
    entries: dict[bytes, Principal] = {}
    for number, given in enumerate(file.token, 1):
        try:
            digest, principal = read(given, _Token, "token").entry()
        except InvalidArgument as wrong:
            named = f' "{name}"' if isinstance(name := given.get("name"), str) else ""
            raise InvalidArgument(f"token {number}{named}: {wrong}") from None
        if digest in entries:
            raise InvalidArgument(f"token {number}: sha256 is that of token {[*entries].index(digest) + 1}, too")
        entries[digest] = principal
    return Authenticator(tuple(entries.items()), None if file.oidc is None else Oidc(file.oidc, Path(path).parent))
