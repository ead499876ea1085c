"""Alarms: changes of the rules' states as their receivers show them, gathered for a while or until a silence ends.

`https://…` receives JSON; `slack+https://…`, `teams+https://…` and `pagerduty+https://ROUTING_KEY@…` what these show;
`smtp://user:password@host?from=…&to=…` a mail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from html import escape
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, parse_qs, unquote

from flight_server.core.alarm_address import ALARM_PRESETS
from flight_server.core.views.numbers import number
from store.model.names import matcher

LINES: Final = 20  # of a message for people; the rest is counted
_SEVERITY: Final = {"FAILED": "error", "WARNED": "warning", "LATE": "warning", "UNKNOWN": "info", "PASSED": "info"}

Message = Mapping[str, Any]  # about one table: table, owner, snapshot_id, checked_at, changes
Silence = tuple[tuple[str, ...], datetime]  # patterns of full table names, and the end


class Receiver(Protocol):
    """A `Webhook`."""

    def post(self, *messages: Message) -> None:
        """Queues messages and returns at once."""

    def stop(self) -> None:
        """Stops sending."""


class Alarms:
    """Hands messages to receivers.

    Args:
        digest_seconds: For how long changes are gathered; 0 sends each at once.
        today: The time, which silences name.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        digest_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ):
        self._receivers, self._seconds, self._clock, self._today = receivers, digest_seconds, clock, today
        self._gathered: dict[str, Message] = {}  # by table
        self._due = 0.0
        self._lock = threading.Lock()
        self.silences: Sequence[Silence] = ()

    def post(self, message: Message) -> None:
        """Takes a message; what it says of a rule replaces what is gathered of it."""
        with self._lock:
            if not self._gathered:
                self._due = self._clock() + self._seconds
            before = self._gathered.get(message["table"], {"changes": []})
            changes = {(change["column"], change["rule"]): change for change in before["changes"]}
            for change in message["changes"]:
                key = change["column"], change["rule"]
                changes[key] = {**change, "before": changes[key]["before"]} if key in changes else change
            kept = [change for change in changes.values() if change["before"] != change["after"]]
            self._gathered[message["table"]] = {**message, "changes": kept}
        self.flush()

    def flush(self) -> None:
        """Sends what is due and not silenced. What has changed back meanwhile is dropped."""
        with self._lock:
            if not self._gathered or self._clock() < self._due:
                return
            ready = [table for table in self._gathered if not self._is_silent(table)]
            messages = [message for table in ready if (message := self._gathered.pop(table))["changes"]]
        if messages:
            for receiver in self._receivers:
                receiver.post(*messages)

    def stop(self) -> None:
        """Stops the receivers; what is gathered is dropped."""
        for receiver in self._receivers:
            receiver.stop()

    def _is_silent(self, table: str) -> bool:
        now = self._today()
        return any(now < until and matcher(tables).fullmatch(table) for tables, until in self.silences)


def bodies(parts: SplitResult, messages: Sequence[Message]) -> Iterator[bytes]:
    """The message to an address, in the form that it takes: JSON, or a mail."""
    preset = parts.scheme.partition("+")[0]
    if preset in ("smtp", "smtps"):
        yield _mail(parts, messages)
    elif preset in ALARM_PRESETS:
        made = {"slack": _slack, "teams": _teams, "pagerduty": _pagerduty}[preset](parts, messages)
        yield from map(_json, made)
    else:
        yield from map(_json, messages)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _title(messages: Sequence[Message]) -> str:
    after = [change["after"] for message in messages for change in message["changes"]]
    counts = ", ".join(f"{after.count(state)} {state.lower()}" for state in _SEVERITY if state in after)
    tables = messages[0]["table"] if len(messages) == 1 else f"{len(messages)} tables"
    return f"{tables}: {counts}"


def _lines(messages: Sequence[Message]) -> list[str]:
    """A line for each change, misses first, and how many are left out."""
    lines = []
    for message in messages:
        owner = f" (owner {message['owner']})" if message.get("owner") else ""
        for change in message["changes"]:
            rank = list(_SEVERITY).index(change["after"])
            lines.append((rank, f"{change['after']} {_named(message, change)}{owner}"))
    told = [line for _, line in sorted(lines, key=lambda one: one[0])]
    return told[:LINES] + ([f"and {len(told) - LINES} more"] if len(told) > LINES else [])


def _named(message: Message, change: Message) -> str:
    column = f"{change['column']}: " if change["column"] and not change["rule"].startswith(change["column"]) else ""
    if change["value"] is None:  # the detail tells why it is unknown, or a value that is no number
        told = f": {change['detail'] or 'unknown'}"
    else:
        told = f" is {number(change['value'], exact=True)}" + (f"; {change['detail']}" if change["detail"] else "")
    return f"{message['table']}: {column}{change['rule']}{told}"


def _slack(_: SplitResult, messages: Sequence[Message]) -> Iterator[Any]:
    title, body = (escape(text, quote=False) for text in (_title(messages), "\n".join(_lines(messages))))
    section = {"type": "section", "text": {"type": "mrkdwn", "text": f"*{title}*\n{body[:2900]}"}}
    yield {"text": title, "blocks": [section]}


def _teams(_: SplitResult, messages: Sequence[Message]) -> Iterator[Any]:
    texts = [{"type": "TextBlock", "text": line, "wrap": True} for line in _lines(messages)]
    card = {
        "type": "AdaptiveCard",
        "version": "1.4",
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "body": [{"type": "TextBlock", "text": _title(messages), "weight": "Bolder", "wrap": True}, *texts],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    yield {"type": "message", "attachments": [attachment]}


def _pagerduty(parts: SplitResult, messages: Sequence[Message]) -> Iterator[Any]:
    """An event for each change; a rule that fails no longer resolves its incident."""
    for message in messages:
        for change in message["changes"]:
            is_over = change["after"] in ("PASSED", "UNKNOWN")
            event = {
                "routing_key": unquote(parts.username or ""),
                "event_action": "resolve" if is_over else "trigger",
                "dedup_key": "|".join((message["table"], change["column"] or "", change["rule"]))[:255],
            }
            payload = {
                "summary": _named(message, change)[:1024],
                "source": message["table"],
                "severity": _SEVERITY[change["after"]],
                "custom_details": {**change, "owner": message.get("owner")},
            }
            yield event if is_over else {**event, "payload": payload}


def _mail(parts: SplitResult, messages: Sequence[Message]) -> bytes:
    people, mail = parse_qs(parts.query), EmailMessage()
    mail["From"], mail["To"] = people["from"][0], ", ".join(people["to"])
    mail["Subject"] = " ".join(_title(messages).split())
    mail.set_content("\n".join(_lines(messages)) + "\n")
    return mail.as_bytes()
