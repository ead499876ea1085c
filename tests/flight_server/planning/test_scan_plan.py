"""Plans of scans: which files are kept, what is refused, and what the summary counts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from flight_server.planning import scan_plan, scan_query
from flight_server.planning.plan_request import find
from flight_server.planning.scan_plan import METADATA, TABLE
from flight_server.planning.scan_query import SCHEMA
from store import segment_merging
from store.duckdb import segment_files
from store.duckdb.layout import BY_SPAN
from store.model.columns import PARTITION_SPECS
from store.model.errors import InvalidArgument, NotCaptured, NotFound
from store.model.format_facts import FACTS, UNKNOWN, FormatFacts
from store.model.logical_types import parse
from store.model.predicates.buckets import hash_of
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
FILES = 5
BUCKETS = FormatFacts(merges_rows=False, iceberg_metadata=True).as_property


def with_files(app):
    """File i has ids from 10 i to 10 i + 9, and one of two regions."""
    whole = KEY | {"completeness": "COMPLETE"}
    put(
        app,
        [
            whole | {"file_path": f"f{i}", "file_content": "DATA", "row_count": 10, "size_bytes": 100}
            for i in range(FILES)
        ],
        "stats.files",
    )
    ids = {"column_id": 1, "column_name": "Id", "logical_type": "INT"}
    regions = {"column_id": 2, "column_name": "region", "logical_type": "STRING"}
    rows = [whole | ids | {"file_path": f"f{i}", "min": str(10 * i), "max": str(10 * i + 9)} for i in range(FILES)]
    rows += [whole | regions | {"file_path": f"f{i}", "min": f"r{i % 2}", "max": f"r{i % 2}"} for i in range(FILES)]
    put(app, [row | {"row_count": 10, "null_count": 0} for row in rows], "stats.file_columns")


def into_segments(app, monkeypatch) -> None:
    """Moves the rows of files from the database to segments."""
    monkeypatch.setattr(segment_merging, "FILE_ROWS", 0)
    monkeypatch.setattr(segment_merging, "MANY_SMALL", 99)
    table = app.catalog.get("lake.s.t")
    app.store.database.segments.expect(table.table_key)
    for family in ("stats.files", "stats.file_columns"):
        assert segment_merging.merge_table(app.store.database, table.table_key, family, [])
        assert app.store.database.rows(f"SELECT count(*) FROM {BY_SPAN[family]}") == [(0,)]


@pytest.fixture(params=["joined", "decided first", "named", "segments"])
def app(request, monkeypatch):
    if request.param != "joined":  # as conditions on one column of many files are
        monkeypatch.setattr(scan_query, "_MANY_FILES", 0)
    if request.param == "decided first":  # of which a condition keeps many
        monkeypatch.setattr(scan_query, "_NAMED_FILES", 0)
    with app_in(fill=with_files) as app:
        if request.param == "segments":
            into_segments(app, monkeypatch)
        yield app


def plan(app, where: Any = None, table: str = "lake.s.t", **more: Any):
    request = find(json.dumps({"scan": table, "where": where} | more).encode())
    return app.parts["planning"].planner.plan(app.catalog.get(table), request.node, request.columns, request.snapshot)


def kept(app, where: Any = None, **more: Any) -> dict[str, str]:
    files = plan(app, where, **more).files
    assert files.schema.equals(SCHEMA)
    return dict(zip(files["file_path"].to_pylist(), files["match"].to_pylist(), strict=True))


def test_bounds_skip_files(app):
    assert kept(app, "id = 25") == {"f2": "SOME"}
    assert kept(app, "ID >= 30 AND region = 'r0'") == {"f4": "ALL"}
    assert kept(app, "id IN (5, 45) OR region IS NULL") == {"f0": "SOME", "f4": "SOME"}
    assert kept(app) == {f"f{i}": "ALL" for i in range(FILES)}
    assert kept(app, "id > 100") == {}


def test_bounds_of_many_columns_skip_files():
    columns = range(1, 301)

    def wide(app):
        whole = KEY | {"completeness": "COMPLETE"}
        put(
            app,
            [whole | {"file_path": f"f{i}", "file_content": "DATA", "row_count": 10} for i in range(FILES)],
            "stats.files",
        )
        put(
            app,
            [
                whole
                | {
                    "file_path": f"f{i}",
                    "column_id": c,
                    "column_name": f"c{c}",
                    "logical_type": "INT",
                    "min": str(c * i),
                    "max": str(c * i + 1),
                    "row_count": 10,
                    "null_count": 0,
                }
                for i in range(FILES)
                for c in columns
            ],
            "stats.file_columns",
        )

    with app_in(fill=wide) as app:
        assert kept(app, " AND ".join(f"c{c} >= {2 * c + (c == 300)}" for c in columns)) == {
            "f2": "SOME",
            **{f"f{i}": "ALL" for i in range(3, FILES)},
        }


def test_a_plan_is_made_once_until_the_table_changes(app, monkeypatch):
    """A client asks for the description of a plan, which names its snapshot, then for its files."""
    made = []
    query = scan_query.Query

    def counted(*given, **more):
        made.append(given)
        return query(*given, **more)

    monkeypatch.setattr(scan_plan, "Query", counted)
    first = plan(app, "id = 25")
    assert plan(app, "id = 25", snapshot=first.snapshot_id) is first
    assert len(made) == 1
    for other in ("id = 25.0", "id = '25'", "id = 26"):  # equal numbers are other literals
        assert plan(app, other) is not first
    assert plan(app, "id = 25", columns=["id"]) is not first
    assert len(made) == 5
    later = KEY | {"completeness": "COMPLETE", "file_path": "later", "file_content": "DATA", "row_count": 10}
    put(app, [later | {"size_bytes": 100}], "stats.files")
    assert kept(app, "id = 25") == {"f2": "SOME", "later": "SOME"}


def test_ranges_of_segments_keep_the_files_that_bounds_keep(monkeypatch):
    """Also those of a segment that was written before there were ranges, and of rows that are not in a segment yet."""
    monkeypatch.setattr(scan_query, "_MANY_FILES", 0)
    conditions = [
        "id = 25",
        "id BETWEEN 15 AND 22.5",
        "NOT id < 40",
        "id IN (5, 45)",
        "id > 10 OR id IS NULL",
        "id <> 1",
    ]
    with app_in(fill=with_files) as app:
        without = [kept(app, where) for where in conditions]
        with monkeypatch.context() as patch:
            patch.setattr(segment_files, "with_ranges", lambda rows: rows)
            into_segments(app, patch)
        assert [kept(app, where) for where in conditions] == without
        later = KEY | {"completeness": "COMPLETE", "file_path": "later", "file_content": "DATA", "row_count": 10}
        put(app, [later], "stats.files")
        bounds = {"column_id": 1, "column_name": "Id", "logical_type": "INT", "min": "25", "max": "25", "null_count": 0}
        del later["file_content"]
        put(app, [later | bounds], "stats.file_columns")
        assert kept(app, "id = 25") == {"f2": "SOME", "later": "ALL"}
        into_segments(app, monkeypatch)
        assert kept(app, "id = 25") == {"f2": "SOME", "later": "ALL"}
        assert kept(app, "id > 100") == {}


def test_file_that_comes_later_without_bounds_is_kept(app):
    assert kept(app, "id = 25") == {"f2": "SOME"}
    later = KEY | {"completeness": "COMPLETE", "file_path": "later", "file_content": "DATA", "row_count": 10}
    put(app, [later | {"size_bytes": 100}], "stats.files")
    assert kept(app, "id = 25") == {"f2": "SOME", "later": "SOME"}
    put(
        app,
        [
            KEY
            | {
                "completeness": "COMPLETE",
                "file_path": "later",
                "column_id": 1,
                "column_name": "Id",
                "logical_type": "INT",
                "min": "60",
                "max": "69",
                "row_count": 10,
                "null_count": 0,
            }
        ],
        "stats.file_columns",
    )
    assert kept(app, "id = 25") == {"f2": "SOME"}


def test_thousands_of_members_are_looked_up(app):
    members = [*range(1000, 9000), 25, 26]
    assert kept(app, {"column": "id", "op": "IN", "values": members}) == {"f2": "SOME"}
    assert kept(app, {"not": {"column": "id", "op": "IN", "values": members}}) == {
        f"f{i}": "SOME" if i == 2 else "ALL" for i in range(FILES)
    }


def test_files_come_with_their_summary(app):
    files = plan(app, "id = 25 AND region = 'r0'").files
    summary = json.loads(files.schema.metadata[METADATA])
    assert summary["files"] == {"all": 5, "kept": 1, "skipped_by_partition": 0, "skipped_by_bounds": 4}
    assert summary["bytes"]["skipped_by_bounds"] == 400 and summary["rows"]["kept"] == 10
    assert files["bytes_to_read"].to_pylist() == [100]


def test_bytes_of_columns_are_summed_where_all_are_known(app):
    def to_read(*columns: str) -> list[int | None]:
        return plan(app, "id >= 20", columns=columns).files["bytes_to_read"].to_pylist()

    assert to_read("region") == [None, None, None] and to_read() == [100, 100, 100]
    known = KEY | {"completeness": "PARTIAL", "row_count": 10}  # such as of a file with deleted rows
    ids = known | {"column_id": 1, "column_name": "Id", "logical_type": "INT", "min": "20", "max": "29"}
    regions = known | {"column_id": 2, "column_name": "region", "logical_type": "STRING", "min": "r", "max": "r"}
    put(
        app,
        [
            ids | {"file_path": "f2", "bytes_scanned": 40},
            regions | {"file_path": "f2", "bytes_scanned": 7},
            ids | {"file_path": "f4", "bytes_scanned": 0},
            regions | {"file_path": "f4", "bytes_scanned": 700},
        ],
        "stats.file_columns",
    )
    put(app, [regions | {"file_path": "f3", "bytes_scanned": 5, "row_groups_sampled": 1}], "stats.file_columns")
    assert to_read("region") == [7, None, 100]
    assert to_read("region", "id", "region") == [47, None, 100]
    assert to_read("id") == [40, None, 0]


def test_sums_beyond_64_bits_are_exact_or_unknown(app):
    huge = KEY | {"completeness": "COMPLETE", "row_count": 2**62}
    names = [f"h{i}" for i in range(3)]
    put(app, [huge | {"file_path": name, "file_content": "DATA", "size_bytes": 2**62} for name in names], "stats.files")
    files = plan(app).files
    summary = json.loads(files.schema.metadata[METADATA])
    assert summary["rows"] == {
        "all": 3 * 2**62 + 50,
        "kept": 3 * 2**62 + 50,
        "skipped_by_partition": 0,
        "skipped_by_bounds": 0,
    }
    assert summary["bytes"]["kept"] == 3 * 2**62 + 500
    put(app, [huge | {"file_path": "unsized", "file_content": "DATA"}], "stats.files")
    put(
        app,
        [
            huge
            | {
                "file_path": "unsized",
                "column_id": id,
                "column_name": name,
                "logical_type": "INT",
                "bytes_scanned": 2**62,
            }
            for id, name in ((1, "Id"), (2, "region"))
        ],
        "stats.file_columns",
    )
    assert plan(app, columns=["id"]).files["bytes_to_read"].to_pylist()[-1] == 2**62
    assert plan(app, columns=["id", "region"]).files["bytes_to_read"].to_pylist()[-1] is None


def test_partition_values_are_counted_by_themselves(app):
    app.database.write(lambda connection: connection.execute("UPDATE tables SET partition_keys = ['region', 'gone']"))
    summary = json.loads(plan(app, "id = 25 AND region = 'r0'").files.schema.metadata[METADATA])
    assert summary["files"] == {"all": 5, "kept": 1, "skipped_by_partition": 2, "skipped_by_bounds": 2}


def test_buckets_of_partitions_skip_files(app):
    """File i is of bucket i modulo 4, in the partition spec that the property describes; f4 is of another."""
    fields = [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "part"}]
    specs = json.dumps([{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": fields}])
    whole = KEY | {"completeness": "COMPLETE", "file_content": "DATA", "row_count": 10, "size_bytes": 100}
    parts = [
        {"partition_spec_id": int(i < 4), "partition_data_json": json.dumps({"part": i % 4})} for i in range(FILES)
    ]
    put(app, [whole | {"file_path": f"f{i}"} | part for i, part in enumerate(parts)], "stats.files")
    app.database.write(
        lambda connection: connection.execute(
            "UPDATE tables SET format = 'iceberg', properties = ?", [json.dumps({PARTITION_SPECS: specs} | BUCKETS)]
        )
    )
    app.catalog.reload(app.database.read())
    app.database.versions.renew()
    of_34, of_45 = (hash_of(value, parse("INT")) % 4 for value in (34, 45))
    rows = [
        KEY
        | {
            "completeness": "COMPLETE",
            "file_path": f"f{i}",
            "column_id": 1,
            "column_name": "Id",
            "logical_type": "INT",
            "row_count": 10,
            "min": "0",
            "max": "99",
        }
        for i in range(FILES)
    ]
    put(app, rows, "stats.file_columns")
    assert set(kept(app, "id = 34")) == {f"f{of_34}", "f4"}
    assert set(kept(app, "id IN (34, 45)")) == {f"f{of_34}", f"f{of_45}", "f4"}
    assert set(kept(app, {"column": "id", "op": "IN", "values": [34.0, *[34] * 20]})) == {f"f{of_34}", "f4"}
    summary = json.loads(plan(app, "id = 34 AND region = 'r9'").files.schema.metadata[METADATA])
    assert summary["files"] == {"all": 5, "kept": 0, "skipped_by_partition": 3, "skipped_by_bounds": 2}
    for where in ("NOT (id = 34)", "id <> 34", "id >= 34", "id = 34 OR region = 'r0' OR region = 'r1'"):
        assert len(kept(app, where)) == FILES, where


def test_columns_that_are_named_count_as_used(app):
    assert plan(app, "id = 25", columns=["region", "Id"]).columns == (1, 2)


def test_bounds_of_another_snapshot_skip_nothing(app):
    put(app, [KEY | {"snapshot_id": 2, "file_path": "f0", "file_content": "DATA", "row_count": 10}], "stats.files")
    put(app, [KEY | {"snapshot_id": 2, "column_id": 1, "column_name": "Id", "logical_type": "INT"}], "stats.columns")
    files = plan(app, "id = 25", snapshot=2).files
    assert files.select(["file_path", "match", "kept_because"]).to_pylist() == [
        {"file_path": "f0", "match": "SOME", "kept_because": "NO_STATISTICS"}
    ]


def test_a_listing_that_lacks_files_is_refused(app):
    put(app, [KEY | {"data_file_count": FILES}], "stats.tables")
    assert len(kept(app)) == FILES
    put(app, [KEY | {"data_file_count": FILES + 1}], "stats.tables")
    with pytest.raises(NotCaptured, match="5 of 6 files of snapshot 1 are known"):
        plan(app)


def test_a_snapshot_without_files_is_not_captured(app):
    put(app, [KEY | {"snapshot_id": 3, "row_count": 1}], "stats.tables")
    with pytest.raises(NotCaptured, match="snapshot 3"):
        plan(app, snapshot=3)
    assert not app.parts["planning"].planner.is_captured(app.catalog.get("lake.s.t"), 3)
    assert app.parts["planning"].planner.is_captured(app.catalog.get("lake.s.t"), 1)
    with pytest.raises(NotFound, match="no snapshot 4"):
        plan(app, snapshot=4)


def test_names_are_checked(app):
    with pytest.raises(InvalidArgument, match='no column "idd"; did you mean "id"'):
        plan(app, "idd = 1")
    put(app, [KEY | {"column_id": 3, "column_name": "iD", "logical_type": "INT"}], "stats.columns")
    assert kept(app, "Id = 25") == {"f2": "SOME"}
    with pytest.raises(InvalidArgument, match="several columns"):
        plan(app, "id = 25")


def looked_at(app, properties):
    """Makes the table one of a connector, with these properties since its last inspection."""
    sql = "UPDATE tables SET format = 'made-up', properties = ?"
    app.database.write(lambda connection: connection.execute(sql, [properties]))
    app.catalog.reload(app.database.read())
    app.database.versions.renew()


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(json.dumps(FormatFacts(merges_rows=True).as_property), id="merged"),
        pytest.param("{}", id="stored before there were facts"),
        pytest.param(None, id="without properties"),
        pytest.param(json.dumps({FACTS: "no JSON"}), id="damaged"),
    ],
)
def test_files_that_readers_merge_are_all_kept(app, properties):
    """A file without a matching row may have the newer version, or other columns, of a row elsewhere."""
    looked_at(app, json.dumps(FormatFacts(merges_rows=False).as_property))
    assert kept(app, "id = 25") == {"f2": "SOME"}
    looked_at(app, properties)
    files = plan(app, "id = 25").files
    assert files["kept_because"].to_pylist() == ["NOT_PRUNING"] * FILES
    with pytest.raises(InvalidArgument, match="no column"):
        plan(app, "idd = 25")


@pytest.mark.parametrize("facts", [UNKNOWN, FormatFacts(False, False, True, True, True, True, "x")])
def test_clients_are_told_the_facts_of_the_format(app, facts):
    looked_at(app, json.dumps(facts.as_property))
    about = json.loads(plan(app).files.schema.metadata[TABLE])
    assert about["facts"] == asdict(facts)
    assert about["by_id"] == facts.reads_by_id


def test_what_is_cached_of_a_snapshot_ends_with_the_next_put(app):
    assert len(kept(app)) == len(kept(app)) == FILES
    put(app, [KEY | {"file_path": "f9", "file_content": "DATA", "row_count": 10, "size_bytes": 1}], "stats.files")
    assert len(kept(app, "id = 25")) == 2
    assert json.loads(plan(app).files.schema.metadata[METADATA])["files"]["all"] == FILES + 1
