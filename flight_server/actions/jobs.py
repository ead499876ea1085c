"""Actions on jobs: for callers that wait for them, and for the workers that run them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import (
    check_decisions,
    check_engines,
    check_error,
    check_leases,
    check_object,
    check_outcomes,
    check_snapshot,
    parse_body,
    split_body,
)
from flight_server.writes import ingest
from store.history.file_listings import Listing
from store.model.errors import (
    Cancelled,
    Conflict,
    InvalidField,
    PermissionDenied,
    ShuttingDown,
    StatflightError,
    to_json,
)
from store.queue.job_store import ENDED


def _job(call: Call, body: bytes, *scopes: str) -> dict[str, Any]:
    """Finds the job named in the body, and checks that the caller has one of the scopes and sees its table."""
    job = call.app.queue.get(str(parse_body(body, {"job_id": str})["job_id"]))
    if not any(map(call.principal.may, scopes)):
        call.app.access.require(call.principal, scopes[-1])
    name = (job["table_catalog"], job["table_schema"], job["table_name"])
    seen = call.principal.sees(*name) if job["table_name"] else call.principal.sees_catalog(job["table_catalog"])
    if not seen:
        raise PermissionDenied("the job is of a table that is not among those you may use")
    return job


@action('{"job_id"}', "A job as it is now")
def get_job(call: Call, body: bytes) -> Results:
    yield _job(call, body, "stats.read", "capture.run")


@action('{"job_id"?, "correlation_id"?}',
         "Cancels a job, or what the caller's calls of this id capture; what has ended stays as it is")  # fmt: skip
def cancel_job(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {}, {"job_id": str, "correlation_id": str})
    if fields.get("job_id") is None and fields.get("correlation_id") is not None:
        call.app.access.require(call.principal, "capture.run")
        cancelled = call.app.captures.cancel(call.principal.name, fields["correlation_id"])
        yield {"correlation_id": fields["correlation_id"], "cancelled": cancelled}
        return
    job = _job(call, body, "capture.run")
    yield call.app.queue.cancel(job["job_id"])


@action('{"job_id"}', "Waits until a job has ended")
def wait_job(call: Call, body: bytes) -> Results:
    job_id = _job(call, body, "stats.read", "capture.run")["job_id"]
    pause = 0.01
    while (job := call.app.queue.get(job_id))["state"] not in ENDED:
        if call.is_cancelled():
            raise Cancelled("the caller has disconnected")
        if call.app.queue.closing:
            raise ShuttingDown("the server is shutting down", hint="wait again once it is back")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    yield job


@action('{"worker_id", "kinds", "wait_seconds"?, "engines"?, "most"?}',
         "For capture workers: the next piece of work, if any")  # fmt: skip
def lease_job(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"worker_id": str, "kinds": list}, {"wait_seconds": float, "engines": list, "most": int})
    call.app.access.require_worker(call.principal)
    wait = min(float(fields.get("wait_seconds") or 0.0), 60.0)
    most = 1 if fields.get("most") is None else fields["most"]
    if most < 1:
        raise InvalidField("most", "must be positive", expected="a number of leases", actual=most)
    yield from call.app.queue.lease(
        fields["worker_id"], check_leases(fields["kinds"]), wait, check_engines(fields.get("engines") or []),
        call.is_cancelled, most,
    )  # fmt: skip


@action('{"job_id", "lease_token", "progress"?, "message"?}', "For capture workers: prolongs a lease")
def renew_lease(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"job_id": str, "lease_token": str}, {"progress": float, "message": str})
    call.app.access.require_worker(call.principal)
    wanted = call.app.queue.renew(
        fields["job_id"], fields["lease_token"], fields.get("progress"), fields.get("message")
    )
    yield {"job_id": fields["job_id"], "wanted": wanted}


@action('{"job_id", "lease_token", "snapshot_id", "mark", "base"?, "removed"?}',
         "For capture workers: declares how the files of a snapshot are going to be put")  # fmt: skip
def declare_listing(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"job_id": str, "lease_token": str, **_LISTED}, {"base": dict, "removed": list})
    call.app.access.require_worker(call.principal)
    removed = fields.get("removed") or []
    if not all(isinstance(path, str) for path in removed):
        raise InvalidField("removed", "must be paths", expected="a list of texts", actual=removed)
    listing = replace(_listing(fields), removed=tuple(removed))
    if fields.get("base") is not None:
        base = check_object(fields["base"], {"snapshot_id": int, "mark": str}, {})
        listing = replace(listing, base_snapshot_id=base["snapshot_id"], base_mark=base["mark"])
    accepted = call.app.queue.declare_listing(fields["lease_token"], listing)
    yield {"job_id": fields["job_id"], "accepted": accepted}


_LISTED: Final[Mapping[str, type]] = {"snapshot_id": int, "mark": str}


def _listing(fields: Mapping[str, Any]) -> Listing:
    return Listing(int(check_snapshot(fields["snapshot_id"])), fields["mark"])


@action('{"job_id", "lease_token", "outcomes"?, "decisions"?, "result"?, "error"?, "message"?, "rows"?, "listings"?,'
         ' "final"?}',
         "For capture workers: publishes what was put under the lease and ends it")  # fmt: skip
def finish_job(call: Call, body: bytes) -> Results:
    text, streams = split_body(body)
    fields = parse_body(text, _ENDS, {**_ENDING, "rows": list})
    rows = [item | {"counts": None} if isinstance(item, dict) else item for item in fields.pop("rows", None) or []]
    (answer,) = _finish(call, [fields], rows, streams)
    if isinstance(answer, StatflightError):
        raise answer
    yield {"job_id": fields["job_id"], "state": answer}


@action('{"finishes": [{"job_id", "lease_token", …}], "rows"?}',
         "For capture workers: ends several leases, each as finish_job does")  # fmt: skip
def finish_jobs(call: Call, body: bytes) -> Results:
    text, streams = split_body(body)
    fields = parse_body(text, {"finishes": list}, {"rows": list})
    finishes = [check_object(item, _ENDS, _ENDING) for item in fields["finishes"]]
    for ended, answer in zip(finishes, _finish(call, finishes, fields.get("rows") or [], streams), strict=True):
        state = {"error": to_json(answer)} if isinstance(answer, StatflightError) else {"state": answer}
        yield {"job_id": ended["job_id"]} | state


_ENDS: Final[Mapping[str, type]] = {"job_id": str, "lease_token": str}
_ENDING: Final[Mapping[str, type]] = {
    "outcomes": list, "decisions": list, "result": dict, "error": dict, "message": str, "final": bool,
    "listings": list,
}  # fmt: skip


def _finish(
    call: Call, finishes: Sequence[dict[str, Any]], rows: Sequence[Any], streams: memoryview
) -> list[str | StatflightError]:
    """Validates the ends of leases and the rows sent with them, before any is stored; then ends the leases."""
    listings = []
    for fields in finishes:
        listings.append([_listing(check_object(item, _LISTED, {})) for item in fields.pop("listings", None) or ()])
        fields |= {
            "outcomes": check_outcomes(fields.get("outcomes")), "decisions": check_decisions(fields.get("decisions")),
            "error": check_error(fields.get("error")),
        }  # fmt: skip
    call.app.access.require_worker(call.principal)
    queue = call.app.queue
    parts = [
        part for item in ingest.with_streams(rows, streams)
        for part in ingest.inline(item, len(finishes), call.principal, call.app.policy, call.is_cancelled)
    ]  # fmt: skip
    for fields, declared in zip(finishes, listings, strict=True):
        with contextlib.suppress(Conflict):  # the lease is lost, as the answer to its finish says
            for listing in declared:
                queue.declare_listing(fields["lease_token"], listing)
    for at, put, whole in parts:
        with contextlib.suppress(Conflict):
            queue.add_to_draft(finishes[at]["lease_token"], put, whole, few=True)
    return queue.finish(finishes)


@action('{"lease_tokens"}', "For capture workers: gives back leases of captures that have not begun")
def return_leases(call: Call, body: bytes) -> Results:
    tokens = parse_body(body, {"lease_tokens": list})["lease_tokens"]
    if not all(isinstance(token, str) for token in tokens):
        raise InvalidField("lease_tokens", "must be tokens", expected="a list of texts", actual=tokens)
    call.app.access.require_worker(call.principal)
    yield {"returned": call.app.queue.give_back(tokens)}
