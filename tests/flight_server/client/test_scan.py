"""Planned scans in the client: datasets of the files kept, tables that they refuse, and the command `scan`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from flight_server.client import StatsClient, polars_frame
from flight_server.planning.scan_plan import METADATA, TABLE
from flight_server.planning.scan_query import SCHEMA
from store.model.format_facts import OF_PUTS, UNKNOWN
from tests.flight_server.command_line import KEY, NAME

COUNTS = {"all": 5, "kept": 2, "skipped_by_partition": 1, "skipped_by_bounds": 2}
PLAIN = OF_PUTS  # facts of a format of plain files
DELETED = {"delete_files": [{"file_path": "d", "file_content": "POSITION_DELETES"}]}
COLUMNS = [(1, "id", "INT"), (2, "name", "STRING"), (3, "region", "STRING")]


def with_ids(**ids):
    """Fields with the field ids of Iceberg."""
    types = {"id": pa.int32(), "s": pa.struct([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "9"})])}
    return pa.schema(
        [
            pa.field(name, types.get(name, pa.string()), metadata=None if id is None else {"PARQUET:field_id": str(id)})
            for name, id in ids.items()
        ]
    )


@pytest.fixture
def client(server):
    with StatsClient(server.uri) as client:
        yield client


@pytest.fixture
def scanned(server, client, tmp_path):
    """Function that plans a scan of files, each the keys of its row and the Arrow table in it."""

    def scanned(*files, columns=COLUMNS, format="parquet", by_id=False, where=None, facts=PLAIN):
        rows = []
        for at, (row, table) in enumerate(files):
            path = tmp_path / f"{at} ü.parquet"
            if table is not None:
                pq.write_table(table, path)
            rows.append(
                {
                    "file_path": str(path),
                    "file_format": "PARQUET",
                    "row_count": 10,
                    "size_bytes": 100,
                    "delete_files": [],
                    "match": "SOME",
                }
                | row
            )
        described = [{"id": id, "path": name.split("."), "type": type} for id, name, type in columns]
        about = {"snapshot_id": 7, "format": format, "by_id": by_id, "columns": described}
        if facts is not None:
            about["facts"] = asdict(replace(facts, reads_by_id=by_id))
        metadata = {METADATA: json.dumps(dict.fromkeys(("files", "rows", "bytes"), COUNTS)), TABLE: json.dumps(about)}
        server.tables["scan"] = pa.Table.from_pylist(rows, SCHEMA).replace_schema_metadata(metadata)
        return client.scan(NAME, where=where)

    return scanned


def rows_of(name, **values):
    return pa.table({"id": [1, 2], "name": [name, None]} | values)


def test_the_command_says_what_was_asked(scanned, server, client):
    scanned(where=pc.field("day") >= date(2026, 1, 31))
    assert server.commands[-1] == {
        "scan": NAME,
        "snapshot": "current",
        "where": {"column": "day", "op": "GTE", "values": ["2026-01-31"]},
    }
    client.scan(NAME, where="id = 1", columns=["id"], snapshot=4)
    assert server.commands[-1] == {"scan": NAME, "snapshot": 4, "where": "id = 1", "columns": ["id"]}


def test_partition_values_become_columns(scanned):
    scan = scanned(
        ({"partition_data_json": '{"region": "eu"}'}, rows_of("a")),
        ({"partition_data_json": '{"region": null}'}, rows_of("b")),
    )
    assert scan.summary["files"] == COUNTS and "2 of 5" in repr(scan)
    dataset = scan.dataset()
    assert dataset.schema == pa.schema({"id": pa.int64(), "name": pa.string(), "region": pa.string()})
    expected = [{"id": 1, "name": "a", "region": "eu"}, {"id": 1, "name": "b", "region": None}]
    assert dataset.to_table(filter=pc.field("id") == 1).to_pylist() == expected
    assert dataset.to_table(filter=pc.field("region").is_null())["name"].to_pylist() == ["b", None]
    assert scan.polars().filter(pl.col("id") == 1).collect().to_dicts() == expected


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("INT", "2026", 2026),
        ("INT", '"2026"', 2026),
        ("DATE", '"2026-01-31"', date(2026, 1, 31)),
        ("DOUBLE", '"0.5"', 0.5),
        ("TIMESTAMPTZ", '"2026-01-31T00:00:00Z"', datetime(2026, 1, 31, tzinfo=UTC)),
        ("DECIMAL(10,2)", '"1.5"', Decimal("1.50")),
        ("BOOLEAN", '"true"', True),
        ("BINARY", '"YWI="', b"ab"),
    ],
)
def test_partition_values_have_the_type_of_their_column(scanned, type, text, value):
    scan = scanned(({"partition_data_json": f'{{"p": {text}}}'}, rows_of("a")), columns=[*COLUMNS, (4, "p", type)])
    assert scan.dataset().to_table()["p"].to_pylist() == [value, value]


def test_files_need_not_have_every_column_nor_its_type(scanned):
    narrow = pa.table({"id": pa.array([1], pa.int32())})
    wide = pa.table({"id": [2**40], "name": ["b"], "gone": [1]})
    found = scanned(({}, narrow), ({}, wide), columns=COLUMNS[:2]).dataset().to_table()
    assert found.to_pylist() == [{"id": 1, "name": None}, {"id": 2**40, "name": "b"}]


def is_native(frame):
    """True if polars reads the files by itself."""
    return "Parquet SCAN" in frame.explain()


@pytest.mark.parametrize(
    ("tables", "more", "native"),
    [
        ([{"v": pa.array([1, None], pa.int32())}, {"v": pa.array([2**40], pa.int64())}, {}], "INT", True),
        ([{"v": pa.array([200], pa.uint8())}], "INT", True),
        ([{"v": pa.array([0.1, None], pa.float32())}, {"v": [0.1]}], "DOUBLE", True),
        ([{"v": pa.array(["a", "é"], pa.large_string())}, {"v": ["a"]}], "STRING", True),
        ([{"v": [b"a"]}], "BINARY", True),
        ([{"v": [Decimal("1.50")]}], "DECIMAL(3,2)", True),
        ([{"v": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "UTC"))}], "TIMESTAMPTZ", True),
        ([{"v": [{"x": 1, "y": ["a"]}]}], "STRUCT", True),
        ([{"v": [date(2026, 1, 1)]}], "DATE", True),
        ([{"v": pa.array([time(1, 2, 3, 4)], pa.time64("us"))}], "TIME", True),
        ([{"v": pa.array([b"0123456789abcdef"], pa.binary(16))}], "UUID", True),
        ([{"v": pa.array(["a", "b", "a"]).dictionary_encode()}, {"v": ["c"]}], "STRING", False),
        ([{"v": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}], "MAP", False),
        ([{"v": pa.array([2**40], pa.uint64())}], "INT", False),
    ],
)
def test_polars_reads_files_as_pyarrow_does(scanned, tables, more, native):
    files = []
    for at, columns in enumerate(tables):
        table = pa.table(columns or {"other": [1, 2]})
        files.append(
            ({"partition_data_json": f'{{"region": "r{at}"}}'}, table.append_column("it's", [["x"] * len(table)]))
        )
    scan = scanned(*files, columns=[(1, "v", more), (2, "region", "STRING"), (3, "it's", "STRING")])
    frame = scan.polars()
    assert is_native(frame) is native
    assert frame.collect().to_dicts() == pl.from_arrow(scan.dataset().to_table()).to_dicts()
    assert frame.filter(pl.col("region") == "r0").select("v").collect().height == len(files[0][1])


def test_polars_does_not_look_for_patterns_nor_partitions_in_paths(scanned, tmp_path):
    place = tmp_path / "region=zz"
    place.mkdir()
    paths = [place / name for name in ("a[1]*.parquet", "a1x.parquet")]
    for at, path in enumerate(paths):
        pq.write_table(rows_of(f"n{at}"), path)
    scan = scanned(({"file_path": str(paths[0])}, None))
    assert is_native(scan.polars())
    expected = [{"id": 1, "name": "n0", "region": None}, {"id": 2, "name": None, "region": None}]
    assert scan.polars().collect().to_dicts() == expected


def test_old_timestamps_are_left_to_pyarrow(scanned, tmp_path):
    """Of INT96 polars makes the unit that the writer noted, pyarrow nanoseconds."""
    moments = pa.table({"id": [1], "at": pa.array([datetime(2026, 1, 1)], pa.timestamp("ms"))})
    pq.write_table(moments, tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True)
    scan = scanned(({"file_path": str(tmp_path / "int96.parquet")}, None), columns=[COLUMNS[0], (2, "at", "TIMESTAMP")])
    frame = scan.polars()
    assert not is_native(frame)
    assert frame.collect().to_dicts() == [{"id": 1, "at": datetime(2026, 1, 1)}]


@pytest.mark.parametrize("most", ["MOST_FILES", "MOST_GROUPS"])
def test_many_files_are_a_dataset_to_polars(scanned, monkeypatch, most):
    files = [({"partition_data_json": f'{{"region": "r{at}"}}'}, rows_of("a")) for at in range(3)]
    scan = scanned(*files)
    assert is_native(scan.polars())
    monkeypatch.setattr(polars_frame, most, 2)
    assert not is_native(scan.polars()) and scan.polars().collect().height == 6


def test_no_file_is_a_dataset_without_rows(scanned):
    dataset = scanned().dataset()
    assert dataset.schema.names == ["id", "name", "region"] and dataset.count_rows() == 0


def test_paths_may_be_urls(scanned):
    scan = scanned(({}, rows_of("a")), columns=COLUMNS[:2])
    path = scan.files["file_path"][0].as_py()
    for url in (f"file://{path}", f"file:{path}", f"file://{path}".replace(" ", "%20")):
        scan.files = scan.files.set_column(0, "file_path", pa.array([url]))
        assert scan.dataset().count_rows() == 2
    scan.files = scan.files.set_column(0, "file_path", pa.array([f"mine://{path}"]))
    assert scan.dataset(fs.LocalFileSystem()).count_rows() == 2


@pytest.mark.parametrize(
    ("row", "facts", "message"),
    [
        (DELETED, replace(PLAIN, iceberg_metadata=True), "by an Iceberg client"),
        (DELETED, None, "by a reader of its own"),
        ({"delete_files": None}, replace(PLAIN, deletes_rows=True), "row-level deletes"),
        ({"delete_files": None}, None, "row-level deletes"),
        ({"file_format": "ORC"}, PLAIN, "not ORC"),
        ({"file_format": "ORC"}, None, "not ORC"),
        ({}, replace(PLAIN, plain_parquet=False), "not made-up"),
        ({}, replace(PLAIN, merges_rows=True), "not made-up"),
        ({}, UNKNOWN, "not made-up"),
    ],
)
def test_what_names_cannot_read_is_refused(scanned, row, facts, message):
    """None: an older server, which does not send facts."""
    scan = scanned((row, None), format="made-up", facts=facts)
    for read in (scan.dataset, scan.polars):
        with pytest.raises(ValueError, match=message) as refusal:
            read()
        assert NAME in str(refusal.value)


def test_plain_files_of_an_older_server_are_read(scanned):
    rows = pa.table({"id": [5], "name": ["a"], "region": ["eu"]})
    assert scanned(({}, rows), facts=None).dataset().to_table()["id"].to_pylist() == [5]
    assert scanned(({"delete_files": None}, rows), format="external", facts=None).dataset().count_rows() == 1


def test_files_that_an_older_server_may_merge_are_refused(scanned):
    scan = scanned(({}, by_id(id=1, name=2, region=3)), format="made-up", by_id=True, facts=None)
    with pytest.raises(ValueError, match="does not say whether readers merge rows of format made-up; update"):
        scan.dataset()


# Columns by id.


def by_id(**ids):
    schema = with_ids(**ids)
    return pa.Table.from_pylist([{name: 5 if name == "id" else None for name in ids}], schema)


def test_columns_with_their_own_ids_are_read(scanned):
    table = by_id(id=1, name=2, region=3, gone=8)
    assert scanned(({}, table), format="iceberg", by_id=True).dataset().to_table()["id"].to_pylist() == [5]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"id": 1, "former": 2, "region": 3}, "column former of .* has another name"),
        ({"id": 1, "name": 7, "region": 3}, "column name of .* has another name or meaning"),
        ({"id": 1, "name": None, "region": 3}, "no field ids"),
        ({"id": 1, "region": 3}, "lacks the column name"),
    ],
)
def test_names_that_mean_something_else_are_refused(scanned, server, ids, message):
    server.rows("information_schema.tables", KEY)
    with pytest.raises(ValueError, match=message):
        scanned(({}, by_id(**ids)), format="iceberg", by_id=True).dataset()


def test_fields_of_structs_have_ids_too(scanned):
    columns = [(1, "id", "INT"), (4, "s", "STRUCT"), (9, "s.y", "INT")]
    with pytest.raises(ValueError, match=r"column s\.x of"):
        scanned(({}, by_id(id=1, s=4)), columns=columns, by_id=True).dataset()


@pytest.mark.parametrize(
    ("known", "value"),
    [
        ({"null_count": 10}, None),
        ({"null_count": 0, "min": "eu", "max": "eu"}, "eu"),
    ],
)
def test_a_column_that_a_file_lacks_has_the_value_that_statistics_say(scanned, server, known, value):
    scan = scanned(({}, by_id(id=1, name=2)), format="iceberg", by_id=True)
    (path,) = scan.files["file_path"].to_pylist()
    fact = KEY | {"snapshot_id": 7, "file_path": path, "column_id": 3, "row_count": 10, "usable_for": "PRUNING"} | known
    server.rows("stats.file_columns", fact)
    assert scan.dataset().to_table()["region"].to_pylist() == [value]
    server.rows("stats.file_columns", fact | {"usable_for": "PLANNING"})
    with pytest.raises(ValueError, match="its value there is not known"):
        scan.dataset()


# The command.


def test_the_command_prints_files_and_what_was_skipped(scanned, run):
    scanned(({"kept_because": "NO_STATISTICS"}, None), ({"match": "ALL"}, None))
    status, out, err = run("scan", NAME, "--where", "id = 1")
    assert status == 0 and "NO_STATISTICS" in out and "ALL" in out
    assert "2 of 5 files" in err and "200 B to read; skipped 1 by partition, 2 by bounds" in err


def test_columns_add_up(scanned, server, run):
    scanned()
    assert run("scan", NAME, "--columns", "id,name", "--columns", "region")[0] == 0
    assert server.commands[-1]["columns"] == ["id", "name", "region"]


def test_paths_are_printed_alone(scanned, run):
    paths = scanned(({}, None), ({}, None)).files["file_path"].to_pylist()
    assert run("scan", NAME, "--paths")[1].splitlines() == paths
    status, _, err = run("scan", NAME, "--paths", "--format", "json")
    assert status == 2 and "--paths" in err


def test_too_many_bytes_have_a_status_of_their_own(scanned, run):
    scanned(({"bytes_to_read": 30}, None), ({}, None))
    assert run("scan", NAME, "--max-bytes", 130)[0] == 0
    status, out, err = run("scan", NAME, "--max-bytes", 129)
    assert status == 3 and "130 bytes to read, more than the 129" in err and ".parquet" in out
