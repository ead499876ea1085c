"""Access tokens for Google service account keys, because pyarrow accepts tokens only, except from the environment.

A key is JSON, in option `google_service_account_key` or in the file named by `google_service_account`. A key with
`disable_oauth`, for emulators, needs no token; its `gcs_base_url` is the address of the store.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from capture.connectors.storage.http import HttpError, Refused, ask_json
from capture.connectors.storage.retry import retried
from store.model.errors import InvalidArgument, UpstreamError

SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFE: Final = 3600  # seconds; maximum lifetime of a token
_SPARE: Final = 600  # seconds before expiry at which a token is renewed

Token = tuple[str, datetime]
"""A token and its expiry time."""

_tokens: dict[str, Token] = {}
_lock = threading.Lock()


def parse_key(text: str) -> Mapping[str, Any]:
    """Parses a key, given as JSON or as the path of a file.

    Raises:
        InvalidArgument: The key cannot be read or is not a service account key; never shows the key.
    """
    try:
        key = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"options: the key of a Google service account cannot be read ({type(error).__name__})",
            params={"field": "options"},
        ) from None
    if not isinstance(key, dict) or not (key.get("disable_oauth") or key.get("private_key")):
        raise InvalidArgument(
            "options: not the key of a Google service account: it has no private_key", params={"field": "options"}
        )
    return key


def access_token(key: Mapping[str, Any], timeout: float) -> Token:
    """An access token for a service account's key, cached until shortly before its expiry; `timeout` is in seconds.

    Raises:
        InvalidArgument: The key cannot sign, or Google rejects it.
        UpstreamError: Google does not answer, or reports a temporary error.
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    with _lock:
        token = _tokens.get(name)
        if token is None or (token[1] - datetime.now(UTC)).total_seconds() < _SPARE:
            if not str(key.get("token_uri") or "https://").startswith(("https://", "http://")):
                raise InvalidArgument("options: the key's token_uri must be a web address", params={"field": "options"})
            try:
                token = _tokens[name] = retried(lambda: _requested(key, timeout), _may_recover)
            except (HttpError, ValueError, KeyError, TypeError) as error:
                raise _refused(error) from None
        return token


def _may_recover(error: Exception) -> bool:
    return isinstance(error, Refused) and error.may_pass


def _requested(key: Mapping[str, Any], timeout: float) -> Token:
    home = str(key.get("token_uri") or "https://oauth2.googleapis.com/token")
    body = urlencode({"grant_type": _GRANT, "assertion": _assertion(key, home)}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = ask_json(home, timeout_seconds=timeout, headers=headers, data=body)
    return str(answer["access_token"]), datetime.fromtimestamp(time.time() + int(answer["expires_in"]), UTC)


def _refused(error: Exception) -> InvalidArgument | UpstreamError:
    reason = str(error.status) if isinstance(error, Refused) else type(error).__name__
    message = f"Google gives no token for the service account's key ({reason})"
    if isinstance(error, Refused) and not error.may_pass:
        return InvalidArgument(f"options: {message}", params={"field": "options"})
    return UpstreamError(message)


def _assertion(key: Mapping[str, Any], home: str) -> str:
    try:
        import jwt
    except ModuleNotFoundError:
        raise InvalidArgument(
            "options: the key of a Google service account needs PyJWT and cryptography, which are not installed here",
            hint="pip install 'statflight[server]'",
        ) from None
    now = int(time.time())
    claims = {"iss": key.get("client_email"), "scope": SCOPE, "aud": home, "iat": now, "exp": now + _LIFE}
    try:
        return jwt.encode(claims, key["private_key"], "RS256", {"kid": key.get("private_key_id", "")})
    except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError) as error:
        raise InvalidArgument(
            f"options: the private key of the Google service account cannot sign ({type(error).__name__})",
            params={"field": "options"},
        ) from None
