"""Addresses on the network."""

from __future__ import annotations

import ipaddress
import re


def is_loopback(host: str) -> bool:
    """True if a host, by name or by address, without a port, is certainly this machine: no proxy leads there."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def without_token(master: str) -> str:
    """The address of a Spark master for messages: without a token of Spark Connect."""
    return re.sub(r"(?i)(;token=)[^;]*", r"\1***", master)
