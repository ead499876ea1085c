"""The capture worker: a Flight client that leases work, runs connectors and engines, and puts their rows.

It owns no database handle: it may be killed at any time, and its work is queued again when the leases expire. Threads
of one process serve different kinds of work, so that an inspection never waits behind a long scan; they share one
Spark session.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from capture.cluster import Session, cluster
from capture.connectors.progress import announcing
from capture.engines import described
from capture.registry import Registry
from flight_server.client.connection import Connection
from flight_server.worker.costs import Costs
from flight_server.worker.lease_keeper import ACTION_SECONDS, LeaseKeeper, Renewals
from flight_server.worker.lease_work import LeaseWork
from flight_server.worker.reports import Ended, send
from flight_server.worker.slots import Slot
from flight_server.worker.stored_together import StoredTogether
from flight_server.worker.turns import Turns
from flight_server.worker.unreached import Unreached
from store.model.errors import StatflightError, UpstreamError, first_line, may_pass, to_json

log = logging.getLogger("statflight.worker")

WAIT_SECONDS: Final = 20.0
STALL_SECONDS: Final = 600.0
REPORTS: Final = 2  # calls at once that report captures, so that a long commit does not delay all others
MAX_LEFT_BEHIND: Final = 8
ROLES: Final = (("control",), ("sync", "control"), ("sync",), ("light",), ("job",), ("watch",), ("publish",))


class Worker:
    """Threads that lease and work. A thread that hangs in a connector is replaced, and its lease given back.

    Args:
        stall_seconds: Time without progress after which work counts as hanging.
        id: Its name for the server; None makes one up.
    """

    def __init__(
        self,
        server: Connection,
        registry: Registry,
        stall_seconds: float = STALL_SECONDS,
        spark: Session | None = None,
        id: str | None = None,
    ):
        self.server, self.registry, self.stall_seconds = server, registry, stall_seconds
        self.spark = spark or cluster().session()
        self.id = id or f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.stopping = threading.Event()
        self.left_behind = 0
        self._engines = described(registry.engines)
        self._slots: list[Slot] = []
        self._reports = ThreadPoolExecutor(REPORTS, "reports")
        self._renewals, self._turns = Renewals(server), Turns()
        self.costs = Costs(server)
        self._lease_work = LeaseWork(server, registry, self.spark, self.costs, self._turns)
        self._unreached = Unreached()

    def start(self, roles: Sequence[Sequence[str]]) -> None:
        """Starts a thread for each role.

        Args:
            roles: Kinds of leases that a thread asks for, in order.
        """
        for kinds in roles:
            slot = Slot(kinds)
            self._slots.append(slot)
            threading.Thread(target=self._run, args=(slot,), daemon=True, name="-".join(kinds)).start()

    def look_after(self) -> None:
        """Gives back leases behind a long capture, reports those before it, and replaces threads that hang; called
        periodically. When too many hang, the worker stops."""
        for slot in list(self._slots):
            if slot.is_slow():
                self._give_back(slot)
            if slot.is_due(is_working=slot.keeper is not None):
                self._report(slot)
            keeper = slot.keeper
            if keeper is None or time.monotonic() - keeper.touched < self.stall_seconds:
                continue
            slot.abandoned = True
            self._slots.remove(slot)
            keeper.stop()
            self.left_behind += 1
            error = UpstreamError(f"no sign of life for {self.stall_seconds:.0f} s", code="STALLED")
            log.error("%s %s: %s", keeper.lease["kind"], keeper.lease["job_id"], error)
            self._report(slot)
            self._send([Ended(keeper, {"error": to_json(error), "message": str(error)})])
            if self.left_behind > MAX_LEFT_BEHIND:
                self.stopping.set()
            elif slot.kinds:
                self.start([slot.kinds])

        self._lease_work.connectors.close_old()
        self.costs.send()

    def _run(self, slot: Slot) -> None:
        """Leases and works; no error ends the thread, and an unreachable server is waited for."""
        away = 0.0
        while not (self.stopping.is_set() or slot.abandoned):
            try:
                leases = self.server.act(
                    "lease_job",
                    {
                        "worker_id": self.id,
                        "kinds": list(slot.kinds),
                        "wait_seconds": WAIT_SECONDS,
                        "engines": self._engines,
                        "most": slot.most,
                    },
                    timeout=WAIT_SECONDS + 30,
                )
                away = 0.0
                self._unreached.succeeded()
                slot.take(leases)
                slot.together = StoredTogether(self.server, leases, self._turns)
                while not (self.stopping.is_set() or slot.abandoned) and (lease := slot.next()) is not None:
                    if lease["kind"] == "watch":
                        self._watch(lease)
                    else:
                        self._work(slot, lease)
                slot.together = None
                self._give_back(slot)
            except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError) as refusal:
                log.error("the server refuses this worker: %s", first_line(refusal, 500))
                self.stopping.set()
                return
            except (pa.ArrowException, OSError) as error:
                self._unreached.failed(error)
                away = min(2.0, away * 2 or 0.2)
                self.stopping.wait(away)
            except BaseException as error:  # not even a library's panic ends a thread
                log.error("%s in a worker's thread: %s", type(error).__name__, first_line(error, 500))
                away = min(2.0, away * 2 or 0.2)
                self.stopping.wait(away)

    def _watch(self, lease: Mapping[str, Any]) -> None:
        """Inspects a lake in a thread of its own, so that one that hangs delays no other."""
        slot = Slot(())
        slot.keeper = LeaseKeeper(lease, self._renewals)
        self._slots.append(slot)

        def run() -> None:
            try:
                self._work(slot, lease)
            finally:
                with contextlib.suppress(ValueError):  # it hung, and was given up
                    self._slots.remove(slot)

        catalog = lease["payload"]["connector"]["catalog"]
        threading.Thread(target=run, daemon=True, name=f"watch-{catalog}").start()

    def _give_back(self, slot: Slot) -> None:
        """Gives back the leases that a slot has not begun, for other workers."""
        if tokens := slot.drop():
            with contextlib.suppress(pa.ArrowException, OSError):  # then the leases run out
                self.server.act("return_leases", {"lease_tokens": tokens}, ACTION_SECONDS)

    def _work(self, slot: Slot, lease: Mapping[str, Any]) -> None:
        work = self._lease_work
        works = {"control": work.inspect, "watch": work.inspect, "publish": work.publish}
        if slot.keeper is None:
            slot.keeper = LeaseKeeper(lease, self._renewals)
        keeper = slot.keeper
        keeper.start()
        try:
            with (
                self.costs.counting(lease),
                announcing(keeper.announce) if lease.get("lost") else contextlib.nullcontext(),
            ):
                body = works.get(lease["kind"], work.capture)(slot, lease)
        except StatflightError as error:
            body = {"error": to_json(error), "message": str(error)}
        except BaseException as error:  # any bug or panic of a library is reported to the job and logged
            log.error("%s in %s %s: %s", type(error).__name__, lease["kind"], lease["job_id"], error)
            reason = UpstreamError(f"the worker failed: {type(error).__name__}: {first_line(error, 500)}")
            reason.retryable = may_pass(error)
            body = {"error": to_json(reason), "message": str(reason)}
        finally:
            slot.keeper = None
        if slot.abandoned:
            keeper.stop()
        elif lease["kind"] in works:
            self._send([Ended(keeper, body)])
        else:  # the next capture need not wait until this one is stored, but until those before it are
            slot.end(Ended(keeper, body))
            if slot.is_due():
                if slot.report is not None and slot.is_full():
                    wait([slot.report])
                self._report(slot)

    def _report(self, slot: Slot) -> None:
        """Reports finished captures of a slot from another thread; after a call that is under way those that ended
        until then."""
        slot.is_wanted = True
        if slot.report is None or slot.report.done():
            slot.report = self._reports.submit(self._send_due, slot)

    def _send_due(self, slot: Slot) -> None:
        while slot.is_due(is_working=True):  # else a call would have the one or two that ended during the last
            self._send(slot.take_ended())

    def _send(self, ended: Sequence[Ended]) -> None:
        try:
            send(self.server, ended, self.stopping)
        except BaseException as error:  # their leases run out
            log.error("%s while captures are finished: %s", type(error).__name__, error)
