"""Ctrl-C while a capture is waited for, by the command and by the Python client, and the end of a giant publication."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT, eventually, file_columns, serving

LIBRARY = """
import sys, time
import statflight
with statflight.connect(sys.argv[1]) as client:
    try:
        client.capture(["lake.default.t"])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A lake of two tables of many files, connected to a server without a worker."""
    directory = tmp_path_factory.mktemp("interrupts")
    for name in ("t", "u"):
        (directory / "lake" / name).mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), directory / "lake" / name / "f.parquet")
    with serving(directory, "--workers", 0, "--watch-seconds", 0) as server, server.connect() as client:
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(directory / "lake")})
        control = subprocess.Popen([STATFLIGHT, "worker", "--server", server.uri], stderr=subprocess.DEVNULL)
        try:
            client.act("discover", {"catalog": "lake"})
        finally:
            control.terminate()
            control.wait(30)
        yield server


def jobs(client) -> list[dict]:
    return [job for job in client.get({"table": "sys.capture_jobs"}).to_pylist() if job["mode"] == "SYNC"]


class Polling:
    """A worker's lease calls, so that the server counts a worker; it takes leases and does nothing."""

    def __init__(self, server):
        self.ended = threading.Event()
        self.leases: list[dict] = []
        self.thread = threading.Thread(target=self.run, args=(server,), daemon=True)

    def run(self, server) -> None:
        with server.connect() as client:
            body = {"worker_id": "w", "kinds": ["sync", "light", "control"], "wait_seconds": 1}
            while not self.ended.is_set():
                for lease in client.act("lease_job", body):
                    if lease["kind"] == "control":
                        key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
                        client.act("finish_job", key | {"error": {"code": "X", "message": "x", "status": "UPSTREAM"}})
                    else:
                        self.leases.append(lease)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(30)


@pytest.mark.parametrize("command", ["command", "library"])
def test_interrupt_cancels_the_capture_on_the_server(lake, command):
    argv = {
        "command": [STATFLIGHT, "capture", "lake.default.t", "lake.default.u", "--server", lake.uri],
        "library": [sys.executable, "-c", LIBRARY, lake.uri],
    }[command]
    expected = 2 if command == "command" else 1
    with lake.connect() as client, Polling(lake):
        before = {job["job_id"] for job in jobs(client)}

        def own() -> list[dict]:
            return [job for job in jobs(client) if job["job_id"] not in before]

        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            eventually(lambda: [job["state"] for job in own()] == ["RUNNING"] * expected)
            process.send_signal(signal.SIGINT)
            started = time.monotonic()
            eventually(lambda: [job["state"] for job in own()] == ["CANCELLED"] * expected)
            assert time.monotonic() - started < 1.5  # 1 on an idle machine
            output, _ = process.communicate(timeout=10)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130, output
        assert ("CANCELLED" if command == "command" else "interrupted") in output
        assert client.act("get_job", {"job_id": own()[0]["job_id"]})[0]["state"] == "CANCELLED"


def test_second_interrupt_ends_the_command_beside_a_server_that_does_not_answer(lake):
    with lake.connect() as client, Polling(lake):
        before = len(jobs(client))
        process = subprocess.Popen([STATFLIGHT, "capture", "lake.default.t", "--server", lake.uri])
        try:
            eventually(lambda: len(jobs(client)) > before)
            lake.process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 130
        finally:
            lake.process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.mark.parametrize("stage", ["rows", "end"])
def test_cancelled_capture_of_many_rows_frees_the_writer_and_leaves_nothing(lake, stage):
    with lake.connect() as client, lake.connect() as other, Polling(lake) as worker:
        before = len(jobs(client))
        request = {"requests": [{"table": "lake.default.t"}]}
        errors: list[Exception] = []
        asking = threading.Thread(target=errors_of, args=(other, "capture", request, errors))
        asking.start()
        eventually(lambda: len(worker.leases) == 1)
        (lease,) = worker.leases
        key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
        (wanted,) = lease["payload"]["requests"]
        rows = file_columns(300_000)
        names = {"table_catalog": "lake", "table_schema": "default", "table_name": "t"}
        for name, value in names.items():
            rows = rows.set_column(rows.column_names.index(name), name, pa.repeat(value, rows.num_rows))
        at = rows.column_names.index("snapshot_id")
        rows = rows.set_column(at, "snapshot_id", pa.repeat(wanted["snapshot_id"], rows.num_rows))
        client.timeout = 120.0

        under_way, cancelled = threading.Event(), threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            """Half of the rows, and the rest after the cancellation if that is to meet the put under way."""
            first, *rest = rows.to_batches(max_chunksize=rows.num_rows // 2)
            yield first
            under_way.set()
            if stage == "rows":
                assert cancelled.wait(60)
            yield from rest

        def put() -> None:
            command = json.dumps({"table": "stats.file_columns", "draft": lease["lease_token"]}).encode()
            try:
                writer, reader = client.flight.do_put(
                    flight.FlightDescriptor.for_command(command), rows.schema, client.options()
                )
                with writer:
                    for batch in batches():
                        writer.write_batch(batch)
                    writer.done_writing()
                    reader.read()
            except (pa.ArrowException, flight.FlightError) as error:
                errors.append(error)

        putting = threading.Thread(target=put)
        putting.start()
        assert under_way.wait(60)
        if stage == "end":
            putting.join()
        with lake.connect() as canceller:
            with pytest.raises(pa.ArrowInvalid, match="job_id: or a correlation_id must be given, and not both"):
                canceller.act("cancel_job", {"job_id": lease["job_id"], "correlation_id": "mine"})
            canceller.act("cancel_job", {"job_id": lease["job_id"]})
            cancelled.set()
            started = time.monotonic()
            putting.join(60)
            outcome = {
                "outcome": "CAPTURED",
                "engine_id": "e",
                "detail": "",
                "attributes": {},
                "snapshot_id": wanted["snapshot_id"],
                "storage_id": "table",
            }
            errors_of(client, "finish_job", key | {"outcomes": [outcome]}, errors)
            canceller.put(
                {"table": "stats.tables", "mode": "upsert"},
                pa.Table.from_pylist(
                    [{"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "row_count": 5}]
                ),
            )
            assert time.monotonic() - started < 5
            asking.join(30)
            assert len(jobs(canceller)) == before + 1
            assert len(errors) == (3 if stage == "rows" else 2), errors
            assert canceller.read({"table": "stats.file_columns"}).num_rows == 0


def errors_of(client, action: str, body: dict, errors: list[Exception]) -> None:
    try:
        client.act(action, body)
    except (pa.ArrowException, flight.FlightError) as error:
        errors.append(error)


def test_repeated_capture_goes_on_after_a_restart_of_the_server(tmp_path):
    (tmp_path / "lake" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "lake" / "t" / "f.parquet")
    output = tmp_path / "output"
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        command = [STATFLIGHT, "capture", "lake.*", "--every", "0.5s", "--server", server.uri]
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        eventually(lambda: output.read_text().count("lake.default.t: ") > 1)
    try:
        eventually(lambda: "; tried again in 0.5s" in output.read_text())
        with serving(tmp_path, "--workers", 1, "--port", server.uri.rpartition(":")[2]):
            before = output.read_text().count("lake.default.t: ")
            eventually(lambda: output.read_text().count("lake.default.t: ") > before)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
    finally:
        process.kill()
        process.wait()
