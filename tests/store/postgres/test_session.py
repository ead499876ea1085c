"""Calls that are late."""

from __future__ import annotations

import threading

from store.postgres.session import _Watchdog


def test_call_that_is_late_is_ended_and_one_that_has_ended_is_not():
    watchdog, ended = _Watchdog(), list[str]()
    late = threading.Event()
    with watchdog.within(60.0, lambda: ended.append("long")):
        with watchdog.within(0.0, late.set):
            assert late.wait(10)
        with watchdog.within(60.0, lambda: ended.append("short")):
            pass
    assert ended == [] and not watchdog._calls


def test_calls_of_several_threads_are_watched_at_once():
    watchdog = _Watchdog()
    events = [threading.Event() for _ in range(5)]

    def call(event: threading.Event) -> None:
        with watchdog.within(0.01, event.set):
            assert event.wait(10)

    threads = [threading.Thread(target=call, args=[event]) for event in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(event.is_set() for event in events)
