"""Tables whose log or manifests say something else of the files than is in them: once a scan has read the data, no row
is PRUNING that does not enclose it, and no planned scan skips a file by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors import ConnectorConfig, open_connector
from capture.connectors.spi import Connector
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.spec import Budget, Sampling
from capture.spec_body import parse_partitions
from capture.spi import Outcome
from capture.store_sink import LocalStore
from flight_server.core.reads.streams import Streams
from flight_server.planning.answer_request import of_sql
from flight_server.planning.answers import answer
from flight_server.planning.plan_request import of_json
from flight_server.planning.scan_plan import ScanPlanner
from store.model.freshness import CONTRADICTED, PRUNING, usable_for
from store.model.targets import Target
from tests.capture.connectors.iceberg_tables import make_catalog

FILES, ROWS = 4, 50
LIAR = 2  # number of the file that is described falsely
ID, WORD = 1, 2
HIDDEN: dict[str, dict[str, Any]] = {
    "nulls": {"column": "id", "op": "IS_NULL"},
    "min": {"column": "id", "op": "EQ", "values": ["201"]},
    "max": {"column": "id", "op": "EQ", "values": ["249"]},
    "rows": {"column": "id", "op": "EQ", "values": ["201"]},
}
"""What is said falsely → a condition that holds for a row of the file."""


def rows_of(number: int) -> pa.Table:
    """Rows of a file; each file has its own range of values, and a tenth of nulls."""
    ids = range(number * 100, number * 100 + ROWS)
    return pa.table(
        {
            "id": pa.array([None if i % 10 == 3 else i for i in ids], pa.int64()),
            "word": [None if i % 10 == 4 else f"w{i:05}" for i in ids],
            "ratio": pa.array([None if i % 10 == 5 else i / 8 for i in ids], pa.float64()),
            "part": pa.array([number] * ROWS, pa.int64()),
        }
    )


@dataclass
class Lake:
    """A lake with one table; `append` adds rows, in one file of which nothing false is said."""

    format: str
    uri: str
    name: tuple[str, str]
    append: Callable[[pa.Table], None]
    clear: Callable[[], Any]
    options: dict[str, str] = field(default_factory=dict)


def delta(root: Path, lie: str, _: pytest.MonkeyPatch) -> Lake:
    import deltalake

    def append(rows: pa.Table) -> None:
        deltalake.write_deltalake(str(root / "t"), rows, mode="append", partition_by=["part"])

    for number in range(FILES):
        append(rows_of(number))
    entry = root / "t" / "_delta_log" / f"{LIAR:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            match lie:
                case "nulls":
                    stats["nullCount"]["id"] = 0
                case "min":
                    stats["minValues"]["id"] = 220
                case "max":
                    stats["maxValues"]["id"] = 220
                case "rows":
                    stats["numRecords"] = ROWS - 5
            action["add"]["stats"] = json.dumps(stats)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return Lake("delta", str(root), ("default", "t"), append, deltalake.DeltaTable(root / "t").delete)


def iceberg(root: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Written by a writer that is wrong about one file."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.io.pyarrow import DataFileStatistics
    from pyiceberg.types import LongType

    catalog = make_catalog(root)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows_of(0).schema)
    honest = DataFileStatistics.to_serialized_dict

    def lying(self: DataFileStatistics) -> dict[str, Any]:
        stated = honest(self)
        match lie:
            case "nulls":
                stated["null_value_counts"][ID] = 0
            case "min":
                stated["lower_bounds"][ID] = to_bytes(LongType(), 220)
            case "max":
                stated["upper_bounds"][ID] = to_bytes(LongType(), 220)
            case "rows":
                stated["record_count"] = ROWS - 5
        return stated

    for number in range(FILES):
        monkeypatch.setattr(DataFileStatistics, "to_serialized_dict", lying if number == LIAR else honest)
        table.append(rows_of(number))
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}
    return Lake("iceberg", f"sqlite:///{root / 'catalog.db'}", ("n", "t"), table.append, table.delete, options)


MAKERS: dict[str, Callable[[Path, str, pytest.MonkeyPatch], Lake]] = {"delta": delta, "iceberg": iceberg}
WAYS: dict[str, dict[str, Any]] = {
    "scan": {},
    "sample": {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=10**6)},
    "partition": {"partitions": parse_partitions([{"part": LIAR}])},
}


@contextmanager
def opened(lake: Lake, root: Path) -> Iterator[tuple[LocalStore, Connector]]:
    """A store whose captures read metadata and, for the columns asked for, data; and the lake."""
    connector = open_connector(ConnectorConfig("lake", lake.format, lake.uri, lake.options))
    with LocalStore(root / "s.duckdb", [NativeEngine(), ComputeEngine(inline_max_cells=10**12)]) as store:
        try:
            yield store, connector
        finally:
            connector.close()


def from_metadata(store: LocalStore, connector: Connector, lake: Lake) -> None:
    results = store.capture(connector, "lake", *lake.name, targets=[Target.table()])
    assert [result.outcome for result in results] == [Outcome.CAPTURED]


def current(store: LocalStore, lake: Lake, flight: str) -> list[dict[str, Any]]:
    entry = store.catalog.get(f"lake.{'.'.join(lake.name)}")
    rows = store.read(flight, entry.full_name).to_pylist()
    return [row for row in rows if row["snapshot_id"] == entry.current_snapshot_id]


def pruning(store: LocalStore, lake: Lake, flight: str, column_id: int = ID) -> list[dict[str, Any]]:
    """The rows of a column by which planners may skip data."""
    rows = [row for row in current(store, lake, flight) if row["column_id"] == column_id]
    return [row for row in rows if usable_for("EXACT", row) == PRUNING]


def kept(store: LocalStore, lake: Lake, condition: dict[str, Any]) -> set[str]:
    """The files of a planned scan."""
    streams = Streams(places=2, seconds=60, most_bytes=1 << 30)
    entry = store.catalog.get(f"lake.{'.'.join(lake.name)}")
    request = of_json({"scan": entry.full_name, "where": condition})
    planner = ScanPlanner(store.database, store.catalog, streams)
    return set(planner.plan(entry, request.node, None, "current").files["file_path"].to_pylist())


def path_of_liar(connector: Connector, lake: Lake) -> str:
    snapshots = connector.enumerate_snapshots(*lake.name, full_rescan=True).snapshots
    newest = max(snapshots, key=lambda snapshot: snapshot.ordinal).snapshot_id
    tasks = connector.plan_files(*lake.name, newest, {"id": 1, "word": 2, "ratio": 3, "part": 4})
    (path,) = (
        task.file_path
        for task in tasks
        if pq.read_table(task.location.removeprefix("file://"), partitioning=None)["word"][0].as_py() == "w00200"
    )
    return path


@pytest.mark.parametrize(
    ("format", "lie", "way"),
    [
        *((format, lie, "scan") for format in MAKERS for lie in HIDDEN),
        ("delta", "nulls", "sample"),
        ("iceberg", "max", "sample"),
        ("delta", "min", "partition"),
    ],
)
def test_data_that_contradicts_the_metadata_is_not_pruned_by_it(tmp_path, monkeypatch, caplog, format, lie, way):
    lake = MAKERS[format](tmp_path, lie, monkeypatch)
    with opened(lake, tmp_path) as (store, connector):
        liar = path_of_liar(connector, lake)
        from_metadata(store, connector, lake)
        assert {row["file_path"] for row in pruning(store, lake, "stats.file_columns")} > {liar}
        assert lie == "rows" or liar not in kept(store, lake, HIDDEN[lie]), "nothing can be false to begin with"

        results = store.capture(connector, "lake", *lake.name, targets=[Target.column(ID)], **WAYS[way])
        assert results[0].outcome is Outcome.CAPTURED
        assert results[0].attributes["files_contradicted"] == 1
        for text in (results[0].detail, caplog.text):
            assert liar in text and '"id"' in text and "the metadata has" in text and ", the data " in text, text

        def check() -> None:
            assert pruning(store, lake, "stats.columns") == []
            assert liar not in {row["file_path"] for row in pruning(store, lake, "stats.file_columns")}
            assert liar in kept(store, lake, HIDDEN[lie])
            assert pruning(store, lake, "stats.columns", WORD) or lie == "rows", "of other columns nothing is in doubt"

        check()
        if way == "scan":
            (row,) = (row for row in current(store, lake, "stats.columns") if row["column_id"] == ID)
            whole = pa.concat_tables([rows_of(n) for n in range(FILES)])["id"]
            found = (row["row_count"], row["null_count"], row["min"], row["max"], row["confidence_level"])
            assert found == (len(whole), whole.null_count, "0", "349", CONTRADICTED)
            assert len(pruning(store, lake, "stats.file_columns")) == FILES - 1, (
                "the others were read, and are as stated"
            )
        from_metadata(store, connector, lake)
        store.capture(connector, "lake", *lake.name, targets=[Target.column(ID)], kinds=frozenset({"MIN_MAX"}))
        check()
        lake.append(rows_of(FILES))
        from_metadata(store, connector, lake)
        check()


@pytest.mark.parametrize("format", MAKERS)
def test_metadata_that_is_no_longer_contradicted_is_trusted_again(tmp_path, monkeypatch, format):
    lake = MAKERS[format](tmp_path, "max", monkeypatch)
    with opened(lake, tmp_path) as (store, connector):
        column = [Target.column(ID)]
        from_metadata(store, connector, lake)
        store.capture(connector, "lake", *lake.name, targets=column)
        assert pruning(store, lake, "stats.columns") == []
        lake.clear()
        lake.append(rows_of(7))
        from_metadata(store, connector, lake)
        assert pruning(store, lake, "stats.columns") == pruning(store, lake, "stats.file_columns") == []
        (result,) = store.capture(connector, "lake", *lake.name, targets=column)
        assert result.detail == ""
        assert len(pruning(store, lake, "stats.columns")) == len(pruning(store, lake, "stats.file_columns")) == 1
        lake.append(rows_of(8))
        from_metadata(store, connector, lake)
        assert len(pruning(store, lake, "stats.columns")) == 1
        assert len(pruning(store, lake, "stats.file_columns")) == 2


def counted(store: LocalStore, lake: Lake) -> tuple[int | None, float | None]:
    """The rows of the table by its record, and the record's confidence."""
    (row,) = current(store, lake, "stats.tables")
    return row["row_count"], row["confidence_level"]


def answered(store: LocalStore, lake: Lake, select: str) -> Any:
    entry = store.catalog.get(f"lake.{'.'.join(lake.name)}")
    planner = ScanPlanner(store.database, store.catalog, Streams(places=2, seconds=60, most_bytes=1 << 30))
    return answer(planner, entry, of_sql(f"SELECT {select} FROM {entry.full_name}"), "current").results


@pytest.mark.parametrize("format", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_contradicted_number_of_rows_is_exact_nowhere(tmp_path, monkeypatch, format, way):
    if (format, way) == ("iceberg", "partition"):
        pytest.skip("the Iceberg table has no partitions")
    lake = MAKERS[format](tmp_path, "rows", monkeypatch)
    with opened(lake, tmp_path) as (store, connector):
        from_metadata(store, connector, lake)
        assert answered(store, lake, "count(*)")[0]["value"] == FILES * ROWS - 5
        store.capture(connector, "lake", *lake.name, targets=[Target.column(ID)], **WAYS[way])
        found = (FILES * ROWS if way == "scan" else None, CONTRADICTED)
        assert counted(store, lake) == found
        assert answered(store, lake, "count(*)") is answered(store, lake, "count(word)") is None
        from_metadata(store, connector, lake)  # of the same snapshot
        assert counted(store, lake) == found and answered(store, lake, "count(*)") is None
        lake.append(rows_of(FILES))
        from_metadata(store, connector, lake)
        assert counted(store, lake)[1] == CONTRADICTED
        assert answered(store, lake, "count(*)") is answered(store, lake, "max(word)") is None


def test_number_of_rows_is_trusted_again_once_a_scan_finds_it(tmp_path, monkeypatch):
    lake = delta(tmp_path, "rows", monkeypatch)
    with opened(lake, tmp_path) as (store, connector):
        from_metadata(store, connector, lake)
        store.capture(connector, "lake", *lake.name, targets=[Target.column(ID)])
        lake.clear()
        lake.append(rows_of(7))
        from_metadata(store, connector, lake)
        assert counted(store, lake) == (ROWS, CONTRADICTED)
        store.capture(connector, "lake", *lake.name, targets=[Target.column(ID)])
        assert counted(store, lake) == (ROWS, None)
        assert answered(store, lake, "count(*)")[0]["value"] == ROWS
        from_metadata(store, connector, lake)
        assert counted(store, lake) == (ROWS, None)


@pytest.mark.parametrize("format", MAKERS)
def test_table_that_is_captured_along_with_its_columns_has_the_rows_that_were_found(tmp_path, monkeypatch, format):
    lake = MAKERS[format](tmp_path, "rows", monkeypatch)
    with opened(lake, tmp_path) as (store, connector):
        store.capture(connector, "lake", *lake.name, targets=[Target.table(), Target.column(ID), Target.column(WORD)])
        assert counted(store, lake) == (FILES * ROWS, CONTRADICTED)
        assert answered(store, lake, "count(*)") is None
