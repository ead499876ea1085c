"""Who calls and what they may: bearer tokens from a file, or signed by an identity provider.

The token file holds hashes, so it is no secret by itself. No message here ever shows a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from flight_server.config import read_toml
from store.errors import InvalidArgument, InvalidField, Unauthenticated, nearest
from store.names import join_name, matcher

log = logging.getLogger("statflight.server")


class Scope(StrEnum):
    READ = "stats.read"
    WRITE = "stats.write"
    CAPTURE = "capture.run"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(map(str, Scope))
EVERYTHING: Final = ("*",)


@dataclass(frozen=True)
class Principal:
    """A caller: what it may do, and on which tables.

    Attributes:
        name: For logs.
        scopes: Of `Scope`.
        tables: Patterns of full table names as they are written (`lake.sales.orders`, `lake.sales."a.b"`); `*` is any
            run of characters, dots too.
    """

    name: str
    scopes: frozenset[str]
    tables: tuple[str, ...] = EVERYTHING

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    @cached_property
    def sees_all(self) -> bool:
        return any(pattern.strip("*") == "" for pattern in self.tables if pattern)

    def sees(self, catalog: str, schema: str, table: str) -> bool:
        """Whether the table is visible. By its quoted name: a catalog called `lake.sales` is not in `lake`."""
        if self.sees_all:
            return True
        return bool(matcher(self.tables).fullmatch(join_name(catalog, schema, table)))

    def sees_catalog(self, catalog: str) -> bool:
        """Whether whatever there may be in the catalog is visible: one pattern is its name and a star, or less."""
        start = join_name(catalog, "s", "t").removesuffix("s.t")
        stars = (pattern.rstrip("*") for pattern in self.tables if pattern.endswith("*"))
        return any(start.startswith(prefix) for prefix in stars)


ANONYMOUS: Final = Principal("anonymous", ALL_SCOPES)


class _Verifier(Protocol):
    def verify(self, token: str) -> Principal: ...


@dataclass(frozen=True)
class Authenticator:
    """Tells the principal of a bearer token; without entries and verifier everybody is `ANONYMOUS`.

    Attributes:
        entries: SHA-256 digests of tokens, and whose they are.
        oidc: Checks the tokens of an identity provider.
        is_open: Nobody needs a token.
    """

    entries: tuple[tuple[bytes, Principal], ...] = field(default=(), repr=False)
    oidc: _Verifier | None = None
    is_open: bool = False

    @classmethod
    def open(cls) -> Authenticator:
        """Of a server without a token file."""
        return cls(is_open=True)

    def with_internal(self, token: str, name: str = "internal") -> Authenticator:
        """The same with one more token, in memory only, that may do everything: that of the server's own worker."""
        return replace(self, entries=(*self.entries, (_digest(token), Principal(name, ALL_SCOPES))))

    def authenticate(self, bearer: str | None) -> Principal:
        """The caller of the header `authorization`: `Bearer` and a token, or `Basic` with any user and it as password.

        Raises:
            Unauthenticated: No token, or not a good one.
        """
        if bearer is None and self.is_open:  # nothing to compare
            return ANONYMOUS
        token = token_of(bearer or "")
        digest, found = _digest(token), None
        # Every entry is compared, in constant time: how long it takes tells nothing about the tokens.
        for known, principal in self.entries:
            if hmac.compare_digest(known, digest):
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
    """The authenticator of a token file, with one token more, and anew when the file changes.

    Without a file everybody is let in. A changed file that is not good changes nothing.
    """

    def __init__(self, path: Path | None, internal: str):
        self._path, self._internal = path, internal
        self._seen = self._stamp()
        self._current = self._load()

    def authenticate(self, bearer: str | None) -> Principal:
        return self._current.authenticate(bearer)

    def renew(self) -> bool:
        """Reads the file again if it has changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._current = self._load()
        except InvalidArgument as trouble:
            log.warning("the token file has changed, and the tokens before stay in use: %s", trouble)
            return False
        log.info("the token file has changed and is in use")
        return True

    def _load(self) -> Authenticator:
        found = Authenticator.open() if self._path is None else load_tokens(self._path)
        return found.with_internal(self._internal)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat() if self._path is not None else None
        except OSError:
            return None
        return stat and (stat.st_mtime_ns, stat.st_ino)


def token_of(header: str) -> str:
    """The token in a header `authorization`; empty where it has none."""
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
_OIDC_KEYS: Final = ("issuer", "jwks", "audience", "scopes_claim", "tables_claim")


def load_tokens(path: Path | str) -> Authenticator:
    """The authenticator of a token file.

    Raises:
        InvalidArgument: No such file, no TOML, or an entry that is wrong; names entry and field.
    """
    body = read_toml(Path(path), "token file")
    _check_keys(body, ("token", "oidc"), "the token file")
    tokens, oidc = body.get("token", []), body.get("oidc")
    if not isinstance(tokens, list) or not all(isinstance(entry, dict) for entry in tokens):
        raise InvalidField("token", "is no array of tables", expected="[[token]]", actual=type(tokens).__name__)
    if oidc is not None and not isinstance(oidc, dict):
        raise InvalidField("oidc", "is no table", expected="[oidc]", actual=oidc)
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
    _check_keys(entry, _TOKEN_KEYS, where)
    if not isinstance(name, str) or not name.strip():
        raise InvalidField("name", "is missing", expected="a name for the logs", actual=name, where=where)
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        # What stands there may be the token itself: it is not repeated.
        actual = f"{len(digest)} characters" if isinstance(digest, str) else "nothing of the kind"
        expected = "the SHA-256 of the token, 64 hexadecimal digits"
        raise InvalidField("sha256", "is no hash", expected=expected, actual=actual, where=where)
    scopes = _texts(entry.get("scopes"), "scopes", where)
    for scope in scopes:
        if scope not in ALL_SCOPES:
            raise InvalidField("scopes", "unknown scope", expected=" | ".join(Scope), actual=scope, where=where)
    tables = _texts(entry.get("tables", list(EVERYTHING)), "tables", where)
    return bytes.fromhex(digest), Principal(name.strip(), frozenset(scopes), tuple(tables))


def _texts(value: Any, name: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise InvalidField(name, "is no array of texts", expected='["…"]', actual=value, where=where)
    return [text.strip() for text in value]


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            hint = nearest(key, list(known)) or f"known: {', '.join(known)}"
            raise InvalidArgument(f'{where} has an unknown key "{key}"', hint=hint)


# Identity providers.

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")  # public keys only: a shared secret could sign, too
KEYS_FOR: Final = 600.0  # seconds until keys are fetched anew
REFETCH_AFTER: Final = 30.0  # seconds between fetches, however many tokens name unknown keys
LEEWAY: Final = 30  # seconds by which clocks may differ
FETCH_WITHIN: Final = 5.0  # seconds
MAX_KEYS_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Oidc:
    """Checks signed tokens: signature, audience, times, and the issuer if one is named.

    Attributes:
        keys: The provider's public keys.
        audience: Who the tokens must be for.
        issuer: Who must have made them; anyone whose key is in `keys` if None.
        scopes_claim: Where the scopes are: a text with blanks between, or an array. Unknown ones are left out.
        tables_claim: Where the table patterns are; every table is visible if None, and none where a token lacks it.
    """

    keys: Keys
    audience: str
    issuer: str | None = None
    scopes_claim: str = "scope"
    tables_claim: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any], directory: Path) -> Oidc:
        """From the `[oidc]` table; `directory` is where a relative file of keys is looked for.

        Raises:
            InvalidArgument: A key or value is wrong, or the file of keys cannot be read.
        """
        _check_keys(body, _OIDC_KEYS, "[oidc]")
        for name, value in body.items():
            if not isinstance(value, str) or not value.strip():
                raise InvalidField(name, "is no text", expected="a text", actual=value, where="[oidc]")
        try:
            import jwt  # noqa: F401  only those with [oidc] need it
        except ImportError:
            raise InvalidArgument("[oidc] needs PyJWT", hint="pip install 'statflight[server]'") from None
        issuer, jwks = body.get("issuer"), body.get("jwks")
        if not issuer and not jwks:
            raise InvalidField("issuer", "is missing", expected="issuer or jwks", actual="neither", where="[oidc]")
        if "audience" not in body:
            expected = "who the tokens are for"
            raise InvalidField("audience", "is missing", expected=expected, actual="nothing", where="[oidc]")
        claims = {name: body[name] for name in ("scopes_claim", "tables_claim") if name in body}
        if issuer and not jwks and not _is_url(issuer):
            raise InvalidField("issuer", "is no URL", expected="https://… or jwks", actual=issuer, where="[oidc]")
        if jwks and not _is_url(jwks):
            return cls(Keys.of_file(directory / jwks), body["audience"], issuer, **claims)
        return cls(Keys(url=jwks, issuer=issuer), body["audience"], issuer, **claims)

    def verify(self, token: str) -> Principal:
        """The principal of a signed token; Unauthenticated if it is not good."""
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
                leeway=LEEWAY,
                options={"require": ["exp", "aud", *(["iss"] if self.issuer else [])]},
            )
        # Beside the library's own errors, what hostile JSON makes it stumble over.
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


class Keys:
    """Public keys by their ids: from a file, or fetched from the provider and kept for a while."""

    def __init__(
        self, *, url: str | None = None, issuer: str | None = None, keys: Mapping[str | None, Any] | None = None
    ):
        self._url, self._issuer = url, issuer
        self._keys = dict(keys or {})
        self._fetched = float("-inf")
        self._is_fixed = keys is not None
        self._lock = threading.Lock()

    @classmethod
    def of_file(cls, path: Path) -> Keys:
        try:
            return cls(keys=_public_keys(json.loads(path.read_text("utf-8"))))
        except OSError as error:
            raise InvalidArgument(f"[oidc] jwks {path}: {error.strerror or 'cannot be read'}") from None
        except ValueError as error:
            raise InvalidArgument(f"[oidc] jwks {path}: is no set of public keys: {error}") from None

    def find(self, key_id: str | None) -> Any:
        """The key with this id, or the only key for a token that names none; None if there is no such key.

        Raises:
            Unauthenticated: The provider did not answer.
        """
        if self._is_fixed:
            return self._find(key_id)
        with self._lock:
            age = time.monotonic() - self._fetched
            if age > KEYS_FOR or (self._find(key_id) is None and age > REFETCH_AFTER):
                self._fetch()
            return self._find(key_id)

    def _find(self, key_id: str | None) -> Any:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _fetch(self) -> None:
        self._fetched = time.monotonic()  # before: a provider that is down is not asked for each token
        try:
            url = self._url
            if url is None:
                assert self._issuer is not None
                url = _get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")["jwks_uri"]
            self._keys = _public_keys(_get(url))
        except (OSError, ValueError, LookupError, TypeError):
            if not self._keys:  # else the keys of last time do
                raise Unauthenticated("the token cannot be checked: the identity provider did not answer") from None


def _get(url: str) -> Any:
    if not _is_url(url):
        raise ValueError("no URL")
    with urllib.request.urlopen(url, timeout=FETCH_WITHIN) as answer:  # noqa: S310  the scheme was checked
        return json.loads(answer.read(MAX_KEYS_BYTES))


def _public_keys(body: Any) -> dict[str | None, Any]:
    """The keys of a JSON Web Key Set by id; those that are no public signing keys are left out."""
    import jwt

    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise ValueError("no keys in it")
    keys: dict[str | None, Any] = {}
    for number, raw in enumerate(body["keys"]):
        if not isinstance(raw, dict) or raw.get("kty") not in ("RSA", "EC", "OKP") or raw.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK.from_dict(raw)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            keys[raw.get("kid", f"#{number}")] = key
    if not keys:
        raise ValueError(f"no public key for {', '.join(ALGORITHMS)}")
    return keys
