"""A writer that is harmed, round after round, until the standby takes over: nothing acknowledged is lost, two writers
never acknowledge at a time, and no server that is read goes back.

STATFLIGHT_KILL_ROUNDS (1) is the number of rounds of each kind of harm; STATFLIGHT_KILL_SEED makes them others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from store.duckdb.database import Database
from store.places import open_place
from store.replication import restore as restoring
from store.replication.log import Log
from tests.flight_server.live_server import Client, eventually
from tests.integration.fault_proxy import FaultProxy, fault_proxy
from tests.integration.replica_servers import LEASE_SECONDS, Server, aws_variables, row
from tests.integration.small_disk import SmallDisk
from tests.integration.wall_clock import WallClock, can_compile, compiled

ROUNDS = int(os.environ.get("STATFLIGHT_KILL_ROUNDS", "1"))
SEED = int(os.environ.get("STATFLIGHT_KILL_SEED", "27"))
SHIPPED_SECONDS = 3.0  # by then a write is shipped: 1, and what a busy machine adds
_DAY = 86_400


class Machine:
    """A server with its own disk, clock and way to the place, where the kind of harm needs them.

    Args:
        rounds: The test.
        name: Its directory.
        flags: Flags of the server; `{}` is the place.
    """

    def __init__(self, rounds: Rounds, name: str, *flags: str):
        self.path, self.url, env = rounds.path / name, rounds.url, {}
        self._ending = contextlib.ExitStack()
        rounds.machines.append(self)
        if rounds.harm is filled:
            self.disk = SmallDisk(self.path, 256)
            self._ending.callback(self.disk.remove)
        else:
            self.path.mkdir()
        if rounds.harm is partitioned:
            self.reach = rounds.path / f"{name}-reach"
            self.reach.symlink_to(self.url)
            self.url = str(self.reach)
        elif rounds.harm is slowed:
            self.proxy = self._ending.enter_context(fault_proxy(os.environ["AWS_ENDPOINT_URL"]))
            env = {"AWS_ENDPOINT_URL": self.proxy.url}
        elif rounds.harm is jumped:
            self.clock = WallClock(rounds.library, self.path / "clock")
            env = self.clock.env
        self.server = Server(
            self.path / "stats.duckdb",
            rounds.path / f"{name}.log",
            *(self.url if flag == "{}" else flag for flag in flags),
            durable=rounds.is_durable,
            storm=rounds.harm is stormed,
            env=env,
        )
        self._ending.callback(self.server.end)

    def signal(self, number: int) -> None:
        self.server.signal(number)

    def end(self) -> None:
        self._ending.close()
        shutil.rmtree(self.path)


class Rounds:
    """All machines of a test, and what their servers have acknowledged."""

    def __init__(self, harm: Harm, is_durable: bool, path: Path, url: str):
        self.harm, self.is_durable, self.path, self.url = harm, is_durable, path, url
        self.chance, self.numbers = random.Random(SEED), itertools.count()
        self.acknowledged: dict[int, str] = {}  # number of a row → the server
        self.times: dict[int, float] = {}
        self.ended = 0.0  # when the writer was killed
        self.machines: list[Machine] = []
        if harm is filled:
            self.disk = SmallDisk(Path(url), 4096)
        elif harm is not slowed:
            Path(url).mkdir()
        if harm is jumped:
            self.library = compiled(path)
        self.writer: Machine
        self.standby: Machine
        self.follower: Machine

    def begin(self) -> None:
        self.writer = Machine(self, "0", "--replicate-to", "{}")
        self.follower = Machine(self, "follower", "--follow", "{}")

    def end(self) -> None:
        for machine in self.machines:
            machine.end()
        if self.harm is filled:
            self.disk.remove()

    def acknowledges(self, machine: Machine) -> None:
        """Waits until a server has acknowledged one more put."""
        before = len(self.numbers_of(machine))
        eventually(lambda: len(self.numbers_of(machine)) > before)

    def numbers_of(self, machine: Machine) -> list[int]:
        return [number for number, uri in list(self.acknowledged.items()) if uri == machine.server.uri]

    def kill(self) -> None:
        self.ended = time.monotonic()
        self.writer.signal(signal.SIGKILL)

    def sleep(self, least: float, most: float) -> None:
        time.sleep(self.chance.uniform(least, most))

    @contextlib.contextmanager
    def putting(self) -> Iterator[None]:
        """Puts one row after the other to each server in turn; records which server acknowledged which, and when."""
        uris, stop = [self.writer.server.uri, self.standby.server.uri], threading.Event()

        def run() -> None:
            with contextlib.ExitStack() as closing:
                clients = [closing.enter_context(Client(uri)) for uri in uris]
                while not stop.wait(0.05):
                    for client in clients:
                        client.timeout = 2.0
                        number = next(self.numbers)
                        with contextlib.suppress(pa.ArrowException, OSError):
                            client.put("stats.tables", row(number))
                            self.acknowledged[number], self.times[number] = client.uri, time.monotonic()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextlib.contextmanager
def never_going_back(server: Server) -> Iterator[set[str]]:
    """Reads a server over and over: neither its generation nor its rows may go back. Yields the rows that it had."""
    stop, seen, wrong = threading.Event(), set(), []

    def run() -> None:
        generation = 0
        with Client(server.uri) as client:
            client.timeout = 1.0
            while not stop.wait(0.25) and not wrong:
                with contextlib.suppress(pa.ArrowException, OSError):
                    now = client.get({"table": "sys.replication"})["generation"][0].as_py() or 0
                    rows = names(client)
                    if now < generation or seen - rows:
                        wrong.append(f"generation {now} after {generation}, without {sorted(seen - rows)}")
                    generation = now
                    seen.update(rows)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
    assert not wrong


def names(client: Client) -> set[str]:
    return set(client.get({"table": "stats.tables", "columns": ["table_name"]})["table_name"].to_pylist())


# Kinds of harm: each ends the writer's lease, now or after a while, and is healed once the standby acknowledges.


@contextlib.contextmanager
def killed(rounds: Rounds) -> Iterator[None]:
    rounds.kill()
    yield


@contextlib.contextmanager
def paused(rounds: Rounds) -> Iterator[None]:
    rounds.writer.signal(signal.SIGSTOP)
    yield
    rounds.writer.signal(signal.SIGCONT)


@contextlib.contextmanager
def partitioned(rounds: Rounds) -> Iterator[None]:
    """The writer's way to the place is gone."""
    rounds.writer.reach.unlink()
    yield
    rounds.writer.reach.symlink_to(rounds.url)


@contextlib.contextmanager
def slowed(rounds: Rounds) -> Iterator[None]:
    """Requests to the bucket take long, or are done after the lease, or done without an answer."""
    proxies: list[FaultProxy] = [rounds.writer.proxy, rounds.standby.proxy]
    match rounds.chance.randrange(3):
        case 0:
            for proxy in proxies:
                proxy.delay = rounds.chance.uniform(0.1, 0.4)
            rounds.acknowledges(rounds.writer)
            rounds.sleep(0, 1)
            rounds.kill()
        case 1:
            proxies[0].delay = LEASE_SECONDS + rounds.chance.uniform(0, 3)
        case _:
            proxies[0].is_mute = True
            rounds.sleep(0.2, 1.5)
            proxies[0].is_mute = False
            rounds.acknowledges(rounds.writer)
            rounds.kill()
    yield
    for proxy in proxies:
        proxy.delay = 0.0


@contextlib.contextmanager
def filled(rounds: Rounds) -> Iterator[None]:
    """The writer's disk is full, or the standby's, or the place's."""
    match rounds.chance.randrange(4):
        case 0:
            rounds.writer.disk.fill()
            rounds.sleep(0.2, 1)
            if rounds.chance.randrange(2):
                rounds.writer.disk.free()
                rounds.acknowledges(rounds.writer)
        case 1:
            rounds.disk.fill()
            rounds.sleep(0.5, 1.5 * LEASE_SECONDS)
            rounds.disk.free()
            before = len(rounds.acknowledged)
            eventually(lambda: len(rounds.acknowledged) > before)
        case 2:
            rounds.standby.disk.fill()
            rounds.sleep(0.5, 2)
            rounds.standby.disk.free()
        case _:
            rounds.standby.disk.fill()
            rounds.sleep(0, 1)
            rounds.kill()
            time.sleep(LEASE_SECONDS + 1)  # the lease is over
            rounds.standby.disk.free()
    rounds.kill()
    yield


@contextlib.contextmanager
def stormed(rounds: Rounds) -> Iterator[None]:
    """The writer makes a base every few commits, and the standby may sleep meanwhile."""
    is_asleep = rounds.chance.randrange(2)
    if is_asleep:
        rounds.standby.signal(signal.SIGSTOP)
    rounds.sleep(0.5, 2)
    rounds.kill()
    if is_asleep:
        rounds.sleep(0, 1.5 * LEASE_SECONDS)
        rounds.standby.signal(signal.SIGCONT)
    yield


@contextlib.contextmanager
def jumped(rounds: Rounds) -> Iterator[None]:
    """The wall clocks are set forward and back by up to 30 days, then the writer is killed or paused."""
    for _ in range(3):
        for machine in (rounds.writer, rounds.standby, rounds.follower):
            machine.clock.jump(rounds.chance.randint(-30 * _DAY, 30 * _DAY))
        rounds.sleep(0, 0.7)
        rounds.acknowledges(rounds.writer)
    if rounds.chance.randrange(2):
        rounds.kill()
        yield
    else:
        with paused(rounds):
            for _ in range(2):
                rounds.standby.clock.jump(rounds.chance.randint(-30 * _DAY, 30 * _DAY))
                rounds.sleep(0, LEASE_SECONDS / 2)
            yield


def one_round(rounds: Rounds) -> tuple[int, list[int]]:
    """Harms the writer until the standby has taken over; the first row that this one has acknowledged, and those that
    the former one has."""
    writer, standby = rounds.writer, rounds.standby
    with (
        never_going_back(standby.server),
        never_going_back(rounds.follower.server) as followed,
        Client(standby.server.uri) as client,
    ):
        with rounds.putting():
            rounds.acknowledges(writer)
            rounds.sleep(0, 0.5)
            with rounds.harm(rounds):
                eventually(lambda: standby.server.role() == "WRITER", ignoring=(pa.ArrowException,))
                rounds.acknowledges(standby)
            assert writer.server.process.wait(30) in (1, -signal.SIGKILL), writer.server.errors()
        eventually(lambda: names(client) <= followed)
    return min(rounds.numbers_of(standby)), rounds.numbers_of(writer)


Harm = Callable[[Rounds], contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("harm", "is_durable"),
    [
        (killed, True),
        (killed, False),
        (paused, True),
        (partitioned, True),
        (slowed, True),
        (filled, True),
        (stormed, True),
        (jumped, True),
    ],
    ids=["killed", "killed-local", "paused", "partitioned", "slowed", "filled", "stormed", "jumped"],
)
def test_nothing_acknowledged_is_lost_and_never_two_writers_acknowledge(
    request, tmp_path, monkeypatch, harm, is_durable
):
    """Without durability `replicated`, nothing that is older than the shipping interval is lost."""
    url = str(tmp_path / "replica")
    if harm is slowed:
        aws = request.getfixturevalue("aws")
        url = f"s3://{aws.bucket}/replica"
        for name, value in aws_variables(aws.endpoint).items():
            monkeypatch.setenv(name, value)
    elif harm is jumped and not can_compile():
        pytest.skip("needs a C compiler")
    rounds = Rounds(harm, is_durable, tmp_path, url)
    lost: set[int] = set()  # that may be lost
    began = time.monotonic()
    try:
        rounds.begin()
        for number in range(1, ROUNDS + 1):
            rounds.standby = Machine(rounds, str(number), "--replicate-to", "{}", "--standby")
            first, of_writer = one_round(rounds)
            assert max(of_writer) < first, "two servers have acknowledged"
            if not is_durable:
                lost.update(at for at in of_writer if rounds.times[at] > rounds.ended - SHIPPED_SECONDS)
            wanted = {f"t{at}" for at in rounds.acknowledged if at not in lost}
            with Client(rounds.standby.server.uri) as client:
                assert wanted - names(client) == set(), "what was acknowledged is lost"
            rounds.machines.remove(rounds.writer)
            rounds.writer.end()
            rounds.writer = rounds.standby
            print(f"{harm.__name__} {number}: {len(wanted)} rows, {time.monotonic() - began:.0f} s", flush=True)
        path = tmp_path / "restored.duckdb"
        restoring.restore(Log(open_place(url)), path)
        database = Database(path)
        kept = {name for (name,) in database.rows("SELECT table_name FROM tables")}
        database.close()
        assert wanted - kept == set()
    finally:
        rounds.end()
