"""Tokens signed by an identity provider: checks signature, audience, times and issuer, and maps claims to scopes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from flight_server.auth.principal import ALL_SCOPES, EVERYTHING, Principal
from flight_server.config import check_keys
from store.model.errors import InvalidArgument, InvalidField, Unauthenticated, Words

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient

_OIDC_KEYS: Final = ("issuer", "jwks", "audience", "scopes_claim", "tables_claim")
ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")  # asymmetric only: whoever holds a shared secret could also sign
KEYS_SECONDS: Final = 600.0  # until keys are fetched again
COOLDOWN_SECONDS: Final = 30.0  # between fetches for unknown keys, and after a failed fetch
LEEWAY_SECONDS: Final = 30  # allowed difference of clocks
FETCH_SECONDS: Final = 5.0
MAX_DISCOVERY_BYTES: Final = 1 << 20


class Keys(Protocol):
    """Public keys by their ids."""

    def find(self, key_id: str | None) -> PyJWK | None:
        """The key with this id, or the only key for a token without an id; None if there is none.

        Raises:
            Unauthenticated: The provider did not answer.
        """


@dataclass(frozen=True)
class Oidc:
    """Checks signed tokens: signature, audience, times, and the issuer if one is named.

    Attributes:
        issuer: Required issuer; None accepts any whose key is in `keys`.
        scopes_claim: Claim with the scopes: a space-separated string or an array. Unknown scopes are ignored.
        tables_claim: Claim with the table patterns. None shows every table; a token without the claim sees none.
    """

    keys: Keys
    audience: str
    issuer: str | None = None
    scopes_claim: str = "scope"
    tables_claim: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any], directory: Path) -> Oidc:
        """Makes one from the `[oidc]` table; a relative file of keys is resolved against `directory`.

        Raises:
            InvalidArgument: A key or value is wrong, or the file of keys cannot be read.
        """
        check_keys(body, _OIDC_KEYS, "[oidc]")
        for name, value in body.items():
            if not isinstance(value, str) or not value.strip():
                raise InvalidField(name, "must be a string", expected="a text", actual=value, where="[oidc]")
        try:
            import jwt  # noqa: F401  only those with [oidc] need it
        except ImportError:
            raise InvalidArgument("[oidc] needs PyJWT", hint="pip install 'statflight[server]'") from None
        issuer, jwks = body.get("issuer"), body.get("jwks")
        if not issuer and not jwks:
            raise InvalidField(
                "issuer", "is missing", expected="issuer or jwks", actual=Words("neither"), where="[oidc]"
            )
        if "audience" not in body:
            expected = "who the tokens are for"
            raise InvalidField("audience", "is missing", expected=expected, actual=Words("nothing"), where="[oidc]")
        claims = {name: body[name] for name in ("scopes_claim", "tables_claim") if name in body}
        if issuer and not jwks and not _is_url(issuer):
            raise InvalidField("issuer", "is not a URL", expected="https://… or jwks", actual=issuer, where="[oidc]")
        if jwks and not _is_url(jwks):
            return cls(FileKeys(directory / jwks), body["audience"], issuer, **claims)
        return cls(ProviderKeys(url=jwks, issuer=issuer), body["audience"], issuer, **claims)

    def verify(self, token: str) -> Principal:
        """The principal of a signed token; raises Unauthenticated if the token is invalid."""
        import jwt

        try:
            key = self.keys.find(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise Unauthenticated("the token is signed with a key that is not known")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self.audience,
                issuer=self.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "aud", *(["iss"] if self.issuer else [])]},
            )
        # Besides its own errors, the library raises these for hostile JSON.
        except (jwt.PyJWTError, ValueError, TypeError, LookupError, RecursionError) as error:
            reason = _REASONS.get(type(error).__name__, "it is not valid")
            raise Unauthenticated(f"the token is not accepted: {reason}") from None
        scopes = _claimed(claims.get(self.scopes_claim)) & ALL_SCOPES
        tables = EVERYTHING if self.tables_claim is None else tuple(sorted(_claimed(claims.get(self.tables_claim))))
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


class FileKeys:
    """The keys of a file, read once.

    Raises:
        InvalidArgument: The file cannot be read, or has no usable public key.
    """

    def __init__(self, path: Path):
        from jwt import PyJWKSet, PyJWTError

        try:
            self._keys = _usable(PyJWKSet.from_dict(_key_set(json.loads(path.read_text("utf-8")))).keys)
        except OSError as error:
            raise InvalidArgument(f"[oidc] jwks {path}: {error.strerror or 'cannot be read'}") from None
        except (ValueError, PyJWTError) as error:
            raise InvalidArgument(f"[oidc] jwks {path}: is not a set of public keys: {error}") from None
        if not self._keys:
            raise InvalidArgument(f"[oidc] jwks {path}: has no public key for {', '.join(ALGORITHMS)}")

    def find(self, key_id: str | None) -> PyJWK | None:
        """The key with this id; see `Keys`."""
        return _match(self._keys, key_id)


class ProviderKeys:
    """The keys of a provider, fetched on demand; while it is unreachable, the last keys are used.

    Args:
        url: Address of the key set; None discovers it through the issuer.
        issuer: Address of the provider.
    """

    def __init__(self, *, url: str | None, issuer: str | None):
        self._url, self._issuer = url, issuer
        self._client: PyJWKClient | None = None
        self._known: Sequence[PyJWK] = ()
        self._failed_at = float("-inf")
        self._lock = threading.Lock()

    def find(self, key_id: str | None) -> PyJWK | None:
        """The key with this id; see `Keys`."""
        from jwt import PyJWKClientConnectionError, PyJWKClientError, PyJWTError

        with self._lock:
            if time.monotonic() - self._failed_at > COOLDOWN_SECONDS:
                try:
                    self._known = _usable(self._fetched(key_id))
                except PyJWKClientConnectionError:
                    self._failed_at = time.monotonic()
                except PyJWKClientError:
                    pass  # the provider answered that it does not have this key
                except (PyJWTError, OSError, ValueError, LookupError, TypeError):
                    self._failed_at = time.monotonic()
            if not self._known:
                raise Unauthenticated("the token cannot be checked: the identity provider did not answer")
            return _match(self._known, key_id)

    def _fetched(self, key_id: str | None) -> Sequence[PyJWK]:
        """The provider's keys, as the library caches them; an unknown id makes it fetch them again."""
        from jwt import PyJWKClient

        if self._client is None:
            url = self._url or _discovered(str(self._issuer))
            self._client = PyJWKClient(
                url, lifespan=KEYS_SECONDS, timeout=FETCH_SECONDS, cooldown_duration=COOLDOWN_SECONDS
            )
        keys = self._client.get_jwk_set().keys
        if key_id is not None and _match(keys, key_id) is None:
            self._client.get_signing_key(key_id)
            keys = self._client.get_jwk_set().keys
        return keys


def _discovered(issuer: str) -> str:
    """The address of an issuer's key set."""
    at = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    with urllib.request.urlopen(at, timeout=FETCH_SECONDS) as answer:  # noqa: S310  the scheme was checked
        return str(json.loads(answer.read(MAX_DISCOVERY_BYTES))["jwks_uri"])


def _key_set(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise ValueError("no keys in it")
    return {"keys": [key for key in body["keys"] if isinstance(key, dict)]}


def _usable(keys: Sequence[PyJWK]) -> list[PyJWK]:
    """Keys for the accepted algorithms."""
    return [key for key in keys if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")]


def _match(keys: Sequence[PyJWK], key_id: str | None) -> PyJWK | None:
    if key_id is None and len(keys) == 1:
        return keys[0]
    return next((key for key in keys if key_id is not None and key.key_id == key_id), None)
