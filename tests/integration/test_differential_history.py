"""Records of random tables through their history: what answers is labelled by its own snapshot, and true of it.

The histories mix versions, engines and samples in one store; other ones leave statistics behind in the lake itself,
which a later snapshot still offers.
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

from capture.connectors.spi import ConnectorConfig
from capture.engines.compute.engine import SparkEngine
from capture.engines.native.engine import NativeEngine
from capture.publishers import publisher_class
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics, Destination, TableStatistics
from capture.registry import Registry
from capture.spi import Budget, Outcome, Sampling, TableHandle
from capture.store_sink import LocalStore
from flight_server.auth.principal import ANONYMOUS
from flight_server.reads.scanner import Scanner
from flight_server.reads.slice_cache import SliceCache
from flight_server.reads.streams import Streams
from flight_server.wire import scan_request
from flight_server.worker.publishing import COPIED
from store.targets import Target, TargetKind
from tests.integration import random_lakes
from tests.integration.random_lakes import FORMATS, Lake
from tests.integration.random_tables import Truth
from tests.integration.test_differential import lake_of, truths

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

SEEDS = (1,)  # more of them: tests/benchmarks/bench_differential.py
SAMPLE = {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=40)}
HOMES: dict[str, tuple[str, Callable[..., Lake]]] = {
    "trino": ("delta", random_lakes.delta),
    "iceberg": ("iceberg", random_lakes.iceberg),
    "lance": ("lance", partial(random_lakes.lance, of_spark=True)),
    "paimon": ("paimon", random_lakes.paimon),
}


OFFERED_LATER = ("lance", "paimon")  # homes whose statistics later snapshots carry along


@dataclass
class History:
    """A store with records of a lake's one table, and the table's rows at some of its snapshots."""

    lake: Lake
    local: LocalStore
    where: str

    def __post_init__(self) -> None:
        streams = Streams(4, 60.0, 1 << 30)
        self.scanner = Scanner(self.local.database, self.local.catalog, self.local.database.versions, SliceCache(0),
                               streams)  # fmt: skip
        self.scanner.queries.arrow_sources = {}
        self.tables: dict[int, TableHandle] = {}
        self.truths: dict[int, dict[int, Truth]] = {}
        self.handle = self.lake.handles()[-1]

    @property
    def name(self) -> str:
        return ".".join(("lake", *self.lake.name))

    def capture(self, snapshot_id: int | None, engine: Any, **how: Any) -> None:
        """Captures the current snapshot by default, and all that the engine can."""
        self.local.registry = Registry([engine] if isinstance(engine, NativeEngine) else [_TableOnly(), engine])
        results = self.local.capture(self.handle.connector, "lake", *self.lake.name, snapshot_id=snapshot_id, **how)
        failed = {result.detail for result in results if result.outcome is not Outcome.CAPTURED}
        assert not failed or isinstance(engine, NativeEngine), (self.where, failed)

    def learn(self, versions: Mapping[int, int]) -> None:
        """Takes the true rows at snapshots: snapshot id → index of the version."""
        ids = self.local.catalog.column_ids(self.local.catalog.get(self.name))
        for handle in replace(self.lake, versions=[pa.table({})] * 1000).handles():
            handle = replace(handle, column_ids=ids)
            self.tables[handle.snapshot_id] = handle
            if (version := versions.get(handle.snapshot_id)) is not None:
                self.truths[handle.snapshot_id] = truths(self.lake, version, handle)

    def rows(self, snapshot: object, allow_stale: bool) -> list[dict[str, Any]]:
        command = {"table": "stats.columns", "snapshot": snapshot, "allow_stale": allow_stale}
        return self.scanner.table(scan_request.of_json(command), ANONYMOUS).to_pylist()

    def check(self) -> None:
        """Every answer of any snapshot: its label follows from the snapshot that the record is of, where it is true."""
        current = self.local.catalog.get(self.name).current_snapshot_id
        order = list(self.tables)
        for asked in ("current", *order):
            at = current if asked == "current" else asked
            for allow_stale in (False, True):
                for row in self.rows(asked, allow_stale):
                    of, where = row["snapshot_id"], f"{self.where}, asked for {asked}: {row}"
                    same = self.tables[of].columns.hash == self.tables[at].columns.hash
                    label = "EXACT" if of == at else "INHERITED" if same else "STALE"
                    assert row["freshness"] == label and (label != "STALE" or allow_stale), where
                    assert of == at or order.index(of) < order.index(at), where
                    sure = label == "EXACT" and row["completeness"] == "COMPLETE" and not row["row_groups_sampled"]
                    assert sure or row["usable_for"] == "PLANNING", where
                    self._check_truth(row, where)

    def check_files(self, listed: set[int]) -> None:
        """A snapshot answers with all files of one listing: its own where it has one, else that of an earlier one."""
        order = list(self.tables)
        for snapshot_id in order:
            command = {"table": "stats.files", "snapshot": snapshot_id}
            rows = self.scanner.table(scan_request.of_json(command), ANONYMOUS).to_pylist()
            where = f"{self.where}, files of {snapshot_id}: {rows}"
            if not rows and snapshot_id not in listed:
                continue
            ((of, label),) = {(row["snapshot_id"], row["freshness"]) for row in rows} or {(snapshot_id, "EXACT")}
            table = self.tables[of]
            known = table.connector.capture_snapshot_target_stats(table.schema, table.name, of, table.column_ids)
            assert {row["file_path"] for row in rows} == set(known.files["file_path"].to_pylist()), where
            assert of in listed and order.index(of) <= order.index(snapshot_id), where
            assert label == ("EXACT" if of == snapshot_id else "INHERITED"), where
            assert of == snapshot_id or snapshot_id not in listed, where
            assert label == "EXACT" or {row["usable_for"] for row in rows} == {"PLANNING"}, where

    def _check_truth(self, row: dict[str, Any], where: str) -> None:
        if (known := self.truths.get(row["snapshot_id"])) is None:
            return
        truth = known[row["column_id"]]
        if row["completeness"] == "COMPLETE":
            truth.check(row, where, computed=False, deletes=self.lake.counts_deleted)
            return
        bounds = {name: row[name] for name in ("min", "max", "min_is_exact", "max_is_exact", "logical_type")}
        truth.check(bounds | dict.fromkeys(("row_count", "null_count", "nan_count", "ndv")), where, computed=False)
        assert not row["ndv_exact"] or row["ndv"] == truth.distinct, where


class _TableOnly(NativeEngine):
    """Leaves the columns to the engine that computes."""

    def supports(self, request: Any) -> str:
        return super().supports(request) if request.target.kind is TargetKind.TABLE else "not here"


@contextmanager
def history(lake: Lake, where: str) -> Iterator[History]:
    with LocalStore(":memory:", []) as local:
        made = History(lake, local, where)
        yield made
        made.handle.connector.close()


def check_history(format: str, seed: int, root: Path) -> None:
    """Some columns at some versions, by metadata, computed, sampled, in any order."""
    lake = lake_of(format, seed, root)
    rng = random.Random(f"history of {format} {seed}")
    snapshots = [table.snapshot_id for table in lake.handles()]
    with history(lake, f"{format} {seed}") as known:
        known.capture(None, NativeEngine(), targets=[Target.table()])
        known.learn({snapshot: version for version, snapshot in enumerate(snapshots)})
        whole: set[tuple[int, int]] = set()
        listed = {known.handle.snapshot_id}
        for _ in range(rng.randint(2, 6)):
            at = rng.choice(snapshots)
            leaves = [i for i, column in known.tables[at].by_id.items() if column.is_leaf]
            some = rng.sample(leaves, rng.randint(1, len(leaves)))
            way = rng.choice(["native", "whole", "computed", "computed", "sampled"])
            engine = NativeEngine() if way in ("native", "whole") else SparkEngine(inline_max_cells=10**12)
            targets = [Target.table()] if way == "whole" else [Target.column(i) for i in some]
            known.capture(at, engine, targets=targets, **(SAMPLE if way == "sampled" else {}))
            listed |= {at} if way == "whole" else set()
            if way == "computed":
                whole |= {(at, i) for i in some}
            known.check()
        known.check_files(listed)
        found = {(at, row["column_id"]): row for at in snapshots for row in known.rows(at, False)}
        for place in whole:  # nothing that came later made less of them
            assert (found[place]["freshness"], found[place]["completeness"]) == ("EXACT", "COMPLETE"), found[place]


def check_left_behind(home: str, seed: int, root: Path) -> None:
    """Statistics published into the lake, which moves on: its own metadata offers them still."""
    format, make = HOMES[home]
    rng = random.Random(f"{home} {seed}")
    lake = make(rng, root, 300 if seed % 4 else rng.choice((1, 2, 40)))
    last = len(lake.versions) - 1
    with history(lake, f"left in {home} {seed}") as known:
        known.capture(None, SparkEngine(inline_max_cells=10**12))
        before = known.local.catalog.get(known.name).current_snapshot_id
        config = ConnectorConfig("lake", format, lake.uri, lake.options)
        statistics = stored(known, before)
        told = publish(publisher_class(home)(Destination(known.handle.connector, config), statistics))
        made = before if told.made_snapshot_id is None else told.made_snapshot_id
        assert lake.append is not None
        lake.versions.append(lake.append())
        versions = {before: last, made: last}
        for engine in (NativeEngine(), SparkEngine(inline_max_cells=10**12)):
            if isinstance(engine, NativeEngine) or rng.random() < 0.5:
                known.local.store.delete(known.local.catalog.get(known.name))
            known.capture(None, engine)
            current = known.local.catalog.get(known.name).current_snapshot_id
            assert current not in versions, known.where
            known.learn(versions | {current: last + 1})
            known.check()
            if isinstance(engine, NativeEngine):
                found = known.local.store.captured_snapshots(known.local.catalog.get(known.name))
                assert bool(found & {before, made}) == (home in OFFERED_LATER), (known.where, found)
                continue
            for row in known.rows("current", True):
                assert (row["freshness"], row["completeness"]) == ("EXACT", "COMPLETE"), (known.where, row)


def stored(known: History, snapshot_id: int) -> TableStatistics:
    """The statistics of a snapshot that a publisher gets."""
    rows = known.local.read("stats.columns", known.name, snapshot_id).to_pylist()
    sketches = known.local.read("stats.sketches", known.name, snapshot_id).to_pylist()
    thetas = {row["column_id"]: row["data"] for row in sketches if row["role"] == "NDV"}
    columns = [ColumnStatistics(row["column_id"], row["column_name"], theta=thetas.get(row["column_id"]),
                                **{name: row[name] for name in COPIED}) for row in rows]  # fmt: skip
    return TableStatistics(*known.lake.name, snapshot_id, tuple(columns), len(known.lake.versions[-1]), 4000)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_history_keeps_the_labels_of_its_records(tmp_path, format, seed):
    check_history(format, seed, tmp_path)


@pytest.mark.parametrize("home", HOMES)
def test_statistics_left_in_a_lake_are_those_of_their_snapshot(tmp_path, home):
    check_left_behind(home, 1, tmp_path)
