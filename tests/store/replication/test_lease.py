"""Leases: one holder at a time, whoever sleeps."""

from __future__ import annotations

import pytest

from store.model.errors import UpstreamError
from store.places import IDENTITY, Directory
from store.replication import lease as leases
from store.replication.lease import Keeper, Lease, create, newest


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place(tmp_path):
    place = Directory("replica", tmp_path)
    place.create(IDENTITY, b"{}")
    return place


@pytest.fixture
def clock():
    return Clock()


def held(place, clock) -> Keeper:
    lease = Lease(1, 1, "a", "grpc://a:1", 10.0)
    return Keeper(place, lease, create(place, lease, clock), clock)


def test_a_lease_ends_before_its_time_is_over(place, clock):
    keeper = held(place, clock)
    clock.now += 8.9
    assert keeper.is_valid
    clock.now += 0.2
    assert not keeper.is_valid
    keeper.renew(5)
    assert keeper.is_valid
    assert (newest(place).number, newest(place).generation) == (2, 5)


def test_a_lease_counts_from_before_it_is_created(place, clock, monkeypatch):
    keeper = held(place, clock)
    really = place.create

    def slow(name, data):
        clock.now += 60
        return really(name, data)

    monkeypatch.setattr(place, "create", slow)
    keeper.renew(0)
    assert not keeper.is_valid


def test_one_who_slept_while_others_went_on_does_not_get_it(place, clock):
    sleeper = held(place, clock)
    other = Keeper(place, taken := Lease(2, 2, "b", "grpc://b:1", 10.0), create(place, taken, clock), clock)
    for _ in range(10):
        other.renew(0)
    assert not place.read(f"{leases.FOLDER}/{2:012}")  # so that the sleeper can create its next one
    sleeper.renew(0)
    assert not sleeper.is_valid
    assert sleeper.successor.writer == "grpc://b:1"
    assert other.is_valid
    other.renew(0)
    assert newest(place).holder == "b"


def test_a_place_out_of_reach_does_not_end_the_lease(place, clock, tmp_path):
    keeper = held(place, clock)
    away = tmp_path.rename(tmp_path.with_name("away"))
    with pytest.raises(UpstreamError):
        keeper.renew(0)
    assert keeper.is_valid
    away.rename(tmp_path)
    clock.now += 20
    keeper.renew(0)
    assert keeper.is_valid
