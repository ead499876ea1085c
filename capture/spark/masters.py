"""Checks that somebody listens at the address of a Spark master, before Spark is started.

Spark itself tries for a minute, and a Spark Connect client for several.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

ANSWER_SECONDS: Final = 5.0
"""How long an address is waited for."""

_PORTS: Final = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}


def addresses(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of a master, of which one must answer; none for those that are found in another way, such as
    `local[*]` and `yarn`."""
    return list(_addresses(master))


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    url = re.sub(r"^k8s://(?!https?://)", "https://", master).removeprefix("k8s://")
    scheme, divider, rest = url.partition("://")
    if not divider or scheme not in _PORTS:
        return
    for each in re.split(r"[/;]", rest)[0].split(","):
        try:
            parts = urlsplit(f"//{each}")
            host, port = parts.hostname, parts.port or _PORTS[scheme]
        except ValueError:  # Spark says what is wrong with it
            continue
        if host:
            yield host, port


def unreachable(master: str) -> str:
    """Why no address of a master can be reached; empty if one can, or if it has none."""
    reasons = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), ANSWER_SECONDS).close()
        except OSError as error:
            late = isinstance(error, TimeoutError)
            reason = f"no answer in {ANSWER_SECONDS:.0f} s" if late else error.strerror or str(error)
            reasons.append(f"{host}:{port}: {reason}")
        else:
            return ""
    return ", ".join(reasons)
