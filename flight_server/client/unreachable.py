"""Why a client does not reach a server: what stands between them, as far as gRPC's own errors tell."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

CANNOT: Final = "cannot connect to"  # begins the message of an error whose cause is known
NO_PROXY: Final = ("grpc.enable_http_proxy", 0)
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC takes the first that is set, for any address
_EXEMPT: Final = ("no_grpc_proxy", "no_proxy")  # and the first of these

_NOT_TRUSTED: Final = (
    "TLS: the server's certificate is not trusted; name a file of certificates that vouch for it, by --tls-roots,"
    " STATFLIGHT_TLS_ROOTS or tls_roots"
)
_OTHER_HOST: Final = "TLS: the server's certificate is for another host name; connect by the name that it has"
_NO_CERTIFICATE: Final = (
    "TLS: the server closed the connection; where it requires client certificates, name the files of a valid one in"
    " STATFLIGHT_TLS_CLIENT_CERT and STATFLIGHT_TLS_CLIENT_KEY, or tls_cert and tls_key"
)
_MAYBE_TLS: Final = "the server closed the connection; if it requires TLS, its address begins with grpc+tls://"
_SOMETHING_ELSE: Final = (
    "something else than a Flight server listens there, perhaps its pages, which have a port of their own; the address"
    " for clients is the one that `statflight serve` prints"
)
_SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")
# For clients with TLS (True), without (False) or both (None): a pattern of gRPC's message, and what it means.
_CAUSES: Final[tuple[tuple[bool | None, str, str], ...]] = (
    (None, "Failed parsing HTTP/2|before receiving SETTINGS", _SOMETHING_ELSE),
    (True, "certificate verify failed", _NOT_TRUSTED),
    (True, "not in peer certificate|Hostname Verification Check failed", _OTHER_HOST),
    (True, "wrong version number", "TLS: the server speaks none; its address begins with grpc://"),
    (True, "empty address list", "TLS: the certificates or the key that the client was given are not valid PEM"),
    (True, "Ssl handshake failed|SSL_ERROR", "TLS: the handshake failed"),
    (True, "Socket closed", _NO_CERTIFICATE),
    (False, "failed to connect to all addresses.*Socket closed", _MAYBE_TLS),
)


def address_of(text: str) -> str:
    """An address as gRPC takes it; one without a scheme is `grpc://`.

    Raises:
        pa.ArrowInvalid: It has another scheme.
    """
    scheme, divider, _ = text.strip().partition("://")
    if not divider:
        return f"grpc://{scheme}"
    if scheme.lower() in _SCHEMES:
        return text.strip()
    known = "grpc://host:port, or grpc+tls://host:port for TLS"
    if scheme.lower() in ("http", "https"):
        raise pa.ArrowInvalid(
            f"{text.strip()} is an address of pages; clients need the one that `statflight serve` prints: {known}"
        )
    raise pa.ArrowInvalid(f"{text.strip()}: unknown scheme {scheme}; write {known}")


def without_proxy_on_loopback(address: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `pyarrow.flight.connect` for an address, which on loopback keep gRPC from using a proxy.

    Args:
        options: The arguments so far; a choice of `generic_options` in them stays.
    """
    given = list(options.get("generic_options") or ())
    is_chosen = any(name == NO_PROXY[0] for name, _ in given)
    if is_chosen or not is_here(urlsplit(address).hostname or ""):
        return dict(options)
    return {**options, "generic_options": [*given, NO_PROXY]}


def is_here(host: str) -> bool:
    """True if a host is certainly this machine; as `store.model.addresses` has it, which no client imports."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def proxy_of(address: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The variable that makes gRPC use a proxy for an address, and that proxy without its credentials; None if none."""
    where = urlsplit(address)
    host = (where.hostname or "").lower()
    variable = next((name for name in _PROXIES if environ.get(name)), None)
    if variable is None or is_here(host) or where.scheme == "grpc+unix":
        return None
    if _is_exempt(host, environ):
        return None
    return variable, re.sub(r"//[^/@]*@", "//", environ[variable])


def _is_exempt(host: str, environ: Mapping[str, str]) -> bool:
    """True for a host that gRPC reaches without the proxy."""
    suffixes = next((value for name in _EXEMPT if (value := environ.get(name))), "")
    return any(host.endswith(suffix) for part in suffixes.split(",") if (suffix := part.strip().lower()))


def explained(address: str, detail: str, environ: Mapping[str, str] = os.environ) -> str:
    """The message of a failed connection whose cause is known; empty if, as far as known, nobody listens there.

    Args:
        address: The server's.
        detail: gRPC's message.
    """
    cause = _cause(address, detail)
    proxy = proxy_of(address, environ)
    if proxy is not None:
        host = urlsplit(address).hostname
        through = (
            f"the variable {proxy[0]} sends the connection through the proxy {proxy[1]}; no_proxy={host} avoids it"
        )
        cause = f"{cause}; {through}" if cause else through
    return f"{CANNOT} {address}: {cause} ({detail.splitlines()[0]})" if cause else ""


def _cause(address: str, detail: str) -> str:
    is_tls = address.startswith("grpc+tls:")
    return next((cause for of, pattern, cause in _CAUSES if of in (None, is_tls) and re.search(pattern, detail)), "")
