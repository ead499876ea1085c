"""The command jobs: the job list, and the captures of the last hour that somebody waited for."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.table_names import full_name
from flight_server.core.views import table_summary
from flight_server.faces.commands.capturing import GOOD, summary_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import misuse, tell
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.reading import FormatOption
from flight_server.faces.present import render, text
from flight_server.faces.present.render import Format
from store.model.schemas import FLIGHTS

if TYPE_CHECKING:
    from flight_server.client import StatsClient

WATCH_SECONDS: Final = 1.0
ACTIVE: Final = frozenset({"QUEUED", "RUNNING", "WAITING", "CANCELLING"})
WAITED_FOR: Final = timedelta(hours=1)  # how long a capture that somebody waited for is listed
_POLICY: Final = "policy"  # engine of decisions that capture nothing
_SCHEMA: Final = FLIGHTS["sys.capture_jobs"].schema


def jobs(
    watch: Annotated[bool, option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
    active: Annotated[bool, option("--active", help="Only those that are not finished.")] = False,
    limit: Annotated[int, option(min=1, help="Show the newest N.")] = 100,
    cancel: Annotated[
        list[str] | None, option("--cancel", metavar="JOB", help="Cancel a job instead, and say its state. Repeatable.")
    ] = None,
    format: FormatOption = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """List capture jobs, and the captures of the last hour that somebody waited for, newest first, or cancel jobs."""
    if watch and format is not Format.TABLE:
        misuse("--watch writes tables only")
    with connect(connection) as client, contextlib.suppress(KeyboardInterrupt):
        for job in cancel or ():
            tell(f"{job}: {client.actions.cancel_job(job_id=job)['state']}")
        while not cancel:
            table = client.read("sys.capture_jobs")
            ended = _waited_for(client, table.to_pylist())
            table = pa.concat_tables([table, pa.Table.from_pylist(ended, _SCHEMA)])
            table = table.sort_by([("queued_at", "descending")])
            if active:
                table = table.filter(pa.array([state in ACTIVE for state in table["state"].to_pylist()], pa.bool_()))
            table = table.slice(0, limit)
            if format is Format.TABLE:
                if watch and sys.stdout.isatty():
                    sys.stdout.write("\x1b[2J\x1b[H")  # clear, so that the table stays in place
                    sys.stdout.flush()
                _write_jobs(table)
            else:
                render.write(table, format)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


def _write_jobs(table: pa.Table) -> None:
    headers = ("job", "state", "table", "snapshot", "progress", "attempts", "queued", "message")
    rows = [
        [
            job["job_id"],
            (job["state"] or "") + (" (degraded)" if job["degraded"] else ""),
            full_name({key: job[key] or "" for key in ("table_catalog", "table_schema", "table_name")}),
            render.text_of(job["snapshot"]),
            "" if job["progress"] is None else f"{job['progress']:.0%}",
            render.text_of(job["attempts"]),
            table_summary.moment(job["queued_at"]),
            job["message"] or "",
        ]
        for job in table.to_pylist()
    ]
    text.write_text(headers, rows, whole=("job", "table"))


def _waited_for(client: StatsClient, jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Captures of the last hour that are none of these jobs, as rows like theirs, by the decisions about them."""
    recent = pc.field("decided_at") >= pa.scalar(datetime.now(UTC) - WAITED_FOR, pa.timestamp("us", "UTC"))
    made = client.read("sys.capture_decisions", where=recent).sort_by("decided_at").to_pylist()
    started = [job for job in jobs if job["started_at"] is not None]
    calls: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {}
    for one in made:
        if one["engine_id"] != _POLICY and not any(_made_for(job, one) for job in started):
            call = calls.setdefault((one["correlation_id"], full_name(one)), {})
            call[one["snapshot_id"], one["storage_id"]] = one  # the last about a target is what came of it
    return [_as_job(list(call.values())) for call in calls.values()]


def _made_for(job: dict[str, Any], decision: dict[str, Any]) -> bool:
    ended = job["finished_at"]
    return (
        full_name(job) == full_name(decision)
        and job["started_at"] <= decision["decided_at"]
        and (ended is None or decision["decided_at"] <= ended)
    )


def _as_job(decisions: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the job list for a call, by its last decision about each target."""
    good = [one for one in decisions if one["outcome"] in GOOD]
    snapshots = {str(one["snapshot_id"]) for one in decisions}
    first, ended = decisions[0], max(one["decided_at"] for one in decisions)
    began = min(one["decided_at"] - timedelta(milliseconds=one["elapsed_ms"] or 0) for one in decisions)
    return {
        "job_id": first["correlation_id"],
        "state": "SUCCEEDED" if good else "FAILED",
        "table_catalog": first["table_catalog"],
        "table_schema": first["table_schema"],
        "table_name": first["table_name"],
        "snapshot": snapshots.pop() if len(snapshots) == 1 else "all",
        "mode": "SYNC",
        "targets": json.dumps(list(dict.fromkeys(one["storage_id"] for one in decisions))),
        "attempts": 1,
        "queued_at": began,
        "started_at": began,
        "finished_at": ended,
        "progress": 1.0 if good else 0.0,
        "degraded": 0 < len(good) < len(decisions),
        "stats_processed": len({one["snapshot_id"] for one in good}),
        "message": _message(decisions),
    }


def _message(decisions: list[dict[str, Any]]) -> str:
    """Summary of the outcomes, and the reasons of those that are not good."""
    outcomes = [
        {"outcome": one["outcome"], "engine_id": one["engine_id"], "target": {"kind": one["target_kind"]}}
        for one in decisions
    ]
    lacking = dict.fromkeys(one["detail"] for one in decisions if one["outcome"] not in GOOD and one["detail"])
    return "; ".join([summary_of(outcomes), *lacking])
