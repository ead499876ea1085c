"""What Python knows of gRPC's threads, kept from one call to the next.

gRPC answers in threads that Python did not start. Each time one of them comes to Python, for headers, for the method,
for a result, for the end of a call, Python makes a thread state, maps memory for its frames, and unmaps it when it
leaves: four to six times a call, which is most of what Python adds to a small one. A thread that came here keeps its
state; those of threads that are gone are taken back now and then.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from typing import Final

ALIVE: Final = Path("/proc/self/task")
# From 3.12 on, CPython takes a state that is freed for that of the thread which frees it.
POSSIBLE: Final = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11) and ALIVE.is_dir()


class _State:
    """A thread state of CPython that outlives the call which made it."""

    def __init__(self) -> None:
        current = ctypes.pythonapi.PyThreadState_Get
        current.restype = ctypes.c_void_p
        self._address = ctypes.c_void_p(current())
        ctypes.pythonapi.PyGILState_Ensure()  # once more than it is released: the state stays

    def free(self) -> None:
        """Only once the thread is gone."""
        ctypes.pythonapi.PyThreadState_Clear(self._address)
        ctypes.pythonapi.PyThreadState_Delete(self._address)


_here = threading.local()  # of a state: one that is made anew has nothing in it
_states: dict[int, _State] = {}  # by the system's number of the thread
_lock = threading.Lock()


def keep() -> None:
    """Keeps the state of the calling thread. Only for threads that Python did not start: it frees those of its own."""
    if not POSSIBLE or hasattr(_here, "state"):
        return
    number = threading.get_native_id()
    _here.state = True
    with _lock:
        gone, _states[number] = _states.get(number), _State()
    if gone is not None:  # the system has given the number anew
        gone.free()


def reap() -> int:
    """Frees the states of threads that are gone; how many."""
    if not POSSIBLE:
        return 0
    known = dict(_states)  # before the look at who is alive: one that comes later is not missed there
    alive = {int(task.name) for task in ALIVE.iterdir()}
    freed = 0
    for number, state in known.items():
        if number not in alive:
            with _lock:
                if _states.get(number) is not state:
                    continue
                del _states[number]
            state.free()
            freed += 1
    return freed


def kept() -> int:
    """How many threads have kept their state."""
    return len(_states)
