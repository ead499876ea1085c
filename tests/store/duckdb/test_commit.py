"""The phases of a commit are asked in one order, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.duckdb.commit import Behind, Commit, Derived, Guard, Queue, Rows, Ship
from store.duckdb.commit_log import Applied, CommitLog
from store.duckdb.database import Database
from store.duckdb.opening import MEMORY


class Heard(list[str]):
    """The calls of all phases, as `phase.method`."""

    def phases(self) -> Commit:
        """A commit of phases that note each call and do as their base class does."""
        bases = {
            "guard": Guard,
            "log": CommitLog,
            "rows": Rows,
            "derived": Derived,
            "behind": Behind,
            "queue": Queue,
            "ship": Ship,
        }
        assert tuple(bases) == Commit._fields
        return Commit(*(self._noting(name, base) for name, base in bases.items()))

    def _noting(self, name: str, base: type) -> object:
        def method(called: str):
            def call(phase, *arguments, **named):
                self.append(f"{name}.{called}")
                return getattr(base, called)(phase, *arguments, **named)

            return call

        methods = {called: method(called) for called in vars(base) if not called.startswith("_")}
        return type(base.__name__, (base,), methods)()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def database(heard: Heard) -> Iterator[Database]:
    database = Database(MEMORY)
    database.phases = heard.phases()
    yield database
    database.close()


def test_phases_of_a_commit(database, heard):
    database.write(lambda _: heard.append("the write"))
    assert heard == [
        "guard.check_begin",
        "log.begin",
        "the write",
        "derived.derive",
        "behind.write",
        "log.record",
        "log.ended",
        "ship.committed",
        "derived.publish",
        "queue.committed",
        "ship.acknowledge",
    ]


def test_phases_of_a_rollback(database, heard):
    def fail(_):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        database.write(fail)
    assert heard == ["guard.check_begin", "log.begin", "derived.reload", "behind.clear", "log.ended"]


def test_phases_of_what_others_have_committed(database, heard):
    database.submit(lambda c: database.apply(c, lambda _: Applied()), alone=True).result()
    assert heard == [
        "derived.applied",
        "rows.applied",
        "queue.applied",
        "ship.committed",
        "derived.publish",
        "queue.committed",
    ]
