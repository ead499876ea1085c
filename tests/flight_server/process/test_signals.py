"""Signals that come while the main thread waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from flight_server.process.signals import Signals


@pytest.fixture
def signals():
    before = signal.getsignal(signal.SIGUSR1)
    yield Signals(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_none_comes(signals):
    assert signals.next(0.01) is None


def test_one_that_comes_ends_the_wait(signals):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    started = time.monotonic()
    assert signals.next(30) == signal.SIGUSR1
    assert time.monotonic() - started < 20
    assert signals.next(0) is None


WAITING = """
import signal, sys
from flight_server.process.signals import Signals
signals, came = Signals(signal.SIGUSR1, signal.SIGTERM), 0
sys.stdout.write("ready\\n")
sys.stdout.flush()
while (number := signals.next(0.0001)) != signal.SIGTERM:
    came += number is not None
sys.stdout.write(str(came))
"""


def test_many_hold_nothing_up():
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number in range(20_000):
            process.send_signal(signal.SIGUSR1)
            if number % 50 == 0:
                time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert int(told) > 100
