"""The interface of executors outside this process, to which the compute engine hands scans and expressions: Spark's.

`cluster` loads it. A build without Spark computes everything in this process, and refuses expressions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from store.model.errors import InvalidArgument, UpstreamError
from store.plugins import Plugins

if TYPE_CHECKING:  # the server asks for expressions alone, and loads no kernels
    from capture.compute.file_scan import Answer, Numbered, Work
    from capture.compute.partial import Partial, SketchSelection
    from capture.connectors.spi import Column, ScanTask
    from store.model.logical_types import LogicalType

log = logging.getLogger("statflight.worker")

SPARK: Final = "spark"
"""Engine id of what Spark computed, and the kind of its expressions."""

CLUSTERS: Final = Plugins(
    group="statflight.clusters",
    field="engine",
    noun="cluster",
    built_in={SPARK: "capture.spark.cluster:SparkCluster"},
)

Poll = Callable[[], None]
"""Called several times a second; an exception cancels the work."""


class Unavailable(UpstreamError):
    """The executors do not start here. Scans are then computed in this process."""


class Uncapturable(InvalidArgument):
    """An expression of which no capture can have statistics."""


class Session(Protocol):
    """A session with the executors, which starts when it is needed."""

    @property
    def master(self) -> str:
        """The address of the executors, for people."""

    @property
    def cores(self) -> int:
        """Number of concurrent tasks; a guess before it starts."""

    @property
    def is_one_try(self) -> bool:
        """True if all executors are on this machine, and failed tasks are not tried again."""

    @property
    def is_warm(self) -> bool:
        """True if it runs."""

    def ensure(self) -> None:
        """Starts it if needed; raises `Unavailable`."""

    def start(self) -> Future[None]:
        """Starts it in a separate thread, if needed; the future raises `Unavailable`."""

    def held(self) -> AbstractContextManager[Callable[[], Any]]:
        """Keeps it from stopping within the block, which gets a function that starts and returns it."""

    def stop(self) -> None:
        """Stops it, unless it works."""


class Cluster(Protocol):
    """Executors outside this process, and the work that the compute engine hands to them."""

    def session(self, master: str | None = None, settings: Mapping[str, str] | None = None) -> Session:
        """A session that has not started."""

    def distributed(self, session: Any, tasks: Sequence[Numbered], work: Work, poll: Poll) -> Iterator[list[Answer]]:
        """Computes tasks on the executors; yields answers in the order of the tasks, some at a time."""

    def overlapped(
        self, session: Any, tasks: Sequence[Numbered], work: Work, poll: Poll, notes: list[str]
    ) -> Iterator[list[Answer]]:
        """Computes tasks in this process while a session starts, then the rest on its executors.

        Args:
            notes: Receive the reason if the session does not start and this process computes everything.
        """

    def checked(self, key: bytes) -> str:
        """The text of an expression, judged without a session.

        Raises:
            Uncapturable: Its value is not a function of its row.
            InvalidArgument: It is not allowed.
        """

    def named(self, text: str, columns: Sequence[Column]) -> Sequence[Column]:
        """The columns that an expression may refer to."""

    def evaluated(
        self,
        session: Any,
        tasks: Sequence[ScanTask],
        text: str,
        columns: Mapping[int, Column],
        of_table: Sequence[Column],
        wanted: SketchSelection,
        poll: Poll,
    ) -> tuple[LogicalType, Partial, int]:
        """The logical type of an expression, its statistics over all files, and the bytes read.

        Args:
            columns: Column id → column, for those it may refer to.
            of_table: All columns of the table, for what is said of those that cannot be read.
        """


class NoSession(Session):
    """A session of executors that are not part of this build."""

    master, cores, is_one_try, is_warm = "no cluster", 0, False, False

    def __init__(self, reason: str):
        self._reason = reason

    def ensure(self) -> None:
        """Raises `Unavailable`."""
        raise Unavailable(self._reason)

    def start(self) -> Future[None]:
        """A future that raises `Unavailable`."""
        started = Future[None]()
        started.set_exception(Unavailable(self._reason))
        return started

    @contextmanager
    def held(self) -> Iterator[Callable[[], Any]]:
        """A function that raises `Unavailable`."""
        yield self.ensure

    def stop(self) -> None:
        """Does nothing."""


class NoCluster(Cluster):
    """Executors that are not part of this build: this process computes.

    Args:
        reason: Why there are none, for notes and errors.
    """

    def __init__(self, reason: str):
        self._reason = reason

    def session(self, master: str | None = None, settings: Mapping[str, str] | None = None) -> Session:  # noqa: ARG002
        return NoSession(self._reason)

    def distributed(self, session: Any, tasks: Sequence[Numbered], work: Work, poll: Poll) -> Iterator[list[Answer]]:  # noqa: ARG002
        return _computed(tasks, work, poll)

    def overlapped(
        self,
        session: Any,  # noqa: ARG002
        tasks: Sequence[Numbered],
        work: Work,
        poll: Poll,
        notes: list[str],
    ) -> Iterator[list[Answer]]:
        notes.append(f"computed in this process: {self._reason}")
        return _computed(tasks, work, poll)

    def checked(self, key: bytes) -> str:  # noqa: ARG002
        raise Uncapturable(self._reason)

    def named(self, text: str, columns: Sequence[Column]) -> Sequence[Column]:  # noqa: ARG002
        raise Uncapturable(self._reason)

    def evaluated(self, *_: Any) -> tuple[LogicalType, Partial, int]:
        raise Uncapturable(self._reason)


def _computed(tasks: Sequence[Numbered], work: Work, poll: Poll) -> Iterator[list[Answer]]:
    from capture.compute.local import computed

    return computed(tasks, work, poll)


@cache
def cluster() -> Cluster:
    """The cluster of this build; a `NoCluster` without one."""
    try:
        loaded: Cluster = CLUSTERS.load(SPARK)()
    except InvalidArgument as missing:
        log.warning("%s; captures are computed in this process", missing)
        return NoCluster(str(missing))
    return loaded
