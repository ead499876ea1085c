"""Contract of capture engines: the tests of an engine subclass `EngineContract`.

A subclass provides the fixtures `engine` and `table` (a handle of a real or fake table), and lists the targets of that
table that the engine captures (`capturable`) and those that fit none of its capabilities (`foreign`). An engine for
expressions also lists some that read more than a row of the table (`reaching`): other tables, files, settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from capture.registry import Registry
from capture.spec import Sampling
from capture.spi import CaptureEngine, CaptureRequest, Mode, Outcome, Sink, TableHandle
from store.history import validation
from store.model.columns import KINDS
from store.model.errors import Cancelled, UpstreamError
from store.model.schemas import FLIGHTS
from store.model.targets import Target, TargetKind


def with_spec(request: CaptureRequest, **changes: Any) -> CaptureRequest:
    """The request with other fields of its spec."""
    return replace(request, spec=replace(request.spec, **changes))


def check_rows(flight: str, rows: pa.Table, checked: bool) -> None:
    """Validates rows as the server does; those put as `checked` must be in normal form already."""
    prepared = validation.prepare(FLIGHTS[flight], rows, clamp=True)
    if checked:
        assert repr(rows.select(prepared.column_names).to_pylist()) == repr(prepared.to_pylist())  # NaN too


class MemorySink(Sink):
    """A sink in memory that validates rows as the server does."""

    def __init__(self, cancelled: bool = False, broken: bool = False):
        self.puts: list[tuple[str, pa.Table, bool, bool]] = []
        self.cancelled, self.broken = cancelled, broken

    def put(
        self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False, checked: bool = False
    ) -> None:
        if self.broken:
            raise UpstreamError("the server is away")
        check_rows(flight, rows, checked)
        self.puts.append((flight, rows, extra, whole))

    def stored(
        self,
        flight: str,
        table: TableHandle,
        columns: Sequence[str] | None = None,
        column_ids: Sequence[int] | None = None,
    ) -> pa.Table:
        empty = FLIGHTS[flight].schema.empty_table()
        return empty if columns is None else empty.select(list(columns))

    def list_files(self, table: Any, listing: Any) -> bool:
        return False

    def progress(self, share: float, message: str = "") -> None:
        assert 0 <= share <= 1
        if self.cancelled:
            raise Cancelled("the job was cancelled")

    def rows(self, flight: str) -> list[dict[str, Any]]:
        return [row for name, table, *_ in self.puts if name == flight for row in table.to_pylist()]


class EngineContract:
    @pytest.fixture
    def engine(self) -> CaptureEngine:
        raise NotImplementedError

    @pytest.fixture
    def table(self) -> TableHandle:
        raise NotImplementedError

    def capturable(self, table: TableHandle) -> list[Target]:
        raise NotImplementedError

    def foreign(self, table: TableHandle) -> list[Target]:
        raise NotImplementedError

    def reaching(self, table: TableHandle) -> list[Target]:
        return []

    def requests(self, table: TableHandle, *targets: Target, **fields: Any) -> list[CaptureRequest]:
        return [CaptureRequest.of(table, target, **fields) for target in targets]

    # Capabilities.

    def test_capabilities_are_complete(self, engine):
        able = engine.capabilities
        assert engine.id and isinstance(engine.priority, int)
        assert able.target_kinds and able.modes and able.sampling
        assert all(kinds <= set(KINDS) for kinds in able.target_kinds.values())
        assert set(able.target_kinds) <= set(TargetKind)

    def test_supports_accepts_capturable_targets_and_explains_refusals(self, engine, table):
        for request in self.requests(table, *self.capturable(table)):
            assert engine.supports(request) == ""
        for request in self.requests(table, *self.foreign(table)):
            assert "unsupported" in engine.supports(request)

    def test_unsupported_kind_is_a_mismatch(self, engine, table):
        target = self.capturable(table)[0]
        supported = engine.capabilities.target_kinds[target.kind] or set(KINDS)
        for kind in sorted(set(KINDS) - supported):
            (request,) = self.requests(table, target, kinds=frozenset({kind}))
            assert kind in engine.supports(request)

    # Batches.

    def test_results_match_the_requests_in_number_and_order(self, engine, table):
        targets = self.capturable(table) * 2
        results = engine.capture_batch(self.requests(table, *targets), MemorySink())
        assert [result.outcome for result in results] == [Outcome.CAPTURED] * len(targets)
        assert all(r.target in (None, t) for r, t in zip(results, targets, strict=True))

    def test_empty_batch_has_no_results(self, engine):
        assert engine.capture_batch([], MemorySink()) == []

    def test_records_are_of_the_requested_table_and_snapshot(self, engine, table):
        sink = MemorySink()
        engine.capture_batch(self.requests(table, *self.capturable(table)), sink)
        assert sink.puts
        for flight, rows, *_ in sink.puts:
            for row in rows.to_pylist():
                assert {name: row[name] for name in table.key if name in row} == table.key, flight

    def test_mismatch_does_not_affect_the_other_requests(self, engine, table):
        mixed = [*self.foreign(table), *self.capturable(table)]
        results, _ = Registry([engine]).capture_batch(self.requests(table, *mixed), MemorySink())
        outcomes = [result.outcome for result in results]
        foreign = len(self.foreign(table))
        assert outcomes == [Outcome.UNCAPTURABLE] * foreign + [Outcome.CAPTURED] * (len(mixed) - foreign)

    def test_expression_that_reads_more_than_a_row_is_refused(self, engine, table):
        targets, sink = self.reaching(table), MemorySink()
        assert targets or TargetKind.EXPRESSION not in engine.capabilities.target_kinds
        for result in engine.capture_batch(self.requests(table, *targets), sink):
            assert result.outcome in (Outcome.DEGRADED, Outcome.UNCAPTURABLE) and result.detail
            assert result.attributes.get("retryable") is False or result.outcome is Outcome.UNCAPTURABLE
        assert sink.puts == []

    def test_records_have_the_capture_mode(self, engine, table):
        for mode in engine.capabilities.modes:
            sink = MemorySink()
            engine.capture_batch(self.requests(table, *self.capturable(table), mode=mode), sink)
            modes = {
                row["capture_mode"]
                for name, rows, *_ in sink.puts
                if "capture_mode" in rows.column_names
                for row in rows.to_pylist()
            }
            assert modes <= {str(mode), None} and str(mode) in modes

    def test_connector_error_is_an_outcome_and_not_raised(self, engine, table):
        class Broken:
            format = table.connector.format

            def __getattr__(self, name: str) -> Any:
                raise UpstreamError("the lake is on fire")

        broken = replace(table, connector=Broken())
        requests = self.requests(broken, *self.capturable(table))
        results = engine.capture_batch(requests, MemorySink())
        assert [result.outcome for result in results] == [Outcome.DEGRADED] * len(requests)
        assert all(result.detail for result in results)

    def test_sink_error_is_an_outcome_and_not_raised(self, engine, table):
        requests = self.requests(table, *self.capturable(table))
        results, _ = Registry([engine]).capture_batch(requests, MemorySink(broken=True))
        assert {result.outcome for result in results} == {Outcome.DEGRADED}

    def test_unsupported_sampling_is_a_mismatch(self, engine, table):
        for sampling in set(Sampling) - engine.capabilities.sampling:
            (request,) = self.requests(table, self.capturable(table)[0], sampling=sampling)
            assert str(sampling) in engine.supports(request)

    def test_unsupported_mode_is_a_mismatch(self, engine, table):
        for mode in set(Mode) - engine.capabilities.modes:
            (request,) = self.requests(table, self.capturable(table)[0], mode=mode)
            assert str(mode) in engine.supports(request)
