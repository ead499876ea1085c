import json
import math
import random
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.delta.log import parse_schema
from capture.connectors.delta.table_log import LogSlice, TableLog
from capture.connectors.spi import Column, ConnectorConfig
from capture.connectors.storage.places import Unreadable
from store.model.errors import NotFound, UpstreamError
from store.model.format_facts import FormatFacts
from tests.capture.connectors.contract import METADATA, ConnectorContract, Truth
from tests.capture.connectors.delta.lakes import LAKES, captured, connector, ids_of, needs_lakes, scanned

deltalake = pytest.importorskip("deltalake")


class TestContract(ConnectorContract):
    facts = FormatFacts(reads_by_id=False, merges_rows=False, plain_parquet=True, platform="delta-lake")
    metadata = METADATA

    @pytest.fixture
    def config(self, tmp_path):
        deltalake.write_deltalake(tmp_path / "lake/t", pa.table({"id": [1, 2], "name": ["a", None], "p": ["x", "x"]}))
        more = pa.table({"id": [3], "name": ["c"], "p": ["y"], "place": [{"x": 1.5}]})
        deltalake.write_deltalake(tmp_path / "lake/t", more, mode="append", schema_mode="merge")
        return ConnectorConfig("c", "delta", str(tmp_path / "lake"))

    @pytest.fixture
    def truth(self, config):
        columns = {"id": [1, 2, 3], "name": ["a", None, "c"], "p": ["x", "x", "y"], "place.x": [None, None, 1.5]}
        return Truth("default", "t", 3, columns, snapshots=2)


# Versions.


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "lake/events"
    for i in range(3):
        deltalake.write_deltalake(path, pa.table({"id": [i * 10, i * 10 + 1]}), mode="append")
    deltalake.DeltaTable(path).delete("id < 10")
    return path


def test_versions_are_snapshots(events):
    listing = connector(events.parent).enumerate_snapshots("default", "events")
    assert [(s.snapshot_id, s.ordinal, s.parent_snapshot_id, s.operation) for s in listing.snapshots] == [
        (0, 0, None, "WRITE"),
        (1, 1, 0, "WRITE"),
        (2, 2, 1, "WRITE"),
        (3, 3, 2, "DELETE"),
    ]
    at_ms = json.loads((events / f"_delta_log/{2:020d}.json").read_text().splitlines()[0])["commitInfo"]["timestamp"]
    assert listing.snapshots[2].committed_at == datetime.fromtimestamp(at_ms / 1000, UTC)
    assert listing.current_snapshot_id == 3
    rows = [captured(connector(events.parent), "events", v)[0].row_count for v in range(4)]
    assert rows == [2, 4, 6, 4]
    table = connector(events.parent).describe("default", "events")
    assert table.table_id == str(deltalake.DeltaTable(events).metadata().id)


def test_cleaned_up_versions_are_not_snapshots(events):
    deltalake.DeltaTable(events).create_checkpoint()
    for version in range(3):
        (events / f"_delta_log/{version:020d}.json").unlink()
    deltalake.write_deltalake(events, pa.table({"id": [99]}), mode="append")
    found = connector(events.parent)
    listing = found.enumerate_snapshots("default", "events")
    assert listing.live_snapshot_ids == {3, 4}
    assert [(s.snapshot_id, s.parent_snapshot_id) for s in listing.snapshots] == [(3, None), (4, 3)]
    assert captured(found, "events", 3)[0].row_count == 4
    for version in (1, 77):
        with pytest.raises(NotFound, match=rf'"default.events" has no snapshot {version}'):
            found.capture_snapshot_target_stats("default", "events", version, {})


def test_log_ends_at_a_gap(events):
    (events / f"_delta_log/{1:020d}.json").unlink()
    assert connector(events.parent).enumerate_snapshots("default", "events").live_snapshot_ids == {0}


def test_statistics_of_few_files_are_decoded_once(events, monkeypatch):
    decoded = []
    real = LogSlice.statistics
    monkeypatch.setattr(LogSlice, "statistics", lambda part: decoded.append(part.key) or real(part))
    found = connector(events.parent)
    first, rows = captured(found, "events", 3)
    named = found.capture_snapshot_target_stats("default", "events", 3, ids_of(found, "events"), frozenset({"id"}))
    assert sum(len(table) for table in named.file_columns()) == len(rows["id"])
    assert len(scanned(found, "events", 3)["id"]) == first.row_count
    assert len(decoded) == len(set(decoded)) == len(first.parts)
    deltalake.write_deltalake(events, pa.table({"id": [99]}), mode="append")
    assert max(row["max"] for row in captured(found, "events", 4)[1]["id"]) == "99"


def test_known_versions_are_not_read_again(events, monkeypatch):
    found = connector(events.parent)
    opened = []
    monkeypatch.setattr("capture.connectors.delta.log.read_commit", lambda table, v: opened.append(v) or _commit())
    listing = found.enumerate_snapshots("default", "events", known_snapshot_ids=frozenset({0, 1, 2}))
    assert opened == [3]
    assert [s.snapshot_id for s in listing.snapshots] == [3]


@pytest.mark.parametrize("text", ["{ no commit", '{"commitInfo": {"operation"'])
def test_error_names_the_newest_version_if_it_is_not_json(events, text):
    newest = max((events / "_delta_log").glob("*.json")).name
    number = int(newest.removesuffix(".json")) + 1
    (events / f"_delta_log/{number:020d}.json").write_text(text)
    for known in (frozenset(), frozenset(range(number))):
        with pytest.raises(UpstreamError, match=f'"default.events".*version {number} of its log is not JSON'):
            connector(events.parent).enumerate_snapshots("default", "events", known_snapshot_ids=known)


def _commit():
    from capture.connectors.delta.log import Commit

    return Commit()


def test_versions_have_their_own_schema(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [1]}))
    for _ in range(2):
        deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [1], "b": ["x"]}), mode="append", schema_mode="merge")
    found = connector(tmp_path)
    versions = found.enumerate_snapshots("default", "t").snapshots
    assert [len(s.schema.columns) for s in versions] == [1, 2, 2]
    assert versions[1].schema.hash == versions[2].schema.hash != versions[0].schema.hash
    assert [
        len(s.schema.columns)
        for s in found.enumerate_snapshots("default", "t", known_snapshot_ids=frozenset({0, 1})).snapshots
    ] == [2]
    tasks = {task.columns[1].path: task for task in found.plan_files("default", "t", 2, {"a": 1, "b": 2})}
    assert tasks[None].columns[1].constant.to_pylist() == [None]
    assert tasks[None].columns[1].constant.type == pa.string()
    assert scanned(found, "t", 2)["b"].count("x") == 2


# Statistics of the log.


def test_bounds_truncated_in_the_log_are_widened(tmp_path):
    at = datetime(2020, 1, 1, 0, 0, 0, 123457, tzinfo=UTC)
    old = datetime(1960, 1, 1, 0, 0, 0, 123457)
    table = pa.table(
        {
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "old": pa.array([old, old], pa.timestamp("us")),
            "text": ["x" * 40, "y" * 40],
            "short": ["a", "b"],
            "nan": [math.nan, 1.0],
            "zero": [-0.0, 0.0],
            "big": [2**63 - 1, -(2**63)],
            "raw": [b"a", b"b"],
            "day": [date(2020, 1, 1)] * 2,
            "flag": [True, False],
            "money": pa.array([Decimal("-99.99"), Decimal("0.10")], pa.decimal128(5, 2)),
            "single": pa.array([0.1, 3e9], pa.float32()),
            "place": [{"x": 1, "why?": None}, None],
        }
    )
    deltalake.write_deltalake(tmp_path / "t", table)
    stats, rows = captured(connector(tmp_path), "t")
    assert stats.row_count == 2
    rows = {name: row for name, (row,) in rows.items()}

    def bounds(name):
        return tuple(rows[name][k] for k in ("min", "min_is_exact", "max", "max_is_exact"))

    assert bounds("at") == ("2020-01-01T00:00:00.123Z", False, "2020-01-01T00:00:00.124Z", False)
    assert bounds("old") == ("1960-01-01T00:00:00.123", False, "1960-01-01T00:00:00.124", False)
    assert rows["text"]["min"] <= "x" * 40 < "y" * 40 <= rows["text"]["max"]
    assert rows["text"]["min_is_exact"] is rows["text"]["max_is_exact"] is False
    assert bounds("short") == ("a", True, "b", True)
    assert bounds("zero") == ("0", True, "0", True)
    assert bounds("big") == ("-9223372036854775808", True, "9223372036854775807", True)
    assert bounds("raw") == ("YQ==", True, "Yg==", True)  # from the footer
    assert bounds("day") == ("2020-01-01", True, "2020-01-01", True)
    assert bounds("flag") == ("false", True, "true", True)
    assert bounds("money") == ("-99.99", True, "0.1", True)
    assert bounds("single") == ("0.1", True, "3.0E9", True)
    assert bounds("nan")[0] in ("1.0", None)
    assert rows["nan"]["nan_count"] is None
    assert (rows["place.x"]["null_count"], rows["place.x"]["min"]) == (1, "1")
    assert rows["at"]["null_count"] == 1
    assert "place" not in rows


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (15, 4), (16, 2), (18, 6), (38, 9), (38, 0)])
def test_bounds_of_decimals_enclose_the_values(tmp_path, precision, scale):
    """The log has decimals as doubles, so beyond 15 digits its bounds are not the values."""
    chance = random.Random(precision)
    limit = 10**precision
    values = [Decimal(chance.randrange(1 - limit, limit)).scaleb(-scale) for _ in range(60)] + [Decimal(0)]
    table = pa.table({"k": list(range(61)), "v": pa.array(values, pa.decimal128(precision, scale))})
    deltalake.write_deltalake(tmp_path / "t", table, partition_by=["k"])
    _, rows = captured(connector(tmp_path), "t")
    keys = {row["file_path"]: int(row["min"]) for row in rows["k"]}
    for row in rows["v"]:
        true = values[keys[row["file_path"]]]
        if precision > 18:
            assert row["min"] is row["max"] is None
        elif precision > 15:
            assert Decimal(row["min"]) <= true <= Decimal(row["max"])
            assert row["min_is_exact"] is row["max_is_exact"] is False
        else:
            assert Decimal(row["min"]) == true == Decimal(row["max"])
            assert row["min_is_exact"] is row["max_is_exact"] is True


def without_statistics(path: Path, version: int) -> None:
    """Removes the statistics from a commit."""
    log = path / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)))


def test_statistics_missing_in_the_log_come_from_footers(tmp_path):
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"a": [1, None, 3], "s": ["x" * 40, "b", None]}))
    more = pa.table({"a": [7], "s": ["z"], "f": [1.5]})
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    without_statistics(path, 0)
    stats, rows = captured(connector(tmp_path), "t")
    assert stats.row_count == 4
    names = ("row_count", "null_count", "min", "max", "min_is_exact", "max_is_exact")
    files = {name: sorted(tuple(row[n] for n in names) for row in found) for name, found in rows.items()}
    assert files["a"] == [(1, 0, "7", "7", True, True), (3, 1, "1", "3", True, True)]
    assert files["s"] == [(1, 0, "z", "z", True, True), (3, 1, "b", "x" * 40, True, True)]
    assert sorted(row["null_count"] for row in rows["f"]) == [0, 3], "a column added later is null before"
    assert sorted(row["nan_count"] or 0 for row in rows["f"]) == [0, 0]
    (footer,) = (file for file in map(pq.read_metadata, path.glob("*.parquet")) if file.num_rows == 3)
    assert {name: {row["row_count"]: row["bytes_scanned"] for row in found} for name, found in rows.items()} == {
        "a": {1: None, 3: footer.row_group(0).column(0).total_compressed_size},
        "s": {1: None, 3: footer.row_group(0).column(1).total_compressed_size},
        "f": {1: None, 3: 0},
    }


def test_bytes_of_all_columns_are_known_where_footers_are_read(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [1, 2], "b": [b"x", b"y"]}))
    rows = captured(connector(tmp_path), "t")[1]
    assert rows["a"][0]["bytes_scanned"] > 0 and rows["b"][0]["bytes_scanned"] > 0, "the log lacks binary columns"
    assert (rows["a"][0]["min"], rows["b"][0]["null_count"]) == ("1", 0)


def test_footer_bounds_of_files_with_deleted_rows_are_inexact(tmp_path):
    table = LAKES / "table-with-dv-small"
    if not table.exists():
        pytest.skip("the shared lakes are elsewhere")
    path = tmp_path / "t"
    shutil.copytree(table, path)
    for version in (0, 1):
        without_statistics(path, version)
    found = connector(tmp_path)
    ((row,),) = captured(found, "t", 1)[1].values()
    assert [row[n] for n in ("row_count", "null_count", "min", "max")] == [8, 0, "0", "9"]
    assert not row["min_is_exact"] and not row["max_is_exact"]
    ((row,),) = captured(found, "t", 0)[1].values()
    assert row["min_is_exact"] and row["max_is_exact"]


def test_missing_file_leaves_only_its_footer_statistics_unknown(tmp_path):
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"a": [1, 2], "b": [b"x", b"y"]}))
    next(path.glob("*.parquet")).unlink()
    rows = captured(connector(tmp_path), "t")[1]
    assert [(row["min"], row["null_count"]) for row in rows["a"]] == [("1", 0)]
    assert [(row["min"], row["null_count"]) for row in rows["b"]] == [(None, None)]


def test_partition_columns_are_constants(tmp_path):
    table = pa.table(
        {
            "v": [1, 2, 3, 4],
            "text": ["a b", "50%/x", None, "é"],
            "day": [date(2020, 1, 1)] * 4,
            "n": pa.array([1, 2, 3, None], pa.int32()),
        }
    )
    deltalake.write_deltalake(tmp_path / "t", table, partition_by=["text", "day", "n"])
    found = connector(tmp_path)
    stats, rows = captured(found, "t")
    assert found.describe("default", "t").partition_keys == ("text", "day", "n")
    assert {(r["min"], r["max"], r["null_count"]) for r in rows["text"]} == {
        ("a b", "a b", 0),
        ("50%/x", "50%/x", 0),
        (None, None, 1),
        ("é", "é", 0),
    }
    assert all(r["max_is_exact"] for r in rows["day"])
    for row in stats.files.to_pylist():
        assert Path(row["file_path"]).stat().st_size == row["size_bytes"]
    partitions = [json.loads(text) for text in stats.files["partition_data_json"].to_pylist()]
    assert {"text": "50%/x", "day": "2020-01-01", "n": 2} in partitions
    values = scanned(found, "t", 0)
    assert set(zip(values["v"], values["text"], values["n"], strict=True)) == {
        (1, "a b", 1),
        (2, "50%/x", 2),
        (3, None, 3),
        (4, "é", None),
    }


def test_not_null_and_check_constraints_are_described(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64())])
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1], "amount": [2]}, schema))
    deltalake.DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "amount > 0"})
    table = connector(tmp_path).describe("default", "t")
    assert [(c.kind, c.name, c.columns, c.clause) for c in table.constraints] == [
        ("CHECK", "id_not_null", ("id",), "id IS NOT NULL"),
        ("CHECK", "positive", ("amount",), "amount > 0"),
    ]
    assert table.schema.columns[0].nullable is False


# Deletion vectors, column mapping, other writers' tables.


@needs_lakes
def test_mapped_columns_have_logical_names_and_field_ids():
    found = connector(LAKES)
    table = found.describe("default", "table_with_column_mapping")
    assert table.facts.reads_by_id
    assert [(c.name, c.field_id) for c in table.schema.columns] == [("Company Very Short", 1), ("Super Name", 2)]
    _, rows = captured(found, "table_with_column_mapping")
    assert min(r["min"] for r in rows["Super Name"]) == "Anthony Johnson"
    assert {r["max"] for r in rows["Company Very Short"]} == {"BMS", "BME"}
    assert "Timothy Lamb" in scanned(found, "table_with_column_mapping", 0)["Super Name"]
    nested = connector(LAKES / "stats-writing-all-types/delta")
    _, rows = captured(nested, "delta")
    assert rows["nested_struct.inner_string"][0]["null_count"] == 2


@needs_lakes
@pytest.mark.parametrize("name", sorted(p.name for p in LAKES.glob("*") if (p / "_delta_log").is_dir()))
def test_tables_of_other_writers_are_read(name):
    found = connector(LAKES)
    listing = found.enumerate_snapshots("default", name)
    assert listing.current_snapshot_id == deltalake.DeltaTable(str(LAKES / name)).version()
    for snapshot in listing.snapshots:
        stats, _ = captured(found, name, snapshot.snapshot_id)
        assert stats.row_count is not None
    if name not in ("COVID-19_NYT", "type-widening"):
        assert len(next(iter(scanned(found, name, listing.current_snapshot_id).values()), [])) == stats.row_count


def test_schema_types_are_parsed_and_invalid_schemas_refused():
    text = json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "d", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
                {"name": "v", "type": "variant", "nullable": False, "metadata": {}},
                {"name": "n", "type": "timestamp_ntz", "metadata": None},
                {"name": "s", "type": {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False}]}},
                {"name": "a", "type": {"type": "array", "elementType": "string", "containsNull": True}},
                {"name": "i", "type": "interval day to second"},
                {"name": "q", "type": "quaternion"},
            ],
        }
    )
    columns = [(c.column.name, c.column.logical_type, c.column.nullable) for c in parse_schema(text, {}).columns]
    assert columns == [
        ("d", "DECIMAL(10,2)", True),
        ("v", "VARIANT", False),
        ("n", "TIMESTAMP", True),
        ("s", "STRUCT", True),
        ("s.x", "INT", True),
        ("a", "ARRAY", True),
        ("i", "INTERVAL", True),
        ("q", "VARIANT", True),
    ]
    for wrong in ("{}", "[]", "x", '{"fields": [{}]}'):
        with pytest.raises(ValueError, match=r".+"):
            parse_schema(wrong, {})


def test_columns_of_a_schema_are_looked_up_without_a_walk_for_each(monkeypatch):
    fields = [{"name": "st.x", "type": "long"}]
    fields += [{"name": "st", "type": {"type": "struct", "fields": [{"name": "x", "type": "string"}]}}]
    fields += [{"name": f"c{number}", "type": "long"} for number in range(100)]
    schema = parse_schema(json.dumps({"type": "struct", "fields": fields}), {})
    keys = []
    key = Column.key.fget
    monkeypatch.setattr(Column, "key", property(lambda column: keys.append(column.name) or key(column)))
    found = [schema.leaf(column.name) for column in schema.schema.columns]
    assert [leaf.logical for leaf in found[:3]] == [("st", "x"), ("st",), ("st", "x")]
    assert found[3:] == list(schema.columns[3:])
    assert schema.leaf('"st.x"').logical == ("st.x",)
    assert schema.leaf("c100") is None
    assert len(keys) == len(schema.columns)


# Errors.


def test_broken_log_is_named_and_other_tables_are_read(events):
    lake = events.parent
    for name in ("empty", "noise", "bare", "future"):
        (lake / name / "_delta_log").mkdir(parents=True)
        if name != "empty":
            log = lake / name / "_delta_log" / f"{0:020d}.json"
            features = {"readerFeatures": ["timeTravelBackwards"], "writerFeatures": ["timeTravelBackwards"]}
            future = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
            good = (events / "_delta_log" / f"{0:020d}.json").read_text()
            log.write_text({"noise": "{noise", "bare": '{"commitInfo": {}}', "future": ""}[name])
            if name == "future":
                lines = [line for line in good.splitlines() if '"protocol"' not in line]
                log.write_text("\n".join([*lines, json.dumps(future)]))
    found = connector(lake)
    assert found.list_tables("default") == ["bare", "empty", "events", "future", "noise"]
    for name in ("empty", "noise", "bare", "future"):
        for read in (found.describe, lambda *table: found.capture_snapshot_target_stats(*table, 0, {})):
            with pytest.raises((Unreadable, NotFound)) as broken:
                read("default", name)
            text = str(broken.value)
            assert f"default.{name}" in text
            assert str(lake) not in text
            assert "\n" not in text
            assert not broken.value.retryable
    assert captured(found, "events")[0].row_count == 4


def test_error_names_the_damaged_data_file(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [b"x"]}))
    file = next((tmp_path / "t").glob("*.parquet"))
    file.write_bytes(b"PAR1 no PAR1")
    found = connector(tmp_path)
    assert captured(found, "t")[0].row_count == 1
    with pytest.raises(UpstreamError, match=file.name):
        list(found.plan_files("default", "t", 0, {"a": 1}))


def test_removed_table_is_not_found(events):
    found = connector(events.parent)
    assert found.list_tables("default") == ["events"]
    shutil.rmtree(events)
    with pytest.raises(NotFound):
        found.describe("default", "events")


def test_path_rewrite_applies_to_files_of_a_shallow_clone(tmp_path):
    """A shallow clone names its files by full paths."""
    deltalake.write_deltalake(tmp_path / "now/origin", pa.table({"a": [b"x", b"y"]}))
    (tmp_path / "lake/clone/_delta_log").mkdir(parents=True)
    log = (tmp_path / "now/origin/_delta_log" / f"{0:020d}.json").read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"file:///was/here/origin/{action['add']['path']}"
    clone = tmp_path / "lake/clone/_delta_log" / f"{0:020d}.json"
    clone.write_text("\n".join(map(json.dumps, actions)))
    found = connector(tmp_path / "lake", path_rewrite=f"/was/here={tmp_path}/now")
    stats, _ = captured(found, "clone")
    (path,) = stats.files["file_path"].to_pylist()
    assert Path(path).stat().st_size == stats.total_size_bytes
    assert scanned(found, "clone", 0) == {"a": [b"x", b"y"]}
    lost = connector(tmp_path / "lake")
    with pytest.raises(UpstreamError, match="is gone"):
        list(lost.plan_files("default", "clone", 0, {"a": 1}))


def test_statistics_and_tasks_of_a_version_read_the_log_once(tmp_path, monkeypatch):
    rows = pa.table({"a": [1, 2, 3]})
    deltalake.write_deltalake(tmp_path / "t", rows)
    opened: list[int] = []
    slices = TableLog.slices
    monkeypatch.setattr(TableLog, "slices", lambda *args: opened.append(1) or slices(*args))
    lake = connector(tmp_path)
    stats, _ = captured(lake, "t", 0)
    opened.clear()
    (task,) = lake.plan_files("default", "t", 0, ids_of(lake, "t"))
    assert (stats.row_count, task.row_count, opened) == (3, 3, [])

    shutil.rmtree(tmp_path / "t")  # a new table of the same name and version
    deltalake.write_deltalake(tmp_path / "t", pa.concat_tables([rows, rows]))
    (task,) = lake.plan_files("default", "t", 0, ids_of(lake, "t"))
    assert task.row_count == 6
