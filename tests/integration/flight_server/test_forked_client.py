"""A process that is forked with a connection says so, where gRPC would wait for ever."""

from __future__ import annotations

import os
import signal

import pytest

from flight_server.client import StatsClient
from tests.flight_server.live_server import LiveServer

SECONDS = 60  # after which a child that hangs is killed


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12 says it too
@pytest.mark.parametrize("connects_again", [False, True])
def test_a_forked_child_is_refused_and_its_parent_goes_on(live_server: LiveServer, connects_again: bool) -> None:
    with StatsClient(live_server.uri) as client:
        before = client.tables()
        child = os.fork()
        if not child:
            signal.alarm(SECONDS)
            try:
                (StatsClient(live_server.uri) if connects_again else client).tables()
            except RuntimeError as error:
                os._exit(7 if "was forked" in str(error) else 8)
            finally:
                os._exit(9)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert client.tables().equals(before)
