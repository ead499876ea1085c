"""The lease: who writes, and until when.

Leases are objects `lease/<number>`; the greatest number counts. To take or renew one is to create the next number,
which fails if somebody else has. A lease that is then found to have a successor does not count either: its creator
slept while others went on. The writer counts its time from before it creates a lease, others from after they have
first seen it, each by its own clock that never jumps: a writer stops before anybody else begins.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from store.places import Place
from store.replication.log import Damaged

FOLDER: Final = "lease"
_KEPT: Final = 3  # newest leases that are not deleted
MARGIN: Final = 0.1  # part of the lease for which its holder no longer writes, for clocks that run unequally fast


def clock() -> float:
    """Seconds of a clock that never jumps and goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class Lease:
    """A lease.

    Attributes:
        epoch: Number of the writer; each start or takeover has the next one.
        holder: Id of the holder's process and file.
        released: True if the writer has ended.
    """

    number: int
    epoch: int
    holder: str
    writer: str
    seconds: float
    generation: int = 0
    released: bool = False


def newest(place: Place) -> Lease | None:
    """The lease that counts; None if there was never one.

    Raises:
        Damaged: It cannot be read.
    """
    while names := place.names(FOLDER):
        if (data := place.read(names[-1])) is not None:
            try:
                return Lease(**json.loads(data))
            except (ValueError, TypeError):
                raise Damaged(f'replica "{place.url}": "{names[-1]}" is damaged') from None
    return None


class Keeper:
    """The writer's own lease.

    Args:
        lease: The lease that was created for it by `take`.
        until: The time of `now` at which it ends.
        now: The clock.
    """

    def __init__(self, place: Place, lease: Lease, until: float, now: Callable[[], float] = clock):
        self._place, self._now = place, now
        self.lease, self._until, self._writer = lease, until, lease.writer
        self._renewing = threading.Lock()
        self.successor: Lease | None = None  # somebody else's: this one will never count again

    @property
    def is_valid(self) -> bool:
        """True while nobody else may write."""
        return self.successor is None and self._now() < self._until

    def renew(self, generation: int, *, writer: str | None = None, released: bool = False) -> None:
        """Renews the lease, or ends it.

        Args:
            writer: The writer's address, None to leave it.

        Raises:
            UpstreamError: The place is out of reach; the lease lasts as long as it did.
        """
        with self._renewing:
            self._writer = self._writer if writer is None else writer
            if self.successor is None:
                self._renew(generation, released)

    def _renew(self, generation: int, released: bool) -> None:
        own = replace(
            self.lease, number=self.lease.number + 1, generation=generation, released=released, writer=self._writer
        )
        taken = create(self._place, own, self._now)
        if taken is not None:
            self.lease, self._until = own, taken
            return
        found = newest(self._place)
        if found is None or found.holder != own.holder:
            self.successor = found
        else:  # an attempt that had failed was stored after all; the next one goes on from there
            self.lease = found


def create(place: Place, lease: Lease, now: Callable[[], float] = clock) -> float | None:
    """Creates a lease; the time until which its holder may write, None if somebody else was faster."""
    began = now()
    if not place.create(f"{FOLDER}/{lease.number:012}", json.dumps(asdict(lease)).encode()):
        return None
    names = place.names(FOLDER)
    if not names or names[-1] != f"{FOLDER}/{lease.number:012}":
        return None
    for name in names[:-_KEPT]:
        place.delete(name)
    return began + lease.seconds * (1 - MARGIN)
