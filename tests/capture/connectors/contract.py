"""Contract of connectors: the tests of a format subclass `ConnectorContract`.

A subclass provides the fixtures `config` (a lake of at least one table) and `truth` (the content of that table), and
sets flags where its format differs.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.compute.file_scan import Work, scan
from capture.connectors import open_connector
from capture.connectors.spi import FILE_COLUMN_SCHEMA, FILE_SCHEMA, Connector, ConnectorConfig
from capture.inspection import look_at_table
from store.model.errors import InvalidArgument, NotFound, StatflightError
from store.model.format_facts import UNKNOWN, FormatFacts, facts_in
from store.model.logical_types import parse

METADATA = frozenset({"metadata_location", "format_schema", "manifest_list", "summary"})
SECRET = "correct-horse-battery-staple"


@dataclass
class Truth:
    """One table of the lake: its name and the content of its current snapshot; `columns` maps a leaf to its values."""

    namespace: str
    name: str
    rows: int
    columns: dict[str, list[Any]] = field(default_factory=dict)
    snapshots: int = 1


class ConnectorContract:
    has_table_id: ClassVar[bool] = True
    has_native_bounds: ClassVar[bool] = True
    has_null_counts: ClassVar[bool] = True
    has_column_sizes: ClassVar[bool] = False
    is_directory: ClassVar[bool] = True  # the uri is a path
    metadata: ClassVar[frozenset[str]] = frozenset()  # the fields of `METADATA` that the format has
    facts: ClassVar[FormatFacts] = UNKNOWN

    @pytest.fixture
    def config(self, tmp_path: Path) -> ConnectorConfig:
        raise NotImplementedError

    @pytest.fixture
    def truth(self, config: ConnectorConfig) -> Truth:
        raise NotImplementedError

    @pytest.fixture
    def connector(self, config: ConnectorConfig):
        connector = open_connector(config)
        yield connector
        connector.close()

    def ids(self, connector: Connector, truth: Truth) -> dict[str, int]:
        """Column ids as the store assigns them."""
        columns = connector.describe(truth.namespace, truth.name).schema.columns
        return {c.name: c.field_id or i for i, c in enumerate(columns, 1)}

    def current(self, connector: Connector, truth: Truth) -> int:
        current = connector.enumerate_snapshots(truth.namespace, truth.name).current_snapshot_id
        assert current is not None
        return current

    # Names.

    def test_tables_are_listed(self, connector, truth):
        assert truth.namespace in connector.list_namespaces()
        assert truth.name in connector.list_tables(truth.namespace)
        assert connector.list_tables("no such namespace") == []

    def test_facts_of_the_format_are_stated(self, connector, truth):
        assert connector.describe(truth.namespace, truth.name).facts == self.facts
        assert (
            facts_in(connector.format, json.dumps(look_at_table(connector, truth.namespace, truth.name)["properties"]))
            == self.facts
        )

    def test_an_unknown_table_is_not_found(self, connector, truth):
        with pytest.raises(NotFound, match="nowhere"):
            connector.describe(truth.namespace, "nowhere")
        with pytest.raises(NotFound):
            connector.enumerate_snapshots(truth.namespace, "nowhere")

    def test_missing_location_is_named_as_configured(self, config, tmp_path):
        if not self.is_directory:
            pytest.skip("no path")
        uri = str(tmp_path / "is" / "nowhere")
        with pytest.raises((NotFound, InvalidArgument)) as refused:
            open_connector(replace(config, uri=uri)).list_namespaces()
        assert uri in str(refused.value)

    def test_error_names_the_unknown_option(self, config):
        with pytest.raises(InvalidArgument, match="colour_of_sky"):
            open_connector(replace(config, options={**config.options, "colour_of_sky": "blue"}))

    def test_secrets_stay_out_of_messages_and_reprs(self, config, truth):
        options = {**config.options, "aws_secret_access_key": SECRET}
        secretive = replace(config, options=options)
        connector = open_connector(secretive)
        assert SECRET not in repr(secretive) + repr(connector)
        with pytest.raises(StatflightError) as refused:
            connector.describe(truth.namespace, "nowhere")
        assert SECRET not in str(refused.value) + json.dumps(refused.value.params)

    def test_connector_may_be_opened_and_closed_repeatedly(self, config, truth):
        for _ in range(3):
            connector = open_connector(config)
            assert connector.list_tables(truth.namespace)
            connector.close()
            connector.close()

    # Schema and snapshots.

    def test_describe_returns_the_table_and_its_schema(self, connector, truth):
        table = connector.describe(truth.namespace, truth.name)
        assert (table.namespace, table.name) == (truth.namespace, truth.name)
        assert bool(table.table_id) == self.has_table_id
        assert table.location
        names = [column.name for column in table.schema.columns]
        assert len(set(names)) == len(names)
        assert set(truth.columns) <= {column.name for column in table.schema.columns if column.is_leaf}
        for column in table.schema.columns:
            assert parse(column.logical_type).text == column.logical_type
            if "." in column.name and column.name not in truth.columns:
                assert column.name.rpartition(".")[0] in names
        assert connector.describe(truth.namespace, truth.name).schema.hash == table.schema.hash

    def test_metadata_files_exist_and_what_they_say_is_json(self, connector, truth):
        table = connector.describe(truth.namespace, truth.name)
        current = self.current(connector, truth)
        (newest,) = connector.enumerate_snapshots(
            truth.namespace, truth.name, target_snapshot_ids=frozenset({current})
        ).snapshots
        given = {
            "metadata_location": table.metadata_location,
            "format_schema": table.format_schema,
            "manifest_list": newest.manifest_list,
            "summary": newest.summary,
        }
        assert {name for name, value in given.items() if value is not None} == self.metadata
        for name in self.metadata & {"metadata_location", "manifest_list"}:
            assert Path(given[name].removeprefix("file://")).is_file(), given[name]
        for name in self.metadata & {"format_schema", "summary"}:
            assert isinstance(json.loads(given[name]), dict)

    def test_snapshots_are_live_and_in_order(self, connector, truth):
        listing = connector.enumerate_snapshots(truth.namespace, truth.name)
        ids = [snapshot.snapshot_id for snapshot in listing.snapshots]
        assert len(ids) == len(set(ids)) == truth.snapshots
        assert set(ids) == listing.live_snapshot_ids
        assert listing.current_snapshot_id in listing.live_snapshot_ids
        ordinals = {snapshot.ordinal: snapshot for snapshot in listing.snapshots}
        assert len(ordinals) == len(ids)
        assert ordinals[max(ordinals)].snapshot_id == listing.current_snapshot_id
        for snapshot in listing.snapshots:
            assert snapshot.parent_snapshot_id is None or snapshot.parent_snapshot_id in listing.live_snapshot_ids
            assert snapshot.committed_at is None or snapshot.committed_at.tzinfo is not None
        current = next(s for s in listing.snapshots if s.snapshot_id == listing.current_snapshot_id)
        assert current.schema == connector.describe(truth.namespace, truth.name).schema

    def test_known_snapshots_are_left_out_unless_requested(self, connector, truth):
        first = connector.enumerate_snapshots(truth.namespace, truth.name)
        known = first.live_snapshot_ids
        again = connector.enumerate_snapshots(truth.namespace, truth.name, known_snapshot_ids=known)
        assert again.snapshots == ()
        assert again.live_snapshot_ids == known
        full = connector.enumerate_snapshots(truth.namespace, truth.name, known_snapshot_ids=known, full_rescan=True)
        assert {s.snapshot_id for s in full.snapshots} == known
        one = frozenset({first.current_snapshot_id})
        chosen = connector.enumerate_snapshots(truth.namespace, truth.name, target_snapshot_ids=one)
        assert {s.snapshot_id for s in chosen.snapshots} == one
        chosen = connector.enumerate_snapshots(
            truth.namespace, truth.name, known_snapshot_ids=known, target_snapshot_ids=one
        )
        assert {s.snapshot_id for s in chosen.snapshots} == one  # a requested snapshot is returned, known or not

    # Statistics.

    def test_native_statistics_agree_with_the_truth(self, connector, truth):
        ids = self.ids(connector, truth)
        stats = connector.capture_snapshot_target_stats(
            truth.namespace, truth.name, self.current(connector, truth), ids
        )
        assert stats.files.schema == FILE_SCHEMA
        data = stats.files.filter(pc.equal(stats.files["file_content"], "DATA"))
        assert stats.row_count == truth.rows
        assert stats.data_file_count == data.num_rows
        assert stats.total_size_bytes == (pc.sum(data["size_bytes"]).as_py() or 0)
        assert len(set(stats.files["file_path"].to_pylist())) == stats.files.num_rows
        paths = set(data["file_path"].to_pylist())
        for table in stats.file_columns():
            assert table.schema == FILE_COLUMN_SCHEMA
            for row in table.to_pylist():
                assert row["file_path"] in paths
                assert row["column_id"] == ids.get(row["column_name"])
                self.check(row, truth, whole=data.num_rows == 1 and not stats.row_deletes)

    def test_parts_agree_with_the_whole_listing(self, connector, truth, config):
        """Parts of a listing cover all files and columns, and listing again gives the same parts."""
        ids = self.ids(connector, truth)
        place = truth.namespace, truth.name, self.current(connector, truth), ids
        stats = connector.capture_snapshot_target_stats(*place)
        if not stats.parts:
            return
        parts = [part.files for part in stats.parts]
        assert sorted(map(repr, pa.concat_tables(parts).to_pylist())) == sorted(map(repr, stats.files.to_pylist()))
        whole, of_parts = (
            sorted(repr(row) for rows in tables for row in rows.to_pylist())
            for tables in (stats.file_columns(), (rows for part in stats.parts for rows in part.file_columns()))
        )
        assert of_parts == whole
        assert all(part.marks is None or len(part.marks) == part.files.num_rows for part in stats.parts)
        keys = [part.key for part in stats.parts]
        assert len(set(keys)) == len(keys)
        again = open_connector(config)
        try:
            assert [part.key for part in again.capture_snapshot_target_stats(*place).parts] == keys
            assert not again.capture_snapshot_target_stats(*place, frozenset(list(ids)[:1])).parts
        finally:
            again.close()

    def check(self, row: dict[str, Any], truth: Truth, *, whole: bool) -> None:
        """Checks that counts are possible, and equal to the truth where the file is the whole table."""
        for name in ("null_count", "nan_count"):
            assert row[name] is None or 0 <= row[name] <= row["row_count"]
        for side in ("min", "max"):
            assert (row[side] is None) <= (row[f"{side}_is_exact"] is None)
        if not whole or row["column_name"] not in truth.columns:
            return
        values = truth.columns[row["column_name"]]
        if row["null_count"] is not None:
            assert row["null_count"] == sum(value is None for value in values)

    def test_only_the_requested_columns_are_read(self, connector, truth):
        ids = self.ids(connector, truth)
        name = next(iter(truth.columns))
        current = self.current(connector, truth)
        chosen = frozenset({name})
        stats = connector.capture_snapshot_target_stats(truth.namespace, truth.name, current, ids, chosen)
        assert {n for table in stats.file_columns() for n in table["column_name"].to_pylist()} <= chosen
        for task in connector.plan_files(truth.namespace, truth.name, current, ids, chosen):
            assert [column.name for column in task.columns] == [name]

    # Scans.

    def test_scan_tasks_have_stable_fingerprints_and_cover_all_files(self, connector, truth):
        ids = self.ids(connector, truth)
        current = self.current(connector, truth)
        tasks = list(connector.plan_files(truth.namespace, truth.name, current, ids))
        again = list(connector.plan_files(truth.namespace, truth.name, current, ids))
        assert [task.fingerprint for task in tasks] == [task.fingerprint for task in again]
        assert len({task.fingerprint for task in tasks}) == len(tasks)
        for task in tasks:
            assert pickle.loads(pickle.dumps(task)).file_path == task.file_path
            for column in task.columns:
                assert (column.path is None) != (column.constant is None)
                assert ids[column.name] == column.column_id
                if column.constant is not None:
                    assert len(column.constant) == 1
            if task.deleted_rows is not None:
                assert task.deleted_rows.type == pa.int64()
                assert task.deleted_rows.to_pylist() == sorted(set(task.deleted_rows.to_pylist()))
        stats = connector.capture_snapshot_target_stats(truth.namespace, truth.name, current, ids)
        data = stats.files.filter(pc.equal(stats.files["file_content"], "DATA"))
        assert {task.file_path for task in tasks} == set(data["file_path"].to_pylist())

    def test_bytes_of_columns_are_those_that_a_scan_reads(self, connector, truth):
        ids = self.ids(connector, truth)
        place = truth.namespace, truth.name, self.current(connector, truth), ids
        native = {
            (row["file_path"], row["column_id"]): row["bytes_scanned"]
            for table in connector.capture_snapshot_target_stats(*place).file_columns()
            for row in table.to_pylist()
        }
        known = {key: size for key, size in native.items() if size is not None}
        assert len(known) == len(native) or not self.has_column_sizes
        for task in connector.plan_files(*place) if known else ():
            for answer in scan(0, task, Work(tuple(column.column_id for column in task.columns))):
                assert known.get((task.file_path, answer.column_id), answer.size_bytes) == answer.size_bytes

    def test_unknown_snapshot_is_a_statflight_error(self, connector, truth):
        with pytest.raises(StatflightError):
            connector.capture_snapshot_target_stats(truth.namespace, truth.name, 4_611_686_018_427_387_904, {})
