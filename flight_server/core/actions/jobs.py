"""Actions on jobs: for callers that wait for them, and for the workers that run them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from flight_server.core.actions.registry import Call, action
from flight_server.core.part import Results
from flight_server.core.wire.action_bodies import (
    FinishedLease,
    LeaseKind,
    ReportedListing,
    check_engines,
    parse_body,
    split_body,
)
from flight_server.core.wire.lag import Read
from flight_server.core.writes import ingest
from store.duckdb.segment_files import Written
from store.model.errors import (
    Cancelled,
    Conflict,
    InvalidField,
    ShuttingDown,
    StatflightError,
    to_json,
)
from store.model.puts import Listing, PutMode
from store.model.structs import Number, SnapshotId, Struct, Text, Truth, describe
from store.queue.job_store import ENDED, unknown_job


class _JobBody(Struct):
    job_id: Text


class _JobRead(Read, kw_only=True):
    job_id: Text


def _job(call: Call, job_id: str, *scopes: str) -> dict[str, Any]:
    """Finds a job, and checks that the caller has one of the scopes.

    Raises:
        NotFound: There is no such job, or it is of a table that is hidden from the caller.
        PermissionDenied: The caller has none of the scopes.
    """
    job = call.app.queue.get(job_id)
    name = (job["table_catalog"], job["table_schema"], job["table_name"])
    seen = call.principal.sees(*name) if job["table_name"] else call.principal.sees_catalog(job["table_catalog"])
    if not seen:
        raise unknown_job(job_id)
    if not any(map(call.principal.may, scopes)):
        call.app.access.require(call.principal, scopes[-1])
    return job


@action(_JobRead, "A job as it is now")
def get_job(call: Call, body: _JobRead) -> Results:
    yield _job(call, body.job_id, "stats.read", "capture.run")


class _Cancellation(Struct):
    job_id: Text | None = None
    correlation_id: str | None = None


@action(_Cancellation, "Cancels a job, or what the caller's calls of this id capture; what has ended stays as it is")
def cancel_job(call: Call, body: _Cancellation) -> Results:
    match body.job_id, body.correlation_id:
        case str(job_id), None:
            yield call.app.queue.cancel(_job(call, job_id, "capture.run")["job_id"])
        case None, str(name):
            call.app.access.require(call.principal, "capture.run")
            yield {"correlation_id": name, "cancelled": call.app.captures.cancel(call.principal.name, name)}
        case _:
            raise InvalidField(
                "job_id",
                "or a correlation_id must be given, and not both",
                expected="the id of a job, or a correlation_id",
                actual=body.job_id,
            )


@action(_JobRead, "Waits until a job has ended")
def wait_job(call: Call, body: _JobRead) -> Results:
    job_id = _job(call, body.job_id, "stats.read", "capture.run")["job_id"]
    pause = 0.01
    while (job := call.app.queue.get(job_id))["state"] not in ENDED:
        if call.is_cancelled():
            raise Cancelled("the caller has disconnected")
        if call.app.queue.closing:
            raise ShuttingDown("the server is shutting down", hint="wait again once it is back")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    yield job


class _LeaseBody(Struct):
    worker_id: Text
    kinds: list[LeaseKind]
    wait_seconds: Number | None = None
    engines: list[dict[str, Any]] | None = None
    most: Annotated[int, Meta(ge=1, title="must be positive", description="a number of leases")] = 1


@action(_LeaseBody, "For capture workers: the next piece of work, if any")
def lease_job(call: Call, body: _LeaseBody) -> Results:
    call.app.access.require_worker(call.principal)
    wait = min(body.wait_seconds or 0.0, 60.0)
    engines = check_engines(body.engines or ())
    yield from call.app.queue.lease(body.worker_id, body.kinds, wait, engines, call.is_cancelled, body.most)


class _RenewBody(_JobBody):
    lease_token: Text
    progress: Number | None = None
    message: str | None = None
    reading: str | None = None


@action(_RenewBody, "For capture workers: prolongs a lease")
def renew_lease(call: Call, body: _RenewBody) -> Results:
    call.app.access.require_worker(call.principal)
    wanted = call.app.queue.renew(body.job_id, body.lease_token, body.progress, body.message, body.reading)
    yield {"job_id": body.job_id, "wanted": wanted}


class _ListingBody(ReportedListing):
    job_id: Text
    lease_token: Text
    base: ReportedListing | None = None
    removed: list[str] | None = None


@action(_ListingBody, "For capture workers: declares how the files of a snapshot are going to be put")
def declare_listing(call: Call, body: _ListingBody) -> Results:
    call.app.access.require_worker(call.principal)
    listing = Listing(body.snapshot_id, body.mark, removed=tuple(body.removed or ()))
    if body.base is not None:
        listing = replace(listing, base_snapshot_id=body.base.snapshot_id, base_mark=body.base.mark)
    yield {"job_id": body.job_id, "accepted": call.app.queue.drafts.declare(body.lease_token, listing)}


class _LeaseKey(_JobBody):
    lease_token: Text


@action(_LeaseKey, "For capture workers: the directory or bucket into which they may write rows of files as segments")
def segment_place(call: Call, body: _LeaseKey) -> Results:
    call.app.access.require_worker(call.principal)
    location, owner = call.app.queue.drafts.segment_place(body.lease_token)
    yield {"job_id": body.job_id, "directory": location, "owner": owner}


_Size = Annotated[int, Meta(ge=1, title="must be positive", description="a number")]


class _FileBody(_LeaseKey):
    """A file of rows of one flight at one snapshot, as it was written."""

    table: Literal["stats.files", "stats.file_columns", "stats.sketches"]
    snapshot_id: SnapshotId
    file: Text
    digest: Text
    size_bytes: _Size
    rows: _Size
    extra: Truth = False
    whole: Truth = False


@action(_FileBody, "For capture workers: puts a file of rows that they have written into the directory of segments")
def add_segment(call: Call, body: _FileBody) -> Results:
    call.app.access.require_worker(call.principal)
    mode = PutMode.REPLACE_SNAPSHOT if body.whole else PutMode.FILL if body.extra else PutMode.CAPTURE
    written = Written(body.file, body.digest, body.size_bytes, body.rows)
    call.app.queue.drafts.add_file(body.lease_token, body.table, mode, body.snapshot_id, written)
    yield {"job_id": body.job_id, "received": body.rows}


class _FinishBody(FinishedLease):
    rows: list[Any] | None = None


class _FinishesBody(Struct):
    finishes: list[FinishedLease]
    rows: list[Any] | None = None


@action(describe(_FinishBody), "For capture workers: publishes what was put under the lease and ends it")
def finish_job(call: Call, data: bytes) -> Results:
    text, streams = split_body(data)
    body = parse_body(text, _FinishBody)
    rows = [item | {"counts": None} if isinstance(item, dict) else item for item in body.rows or ()]
    (answer,) = _finish(call, [body], rows, streams)
    if isinstance(answer, StatflightError):
        raise answer
    yield {"job_id": body.job_id, "state": answer}


@action(describe(_FinishesBody), "For capture workers: ends several leases, each as finish_job does")
def finish_jobs(call: Call, data: bytes) -> Results:
    text, streams = split_body(data)
    body = parse_body(text, _FinishesBody)
    for ended, answer in zip(body.finishes, _finish(call, body.finishes, body.rows or (), streams), strict=True):
        state = {"error": to_json(answer)} if isinstance(answer, StatflightError) else {"state": answer}
        yield {"job_id": ended.job_id} | state


def _finish(
    call: Call, finishes: Sequence[FinishedLease], rows: Sequence[Any], streams: memoryview
) -> list[str | StatflightError]:
    """Validates the rows sent with the ends of leases, before any is stored; then ends the leases."""
    call.app.access.require_worker(call.principal)
    queue = call.app.queue
    parts = [
        part
        for item in ingest.with_streams(rows, streams)
        for part in ingest.inline(item, len(finishes), call.principal, call.app.policy, call.is_cancelled)
    ]
    for ended in finishes:
        with contextlib.suppress(Conflict):  # the lease is lost, as the answer to its finish says
            for listing in ended.listings:
                queue.drafts.declare(ended.lease_token, Listing(listing.snapshot_id, listing.mark))
    for at, put, whole in parts:
        with contextlib.suppress(Conflict):
            queue.drafts.add(finishes[at].lease_token, put, whole, few=True)
    # the result of an inspection has all tables of a lake: it is not copied
    bodies = (msgspec.to_builtins(msgspec.structs.replace(ended, result=None)) for ended in finishes)
    return queue.finish([body | {"result": ended.result} for body, ended in zip(bodies, finishes, strict=True)])


class _LeaseTokens(Struct):
    lease_tokens: list[str]


@action(_LeaseTokens, "For capture workers: gives back leases of captures that have not begun")
def return_leases(call: Call, body: _LeaseTokens) -> Results:
    call.app.access.require_worker(call.principal)
    yield {"returned": call.app.queue.give_back(body.lease_tokens)}
