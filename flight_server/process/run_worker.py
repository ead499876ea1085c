"""The process of a capture worker, which ends at a signal or with the server that started it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from capture.cluster import cluster
from capture.connectors.metadata import known_writers
from capture.engines import default_engines
from capture.registry import Registry
from capture.spec import Engine, FileSketches
from flight_server.client.connection import Connection
from flight_server.client.unreachable import NO_PROXY
from flight_server.core.log import configure
from flight_server.process.runtime import (
    die_with_parent,
    freeze_garbage,
    postpone_pandas,
    report_crashes,
    switch_threads_sooner,
)
from flight_server.process.signals import Signals
from flight_server.worker.loop import ROLES, Worker


def run_worker(
    server_uri: str,
    *,
    token: str | None = None,
    spark_master: str | None = None,
    tls_roots: bytes | None = None,
    inline_max_cells: int | None = None,
    control_only: bool = False,
    parent_pid: int | None = None,
    tls_cert: bytes | None = None,
    tls_key: bytes | None = None,
    log_level: str = "info",
    log_format: str = "text",
    spark_conf: Mapping[str, str] | None = None,
    engine: str = "auto",
    file_sketches: str = "auto",
    worker_id: str | None = None,
    trust_writers: str | None = None,
) -> int:
    """Works until SIGTERM or SIGINT, or until the parent process ends. Returns 0, or 1 when the server refuses the
    worker."""
    configure(log_level, log_format)
    report_crashes()
    if parent_pid is not None:
        die_with_parent()
    postpone_pandas()
    switch_threads_sooner()
    of_own: dict[str, Any] = (
        {} if parent_pid is None else {"generic_options": [NO_PROXY]}
    )  # the server is on this machine
    known_writers.trust(trust_writers.split(",") if trust_writers else ())
    spark = cluster().session(spark_master, spark_conf)
    worker = Worker(
        Connection(server_uri, token, tls_roots, tls_cert=tls_cert, tls_key=tls_key, **of_own),
        Registry(default_engines(inline_max_cells, spark, Engine(engine), FileSketches(file_sketches))),
        spark=spark,
        id=worker_id,
    )
    signals, is_stopped = Signals(signal.SIGTERM, signal.SIGINT), False
    freeze_garbage()
    worker.start((("control",), ("control",), ("watch",), ("publish",)) if control_only else ROLES)
    while not (is_stopped or worker.stopping.is_set()):
        is_stopped = signals.next(0.5) is not None
        worker.look_after()
        if parent_pid is not None and os.getppid() != parent_pid:  # the parent may have died before it was watched
            break
    worker.stopping.set()
    # threads are polling, or working under a lease that will expire: exiting loses nothing
    sys.stderr.flush()
    os._exit(0 if is_stopped or parent_pid is not None else 1)
