"""Errors of catalogs and libraries: which of them may pass, and what they are called here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyiceberg.exceptions import (
    CommitFailedException,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)

from capture.connectors.storage.places import Unreadable
from capture.connectors.storage.retry import retried as again
from capture.connectors.storage.secrets import redact
from store.model.errors import StatflightError, UpstreamError


def _connection_errors() -> tuple[type[Exception], ...]:
    from requests.exceptions import ConnectionError as RequestsConnectionError
    from requests.exceptions import Timeout

    return (ConnectionError, TimeoutError, RequestsConnectionError, Timeout)


def retried(call: Callable[..., Any], *args: Any) -> Any:
    """Calls a catalog, with retries after connection failures and temporary server errors."""
    return again(lambda: call(*args), _may_recover)


def _may_recover(error: Exception) -> bool:
    from requests.exceptions import ReadTimeout

    if isinstance(error, ServerError | ServiceUnavailableError | TooManyRequestsError):
        return True
    return isinstance(error, _connection_errors()) and not isinstance(error, TimeoutError | ReadTimeout)


@contextmanager
def upstream(what: str, options: Mapping[str, str]) -> Iterator[None]:
    """Translates all errors; messages have the table's name and the reason, but no secrets."""
    try:
        yield
    except StatflightError as error:
        if isinstance(error, Unreadable) and not error.message.startswith(what):
            raise Unreadable(f"{what} cannot be read: {error.message}") from error
        raise
    except _connection_errors() as error:
        raise UpstreamError(f"{what} cannot be reached: {reason(error, options)}") from error
    except CommitFailedException as error:
        raise UpstreamError(f"{what} was changed by another writer meanwhile; try again") from error
    except FileNotFoundError as error:
        raise Unreadable(
            f"{what} cannot be read: a file that its metadata names is missing",
            hint="a table that was moved is read with the option path_rewrite=FROM=TO",
        ) from error
    except RESTError as error:
        raise UpstreamError(f"{what} cannot be read: the catalog answered {reason(error, options)}") from error
    except ImportError as error:
        module = f'the Python module "{error.name}"' if error.name else "a Python module"
        raise Unreadable(
            f"{what} cannot be read: {module} is not installed", hint="install it where the capture workers run"
        ) from error
    except Exception as error:  # libraries raise undocumented types
        kind = UpstreamError if _is_away(error) else Unreadable
        raise kind(f"{what} cannot be read: {reason(error, options)}") from error


def _is_away(error: Exception) -> bool:
    """True for errors of object stores, which pyarrow raises without a number; of a damaged file it says Thrift."""
    return type(error) is OSError and error.errno is None and "thrift" not in str(error).lower()


_PATHS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/{1,3}[^\s'\"\],)]+")


def reason(error: BaseException, options: Mapping[str, str]) -> str:
    """Type and first line of an error, without paths and secrets."""
    lines = str(error).strip().splitlines()
    text = redact(_PATHS.sub("…", redact(lines[0] if lines else "", options)), options)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
