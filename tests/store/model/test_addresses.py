"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from flight_server.client.unreachable import is_here
from store.model.addresses import is_loopback, without_token

HERE = ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "0.0.0.0", "::"]
ELSEWHERE = ["", "localhost.example.org", "10.0.0.1", "128.0.0.1", "::2", "127.0.0.1.example.org", "example.org", "127"]


@pytest.mark.parametrize("host", HERE)
def test_this_machine(host):
    assert is_loopback(host) and is_here(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_machines(host):
    assert not is_loopback(host) and not is_here(host)


def test_a_token_of_a_spark_master_is_not_shown():
    assert without_token("sc://there:15002/;use_ssl=true;token=secret;user_id=me") == (
        "sc://there:15002/;use_ssl=true;token=***;user_id=me"
    )
    assert without_token("spark://one:7077") == "spark://one:7077"
