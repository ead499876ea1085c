"""The part of the server that plans scans, and answers queries from statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from flight_server.core.control.access import Access
from flight_server.core.part import Action, Asking, Commands, LeftBy, Part, Rows
from flight_server.core.reads.streams import Streams
from flight_server.core.reads.usage import Usage
from flight_server.planning import plan_request, scan_plan, scan_query, scans
from flight_server.planning.estimates import Estimator
from flight_server.planning.plan_request import PlanRequest
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, Unimplemented


class Planning(Part):
    """Plans of scans: commands with the key `scan`, and the actions `answer` and `estimate`."""

    def attach(self, *, database: Database, catalog: Catalog, streams: Streams, access: Access, usage: Usage) -> None:
        """Takes what plans are made of."""
        self.planner = scan_plan.ScanPlanner(database, catalog, streams)
        self.estimator = Estimator(self.planner)
        self._streams, self._usage = streams, usage
        self._scans = scans.Scans(self.planner, catalog, access, usage)

    @staticmethod
    def actions() -> Sequence[Action]:
        return (scans.answer, scans.estimate)

    def left_by(self, where: Any, is_cancelled: Callable[[], bool]) -> LeftBy:
        node = plan_request.condition_of(where)

        def left(table: TableEntry, snapshot_id: int, column_ids: Sequence[int | None]) -> list[dict[str, Any]]:
            found = self.estimator.of_each(table, node, column_ids, snapshot_id, is_cancelled)
            self._usage.note(table.table_key, tuple(dict.fromkeys(id for each in found for id in each.named)))
            return [each.body for each in found]

        return left

    def commands(self) -> Iterable[Commands]:
        return (_Scans(self._scans, self._streams),)


class _Scans:
    """Scans as commands."""

    actions: Collection[str] = ()

    def __init__(self, planned: scans.Scans, streams: Streams):
        self._scans, self._streams = planned, streams

    def find(self, data: bytes, asking: Asking) -> _Scan | None:
        request = plan_request.find(data, asking.query_id)
        return None if request is None else _Scan(self._scans, self._streams, request, asking)

    def act(self, name: str, body: bytes, asking: Asking) -> list[object]:
        raise Unimplemented(f"no action {name} of {len(body)} bytes for {asking.principal.name}")


class _Scan(NamedTuple):
    scans: scans.Scans
    streams: Streams
    request: PlanRequest
    asking: Asking

    def schema(self) -> pa.Schema:
        return scan_query.SCHEMA

    def info(self) -> tuple[pa.Schema, bytes, int]:
        plan = self.scans.planned(self.request, self.asking)
        return plan.files.schema, self.request.ticket(plan.snapshot_id), plan.files.num_rows

    def get(self) -> tuple[str, pa.Schema, Rows]:
        plan = self.scans.planned(self.request, self.asking)
        return "scan", plan.files.schema, self.streams.admit(plan.files)

    def put(self, chunks: Iterator[pa.RecordBatch]) -> bytes:
        raise InvalidArgument(f"a scan takes no rows, and was put {type(chunks).__name__}")
