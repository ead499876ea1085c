"""Turns of the threads of a worker."""

from __future__ import annotations

import threading

import pytest

from flight_server.worker.turns import Turns

LONG = 3600.0


def started(turns: Turns) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes a turn, and an event that is set once it has one."""
    has_turn = threading.Event()

    def run() -> None:
        with turns.taken():
            has_turn.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, has_turn


def test_a_thread_waits_for_the_end_of_another_turn():
    turns = Turns(LONG)
    with turns.taken():
        thread, has_turn = started(turns)
        assert not has_turn.is_set()
    thread.join()
    assert has_turn.is_set()


def test_a_turn_that_takes_too_long_excludes_nobody():
    turns = Turns(0.0)
    with turns.taken():
        thread, has_turn = started(turns)
        assert has_turn.wait(60)
    thread.join()


def test_the_end_of_an_expired_turn_does_not_end_that_of_another():
    turns = Turns(0.0)
    with turns.taken():
        turns._seconds = LONG
        other = turns.taken()
        other.__enter__()
    thread, has_turn = started(turns)
    assert not has_turn.is_set()
    other.__exit__(None, None, None)
    thread.join()
    assert has_turn.is_set()


def test_an_error_ends_a_turn():
    turns = Turns(LONG)
    with pytest.raises(ValueError, match="broken"), turns.taken():
        raise ValueError("broken")
    thread, has_turn = started(turns)
    thread.join()
    assert has_turn.is_set()
