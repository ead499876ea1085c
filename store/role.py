"""The role of a server among the replicas of its database: alone, unless `store.replication` gives it another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from store.duckdb.commit import Guard, Ship
from store.duckdb.commit_log import CommitLog
from store.model.errors import ResourceExhausted, StatflightError

T = TypeVar("T")

MOST_WAIT_SECONDS: Final = 10.0
"""Time for which a read waits for a commit of another server, unless such a commit may take longer."""


class ReadOnly(StatflightError):
    """A write at a server that must not write; `params` has the writer's address."""

    code = "READ_ONLY"
    status = "UNAVAILABLE"
    retryable = True


class Lagging(ResourceExhausted):
    """The rows are older than the caller allows."""

    code = "LAGGING"


class NotThere(Lagging):
    """A commit that a read waits for has not come."""


class Role(Guard, Ship):
    """A server without replicas.

    Attributes:
        name: ALONE, WRITER, FOLLOWER or STANDBY.
        takes_writes: False if all writes are refused, and background work that would write must not run.
        tells: True if each answer has the headers of a follower.
        failures: Number of failed attempts to reach the replica.
        successor: The role that this one ends in, once it has.
        over: Why the server must end, and what to do; empty if it need not.
        holder: Name of the server among those that share its store; None for one alone.
        log: The log of commits, if the servers that share a store write one.
        shares_secrets: True if the store keeps the secrets of connectors for all of its servers.
    """

    name = "ALONE"
    takes_writes = True
    tells = False
    failures = 0
    successor: Role | None = None
    over = ""
    holder: str | None = None
    log = CommitLog()
    shares_secrets = False

    @property
    def keeps_house(self) -> bool:
        """True if this server does the periodic work on the store, which one server does for all."""
        return True

    @property
    def may_write(self) -> bool:
        """True if writes are taken now."""
        return self.takes_writes

    @property
    def lag_ms(self) -> int:
        """Age of what is served in milliseconds; 0 where all that is acknowledged is served."""
        return 0

    @property
    def generation(self) -> int | None:
        """Number of the newest commit that is served; None without a replica."""
        return None

    def row(self) -> dict[str, Any]:
        """The row of `sys.replication`."""
        return {"role": self.name, "lag_ms": self.lag_ms}

    def trouble(self) -> str:
        """The trouble of the role, for health checks; empty if there is none."""
        return ""

    def check_lag(self, max_lag_ms: int | None) -> None:
        """Refuses a read of older rows than its caller allows.

        Args:
            max_lag_ms: Milliseconds; None allows any age.

        Raises:
            Lagging: The rows served are older.
        """
        if max_lag_ms is not None and (lag := self.lag_ms) > max_lag_ms:
            raise Lagging(
                f"the rows here are {lag} ms old, and at most {max_lag_ms} ms are allowed",
                hint="read at the writer, or allow more",
                params={"lag_ms": lag},
            )

    def check_read(self, max_lag_ms: int | None, min_generation: int | None) -> None:
        """Waits for a commit that a read is to see, where others write, and refuses it if it cannot be served.

        Args:
            max_lag_ms: Greatest age of the rows, as for `check_lag`.
            min_generation: Number of the commit; None for none.

        Raises:
            Lagging: The rows served are older.
        """
        if min_generation is not None and not self.wait_for(min_generation):
            waited = f" has not come here within {self.wait_seconds:g} s" if self.wait_seconds else " is not here"
            raise NotThere(
                f"generation {min_generation}{waited}, the newest is {self.generation}",
                hint=self.row().get("last_error") or "was it taken from an answer of this store?",
                params={"generation": self.generation},
            )
        self.check_lag(max_lag_ms)

    @property
    def wait_seconds(self) -> float:
        """Most seconds for which a read waits for a commit; 0 where none can come from elsewhere."""
        return 0

    def wait_for(self, generation: int) -> bool:
        """Waits for a commit, at most `wait_seconds`.

        Returns:
            True once it is served, and where commits have no numbers, since all are served there.
        """
        return self.generation is None or self.generation >= generation

    def gone(self, holders: Collection[str | None]) -> Collection[str | None]:
        """The servers that hold jobs and will not end them.

        Args:
            holders: Names of servers besides this one.
        """
        return holders

    def read_secrets(self, catalog: str) -> str | None:  # noqa: ARG002
        """The secrets of a connector that the store keeps, as JSON; None if there are none."""
        return None

    def write_secrets(self, catalog: str, secrets: str | None) -> None:
        """Has the store keep the secrets of a connector, or remove them, with the write that runs."""

    def consistently(self, read: Callable[[], T], discard: Callable[[T], None]) -> tuple[T, int | None]:  # noqa: ARG002
        """Runs a read of which all parts see one generation.

        Args:
            read: The read; it may be run again.
            discard: Takes a result that is not used.

        Returns:
            Its result, and the generation.
        """
        return read(), self.generation

    def listening(self, address: str) -> None:
        """Called once the server listens.

        Args:
            address: Its address, for other servers to name.
        """

    def close(self) -> None:
        """Ends the role, before the database is closed."""
