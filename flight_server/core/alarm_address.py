"""Addresses of receivers of alarms: `https://…`, the same behind a preset, or a mail server."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

ALARM_PRESETS: Final = ("slack", "teams", "pagerduty")


def alarm_address(url: str) -> SplitResult:
    """The parts of a receiver's address; the scheme is a preset, or http or https.

    Raises:
        ValueError: The address is not one of a receiver; the message says what would be right.
    """
    parts = urlsplit(url)
    preset, _, scheme = parts.scheme.rpartition("+")
    if scheme in ("smtp", "smtps") and not preset:
        people = parse_qs(parts.query)
        if not parts.hostname or not people.get("from") or not people.get("to"):
            raise ValueError("a mail server such as smtp://user:password@host:25?from=a@example.org&to=b@example.org")
    elif scheme not in ("http", "https") or preset not in ("", *ALARM_PRESETS) or not parts.hostname:
        raise ValueError(
            "an address such as https://host/path, slack+https://…, teams+https://…, pagerduty+https://KEY@… or smtp://…"
        )
    elif preset == "pagerduty" and not parts.username:
        raise ValueError(
            "an address with the routing key, such as pagerduty+https://KEY@events.pagerduty.com/v2/enqueue"
        )
    return parts
