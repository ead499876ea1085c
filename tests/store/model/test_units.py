"""Sizes in bytes as text."""

from __future__ import annotations

import pytest

from store.model.units import bytes_text


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**40 * 12.5, "12.5 TiB"),
        (-2048, "-2.0 KiB"),
        (10**30, "8.67e+11 EiB"),
    ],
)
def test_bytes_text_uses_binary_units(size_bytes, words):
    assert bytes_text(size_bytes) == words
