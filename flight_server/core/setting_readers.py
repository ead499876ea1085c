"""Readers of settings: of a TOML value, a text of the environment or a flag they make a value of the setting's type.

Each raises ValueError, whose message is what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flight_server.core.alarm_address import alarm_address
from store.model.errors import InvalidField

if TYPE_CHECKING:
    pass


class ZonedTimestamps(StrEnum):
    """Treatment of a zoned bound of a TIMESTAMP, which has no zone."""

    REFUSE = "REFUSE"
    CONVERT = "CONVERT_TO_SESSION_ZONE"


def as_text(value: Any) -> str:
    """A text without blanks around it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value.strip()


def as_receivers(value: Any) -> str:
    """Addresses of a webhook, separated by spaces."""
    text = as_text(value)
    for url in text.split():
        alarm_address(url)
    return text


def as_path(value: Any) -> Path:
    """A path, `~` expanded."""
    return value.expanduser() if isinstance(value, Path) else Path(as_text(value)).expanduser()


def as_path_or_url(value: Any) -> str:
    """A path, `~` expanded, or the URL of a bucket."""
    text = str(value) if isinstance(value, Path) else as_text(value)
    return text if "://" in text else str(Path(text).expanduser())


def as_truth(value: Any) -> bool:
    """A boolean, or a word for one."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        match value.strip().lower():
            case "true" | "1" | "yes" | "on":
                return True
            case "false" | "0" | "no" | "off":
                return False
    raise ValueError("true or false")


def as_whole(low: int, high: int = 2**63 - 1) -> Callable[[Any], int]:
    """A reader of integers within limits, both included."""

    def read(value: Any) -> int:
        expected = f"an integer from {low} to {high}" if high < 2**63 - 1 else f"an integer of at least {low}"
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError(expected) from None
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError(expected)
        return number

    return read


def as_word(*words: str) -> Callable[[Any], str]:
    """A reader of one of some words, in whatever case."""

    def read(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words))
        return word

    return read


def as_seconds(value: Any) -> float:
    """Seconds above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0.0 < number < float("inf"):
        raise ValueError("seconds above 0")
    return number


def as_seconds_or_never(value: Any) -> float:
    """Seconds above 0, or 0 for never."""
    try:
        return 0.0 if not isinstance(value, bool) and float(value) == 0.0 else as_seconds(value)
    except (TypeError, ValueError):
        raise ValueError("seconds above 0, or 0 for never") from None


def as_auto_analyze(value: Any) -> str:
    """A policy of captures (`capture.policy`), also as a boolean."""
    from capture.policy import parse

    text = ("on" if value else "off") if isinstance(value, bool) else as_text(value)
    try:
        parse(text)
    except InvalidField as wrong:
        raise ValueError(wrong.params["expected"]) from None
    return text


def as_flight_addresses(value: Any) -> str:
    """Flight addresses, separated by commas."""
    addresses = [part.strip() for part in as_text(value).split(",")]
    if not all(re.fullmatch(r"grpc(\+tcp|\+tls)?://[^\s/]+:\d+", address) for address in addresses):
        raise ValueError("addresses such as grpc://b:8815,grpc+tls://c:8815")
    return ",".join(addresses)


def as_patterns(value: Any) -> str:
    """Patterns: a list, or separated by commas."""
    items = value if isinstance(value, list | tuple) else as_text(value).split(",")
    if not all(isinstance(item, str) and item.strip() for item in items):
        raise ValueError("patterns such as Polars,parquet-go*")
    return ",".join(item.strip() for item in items)


def as_zoned_timestamps(value: Any) -> ZonedTimestamps:
    """A `ZonedTimestamps`, in whatever case."""
    try:
        return ZonedTimestamps(str(value).strip().upper())
    except ValueError:
        raise ValueError(" or ".join(ZonedTimestamps)) from None


def as_zone(value: Any) -> str:
    """The name of a time zone."""
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(as_text(value))
    except (LookupError, OSError, ValueError):
        raise ValueError("the name of a time zone, such as Europe/Paris") from None
    return as_text(value)


def _pairs(items: Sequence[Any]) -> dict[str, str]:
    """The settings in `key=value` items."""
    pairs = [str(item).partition("=") for item in items]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("KEY=VALUE items")
    return {name.strip(): text.strip() for name, _, text in pairs}


def as_spark(value: Any) -> dict[str, str]:
    """Spark settings: a table, nested as TOML reads `spark.sql.x = 1`, or `key=value` items."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, list | tuple):
        return _pairs(value)
    if not isinstance(value, Mapping):
        raise ValueError("a table of Spark's settings")
    settings: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            settings |= {f"{key}.{name}": text for name, text in as_spark(item).items()}
        else:
            settings[key] = str(item).lower() if isinstance(item, bool) else str(item)
    return settings
