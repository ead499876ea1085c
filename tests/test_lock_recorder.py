"""The recorder of locks."""

import linecache
import threading

import pytest

from tests.lock_recorder import LockRecorder

MODULE = """
import threading
class Owner:
    def __init__(self):
        self.outer = threading.RLock()
        self.inner, self.count = threading.Lock(), 0
        self.changed = threading.Condition(self.outer)
        self.alone = threading.Condition()
        self.done = threading.Event()
    def work(self):
        pass
"""


@pytest.fixture
def recorder(monkeypatch):
    recorder = LockRecorder()
    recorder.install(monkeypatch)
    return recorder


@pytest.fixture
def owner(recorder, monkeypatch):
    lines = MODULE.splitlines(keepends=True)  # which name the locks
    monkeypatch.setitem(linecache.cache, "store/some_module.py", (len(MODULE), None, lines, "store/some_module.py"))
    names = {"__name__": "store.some_module"}
    exec(compile(MODULE, "store/some_module.py", "exec"), names)
    recorder.watch(monkeypatch, names["Owner"], ["work"])
    return names["Owner"]()


def test_lock_taken_under_another_is_noted_with_its_place(recorder, owner):
    with owner.outer, owner.outer, owner.inner:
        pass
    assert recorder.taken == {"Owner.outer", "Owner.inner"}
    assert [*recorder.nested] == [("Owner.outer", "Owner.inner")]
    assert "test_lock_taken_under_another" in recorder.nested["Owner.outer", "Owner.inner"]


def test_locks_taken_one_after_another_are_not_nested(recorder, owner):
    with owner.outer:
        pass
    with owner.inner, pytest.raises(KeyError):
        raise KeyError
    with owner.outer:
        pass
    assert not recorder.nested


def test_condition_releases_its_lock_while_it_waits(recorder, owner):
    with owner.outer, owner.outer:
        owner.changed.wait(0)
        with owner.inner:
            pass
    assert [*recorder.nested] == [("Owner.outer", "Owner.inner")]
    with owner.inner:
        owner.work()
    assert [*recorder.waited] == [("Owner.inner", "Owner.work")]


def test_condition_of_its_own_is_recorded_and_an_event_is_not(recorder, owner):
    with owner.alone, owner.inner:
        owner.done.set()
    assert [*recorder.nested] == [("Owner.alone", "Owner.inner")]


def test_call_is_noted_with_the_locks_that_its_thread_holds(recorder, owner):
    with owner.inner:
        thread = threading.Thread(target=owner.work)
        thread.start()
        thread.join()
    assert not recorder.waited
    with owner.outer, owner.inner:
        owner.work()
    assert {*recorder.waited} == {("Owner.outer", "Owner.work"), ("Owner.inner", "Owner.work")}
