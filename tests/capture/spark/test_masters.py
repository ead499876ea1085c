"""Addresses of Spark masters, and whether somebody listens there."""

from __future__ import annotations

import socket

import pytest

from capture.spark import masters
from capture.spark.masters import addresses, unreachable


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("local[*]", []),
        ("yarn", []),
        ("spark://one:7077", [("one", 7077)]),
        ("spark://one:7077,two", [("one", 7077), ("two", 7077)]),
        ("spark://[::1]:7078", [("::1", 7078)]),
        ("sc://there", [("there", 15002)]),
        ("sc://there:443/;token=abc;use_ssl=true", [("there", 443)]),
        ("k8s://https://kube:6443", [("kube", 6443)]),
        ("k8s://kube", [("kube", 443)]),
        ("k8s://http://127.0.0.1:8001", [("127.0.0.1", 8001)]),
        ("spark://one:many", []),
    ],
)
def test_addresses_of_a_master(master, found):
    assert addresses(master) == found


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_one_address_that_answers_is_enough(listening):
    assert unreachable(f"spark://127.0.0.1:{listening}") == ""
    assert unreachable(f"spark://127.0.0.1:1,127.0.0.1:{listening}") == ""
    assert unreachable("local[2]") == ""


def test_each_address_that_does_not_answer_is_named(monkeypatch):
    assert unreachable("spark://127.0.0.1:1") == "127.0.0.1:1: Connection refused"

    def silent(address, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr(masters.socket, "create_connection", silent)
    assert unreachable("sc://one:1,two:2") == "one:1: no answer in 5 s, two:2: no answer in 5 s"
