"""What a worker says while it reaches no server."""

from __future__ import annotations

import logging

from flight_server.worker.unreached import PATIENCE_SECONDS, Unreached


def test_each_reason_is_said_once_after_a_while(caplog):
    now = [0.0]
    unreached = Unreached(lambda: now[0])
    with caplog.at_level(logging.INFO, "statflight.worker"):
        unreached.failed(OSError("refused"))
        unreached.succeeded()
        now[0] = 100.0
        unreached.failed(OSError("refused"))
        assert not caplog.messages
        now[0] += PATIENCE_SECONDS
        for _ in range(3):
            unreached.failed(OSError("refused\nmore"))
        unreached.failed(OSError("through the proxy"))
        unreached.succeeded()
        unreached.succeeded()
    said = "the server is not reached, and tried again: "
    assert caplog.messages == [f"{said}refused", f"{said}through the proxy", "the server answers again"]
