"""Actions that read, back up the database, or report health."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pyarrow as pa

from flight_server.core.actions.registry import Call, action
from flight_server.core.part import Results
from flight_server.core.wire.lag import Read
from flight_server.core.wire.scan_request import check_query_id, of_command, of_json
from store.model.errors import PermissionDenied
from store.model.structs import Struct, Text


@action("a JSON command", "What DoGet answers to the command, as one Arrow IPC stream in a single result")
def read(call: Call, body: bytes) -> list[Any]:
    request = of_command(body, call.query_id)
    call.app.access.require(call.principal, "stats.read")
    call.app.role.check_read(request.max_lag_ms, request.min_generation)
    message = call.app.scanner.message(request, call.principal, call.is_cancelled, body)
    call.app.usage.read(request, call.principal)
    return [message]


class _SystemScan(Read, kw_only=True):
    query_id: Text
    table: Text
    required_columns: list[Any] | None = None
    predicates: list[Any] | None = None
    output_format: str | None = None


@action(_SystemScan, "A read of any flight as raw Arrow IPC messages (schema first), or one JSON row each", exact=True)
def scan_system_table(call: Call, scan: _SystemScan) -> Results:
    check_query_id(scan.query_id, call.query_id)
    command = {
        "table": scan.table,
        "columns": scan.required_columns,
        "predicates": scan.predicates,
        "output_format": scan.output_format,
        "query_id": scan.query_id,
    }
    request = of_json({name: value for name, value in command.items() if value is not None})
    call.app.access.require(call.principal, "stats.read")
    with call.app.scanner.reader(request, call.principal, call.is_cancelled) as batches:
        call.app.usage.read(request, call.principal)
        if request.rows:
            for batch in batches:
                yield from (row.encode() for row in batch.column(0).to_pylist())
            return
        schema = request.schema
        yield schema.serialize().to_pybytes()
        for batch in batches:
            yield (
                pa.record_batch(batch.columns, schema=schema).serialize().to_pybytes()
                if schema.names
                else (batch.serialize().to_pybytes())
            )


class _Backup(Struct):
    path: Text


@action(_Backup, "Writes a copy of the database to a new file of the server's machine, while serving")
def backup(call: Call, copy: _Backup) -> Results:
    call.app.access.require(call.principal, "admin")
    if not call.principal.sees_all:
        raise PermissionDenied("a backup needs a token for all tables", hint="its tables are limited")
    started = time.perf_counter()
    size = call.app.database.backup(copy.path)
    yield {"path": copy.path, "bytes": size, "elapsed_ms": int((time.perf_counter() - started) * 1000)}


@action(Struct, "Whether the server is well; needs no credentials", open=True)
def health(call: Call, _: Struct) -> Results:
    yield {
        **call.app.health(),
        "version": release(),
        "uptime_ms": int((time.time() - call.app.started) * 1000),
        "jobs": call.app.jobs.counts(),
    }


@cache  # reads the files of the installation
def release() -> str:
    """The server's version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("statflight")
    except PackageNotFoundError:
        return "0.1.0"
