"""Tokens signed by an identity provider: checks signature, audience, times and issuer, and maps claims to scopes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flight_server.core.auth.principal import ALL_SCOPES, EVERYTHING, Principal
from store.model.errors import InvalidArgument, InvalidField, Unauthenticated, Words
from store.model.structs import Struct, Text

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")  # asymmetric only: whoever holds a shared secret could also sign
KEYS_SECONDS: Final = 600.0  # until keys are fetched again
COOLDOWN_SECONDS: Final = 30.0  # between fetches for unknown keys, and after a failed fetch
LEEWAY_SECONDS: Final = 30  # allowed difference of clocks
FETCH_SECONDS: Final = 5.0  # for the whole answer
MAX_ANSWER_BYTES: Final = 1 << 20

Find: TypeAlias = "Callable[[str | None], PyJWK | None]"
"""The key with an id, or the only key for a token without one; None if there is none. Raises Unauthenticated if the
provider did not answer."""


class Trust(Struct):
    """The `[oidc]` table of a token file.

    Attributes:
        issuer: Required issuer; None accepts any whose key is among those of `jwks`.
        jwks: Address or file of the keys; None discovers them through the issuer.
        scopes_claim: Claim with the scopes: a space-separated string or an array. Unknown scopes are ignored.
        tables_claim: Claim with the table patterns. None shows every table; a token without the claim sees none.
    """

    audience: Text
    issuer: Text | None = None
    jwks: Text | None = None
    scopes_claim: Text = "scope"
    tables_claim: Text | None = None


class Oidc:
    """Checks signed tokens: signature, audience, times, and the issuer if one is named.

    Args:
        directory: A relative file of keys is resolved against it.

    Raises:
        InvalidArgument: No keys are named, or the file of keys cannot be read.
    """

    def __init__(self, trust: Trust, directory: Path):
        self._trust = trust
        try:
            import jwt  # noqa: F401  only those with [oidc] need it
        except ImportError:
            raise InvalidArgument("[oidc] needs PyJWT", hint="pip install 'statflight[server]'") from None
        if not trust.issuer and not trust.jwks:
            raise InvalidField("oidc.issuer", "is missing", expected="issuer or jwks", actual=Words("neither"))
        if trust.issuer and not trust.jwks and not _is_url(trust.issuer):
            raise InvalidField("oidc.issuer", "is not a URL", expected="https://… or jwks", actual=trust.issuer)
        self.find: Find = (
            partial(_match, _keys_of(directory / trust.jwks))
            if trust.jwks and not _is_url(trust.jwks)
            else ProviderKeys(url=trust.jwks, issuer=trust.issuer).find
        )

    def verify(self, token: str) -> Principal:
        """The principal of a signed token; raises Unauthenticated if the token is invalid."""
        import jwt

        try:
            key = self.find(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise Unauthenticated("the token is signed with a key that is not known")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._trust.audience,
                issuer=self._trust.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "aud", *(["iss"] if self._trust.issuer else [])]},
            )
        # Besides its own errors, the library raises these for hostile JSON.
        except (jwt.PyJWTError, ValueError, TypeError, LookupError, RecursionError) as error:
            reason = _REASONS.get(type(error).__name__, "it is not valid")
            raise Unauthenticated(f"the token is not accepted: {reason}") from None
        scopes = _claimed(claims.get(self._trust.scopes_claim)) & ALL_SCOPES
        claim = self._trust.tables_claim
        tables = EVERYTHING if claim is None else tuple(sorted(_claimed(claims.get(claim))))
        return Principal(str(claims.get("sub", "unnamed")), frozenset(scopes), tables)


_REASONS: Final = {
    "ExpiredSignatureError": "it has expired",
    "ImmatureSignatureError": "it is not valid yet",
    "InvalidAudienceError": "it is for another audience",
    "InvalidIssuerError": "it is from another issuer",
    "InvalidSignatureError": "its signature is wrong",
    "InvalidAlgorithmError": "its algorithm is not allowed",
    "MissingRequiredClaimError": "a claim is missing",
}


def _claimed(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(value.split())
    return {text for text in value if isinstance(text, str) and text} if isinstance(value, list) else set()


def _is_url(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _keys_of(path: Path) -> list[PyJWK]:
    """The public keys of a file; InvalidArgument if it cannot be read or has none."""
    from jwt import PyJWKSet, PyJWTError

    try:
        keys = _usable(PyJWKSet.from_json(path.read_text("utf-8")).keys)
    except OSError as error:
        raise InvalidArgument(f"[oidc] jwks {path}: {error.strerror or 'cannot be read'}") from None
    except (ValueError, AttributeError, TypeError, PyJWTError) as error:
        raise InvalidArgument(f"[oidc] jwks {path}: is not a set of public keys: {error}") from None
    if not keys:
        raise InvalidArgument(f"[oidc] jwks {path}: has no public key for {', '.join(ALGORITHMS)}")
    return keys


class ProviderKeys:
    """The keys of a provider, fetched on demand; while it is unreachable, the last keys are used.

    Args:
        url: Address of the key set; None discovers it through the issuer.
        issuer: Address of the provider.
    """

    def __init__(self, *, url: str | None, issuer: str | None):
        self._url, self._issuer = url, issuer
        self._known: Sequence[PyJWK] = ()
        self._fetched_at = self._asked_at = float("-inf")
        self._lock = threading.Lock()

    def find(self, key_id: str | None) -> PyJWK | None:
        """The key with this id; see `Find`."""
        if self._is_due(key_id):  # callers whose key is known and fresh wait for no fetch
            with self._lock:
                if self._is_due(key_id):
                    self._fetch()
        if not self._known:
            raise Unauthenticated("the token cannot be checked: the identity provider did not answer")
        return _match(self._known, key_id)

    def _is_due(self, key_id: str | None) -> bool:
        now = time.monotonic()
        is_needed = _match(self._known, key_id) is None or now - self._fetched_at > KEYS_SECONDS
        return is_needed and now - self._asked_at > COOLDOWN_SECONDS

    def _fetch(self) -> None:
        """Replaces the known keys, if the provider tells them."""
        from jwt import PyJWKSet, PyJWTError

        from capture.connectors.storage.http import OPENER  # slow to import for commands

        try:
            self._url = self._url or _discovered(str(self._issuer))
            self._known = _usable(PyJWKSet.from_dict(_read(self._url, OPENER)).keys)
            self._fetched_at = time.monotonic()
        # Besides the library's own errors, these come of hostile answers.
        except (PyJWTError, OSError, HTTPException, ValueError, AttributeError, LookupError, TypeError, RecursionError):
            pass
        self._asked_at = time.monotonic()


def _discovered(issuer: str) -> str:
    """The address of an issuer's key set."""
    at = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    from capture.connectors.storage.http import FOLLOWING  # slow to import for commands

    return str(_read(at, FOLLOWING)["jwks_uri"])


def _read(url: str, opener: urllib.request.OpenerDirector) -> Any:
    """The JSON at an address, whose scheme was checked; an OSError if it is too large or comes too slowly."""
    end, found = time.monotonic() + FETCH_SECONDS, bytearray()
    with opener.open(url, timeout=FETCH_SECONDS) as answer:
        while part := answer.read1(1 << 16):
            found += part
            if len(found) > MAX_ANSWER_BYTES or time.monotonic() > end:
                raise OSError("an endless answer")
    return json.loads(found)


def _usable(keys: Sequence[PyJWK]) -> list[PyJWK]:
    """Keys for the accepted algorithms."""
    return [key for key in keys if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")]


def _match(keys: Sequence[PyJWK], key_id: str | None) -> PyJWK | None:
    if key_id is None and len(keys) == 1:
        return keys[0]
    return next((key for key in keys if key_id is not None and key.key_id == key_id), None)
