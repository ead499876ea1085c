"""Histories of random tables: every record read has true values, and the freshness of the snapshot it was captured at.

The histories mix versions, engines and samples in one store; others publish statistics into the lake itself, where
later snapshots still offer them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from capture import homes
from capture.connectors.spi import ConnectorConfig
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics, Destination, TableStatistics
from capture.registry import Registry
from capture.spec import Budget, Sampling
from capture.spi import Outcome, TableHandle
from capture.store_sink import LocalStore
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reads.slice_cache import SliceCache
from flight_server.core.reads.streams import Streams
from flight_server.core.wire import scan_request
from flight_server.publishing.work import COPIED
from store.model.columns import DISTRIBUTION
from store.model.targets import Target, TargetKind
from tests.integration import random_lakes
from tests.integration.random_lakes import FORMATS, Lake
from tests.integration.random_tables import Truth, leaves
from tests.integration.test_differential import lake_of, truths

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

SEEDS = (1,)  # more of them: tests/benchmarks/bench_differential.py
SAMPLE = {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=40)}
HOMES: dict[str, tuple[str, Callable[..., Lake]]] = {
    "trino": ("delta", random_lakes.delta),
    "iceberg": ("iceberg", random_lakes.iceberg),
    "lance": ("lance", partial(random_lakes.lance, spark_types_only=True)),
    "paimon": ("paimon", random_lakes.paimon),
}
OFFERED_LATER = ("lance", "paimon")  # homes whose statistics later snapshots carry along


@dataclass
class History:
    """A store with records of a lake's only table, and the true statistics of some of its snapshots."""

    lake: Lake
    local: LocalStore
    where: str

    def __post_init__(self) -> None:
        streams = Streams(4, 60.0, 1 << 30)
        self.scanner = Scanner(self.local.database, self.local.catalog, SliceCache(0), streams)
        self.scanner.queries.arrow_sources = {}
        self.tables: dict[int, TableHandle] = {}
        self.hashes: dict[int, str] = {}  # of the tables' schemas
        self.truths: dict[int, dict[int, Truth]] = {}
        self.handle = self.lake.handles()[-1]

    @property
    def name(self) -> str:
        return ".".join(("lake", *self.lake.name))

    def capture(self, snapshot_id: int | None, engine: Any, **how: Any) -> None:
        """Captures the current snapshot by default, and every target that the engine supports."""
        self.local.registry = Registry([engine] if isinstance(engine, NativeEngine) else [_TableOnly(), engine])
        results = self.local.capture(self.handle.connector, "lake", *self.lake.name, snapshot_id=snapshot_id, **how)
        failed = {result.detail for result in results if result.outcome is not Outcome.CAPTURED}
        assert not failed or isinstance(engine, NativeEngine), (self.where, failed)

    def add_truths(self, versions: Mapping[int, int]) -> None:
        """Adds the true statistics of snapshots: snapshot id → index of the version."""
        ids = self.local.catalog.column_ids(self.local.catalog.get(self.name))
        for handle in replace(self.lake, versions=[pa.table({})] * 1000).handles():
            handle = replace(handle, column_ids=ids)
            self.tables[handle.snapshot_id], self.hashes[handle.snapshot_id] = handle, handle.columns.hash
            if (version := versions.get(handle.snapshot_id)) is not None:
                self.truths[handle.snapshot_id] = truths(self.lake, version, handle)

    def rows(self, snapshot: object, allow_stale: bool) -> list[dict[str, Any]]:
        command = {"table": "stats.columns", "snapshot": snapshot, "allow_stale": allow_stale}
        return self.scanner.table(scan_request.of_json(command), ANONYMOUS).to_pylist()

    def check(self) -> None:
        """Checks each row read at each snapshot: its values, and its freshness given the snapshot of its record."""
        current = self.local.catalog.get(self.name).current_snapshot_id
        order = list(self.tables)
        for snapshot in ("current", *order):
            at = current if snapshot == "current" else snapshot
            for allow_stale in (False, True):
                for row in self.rows(snapshot, allow_stale):
                    of, where = row["snapshot_id"], f"{self.where}, at snapshot {snapshot}: {row}"
                    same = self.hashes[of] == self.hashes[at]
                    label = "EXACT" if of == at else "INHERITED" if same else "STALE"
                    assert row["freshness"] == label and (label != "STALE" or allow_stale), where
                    assert of == at or order.index(of) < order.index(at), where
                    is_exact = label == "EXACT" and row["completeness"] == "COMPLETE" and not row["row_groups_sampled"]
                    assert is_exact or row["usable_for"] == "PLANNING", where
                    self._check_distribution(row, at, allow_stale, where)
                    self._check_truth(row, where)

    def check_files(self, listed: set[int]) -> None:
        """Checks that a read at a snapshot returns all files of one listing: its own if stored, else an earlier one."""
        order = list(self.tables)
        for snapshot_id in order:
            command = {"table": "stats.files", "snapshot": snapshot_id}
            rows = self.scanner.table(scan_request.of_json(command), ANONYMOUS).to_pylist()
            where = f"{self.where}, files of {snapshot_id}: {rows}"
            if not rows and snapshot_id not in listed:
                continue
            ((of, label),) = {(row["snapshot_id"], row["freshness"]) for row in rows} or {(snapshot_id, "EXACT")}
            table = self.tables[of]
            native = table.connector.capture_snapshot_target_stats(table.schema, table.name, of, table.column_ids)
            assert {row["file_path"] for row in rows} == set(native.files["file_path"].to_pylist()), where
            assert of in listed and order.index(of) <= order.index(snapshot_id), where
            assert label == ("EXACT" if of == snapshot_id else "INHERITED"), where
            assert of == snapshot_id or snapshot_id not in listed, where
            assert label == "EXACT" or {row["usable_for"] for row in rows} == {"PLANNING"}, where

    def _check_distribution(self, row: dict[str, Any], at: int, allow_stale: bool, where: str) -> None:
        """Checks the labels of the distribution, and its distinct count if it is another record's than the counts."""
        of, order = row["distribution_snapshot_id"], list(self.tables)
        if of is None:
            assert [row[name] for name in ("distribution_freshness", *DISTRIBUTION)] == [None] * 9, where
            return
        same = self.hashes[of] == self.hashes[at]
        label = "EXACT" if of == at else "INHERITED" if same else "STALE"
        assert row["distribution_freshness"] == label and (label != "STALE" or allow_stale), where
        assert of == at or order.index(of) < order.index(at), where
        if row["ndv"] is None:
            return
        assert label == "EXACT" or not row["ndv_exact"], where
        if label != "EXACT" and row["row_count"] is not None:
            assert row["ndv"] <= row["row_count"] - (row["null_count"] or 0), where
        if of in self.truths:
            true = self.truths[of][row["column_id"]].distinct
            assert not row["ndv_exact"] or row["ndv"] == true, where
            assert row["ndv_lower"] is None or row["ndv_lower"] <= 1.02 * true, where

    def _check_truth(self, row: dict[str, Any], where: str) -> None:
        if (truths := self.truths.get(row["snapshot_id"])) is None:
            return
        if row["distribution_snapshot_id"] != row["snapshot_id"]:  # checked by itself
            row = row | dict.fromkeys(DISTRIBUTION)
        if (truth := truths.get(row["column_id"])) is None:  # a list, map or struct
            assert [row[name] for name in ("min", "max", "ndv")] == [None] * 3, where
            return
        if row["completeness"] == "COMPLETE":
            truth.check(row, where, computed=False, deletes=self.lake.counts_deleted)
            return
        bounds = {name: row[name] for name in ("min", "max", "min_is_exact", "max_is_exact", "logical_type")}
        truth.check(bounds | dict.fromkeys(("row_count", "null_count", "nan_count", "ndv")), where, computed=False)
        assert not row["ndv_exact"] or row["ndv"] == truth.distinct, where


def check_renamed(seed: int, root: Path) -> None:
    """Renames, drops and adds columns of a table between captures, looks and appends: what is EXACT has at each
    snapshot the names and values that its readers see."""
    rng = random.Random(f"renamed {seed}")
    lake, target = random_lakes.named_table(root)
    by_name, done = rng.random() < 0.4, []
    random_lakes.write_columns(rng, target, 20, root / "0.parquet", by_name=by_name)
    lake.versions = [pa.table({})]
    with history(lake, f"renamed {seed}") as state:
        for number in range(1, rng.randint(4, 8)):
            done.append(step := rng.choice(["write", "rename", "rename", "capture", "capture", "capture older"]))
            if step == "write":
                random_lakes.write_columns(rng, target, 20, root / f"{number}.parquet", by_name=by_name)
            elif step == "rename":
                random_lakes.rename_columns(rng, target)
            versions = random_lakes.read_versions(target)
            if step.startswith("capture"):
                engine = rng.choice([NativeEngine(), ComputeEngine(inline_max_cells=10**12)])
                state.capture(None if step == "capture" else rng.choice([*versions]), engine)
            else:
                state.local.discover(state.handle.connector, "lake", *lake.name)
            where = f"renamed {seed}, after {done}"
            for snapshot_id, rows in versions.items():
                _check_names(state, snapshot_id, rows, where)


def _check_names(state: History, snapshot_id: int, read: pa.Table, where: str) -> None:
    """Checks the names and values that are EXACT at a snapshot."""
    true = {".".join(path): values for path, values in leaves(read).items()}
    containers = {name for name in read.column_names if name not in true}
    for row in state.rows(snapshot_id, False):
        if row["freshness"] == "EXACT":
            assert row["column_name"] in true.keys() | containers, f"{where}, {snapshot_id}: {row}"
        if row["freshness"] == "EXACT" and row["column_name"] in true and row["completeness"] == "COMPLETE":
            truth = Truth.of(true[row["column_name"]], row["logical_type"])
            row = row if row["distribution_freshness"] == "EXACT" else row | dict.fromkeys(DISTRIBUTION)
            truth.check(row, f"{where}, {snapshot_id}: {row}", computed=False)
    command = {"table": "stats.file_columns", "snapshot": snapshot_id}
    for row in state.scanner.table(scan_request.of_json(command), ANONYMOUS).to_pylist():
        assert row["freshness"] != "EXACT" or row["column_name"] in true, f"{where}, {snapshot_id}: {row}"


class _TableOnly(NativeEngine):
    """Supports tables only, so that columns go to the engine that computes."""

    def supports(self, request: Any) -> str:
        return super().supports(request) if request.target.kind is TargetKind.TABLE else "not here"


@contextmanager
def history(lake: Lake, where: str) -> Iterator[History]:
    with LocalStore(":memory:", []) as local:
        state = History(lake, local, where)
        yield state
        state.handle.connector.close()


def check_history(format: str, seed: int) -> None:
    """Captures random columns at random versions: from metadata, computed, or sampled."""
    lake = lake_of(format, seed)
    rng = random.Random(f"history of {format} {seed}")
    snapshots = [table.snapshot_id for table in lake.handles()]
    with history(lake, f"{format} {seed}") as state:
        state.capture(None, NativeEngine(), targets=[Target.table()])
        state.add_truths({snapshot: version for version, snapshot in enumerate(snapshots)})
        whole: set[tuple[int, int]] = set()
        listed = {state.handle.snapshot_id}
        for _ in range(rng.randint(2, 6)):
            at = rng.choice(snapshots)
            leaves = [i for i, column in state.tables[at].by_id.items() if column.is_leaf]
            column_ids = rng.sample(leaves, rng.randint(1, len(leaves)))
            method = rng.choice(["native", "whole", "computed", "computed", "sampled"])
            engine = NativeEngine() if method in ("native", "whole") else ComputeEngine(inline_max_cells=10**12)
            targets = [Target.table()] if method == "whole" else [Target.column(i) for i in column_ids]
            state.capture(at, engine, targets=targets, **(SAMPLE if method == "sampled" else {}))
            listed |= {at} if method == "whole" else set()
            if method == "computed":
                whole |= {(at, i) for i in column_ids}
            state.check()
        state.check_files(listed)
        found = {(at, row["column_id"]): row for at in snapshots for row in state.rows(at, False)}
        for key in whole:  # later captures must not downgrade them
            assert (found[key]["freshness"], found[key]["completeness"]) == ("EXACT", "COMPLETE"), found[key]


def check_published(home: str, seed: int, root: Path) -> None:
    """Publishes statistics into a lake that then gets a new snapshot; its own metadata still offers the old ones."""
    format, make = HOMES[home]
    rng = random.Random(f"{home} {seed}")
    lake = make(rng, root, 300 if seed % 4 else rng.choice((1, 2, 40)))
    last = len(lake.versions) - 1
    with history(lake, f"published to {home} {seed}") as state:
        state.capture(None, ComputeEngine(inline_max_cells=10**12))
        before = state.local.catalog.get(state.name).current_snapshot_id
        config = ConnectorConfig("lake", format, lake.uri, lake.options)
        statistics = stored(state, before)
        result = publish(homes.HOMES.load(home)(Destination(state.handle.connector, config), statistics))
        after = before if result.made_snapshot_id is None else result.made_snapshot_id
        assert lake.append is not None
        lake.versions.append(lake.append())
        versions = {before: last, after: last}
        for engine in (NativeEngine(), ComputeEngine(inline_max_cells=10**12)):
            if isinstance(engine, NativeEngine) or rng.random() < 0.5:
                state.local.store.delete(state.local.catalog.get(state.name))
            state.capture(None, engine)
            current = state.local.catalog.get(state.name).current_snapshot_id
            assert current not in versions, state.where
            state.add_truths(versions | {current: last + 1})
            state.check()
            if isinstance(engine, NativeEngine):
                found = state.local.store.captured_snapshots(state.local.catalog.get(state.name))
                assert bool(found & {before, after}) == (home in OFFERED_LATER), (state.where, found)
                continue
            for row in state.rows("current", True):
                if row["column_id"] not in state.truths[current]:  # a list, map or struct, whose nulls were not counted
                    continue
                assert (row["freshness"], row["completeness"]) == ("EXACT", "COMPLETE"), (state.where, row)


def stored(state: History, snapshot_id: int) -> TableStatistics:
    """Statistics of a snapshot in the form that publishers take."""
    rows = state.local.read("stats.columns", state.name, snapshot_id).to_pylist()
    sketches = state.local.read("stats.sketches", state.name, snapshot_id).to_pylist()
    thetas = {row["column_id"]: row["data"] for row in sketches if row["role"] == "NDV"}
    columns = [
        ColumnStatistics(
            row["column_id"],
            row["column_name"],
            theta=thetas.get(row["column_id"]),
            **{name: row[name] for name in COPIED},
        )
        for row in rows
    ]
    return TableStatistics(*state.lake.name, snapshot_id, tuple(columns), len(state.lake.versions[-1]), 4000)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_records_of_a_random_history_are_true_and_labelled_by_snapshot(format, seed):
    check_history(format, seed)


@pytest.mark.parametrize("seed", range(6))
def test_records_follow_renamed_columns(tmp_path, seed):
    check_renamed(seed, tmp_path)


@pytest.mark.parametrize("home", HOMES)
def test_published_statistics_are_labelled_by_their_snapshot(tmp_path, home):
    check_published(home, 1, tmp_path)
