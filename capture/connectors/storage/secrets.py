"""Secret options: recognizing and masking them, and resolving named secrets.

Connectors receive resolved secrets and never expose them: `mask` is for displaying options, `redact` for messages of
libraries that may quote them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from store.model.errors import InvalidArgument

MASK: Final = "****"
SECRET_OPTION: Final = "secret"  # noqa: S105 - the name of the option that names a secret
ENVIRONMENT_PREFIX: Final = "STATFLIGHT_SECRET_"
SECRETS_FILE: Final = "STATFLIGHT_SECRETS_FILE"

_SECRET = re.compile(
    r"key|secret|token|passw|passphrase|\bpwd\b|credential|signature|\bsas\b|sas_|auth(?!ority)|bearer|private"
    r"|service_account|connection_?string"
)
# Options that match the pattern without being secret.
_OPEN = frozenset(
    {
        SECRET_OPTION,
        "key_column",
        "oauth2-server-uri",
        "rest.sigv4-enabled",
        "rest.authorization-url",
        "auth.type",
        "auth.oauth2.token_url",
        "auth.oauth2.scope",
        "auth.basic.username",
    }
)
# Custom request headers may contain anything, so all others are secret.
_HEADER = "header."
_OPEN_HEADERS = frozenset({"accept", "content-type", "user-agent", "x-iceberg-access-delegation", "x-client-version"})
_PASSWORD_IN_URI = re.compile(r"(?<=://)(?P<user>[^/@:\s]*):(?P<password>[^/@\s]+)@")
_SECRET_IN_QUERY = re.compile(r"(?i)([?&][^=&]*(?:key|secret|token|passw|sig)[^=&]*=)[^&\s]+")


def is_secret(name: str) -> bool:
    """True if the option's name suggests that its value must not be shown."""
    lowered = name.lower()
    if lowered.startswith(_HEADER):
        return lowered.removeprefix(_HEADER) not in _OPEN_HEADERS
    return lowered not in _OPEN and _SECRET.search(lowered) is not None


def mask(options: Mapping[str, str]) -> dict[str, str]:
    """Options for display: secrets, and passwords within URIs, replaced by `****`."""
    return {name: MASK if is_secret(name) and value else mask_uri(str(value)) for name, value in options.items()}


def mask_uri(uri: str) -> str:
    """A URI with passwords and keys replaced by `****`."""
    if "@" not in uri and "=" not in uri:  # most texts have neither, and the expressions are slow
        return uri
    return _SECRET_IN_QUERY.sub(rf"\1{MASK}", _PASSWORD_IN_URI.sub(rf"\g<user>:{MASK}@", uri))


def redact(text: str, options: Mapping[str, str]) -> str:
    """A message with the values of secret options replaced by `****`."""
    return str(redact_all(text, options))


def redact_all(value: Any, options: Mapping[str, str]) -> Any:
    """Applies `redact` to every string in a JSON value."""
    secrets = {part for name, given in options.items() if is_secret(name) for part in _parts(str(given))}
    return _redacted(value, sorted(secrets, key=len, reverse=True))


def _redacted(value: Any, secrets: Sequence[str]) -> Any:
    """A JSON value with these texts, longest first, and passwords in URIs replaced by `****`."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return mask_uri(value)
    if isinstance(value, Mapping):
        return {name: _redacted(each, secrets) for name, each in value.items()}
    return [_redacted(each, secrets) for each in value] if isinstance(value, list) else value


def _parts(secret: str) -> list[str]:
    """A secret and, if it is a JSON object such as a Google key, the secret strings in it."""
    parts = [secret]
    if secret.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            parts += _texts_in(json.loads(secret))
    return [text for text in parts if len(text) >= 4]


def _texts_in(part: Any, name: str = "") -> list[str]:
    """Strings in a JSON value that are secret by their name, or long enough to be."""
    if isinstance(part, dict):
        return [text for key, value in part.items() for text in _texts_in(value, str(key))]
    return [part] if isinstance(part, str) and (len(part) >= 16 or is_secret(name)) else []


def resolve(options: Mapping[str, str]) -> dict[str, str]:
    """Replaces `secret=NAME` by the options of that secret; explicitly given options take precedence.

    NAME is looked up in the environment variable `STATFLIGHT_SECRET_<NAME>` (upper case, non-alphanumeric characters as
    `_`; a JSON object or `key=value` lines), then as a table in the TOML file named by `STATFLIGHT_SECRETS_FILE`. In
    JSON and TOML a value `{"file": PATH}` is replaced by the content of the file, for example a rotated token.
    Environment and files are read at every call.

    Raises:
        InvalidArgument: The secret does not exist or is malformed. Never shows a value.
    """
    given = {str(name): str(value) for name, value in options.items()}
    name = given.pop(SECRET_OPTION, None)
    if name is None:
        return given
    secret = _named_secret(name.strip())
    if SECRET_OPTION in secret:
        raise _refused(name, f'secret "{name}" names another secret; it must hold the options themselves')
    return secret | given


def _named_secret(name: str) -> dict[str, str]:
    variable = ENVIRONMENT_PREFIX + re.sub(r"\W", "_", name, flags=re.ASCII).upper()
    if not name:
        raise _refused(name, "names no secret")
    if (text := os.environ.get(variable)) is not None:
        return _parsed(text, name)
    if file := os.environ.get(SECRETS_FILE):
        try:
            import tomllib  # for a file of secrets, which few have

            secrets = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"options.secret: the secrets file cannot be read ({type(error).__name__})",
                hint=f"{SECRETS_FILE} must name a TOML file with one table per secret",
            ) from None
        if isinstance(entry := secrets.get(name), Mapping):
            return _texts(entry, name)
    hint = f"set {variable}, or add a table [{name}] to the TOML file that {SECRETS_FILE} names"
    raise _refused(name, f'no secret "{name}"', hint)


def _parsed(text: str, name: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except ValueError:
            raise _malformed(name) from None
        return _texts(document, name)
    parsed = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise _malformed(name)
        parsed[key.strip()] = value.strip()
    return parsed


def _texts(entry: Mapping[str, Any], name: str) -> dict[str, str]:
    """Converts values to strings (`true` for a JSON or TOML true); of nested values only `{"file": PATH}` is valid."""
    return {key: _text(value, name, key) for key, value in entry.items()}


def _text(value: Any, name: str, key: str) -> str:
    if isinstance(value, Mapping) and set(value) == {"file"} and isinstance(value["file"], str):
        try:
            return Path(value["file"]).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = f'the file of "{key}" of secret "{name}" cannot be read ({type(error).__name__})'
            raise _refused(name, reason) from None
    if isinstance(value, list | Mapping) or value is None:
        raise _malformed(name)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _malformed(name: str) -> InvalidArgument:
    return _refused(name, f'secret "{name}" is malformed', "expected a JSON object of texts, or one key=value a line")


def _refused(name: str, reason: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(f"options.secret: {reason}", hint=hint, params={"field": "options.secret", "actual": name})
