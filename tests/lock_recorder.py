"""A recorder of locks: which one a thread takes while it holds others, and what it waits for under them."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from tests.sources import PACKAGES


class _Recorded:
    """A lock that tells the recorder when it is taken and released."""

    def __init__(self, recorder: LockRecorder, lock: Any, name: str):
        self._recorder, self._lock, self.name = recorder, lock, name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            self._recorder.took(self)
        return taken

    def release(self) -> None:
        self._recorder.released(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _RecordedRLock(_Recorded):
    """The same with what a condition asks of a lock that one thread may take several times."""

    def _release_save(self) -> tuple[Any, int]:
        return self._lock._release_save(), self._recorder.released_wholly(self)

    def _acquire_restore(self, saved: tuple[Any, int]) -> None:
        self._lock._acquire_restore(saved[0])
        for _ in range(saved[1]):
            self._recorder.took(self)

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())


class LockRecorder:
    """Records the locks that modules of the project make while it is installed.

    Attributes:
        nested: (name of a lock that was held, name of the one that was taken) → where it was first seen.
        waited: (name of a lock that was held, what was called) → where it was first seen.
        taken: Names of the locks that were taken.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self.nested: dict[tuple[str, str], str] = {}
        self.waited: dict[tuple[str, str], str] = {}
        self.taken: set[str] = set()

    def install(self, monkeypatch: Any) -> None:
        """Records every lock made from now on until the patch is undone."""
        for name, kind in (("Lock", _Recorded), ("RLock", _RecordedRLock)):
            monkeypatch.setattr(threading, name, functools.partial(self._made, kind, getattr(threading, name)))

    def watch(self, monkeypatch: Any, owner: type, methods: Iterable[str]) -> None:
        """Records which locks are held when these methods are called."""
        for name in methods:
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name), f"{owner.__name__}.{name}"))

    def took(self, lock: _Recorded) -> None:
        """Notes that the current thread has a lock."""
        held = self._held()
        if lock not in held:
            self.taken.add(lock.name)
            for other in held:
                self._note(self.nested, (other.name, lock.name))
        held.append(lock)

    def released(self, lock: _Recorded) -> None:
        """Notes that the current thread releases a lock once."""
        held = self._held()
        held.reverse()
        held.remove(lock)
        held.reverse()

    def released_wholly(self, lock: _Recorded) -> int:
        """Notes that the current thread releases a lock altogether; returns how often it had taken it."""
        held = self._held()
        count = held.count(lock)
        held[:] = [other for other in held if other is not lock]
        return count

    def _made(self, kind: type[_Recorded], make: Callable[[], Any]) -> Any:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == "threading" and frame.f_code.co_name == "__init__":
            inner, frame = frame, frame.f_back
            if type(inner.f_locals.get("self")) is not threading.Condition:
                return make()
        if frame is None or frame.f_globals.get("__name__", "").partition(".")[0] not in PACKAGES:
            return make()
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        attribute = re.search(r"(?:self\.)?(\w+)[^=]*=.*threading", line)
        owner = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else frame.f_globals["__name__"]
        return kind(self, make(), f"{owner}.{attribute[1] if attribute else '?'}")

    def _watched(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            for lock in self._held():
                self._note(self.waited, (lock.name, what))
            return function(*arguments, **named)

        return call

    def _held(self) -> list[_Recorded]:
        if not hasattr(self._threads, "held"):
            self._threads.held = []
        held: list[_Recorded] = self._threads.held
        return held

    def _note(self, found: dict[tuple[str, str], str], key: tuple[str, str]) -> None:
        if key not in found:
            found[key] = "".join(traceback.format_stack(sys._getframe(2), limit=8))
