"""Thousands of signals to a process that waits for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

WAITING = """
import signal, sys
from flight_server.process.signals import Signals
signals, received = Signals(signal.SIGUSR1, signal.SIGTERM), 0
sys.stdout.write("ready\\n")
sys.stdout.flush()
while (number := signals.next(0.0001)) != signal.SIGTERM:
    received += number is not None
sys.stdout.write(str(received))
"""


def test_thousands_of_signals_do_not_block_the_waiting_process():
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number in range(20_000):
            process.send_signal(signal.SIGUSR1)
            if number % 50 == 0:
                time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert int(output) > 100
