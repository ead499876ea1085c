"""Requests to the REST API of a catalog, with a bearer token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from capture.connectors.options import timeout_of
from capture.connectors.storage.http import NotJson, Refused, Unanswered, ask_json
from capture.connectors.storage.places import Unreadable
from capture.connectors.storage.retry import retried
from capture.connectors.storage.secrets import mask_uri, redact
from store.model.errors import NotFound, UpstreamError, first_line


class CatalogApi:
    """The REST API of a catalog.

    Args:
        uri: Address of the catalog as the user gave it, for messages.
        base: Address to which paths are appended.
        token: Bearer token; None for none.
        options: Options of the connector: `timeout`, and secrets to hide in messages.
    """

    def __init__(self, kind: str, uri: str, base: str, token: str | None, options: Mapping[str, str]):
        self._kind, self._uri, self._base, self._options = kind, mask_uri(uri), base.rstrip("/"), options
        self._timeout = timeout_of(options)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The answer to a request, retried after temporary errors.

        Args:
            path: Path below the base, with a query.
            body: Body of a POST; None for a GET.

        Raises:
            NotFound: The catalog does not have what the path names.
            UpstreamError: The catalog cannot be reached, refuses, or its answer is not JSON.
        """
        return retried(lambda: self._requested(path, body), _may_recover)

    def pages(self, path: str, query: Mapping[str, str], key: str, asks: str, tells: str) -> Iterator[Any]:
        """The items of a listing, page by page.

        Args:
            path: Path below the base.
            query: Parameters of each request.
            key: Name of the items in an answer.
            asks: Parameter that names the page.
            tells: Name of the next page's token in an answer.
        """
        token = ""
        while True:
            parameters = urlencode({**query, **({asks: token} if token else {})})
            answer = self.ask(f"{path}?{parameters}" if parameters else path)
            yield from answer.get(key) or ()
            following = str(answer.get(tells) or "")
            if not following or following == token:
                return
            token = following

    def _requested(self, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            return ask_json(f"{self._base}/{path}", timeout_seconds=self._timeout, headers=self._headers, data=data)
        except Refused as refusal:
            raise self._refused(refusal) from None
        except Unanswered as error:
            if error.timed_out:
                raise _TimedOut(f'catalog "{self._uri}" did not answer within {self._timeout:g} s') from None
            text = redact(first_line(error), self._options)
            raise UpstreamError(f'catalog "{self._uri}" cannot be reached ({text})') from None
        except NotJson as error:
            raise Unreadable(f'catalog "{self._uri}": {error}; is it a {self._kind}?') from None

    def _refused(self, refusal: Refused) -> UpstreamError | NotFound:
        status = refusal.status
        if status == 404:
            return NotFound(f'uri "{self._uri}": the catalog or table does not exist', params={"field": "uri"})
        if status in (401, 403):
            return Unreadable(f'catalog "{self._uri}" refuses the token ({status})', hint="set the option token")
        if refusal.may_pass:
            return UpstreamError(f'catalog "{self._uri}" answers {status}')
        return Unreadable(f'catalog "{self._uri}" answers {status}')


class _TimedOut(UpstreamError):
    """A timeout, which the caller may retry but `retried` must not."""


def _may_recover(error: Exception) -> bool:
    return isinstance(error, UpstreamError) and error.retryable and not isinstance(error, _TimedOut)
