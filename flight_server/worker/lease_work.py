"""The work of leases: looking at a lake, publishing a table's statistics, capturing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final

from capture.cluster import Session
from capture.connectors.progress import reporting
from capture.connectors.spi import Column, Connector, Schema
from capture.connectors.storage.secrets import resolve
from capture.homes import HOMES
from capture.registry import Registry
from capture.spec_body import parse_spec
from capture.spi import CaptureRequest, CaptureResult, Decision, Mode, Outcome, TableHandle
from flight_server.client.connection import Connection
from flight_server.worker.costs import Costs
from flight_server.worker.draft_sink import DraftSink
from flight_server.worker.lake_inspection import inspect
from flight_server.worker.slots import Connectors, Slot
from flight_server.worker.turns import Turns
from store.plugins import Plugins

WORK: Final = Plugins(
    group="statflight.work",
    field="kind",
    noun="kind of work",
    built_in={"publish": "flight_server.publishing.work:publish_table"},
)
"""Functions that do the work of leases of parts."""


class LeaseWork:
    """Does the work of leases with the connectors, the engines and the Spark session of this process.

    Args:
        turns: Turns of captures that compute.
    """

    def __init__(self, server: Connection, registry: Registry, spark: Session, costs: Costs, turns: Turns):
        self._server, self._registry, self._spark = server, registry, spark
        self._costs, self._turns = costs, turns
        self.connectors = Connectors(self._session)

    def _session(self) -> Any:
        """The Spark session, started if there is none."""
        with self._spark.held() as session:
            return session()

    def inspect(self, slot: Slot, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Looks at a lake; returns the body of the lease's report, as the other kinds of work do."""
        payload, keeper = lease["payload"], slot.keeper
        assert keeper is not None
        with (
            self.connectors.opened(payload["connector"]) as connector,
            reporting(lambda message: keeper.progress(None, message)),
        ):
            result = inspect(connector, payload, keeper.progress)
            if lease["kind"] == "watch":
                result["requests"] = self._costs.so_far()
            return {"result": result}

    def publish(self, slot: Slot, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Publishes a table's statistics to a home."""
        payload = lease["payload"]
        config, keeper = payload["connector"], slot.keeper
        assert keeper is not None
        with (
            self.connectors.opened(config) as connector,
            self._spark.held() as session,
            reporting(lambda message: keeper.progress(None, message)),
        ):
            HOMES.load(payload["to"])  # says what a build without publishers lacks
            publish_table = WORK.load("publish")
            return {"result": publish_table(self._server, connector, resolve(config["options"]), payload, session)}

    def capture(self, slot: Slot, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Captures targets of a table, at one snapshot or several."""
        payload = lease["payload"]
        assert slot.keeper is not None
        sink = DraftSink(
            self._server,
            slot.keeper,
            has_statistics=payload["has_statistics"],
            together=slot.together,
            turns=self._turns,
        )
        turn = contextlib.nullcontext() if _is_remote(payload["connector"]["uri"]) else self._turns.taken()
        with contextlib.closing(sink), self.connectors.opened(payload["connector"]) as connector, turn:
            known = payload["snapshots"].items()
            handles = {int(i): _handle(payload, int(i), columns, connector) for i, columns in known}
            requests = [_request(payload, body, handles[body["snapshot_id"]]) for body in payload["requests"]]
            results: list[CaptureResult | None] = [None] * len(requests)
            decisions: list[Decision] = []
            for done, (snapshot_id, handle) in enumerate(handles.items()):
                sink.progress(done / len(handles), f"snapshot {snapshot_id}")
                members = [at for at, r in enumerate(requests) if r.table is handle]
                answers, made = self._registry.capture_batch([requests[at] for at in members], sink)
                decisions += made
                for at, answer in zip(members, answers, strict=True):
                    results[at] = answer
            rows = sink.held()
        return {
            "outcomes": [_outcome(r, q) for r, q in zip(results, requests, strict=True)],
            "decisions": [_decision(d) for d in decisions],
            "rows": rows,
            "listings": sink.listings,
        }


def _is_remote(uri: str) -> bool:
    """True if a lake is reached by a network, for which captures wait more than they compute."""
    return re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:", uri) is not None


def _handle(payload: Mapping[str, Any], snapshot_id: int, columns: Any, connector: Connector) -> TableHandle:
    table = payload["table"]
    schema = Schema(tuple(Column(c[0], c[1], c[2], c[3], tuple(*c[4:5])) for c in columns))
    return TableHandle(
        table["catalog"],
        table["schema"],
        table["name"],
        table["table_id"],
        snapshot_id,
        schema,
        payload["column_ids"],
        connector,
        frozenset(payload["contradicted"]),
    )


def _request(payload: Mapping[str, Any], body: Mapping[str, Any], table: TableHandle) -> CaptureRequest:
    return CaptureRequest(table, parse_spec(body), Mode(payload["mode"]), payload["correlation_id"])


def _outcome(result: CaptureResult | None, request: CaptureRequest) -> dict[str, Any]:
    result = result or CaptureResult(Outcome.DEGRADED, "", "no capture result")
    return {
        "outcome": str(result.outcome),
        "engine_id": result.engine_id or None,
        "detail": result.detail,
        "attributes": dict(result.attributes),
        "snapshot_id": request.table.snapshot_id,
        "storage_id": request.target.storage_id,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    request = decision.request
    return {
        "snapshot_id": request.table.snapshot_id,
        "target_kind": str(request.target.kind),
        "storage_id": request.target.storage_id,
        "outcome": decision.outcome,
        "engine_id": decision.engine_id,
        "detail": decision.detail,
        "elapsed_ms": decision.elapsed_ms,
    }
