"""Byte counts as text."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(size_bytes: float) -> str:
    """A number of bytes in a binary unit, such as `12.5 MiB`."""
    amount, unit = float(size_bytes), _UNITS[0]
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    if unit == "B":
        return f"{amount:.0f} B"
    return f"{amount:.1f} {unit}" if abs(amount) < 1e6 else f"{amount:.3g} {unit}"
