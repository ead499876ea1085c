"""The Hudi connector, on tables as its specification has them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("hudi")
pytest.importorskip("fastavro")

from capture.compute.file_scan import Work, scan
from capture.connectors import open_connector
from capture.connectors.directories.found import table_at
from capture.connectors.spi import ConnectorConfig
from store.model.errors import NotFound, UpstreamError
from store.model.format_facts import FormatFacts
from tests.capture.connectors.contract import ConnectorContract, Truth
from tests.capture.connectors.hudi.hudi_tables import HudiTable

FIRST, SECOND, THIRD = "20260101000000000", "20260102000000000", "20260103000000000"
G1, G2 = "aaaaaaaa-0000-0000-0000-000000000001", "aaaaaaaa-0000-0000-0000-000000000002"


class TestHudi(ConnectorContract):
    has_table_id = False
    facts = FormatFacts(reads_by_id=False, merges_rows=False, deletes_rows=False, plain_parquet=True)

    @pytest.fixture(params=[6, 8], ids=["v6", "v8"])
    def config(self, tmp_path, request):
        table = HudiTable(tmp_path / "lake/t", version=request.param)
        table.commit(FIRST, {G1: {"id": [1], "st": [{"x": 9.5}]}})
        table.commit(SECOND, {G1: {"id": [1, 2, None], "st": [{"x": 0.5}, None, {"x": 1.5}]}})
        return ConnectorConfig("c", "hudi", str(tmp_path / "lake"))

    @pytest.fixture
    def truth(self, config):
        return Truth("default", "t", 3, {"id": [1, 2, None], "st.x": [0.5, None, 1.5]}, snapshots=2)


class Lake:
    def __init__(self, path):
        self.path = path
        self.opened = open_connector(ConnectorConfig("c", "hudi", str(path)))

    def snapshots(self):
        return [one.snapshot_id for one in self.opened.enumerate_snapshots("default", "t").snapshots]

    def native(self, snapshot):
        return self.opened.capture_snapshot_target_stats("default", "t", int(snapshot), self.ids)

    def names(self, snapshot):
        return [Path(name).name[:36] for name in self.native(snapshot).files["file_path"].to_pylist()]

    @property
    def described(self):
        return self.opened.describe("default", "t")

    @property
    def ids(self):
        return {column.key: number for number, column in enumerate(self.described.schema.columns, 1)}

    def values(self, snapshot, column):
        """The number of values and of nulls of a column, by a scan of each file."""
        found = []
        for task in self.opened.plan_files("default", "t", int(snapshot), self.ids, frozenset({column})):
            (answer,) = scan(0, task, Work((self.ids[column],)))
            assert answer.partial is not None, answer.error
            found.append((answer.partial.row_count, answer.partial.null_count))
        return found


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def table(lake, **more):
    return HudiTable(lake.path / "t", **more)


def test_a_snapshot_has_the_newest_file_of_each_group(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1]}, G2: {"id": [5]}})
    written.commit(SECOND, {G1: {"id": [1, 2]}})
    assert lake.snapshots() == [int(FIRST), int(SECOND)]
    assert [lake.native(at).row_count for at in lake.snapshots()] == [2, 3]
    assert all(name.startswith("aaaa") for name in lake.names(SECOND)) and len(lake.names(SECOND)) == 2


def test_columns_of_hudi_are_not_of_the_table(lake):
    table(lake).commit(FIRST, {G1: {"id": [1], "name": ["x"]}})
    assert [column.name for column in lake.described.schema.columns] == ["id", "name"]


def test_files_that_no_commit_has_are_not_live(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1]}})
    written.data(SECOND, G2, {"id": [2, 3]})
    written.abandon()
    (written.timeline / f"{SECOND}.inflight").touch()
    assert lake.snapshots() == [int(FIRST)] and lake.native(FIRST).row_count == 1


def test_replaced_groups_are_not_live(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1, 2]}})
    written.commit(SECOND, {G2: {"id": [7]}}, replaced=[G1])
    assert lake.names(FIRST) == [G1] and lake.names(SECOND) == [G2]
    assert [one.operation for one in lake.opened.enumerate_snapshots("default", "t").snapshots] == [
        "commit",
        "replacecommit",
    ]


def test_snapshots_that_a_clean_may_have_robbed_of_files_are_gone(lake):
    written = table(lake)
    for instant, rows in ((FIRST, [1]), (SECOND, [1, 2])):
        written.commit(instant, {G1: {"id": rows}})
    written.instant("20260102120000000", "clean")
    written.commit(THIRD, {G1: {"id": [1, 2, 3]}})
    (lake.path / "t" / f"{G1}-0_0-1-1_{FIRST}.parquet").unlink()
    assert lake.snapshots() == [int(SECOND), int(THIRD)]
    with pytest.raises(NotFound, match="has no snapshot"):
        lake.native(FIRST)


def test_a_column_that_older_files_lack_is_null_in_them(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1, 2]}})
    written.commit(SECOND, {G2: {"id": [3], "added": ["x"]}})
    assert sorted(lake.values(SECOND, "added")) == [(1, 0), (2, 2)]
    (old,) = [one for one in lake.opened.enumerate_snapshots("default", "t").snapshots if one.snapshot_id == int(FIRST)]
    assert [column.name for column in old.schema.columns] == ["id"]


def test_types_may_widen_and_not_change(lake):
    written = table(lake)
    written.commit(FIRST, {G1: pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32())})})
    written.commit(SECOND, {G2: pa.table({"id": pa.array([2], pa.int64()), "v": pa.array([2.5], pa.float64())})})
    assert {column.name: column.logical_type for column in lake.described.schema.columns} == {
        "id": "INT",
        "v": "DOUBLE",
    }
    assert lake.native(SECOND).row_count == 2 and lake.values(SECOND, "v") == [(1, 0), (1, 0)]
    written.commit(THIRD, {G1: {"id": [1], "v": ["text"]}})
    with pytest.raises(UpstreamError, match=r"column v is DOUBLE in file .*, and STRING in the table"):
        lake.native(THIRD)


def test_partitions_are_told_by_the_values_of_files(lake):
    written = table(lake, partitions="day,region")
    for day, region in (("2026-01-01", "eu"), ("2026-01-02", None)):
        rows = {"id": [1, 2], "day": [day] * 2, "region": pa.array([region] * 2, pa.string())}
        group = G1 if region else G2
        written.data(FIRST, group, rows, f"day={day}/region={region or '__HIVE_DEFAULT_PARTITION__'}")
    written.commit(FIRST, {})
    assert lake.described.partition_keys == ("day", "region")
    found = lake.native(FIRST).files["partition_data_json"].to_pylist()
    assert sorted(found) == ['{"day": "2026-01-01", "region": "eu"}', '{"day": "2026-01-02", "region": null}']


def test_partitions_of_parts_of_columns_are_not_told(lake):
    written = table(lake, partitions="day", hoodie__table__keygenerator__type="TIMESTAMP")
    written.data(FIRST, G1, {"id": [1], "day": ["2026-01-01T01"]}, "day=2026-01-01")
    written.commit(FIRST, {})
    assert lake.described.partition_keys == ()


def test_commit_times_are_known_only_in_a_known_zone(lake):
    table(lake).commit(FIRST, {G1: {"id": [1]}})
    assert lake.opened.enumerate_snapshots("default", "t").snapshots[0].committed_at is None
    other = HudiTable(lake.path / "lake2/t", hoodie__table__timeline__timezone="UTC")
    other.commit(FIRST, {G1: {"id": [1]}})
    (snapshot,) = Lake(lake.path / "lake2").opened.enumerate_snapshots("default", "t").snapshots
    assert snapshot.committed_at.isoformat() == "2026-01-01T00:00:00+00:00"


def test_a_table_without_commits_has_columns_and_no_snapshot(lake):
    table(lake)
    assert [(column.name, column.logical_type) for column in lake.described.schema.columns] == [("id", "INT")]
    listing = lake.opened.enumerate_snapshots("default", "t")
    assert listing.snapshots == () and listing.current_snapshot_id is None


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"hoodie__table__type": "MERGE_ON_READ"}, "is merge-on-read"),
        ({"hoodie__table__base__file__format": "ORC"}, "ORC' is not supported"),
        ({"hoodie__table__base__file__format": "LANCE"}, "another format than Parquet"),
        ({"hoodie__datasource__write__drop__partition__columns": "true"}, "Only support when .*drop.partition.columns"),
        ({"hoodie__bootstrap__base__path": "/elsewhere"}, "is bootstrapped"),
    ],
)
def test_tables_that_would_be_read_wrong_are_refused_by_name(lake, properties, message):
    table(lake, **properties).commit(FIRST, {G1: {"id": [1]}})
    for ask in (lambda: lake.described, lake.snapshots):
        with pytest.raises(UpstreamError, match=f'"default.t" .*{message}') as refused:
            ask()
        assert not refused.value.retryable
    assert lake.opened.list_tables("default") == ["t"]


def test_schemas_by_column_ids_are_refused(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1]}})
    (written.path / ".hoodie/.schema").mkdir()
    assert lake.snapshots() == [int(FIRST)]
    (written.path / f".hoodie/.schema/{FIRST}.schemacommit").write_text("{}")
    with pytest.raises(UpstreamError, match="history of schemas"):
        lake.snapshots()


def test_damaged_tables_are_told_by_their_name(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1]}})
    next(written.path.glob("*.parquet")).write_bytes(b"PAR1 not")
    with pytest.raises(UpstreamError, match=r"default\.t"):
        lake.native(FIRST)
    (written.path / ".hoodie/hoodie.properties").unlink()
    with pytest.raises(UpstreamError, match=r"default\.t") as refused:
        lake.snapshots()
    assert str(lake.path) not in str(refused.value)


def test_a_path_is_recognized_and_no_plain_parquet(lake):
    written = table(lake)
    written.commit(FIRST, {G1: {"id": [1]}})
    written.commit(SECOND, {G1: {"id": [1, 2]}})
    assert table_at(str(written.path)).format == "hudi"
    with pytest.raises(NotFound, match="no parquet table"):
        open_connector(ConnectorConfig("c", "parquet", str(lake.path))).list_namespaces()
