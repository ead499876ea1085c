"""Turns of threads: one after the other, in order; a long turn, or one that waits, keeps nobody."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from flight_server.worker.turns import Turns

LONG = 3600.0


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


def asked(pool: ThreadPoolExecutor, turns: Turns, order: list[str], name: str) -> Future[None]:
    """Has a thread note its name in its turn; returns once it waits for that."""

    def run() -> None:
        with turns.taken():
            order.append(name)

    before, future = len(turns._waiting), pool.submit(run)
    while len(turns._waiting) == before:
        with pytest.raises(TimeoutError):
            future.result(0.001)
    return future


def test_turns_are_taken_one_after_the_other_in_order(pool):
    turns, order = Turns(LONG), list[str]()
    with turns.taken():
        waiting = [asked(pool, turns, order, name) for name in ("second", "third")]
        order.append("first")
    for each in waiting:
        each.result(10)
    assert order == ["first", "second", "third"]


def test_nobody_waits_for_a_long_turn(pool):
    turns = Turns(0.0)
    with turns.taken():
        pool.submit(turns.taken().__enter__).result(10)


def test_a_turn_is_handed_over_and_taken_up_again(pool):
    turns, order = Turns(LONG), list[str]()
    with turns.taken():
        waiting = asked(pool, turns, order, "other")
        with turns.handed_over():
            waiting.result(10)
        last = asked(pool, turns, order, "last")
        order.append("first again")
    last.result(10)
    assert order == ["other", "first again", "last"]


def test_a_thread_without_a_turn_has_nothing_to_hand_over():
    turns = Turns(LONG)
    with turns.handed_over(), turns.taken():
        pass


def test_an_error_ends_a_turn():
    turns = Turns(LONG)
    with pytest.raises(KeyError), turns.taken():
        raise KeyError
    with turns.taken():
        pass
