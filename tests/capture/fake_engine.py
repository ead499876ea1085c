"""Fake engine and table for tests, without a lake and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from capture.connectors.spi import Column, Schema
from capture.spi import Capabilities, CaptureRequest, CaptureResult, Outcome, Sink, TableHandle
from store.model.schemas import FLIGHTS
from store.model.targets import TargetKind


class NoLake:
    format = "made-up"

    def touch(self) -> None:
        """Stands for an access to the lake."""


def handle(name: str = "t", snapshot_id: int = 1, connector: Any = None) -> TableHandle:
    schema = Schema((Column("a", "INT"), Column("b", "STRING")))
    return TableHandle("c", "s", name, f"id-{name}", snapshot_id, schema, {"a": 1, "b": 2}, connector or NoLake())


def column_row(table: TableHandle, column_id: int, mode: str = "SYNC") -> pa.Table:
    schema = FLIGHTS["stats.columns"].schema
    row = table.key | {
        "column_id": column_id,
        "logical_type": "INT",
        "row_count": 1,
        "null_count": 0,
        "capture_mode": mode,
    }
    names = [name for name in schema.names if name not in ("freshness", "usable_for")]
    return pa.Table.from_pylist([row], pa.schema([schema.field(name) for name in names]))


class FakeEngine:
    """Captures columns. `answer` returns the result of a request; by default it puts a row and is CAPTURED."""

    def __init__(self, id: str = "fake", priority: int = 100, answer: Callable[..., Any] | None = None, **able: Any):
        self.id, self.priority, self.answer = id, priority, answer
        kinds = able.pop("target_kinds", {TargetKind.COLUMN: frozenset({"ROW_COUNT", "NULL_COUNT"})})
        self.capabilities = Capabilities(kinds, **able)
        self.batches: list[list[CaptureRequest]] = []

    def supports(self, request: CaptureRequest) -> str:
        return self.capabilities.mismatch(request)

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        self.batches.append(list(requests))
        results = []
        for request in requests:
            try:
                request.table.connector.touch()
            except Exception as error:
                results.append(CaptureResult(Outcome.DEGRADED, self.id, str(error)))
                continue
            if self.answer is not None:
                results.append(self.answer(request))
                continue
            if request.target.column_id is not None:
                sink.put("stats.columns", column_row(request.table, request.target.column_id, str(request.mode)))
            results.append(CaptureResult(Outcome.CAPTURED, self.id, target=request.target, table=request.table))
        return results
