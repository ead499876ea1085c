"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from flight_server import memory
from flight_server.memory import Trimmer

PIECE, PIECES = 100_000, 2000  # small enough to lie in the heap


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(memory._trim is None, reason="no malloc_trim in this C library")
def test_what_was_freed_between_what_is_held_is_given_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    trim = Trimmer(0)
    pieces = [libc.malloc(ctypes.c_size_t(PIECE)) for _ in range(PIECES)]
    try:
        for piece in pieces:
            ctypes.memset(piece, 1, PIECE)
        for piece in pieces[::2]:
            libc.free(piece)
        held = resident()
        assert trim()
        assert held - resident() > PIECE * PIECES / 4
    finally:
        for piece in pieces[1::2]:
            libc.free(piece)


def test_it_is_asked_for_now_and_then(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(memory, "_trim", lambda size: asked.append(size.value) or 1)
    often, seldom = Trimmer(0), Trimmer(3600)
    assert [often(), often(), seldom(), seldom()] == [True, True, False, False]
    assert asked == [0, 0]


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_trim", None)
    assert not Trimmer(0)()
