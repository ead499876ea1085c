"""Export and import: what is loaded equals what was exported; what is damaged is refused."""

from __future__ import annotations

import io
import shutil

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.duckdb.layout import insert_rows
from store.invariants import violations
from store.model.errors import InvalidArgument
from store.stats_store import DuckDBStatsStore
from store.transfer import directory
from store.transfer.contents import CATALOG, FOLDERS, LEFT_OUT, RECORDS, catalog_columns, database_columns
from store.transfer.export import EVERYTHING, Scope, export
from store.transfer.load import load
from store.transfer.manifest import MANIFEST, FileEntry, Manifest, check_directory, check_file, parse, path_of
from tests.store.contract import columns, put, rows
from tests.store.empty_store import empty_database, empty_store
from tests.store.every_kind import put_every_kind
from tests.store.history.test_spans import HISTORIES, apply

KEYS = "SELECT table_key, table_catalog, table_schema, table_name FROM tables WHERE NOT dropped"


@pytest.fixture
def opened():
    """Opens empty stores, which are closed in the end."""
    made = []

    def open() -> DuckDBStatsStore:
        database = empty_database()
        made.append(database)
        return DuckDBStatsStore(database, Catalog(database))

    yield open
    for database in made:
        database.close()


def exported(store, scope=EVERYTHING) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with store.database.reading() as cursor:
        for piece in export(cursor, store.database.segments, scope):
            files[piece.file] = files.get(piece.file, b"") + piece.data
    return files


def imported(files: dict[str, bytes], into: DuckDBStatsStore) -> int:
    opened = {name.rpartition("/")[0]: io.BytesIO(data) for name, data in files.items() if name != MANIFEST}
    return into.database.write(lambda connection: load(connection, into.catalog, opened))


def read(files: dict[str, bytes], folder: str) -> pa.Table:
    return pq.read_table(io.BytesIO(files[path_of(folder)]))


def physical(store) -> dict[str, list[str]]:
    """The rows of each table of the database that an export has, by names in place of keys, those dropped left out."""
    found = {}
    for (table,) in store.database.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary"):
        if table in LEFT_OUT:
            continue
        names = {name for (name,) in store.database.rows(f"SELECT name FROM pragma_table_info('{table}')")}
        # without a mark of records that have no distribution, which nothing reads
        named = ", ".join(f"r.{name}" for name in sorted(names - {"table_key", "distribution_generation"}))
        sql = f"SELECT {named} FROM {table} r"
        if "table_key" in names:
            sql = f"SELECT {named}, k.* EXCLUDE (table_key) FROM {table} r JOIN ({KEYS}) k USING (table_key)"
        found[table] = sorted(map(repr, store.database.rows(sql)))
    return found


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_an_import_of_any_history_stores_the_same_rows(opened, steps):
    check_history(opened, steps)


@pytest.mark.benchmark
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_an_import_of_many_histories_stores_the_same_rows(opened, steps):
    check_history(opened, steps)


def check_history(opened, steps):
    first, second = opened(), opened()
    try:
        for step in steps:
            apply(first, step)
        imported(exported(first), second)
        assert physical(second) == physical(first)
        with second.database.reading() as cursor:
            assert list(violations(cursor)) == []
    finally:
        first.close()
        second.close()


@pytest.fixture(scope="module")
def filled():
    database = empty_database()
    store = DuckDBStatsStore(database, Catalog(database))
    put_every_kind(store)
    key = store.catalog.get("c.s.t").table_key
    database.write(
        lambda connection: insert_rows(
            connection,
            "publications (table_key, home, snapshot_id, state)",
            [[key, "trino", 1, "CURRENT"]],
        )
    )
    yield store
    database.close()


@pytest.fixture(scope="module")
def whole(filled):
    return exported(filled)


def test_every_kind_of_record_comes_back(filled, whole, opened):
    store = opened()
    records = imported(whole, store)
    assert records == sum(read(whole, flight).num_rows for flight in RECORDS)
    assert physical(store) == physical(filled)
    assert [table.full_name for table in store.catalog.tables()] == ["c.s.t", "c.s.u"]
    again = exported(store)
    for folder in FOLDERS:
        assert sorted(map(repr, read(again, folder).to_pylist())) == sorted(map(repr, read(whole, folder).to_pylist()))


def test_what_is_imported_goes_on(whole, opened):
    store = opened()
    imported(whole, store)
    new = rows("stats.columns", {"column_id": 1, "row_count": 10, "schema_hash": "x"}, snapshot=4)
    assert put(store, "stats.columns", new).created == 1
    files = rows("stats.files", {"file_path": "c", "row_count": 1, "schema_hash": "x"}, snapshot=4)
    put(store, "stats.files", files, "replace_snapshot")
    with store.database.reading() as cursor:
        assert list(violations(cursor)) == []


def test_each_table_of_the_database_is_exported_or_left_out_on_purpose(filled):
    tables = {name for (name,) in filled.database.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary")}
    of_records = {name for name in tables if name.startswith("stats_")} | {"file_sketches"}
    assert tables - of_records == {folder.table for folder in CATALOG.values()} | LEFT_OUT


def test_a_listing_that_is_being_stored_is_not_exported(filled, opened):
    """Rows of the newest listing end at the position of the one to come; in the import they are open."""
    store, other = opened(), opened()
    put(store, "stats.files", rows("stats.files", {"file_path": "a", "row_count": 1}), "replace_snapshot")
    before = physical(store)
    store.database.write(lambda connection: connection.execute("UPDATE stats_files SET to_pos = 1") and None)
    imported(exported(store), other)
    assert physical(other) == before


def test_a_scope_has_no_row_of_other_tables(filled):
    key = filled.catalog.get("c.s.u").table_key
    files = exported(filled, Scope([key], []))
    for folder in FOLDERS:
        table = read(files, folder)
        if "table_name" in table.schema.names:
            assert set(table["table_name"].to_pylist()) <= {"u"}, folder
    assert read(files, "stats.columns").num_rows == 1
    assert read(files, "sys.connectors")["options"].to_pylist() == [None]


def test_an_import_is_into_an_empty_database(whole, opened):
    store = opened()
    put(store, "stats.columns", columns((1, 1)))
    before = physical(store)
    with pytest.raises(InvalidArgument, match="not empty"):
        imported(whole, store)
    assert physical(store) == before
    assert [table.full_name for table in store.catalog.tables()] == ["c.s.t"]


def without_rows(files, folder):
    """The export with a folder that has no rows."""
    sink = io.BytesIO()
    pq.write_table(read(files, folder).slice(0, 0), sink)
    return files | {path_of(folder): sink.getvalue()}


@pytest.mark.parametrize(("folder", "named"), [("sys.snapshots", "snapshot 1 of c.s.t"), ("sys.tables", "sys.tables")])
def test_rows_of_what_the_export_lacks_are_refused(whole, opened, folder, named):
    store = opened()
    with pytest.raises(InvalidArgument, match=named):
        imported(without_rows(whole, folder), store)
    assert store.catalog.tables() == []
    assert put(store, "stats.columns", columns((1, 1))).created == 1


# Directories.


@pytest.fixture(scope="module")
def database(tmp_path_factory, filled):
    """A closed database with every kind of record."""
    path = empty_store(tmp_path_factory.mktemp("database") / "s.duckdb")
    database = Database(path)
    put_every_kind(DuckDBStatsStore(database, Catalog(database)))
    database.close()
    return path


@pytest.fixture
def folder(database, tmp_path):
    directory.export_file(database, tmp_path / "export")
    return tmp_path / "export"


def test_a_file_is_exported_and_stays_as_it_is(database, folder):
    before = {path.name: path.read_bytes() for path in database.parent.iterdir()}
    manifest = check_directory(folder)
    assert manifest.files[path_of("stats.columns")].rows == 4
    assert {path.name for path in folder.iterdir()} == {*FOLDERS, MANIFEST}
    assert {path.name: path.read_bytes() for path in database.parent.iterdir()} == before
    assert folder.stat().st_mode & 0o077 == 0


def test_pieces_of_a_directory_are_what_was_written_there(folder, tmp_path):
    manifest = check_directory(folder)
    with directory.new_directory(tmp_path / "again") as made:
        directory.write((piece for piece in directory.read(manifest, folder)), made)
    assert check_directory(tmp_path / "again") == manifest


def test_nothing_is_left_of_an_export_that_fails(database, tmp_path):
    with pytest.raises(InvalidArgument, match="no database"):
        directory.export_file(tmp_path / "none.duckdb", tmp_path / "export")
    (tmp_path / "text.duckdb").write_text("not a database")
    with pytest.raises(InvalidArgument, match=r"text\.duckdb"):
        directory.export_file(tmp_path / "text.duckdb", tmp_path / "export")
    with pytest.raises(InvalidArgument, match="exists"):
        directory.export_file(database, tmp_path / "text.duckdb")
    assert not (tmp_path / "export").exists()


def rewritten(file, change):
    table = change(pq.read_table(file))
    pq.write_table(table, file)


def bounds_as_integers(table):
    at = table.schema.get_field_index("min")
    return table.set_column(at, "min", pa.array([1] * table.num_rows))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda file: file.unlink(), "lacks stats.columns"),
        (lambda file: shutil.rmtree(file.parent), "lacks stats.columns"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "stats.columns/.* is damaged"),
        (lambda file: file.write_bytes(b""), "stats.columns/.* is damaged"),
        (lambda file: rewritten(file, lambda t: t.drop(["ndv"])), 'stats.columns/.* lacks the column "ndv"'),
        (lambda file: rewritten(file, bounds_as_integers), 'column "min" has the type int64; must be string'),
        (lambda file: rewritten(file, lambda t: t.append_column("x", t["min"])), 'has a column "x"'),
        (lambda file: rewritten(file, lambda t: t.slice(1)), "has 3 rows, manifest.json says 4"),
        (lambda file: rewritten(file, lambda t: t), "another content"),
        (lambda file: (file.parent.parent / MANIFEST).unlink(), "did not end"),
        (lambda file: (file.parent.parent / MANIFEST).write_text("{}"), "not the manifest"),
        (lambda file: shutil.rmtree(file.parent.parent), "no directory"),
    ],
)
def test_what_is_no_whole_export_is_refused(folder, damage, named):
    damage(folder / path_of("stats.columns"))
    with pytest.raises(InvalidArgument, match=named):
        check_directory(folder)


def test_an_export_of_a_newer_version_is_refused(folder):
    manifest = check_directory(folder)
    for newer in ({"layout": 999}, {"format": 2}):
        (folder / MANIFEST).write_bytes(msgspec_replaced(manifest, **newer).to_bytes())
        with pytest.raises(InvalidArgument, match="was written by statflight"):
            check_directory(folder)


def msgspec_replaced(manifest: Manifest, **changed) -> Manifest:
    import msgspec

    return msgspec.structs.replace(manifest, **changed)


def test_a_manifest_names_each_file_and_no_other(folder):
    manifest = check_directory(folder)
    files = dict(manifest.files)
    strange = files | {"../../etc/passwd": FileEntry(0, 0, "")}
    del files[path_of("sys.checks")]
    for given_files, named in ((files, "does not name sys.checks"), (strange, "not a file of an export")):
        with pytest.raises(InvalidArgument, match=named):
            parse(msgspec_replaced(manifest, files=given_files).to_bytes(), "it")


def test_an_earlier_layout_may_lack_columns_that_were_added(whole, opened):
    """They are null then."""
    table = read(whole, "sys.tables").drop(["description"])
    sink = io.BytesIO()
    pq.write_table(table, sink)
    manifest = parse(whole[MANIFEST], "it")
    entry = FileEntry(table.num_rows, len(sink.getvalue()), __import__("hashlib").sha256(sink.getvalue()).hexdigest())
    older = msgspec_replaced(manifest, layout=18, files=manifest.files | {path_of("sys.tables"): entry})
    check_file(older, path_of("sys.tables"), sink)
    store = opened()
    imported(whole | {path_of("sys.tables"): sink.getvalue()}, store)
    assert store.database.rows("SELECT DISTINCT description FROM tables") == [(None,)]


def test_a_schema_names_each_column_of_the_catalog_once():
    with duckdb.connect() as connection:
        from store.duckdb.layout import prepare

        prepare(connection, ":memory:")
        for folder in CATALOG.values():
            shown = catalog_columns(database_columns(connection, folder.table), folder).values()
            assert len(set(shown)) == len(shown)
