"""REST catalogs: pyiceberg's client with timeouts and structured options."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, NoopAuthManager

from capture.connectors.iceberg.io import tolerable
from capture.connectors.options import timeout_of
from capture.connectors.storage.requests import GET, requested
from store.model.errors import InvalidArgument, nearest

_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "noop": (),
    "basic": ("username", "password"),
    "oauth2": ("client_id", "client_secret", "token_url"),
    "google": (),
    "entra": (),
    "custom": (),
}
_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "oauth2": ("scope", "refresh_margin", "expires_in"),
    "google": ("credentials_path", "scopes"),
}
_NUMBERS: Final = ("refresh_margin", "expires_in")
_STRUCTURED: Final[Mapping[str, str]] = {
    "auth": '{"type": "basic", "basic": {"username": …, "password": …}}',
    "ssl": '{"cabundle": …, "client": {"cert": …, "key": …}}',
}


class TimedRestCatalog(RestCatalog):
    """A REST catalog with timeouts and without retries, which are done by `connectors.storage.retry`."""

    def _create_session(self) -> Any:
        self.properties.setdefault("rest.sigv4.max-retries", "0")
        session = super()._create_session()
        seconds = timeout_of(self.properties)
        session.request = functools.partial(session.request, timeout=(min(10.0, seconds), seconds))
        session.hooks["response"].append(_tolerate)
        return session

    def mark(self, identifier: tuple[str, ...], before: str | None) -> str | None:
        """The address of a table's metadata file and the tag of the catalog's answer, by one request: with the tag of
        an earlier mark it is on condition that the answer has changed.

        Returns:
            The mark, that from before if nothing has changed; None if the catalog does not answer with a table.
        """
        url = self.url(Endpoints.load_table, prefixed=True, **self._split_identifier_for_path(identifier))
        known, tag = json.loads(before) if before else ("", "")
        response = self._session.get(url, headers={"If-None-Match": tag} if tag else None)
        if response.status_code == HTTPStatus.NOT_MODIFIED:
            return before
        if not response.ok:
            return None
        location = response.json().get("metadata-location")
        if not location or location == known:
            return before if location else None
        return json.dumps([location, response.headers.get("ETag", "")])

    def _create_legacy_oauth2_auth_manager(self, session: Any) -> AuthManager:
        if not (self.properties.get("token") or self.properties.get("credential")):
            return NoopAuthManager()  # pyiceberg's would send "Bearer None"
        return super()._create_legacy_oauth2_auth_manager(session)


def _tolerate(response: Any, *_: Any, **__: Any) -> Any:
    """Counts a response, and removes parts of it that pyiceberg cannot load."""
    requested(GET, 1, len(response.content or b""))
    if response.content:
        response._content = tolerable(response.content)
    return response


def structured_options(options: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parses the options `auth` and `ssl`, given as JSON or by dotted names, to the objects that pyiceberg expects.

    Raises:
        InvalidArgument: An option is not an object, or `auth` has keys that are not valid for its type.
    """
    options_of = {}
    for name, example in _STRUCTURED.items():
        dotted = {key.partition(".")[2]: value for key, value in options.items() if key.startswith(f"{name}.")}
        if name not in options and not dotted:
            continue
        parsed = _parsed(name, options[name], example) if name in options else {}
        for path, value in dotted.items():
            _put(parsed, path.split("."), value, f"{name}.{path}")
        options_of[name] = parsed
    if "auth" in options_of:
        _check_auth(options_of["auth"])
    return options_of


def _parsed(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"option {name}: must be a JSON object such as {example}, or dotted options such as {name}.type=…",
            params={"field": f"options.{name}"},
        )
    return value


def _put(into: dict[str, Any], path: list[str], value: str, option: str) -> None:
    *parents, last = path
    for part in parents:
        into = into.setdefault(part, {})
        if not isinstance(into, dict):
            raise InvalidArgument(
                f"option {option}: {part} is a string elsewhere", params={"field": f"options.{option}"}
            )
    into[last] = value


def _check_auth(auth: dict[str, Any]) -> None:
    kind = str(auth.get("type"))
    if kind not in _REQUIRED:
        raise InvalidArgument(
            f"option auth: type must be one of {', '.join(_REQUIRED)}; with a token or a credential alone, use the "
            "options token and credential",
            hint=nearest(kind, list(_REQUIRED)),
            params={"field": "options.auth"},
        )
    parts, is_custom = auth.setdefault(kind, {}), kind == "custom"
    takes, wrong = (*_REQUIRED[kind], *_OPTIONAL.get(kind, ())), ""
    if not isinstance(parts, dict):
        wrong = f"{kind} must be an object"
    elif others := sorted(auth.keys() - {"type", kind, *(("impl",) if is_custom else ())}):
        wrong = f"has no part {others[0]}"
    elif is_custom and not auth.get("impl"):
        wrong = "impl is missing"
    elif missing := [name for name in _REQUIRED[kind] if not parts.get(name)]:
        wrong = f"{missing[0]} is missing"
    elif kind not in ("custom", "entra") and (unknown := sorted(parts.keys() - set(takes))):
        wrong = f"{unknown[0]} is unknown; it takes {', '.join(takes) or 'nothing'}"
    if wrong:
        raise InvalidArgument(f"option auth of type {kind}: {wrong}", params={"field": "options.auth"})
    for name in _NUMBERS:
        if isinstance(parts.get(name), str):
            if not parts[name].isdecimal():
                raise InvalidArgument(f"option auth: {name} must be seconds, an integer ≥ 0")
            parts[name] = int(parts[name])
    if isinstance(parts.get("scopes"), str):
        parts["scopes"] = parts["scopes"].split(",")
