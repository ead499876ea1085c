"""JSON over HTTP: requests to catalogs and token services, and their errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from capture.connectors.storage.requests import GET, requested
from store.model.addresses import is_loopback

MAX_ANSWER_BYTES: Final = 64 << 20


class HttpError(Exception):
    """Base class of errors of a request."""


class Refused(HttpError):
    """The service returned an error status.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status

    @property
    def may_pass(self) -> bool:
        """True if a retry may help, because the service is overloaded or failed."""
        return self.status == 429 or self.status >= 500


class Unanswered(HttpError):
    """The service could not be reached, or did not answer in time.

    Attributes:
        timed_out: Whether the request timed out.
    """

    def __init__(self, reason: str, *, timed_out: bool = False):
        super().__init__(reason)
        self.timed_out = timed_out


class NotJson(HttpError):
    """The response is not a JSON object."""


class _NoRedirect(HTTPRedirectHandler):
    """Rejects redirects, which would send credentials or messages to another host, or have its answer believed."""

    def redirect_request(self, *args: Any, **named: Any) -> None:  # noqa: ARG002  the signature of the base
        return None


class NoProxyHere(ProxyHandler):
    """The proxies of the environment, but for this machine, which they do not reach."""

    def proxy_open(self, req: Request, proxy: str, type: str) -> Any:
        is_here = is_loopback(urlsplit(req.full_url).hostname or "")
        return None if is_here else super().proxy_open(req, proxy, type)


OPENER: Final = build_opener(_NoRedirect, NoProxyHere)
FOLLOWING: Final = build_opener(NoProxyHere)
"""Opens addresses of requests without a secret, wherever they are redirected to."""


def ask_json(
    url: str, *, timeout_seconds: float, headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> Mapping[str, Any]:
    """Sends a request and returns the JSON object in the response.

    Args:
        timeout_seconds: Timeout of the connection and of each read.
        data: Body of a POST; None for a GET.

    Raises:
        Refused: The service returns an error status or a redirect.
        Unanswered: The service cannot be reached or does not answer in time.
        NotJson: The response is not a JSON object.
        ValueError: The address is neither http nor https.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"not a web address: {url!r}")
    request = Request(url, data, {"User-Agent": "statflight"} | dict(headers or {}))  # noqa: S310  checked above
    size = 0
    try:
        with OPENER.open(request, timeout=timeout_seconds) as response:
            data = response.read(MAX_ANSWER_BYTES)
        size = len(data)
        answer = json.loads(data)
    except HTTPError as refusal:
        with refusal:
            raise Refused(refusal.code) from None
    except (URLError, OSError) as error:
        cause = getattr(error, "reason", None)
        timed_out = isinstance(error, TimeoutError) or isinstance(cause, TimeoutError)
        raise Unanswered(str(error), timed_out=timed_out) from None
    except ValueError:
        raise NotJson("the answer is not JSON") from None
    finally:
        requested(GET, 1, size)
    if not isinstance(answer, Mapping):
        raise NotJson("the answer is not a JSON object")
    return answer
