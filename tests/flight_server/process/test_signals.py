"""Signals received while the main thread waits."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from flight_server.process.signals import Signals


@pytest.fixture
def signals():
    before = signal.getsignal(signal.SIGUSR1)
    yield Signals(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_wait_without_a_signal_times_out(signals):
    assert signals.next(0.01) is None


def test_signal_ends_the_wait_and_is_returned_once(signals):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    assert signals.next(30) == signal.SIGUSR1
    assert signals.next(0) is None
