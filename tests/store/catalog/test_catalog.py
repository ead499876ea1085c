"""The catalog: stable ids, renames, drops, snapshots, connectors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.catalog.catalog import Catalog, table_uuid
from store.catalog.discovery import Discovery
from store.model.errors import InvalidArgument, NotFound
from store.stats_store import DuckDBStatsStore
from tests.store.contract import columns as columns_of
from tests.store.contract import put
from tests.store.empty_store import empty_database

A, B = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


@pytest.fixture
def catalog():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database)).catalog
    database.close()


def write(catalog, function, *arguments, **named):
    return catalog.database.write(lambda connection: function(connection, *arguments, **named))


def store_of(catalog: Catalog) -> DuckDBStatsStore:
    """Another store on a catalog, whose commits have the phases that they had."""
    phases = catalog.database.phases
    store = DuckDBStatsStore(catalog.database, catalog)
    catalog.database.phases = phases
    return store


def reopened(catalog) -> Catalog:
    """Catalog as another process would read it from the file."""
    return Catalog(catalog.database)


def found(name="t", table_id=A, columns=(("a", "INT"), ("b", "STRING")), snapshots=(1,), schema_hash="h1", **more):
    """A table as returned by discovery."""
    current = [[*c, True, None] if len(c) == 2 else list(c) for c in columns]
    return {
        "schema": "s",
        "name": name,
        "table_id": table_id,
        "location": f"/lake/{name}",
        "current_snapshot_id": snapshots[-1] if snapshots else None,
        "schema_hash": schema_hash,
        "schemas": {schema_hash: current},
        "constraints": [],
        "snapshots": [
            {
                "snapshot_id": s,
                "ordinal": s,
                "parent_snapshot_id": None,
                "sequence_number": s,
                "committed_at": "2026-01-01T00:00:00+00:00",
                "operation": "append",
                "schema_hash": schema_hash,
            }
            for s in snapshots
        ],
    } | more


def discover(catalog, present=None, **table):
    """Stores a discovery of the whole lake, in which this table is the only one unless `present` names more."""
    row = found(**table)
    names = {(row["schema"], row["name"])} | {("s", name) for name in present or ()}
    (entry,) = write(catalog, Discovery(catalog).store, "lake", "iceberg", [row], names)
    return entry


def columns(catalog, entry):
    return catalog.database.rows(
        "SELECT column_name, column_id, data_type FROM table_columns WHERE table_key = ? ORDER BY ordinal_position",
        entry.table_key,
    )


def test_registered_table_is_found_by_name_and_key(catalog):
    entry = write(catalog, catalog.register, ("c", "s", "t"))
    assert write(catalog, catalog.register, ("c", "s", "t")) == entry
    assert entry.table_id == table_uuid("c", "s", "t")
    for reader in (catalog, reopened(catalog)):
        assert reader.get("c.s.t") == reader.by_key(entry.table_key) == entry
    with pytest.raises(NotFound, match=r'did you mean "c\.s\.t"'):
        catalog.get("c.s.tt")


def test_rolled_back_registration_leaves_no_table(catalog):
    def run(connection):
        catalog.register(connection, ("c", "s", "t"))
        raise ValueError

    with pytest.raises(ValueError):
        catalog.database.write(run)
    assert catalog.find(("c", "s", "t")) is None
    assert write(catalog, catalog.register, ("c", "s", "u")).table_key == 1


def test_column_ids_are_stable_across_schema_changes(catalog):
    entry = discover(catalog, columns=[("a", "INT"), ("b", "STRING")])
    assert columns(catalog, entry) == [("a", 1, "INT"), ("b", 2, "STRING")]
    entry = discover(catalog, columns=[("c", "INT"), ("b", "STRING")], schema_hash="h2", snapshots=(1, 2))
    assert columns(catalog, entry) == [("c", 3, "INT"), ("b", 2, "STRING")]
    entry = discover(catalog, columns=[("a", "INT"), ("c", "INT")], schema_hash="h3", snapshots=(1, 2, 3))
    assert columns(catalog, entry) == [("a", 1, "INT"), ("c", 3, "INT")]
    assert reopened(catalog).column_ids(entry) == {"a": 1, "b": 2, "c": 3}
    assert [c[0] for c in catalog.schema_columns(entry, "h1")] == ["a", "b"]
    assert catalog.schema_columns(entry, "unknown") == []


def test_field_ids_of_the_format_take_precedence(catalog):
    entry = discover(catalog, columns=[("a", "INT", True, 7), ("b", "STRING", False, 3)])
    assert columns(catalog, entry) == [("a", 7, "INT"), ("b", 3, "STRING")]
    renamed = discover(catalog, columns=[("x", "INT", True, 7), ("b", "STRING", False, 3)], schema_hash="h2")
    assert columns(catalog, renamed) == [("x", 7, "INT"), ("b", 3, "STRING")]
    discover(catalog, columns=[("new", "INT")], schema_hash="h3")
    assert catalog.column_ids(entry)["new"] == 8, "a name without an id gets one that is free"


def test_field_id_that_a_dropped_column_had_leaves_both_distinct(catalog):
    """A table of Delta gets a column mapping after its first column was dropped."""
    before, after = [["a", "INT", True, None], ["b", "INT", True, None]], [["b", "INT", True, 1]]
    entry = discover(catalog, schemas={"h0": before, "h1": after})
    assert columns(catalog, entry) == [("b", 1, "INT")]
    assert catalog.column_ids(entry) == {"a": 2, "b": 1}
    assert columns(catalog, discover(catalog, schemas={"h0": before, "h1": after})) == [("b", 1, "INT")]
    assert catalog.column_ids(entry) == {"a": 2, "b": 1}


@pytest.mark.parametrize(("ids", "kept"), [((1, 2), 2), ((2, 1), 0)])
def test_records_of_a_table_that_gets_field_ids_stay_if_these_are_the_same(catalog, ids, kept):
    """As Delta gets by a column mapping. Later on an id goes with its column to another name, and so do its records."""
    entry = discover(catalog, columns=[("a", "INT"), ("b", "INT")])
    store = store_of(catalog)

    def records():
        return catalog.database.rows("SELECT count(*) FROM stats_columns WHERE table_key = ?", entry.table_key)[0][0]

    put(store, "stats.columns", columns_of((1, 10), (2, 10), name=entry.name))
    mapped = [[name, "INT", True, i] for name, i in zip("ab", ids, strict=True)]
    assert [discover(catalog, columns=mapped, schema_hash="h2", snapshots=(1, 2)).table_key, records()] == [1, kept]
    put(store, "stats.columns", columns_of((1, 10), (2, 10), name=entry.name, snapshot=2))
    renamed = [["b", "INT", True, ids[0]], ["a", "INT", True, 7]]
    discover(catalog, columns=renamed, schema_hash="h3", snapshots=(3,), live_snapshot_ids=[1, 2, 3])
    assert records() == kept + 2


def test_renamed_table_keeps_its_key(catalog):
    before = discover(catalog, name="old")
    after = discover(catalog, name="new")
    assert after.table_key == before.table_key
    for reader in (catalog, reopened(catalog)):
        assert reader.find(("lake", "s", "old")) is None
        assert reader.get("lake.s.new").table_id == A


def test_table_renamed_to_the_name_of_another_keeps_its_key(catalog):
    other, before = discover(catalog, name="a", table_id=B), discover(catalog, name="b", present=["a"])
    assert discover(catalog, name="a").table_key == before.table_key
    assert catalog.by_key(other.table_key).dropped
    assert reopened(catalog).find(("lake", "s", "b")) is None


def test_copy_with_the_same_table_id_is_not_a_rename(catalog):
    original = discover(catalog, name="old")
    copy = discover(catalog, name="copy", present=["old"])
    assert copy.table_key != original.table_key
    assert {entry.table_name for entry in catalog.tables()} == {"old", "copy"}


def test_table_with_an_id_that_was_put_is_not_taken_for_a_renamed_one(catalog):
    put = write(catalog, catalog.register, ("lake", "s", "put"), A)
    assert discover(catalog, name="real").table_key != put.table_key
    assert {entry.table_name for entry in catalog.tables()} == {"put", "real"}


def test_new_table_of_the_same_name_gets_a_new_key(catalog):
    first = discover(catalog, table_id=A)
    second = discover(catalog, table_id=B)
    assert second.table_key != first.table_key
    assert catalog.get("lake.s.t").table_id == B
    assert catalog.by_key(first.table_key).dropped


def test_table_that_reappears_keeps_its_key(catalog):
    first = discover(catalog)
    gone = write(catalog, Discovery(catalog).forget_missing, "lake", lambda entry: False)
    assert [entry.table_key for entry in gone] == [first.table_key]
    assert catalog.tables() == reopened(catalog).tables() == []
    assert discover(catalog).table_key == first.table_key
    assert not catalog.get("lake.s.t").dropped


def register_snapshots(catalog, entry, snapshots):
    """Registers snapshots (id → schema hash) as a put does, and returns the entry after it."""
    seen = {
        "table_key": [entry.table_key] * len(snapshots),
        "snapshot_id": list(snapshots),
        "schema_hash": pa.array(snapshots.values(), pa.string()),
    }
    write(catalog, catalog.snapshots_of_puts.register, pa.table(seen))
    return catalog.by_key(entry.table_key)


def test_greatest_snapshot_of_an_external_table_is_current(catalog):
    entry = write(catalog, catalog.register, ("c", "s", "t"))
    for ids, current in (({5: None}, 5), ({3: "h"}, 5), ({9: None, 7: None}, 9), ({0: None}, 9)):
        entry = register_snapshots(catalog, entry, ids)
        assert entry.current_snapshot_id == current == reopened(catalog).get("c.s.t").current_snapshot_id
    assert [s.snapshot_id for s in catalog.snapshots(entry)] == [0, 3, 5, 7, 9]
    entry = register_snapshots(catalog, entry, {5: "late"})
    assert [(s.snapshot_id, s.schema_hash) for s in catalog.snapshots(entry) if s.schema_hash] == [
        (3, "h"),
        (5, "late"),
    ]


def test_put_keeps_the_current_snapshot_of_a_discovered_table(catalog):
    entry = discover(catalog, snapshots=(10, 20))
    entry = register_snapshots(catalog, entry, {99: None})
    assert entry.current_snapshot_id == 20
    assert catalog.snapshot(entry, 99).is_live is None, "there was no discovery since"
    for live, expected in (([10, 20], False), ([10, 20, 99], True)):
        discover(catalog, snapshots=(10, 20), live_snapshot_ids=live)
        assert catalog.snapshot(entry, 99).is_live is expected
    with pytest.raises(NotFound, match="has no snapshot 30"):
        catalog.snapshot(entry, 30)


def test_snapshots_expired_by_the_format_are_not_live(catalog):
    discover(catalog, snapshots=(1, 2, 3))
    entry = discover(catalog, snapshots=(3,), live_snapshot_ids=[2, 3])
    assert [(s.snapshot_id, s.is_live) for s in catalog.snapshots(entry)] == [(1, False), (2, True), (3, True)]
    assert entry.current_snapshot_id == 3


def test_partial_discovery_writes_only_tables_with_new_snapshots(catalog, monkeypatch):
    items = [found(name=f"t{number}", table_id=f"id{number}") for number in range(3)]

    def store(items, full=False):
        return write(catalog, Discovery(catalog).store, "lake", "parquet", items, (), full=full)

    entries = store(items)
    touched: list[int] = []
    monkeypatch.setattr(catalog.database, "touch", touched.append)
    later = [item | {"snapshots": [s | {"ordinal": 7} for s in item["snapshots"]]} for item in items]
    assert store(later) == entries and not touched
    grown = found(name="t1", table_id="id1", snapshots=(1, 2))
    changed = store([later[0], grown, later[2]])
    assert set(touched) == {entries[1].table_key}
    ordinals = [[s.ordinal for s in catalog.snapshots(entry)] for entry in changed]
    assert ordinals == [[1], [1, 2], [1]]
    store(later, full=True)
    assert [s.ordinal for s in catalog.snapshots(changed[0])] == [7]


def test_connector_is_registered_fails_recovers_and_is_dropped(catalog):
    write(catalog, catalog.connectors.put, "lake", "iceberg", "/lake", {"secret": "****"})
    discover(catalog)
    assert catalog.connectors.get("lake")["options"] == {"secret": "****"}
    write(catalog, catalog.connectors.note, "lake", "cannot be read")
    assert catalog.connectors.get("lake")["state"] == "FAILING"
    write(catalog, catalog.connectors.note, "lake", None)
    assert catalog.connectors.get("lake")["state"] == "ACTIVE"
    write(catalog, catalog.drop_connector, "lake")
    assert catalog.tables() == []
    with pytest.raises(NotFound, match='no connector "lake"'):
        catalog.connectors.get("lake")


def test_connector_is_cached_until_it_changes(catalog, monkeypatch):
    write(catalog, catalog.connectors.put, "lake", "iceberg", "/lake", {})
    queries, rows = [], catalog.database.rows
    monkeypatch.setattr(catalog.database, "rows", lambda *sql: queries.append(sql) or rows(*sql))
    assert catalog.connectors.get("lake") == catalog.connectors.get("lake") and len(queries) == 1
    write(catalog, catalog.connectors.note, "lake", None)  # unchanged
    assert catalog.connectors.get("lake")["uri"] == "/lake" and len(queries) == 1
    write(catalog, catalog.connectors.put, "lake", "iceberg", "/other", {})
    assert catalog.connectors.get("lake")["uri"] == "/other" and len(queries) == 2


def test_what_is_noted_of_one_connector_leaves_the_others_cached(catalog, monkeypatch):
    for name in ("lake", "other"):
        write(catalog, catalog.connectors.put, name, "delta", f"/{name}", {})
    assert catalog.connectors.get("lake")["state"] == "ACTIVE"
    write(catalog, catalog.connectors.note, "other", None)  # which nobody has read yet
    write(catalog, catalog.connectors.note, "other", "cannot be read")
    assert catalog.connectors.get("other")["state"] == "FAILING"
    write(catalog, catalog.connectors.note, "other", None)
    assert catalog.connectors.get("other")["state"] == "ACTIVE"
    monkeypatch.setattr(catalog.database, "rows", None)
    assert catalog.connectors.get("lake")["uri"] == "/lake"


def test_external_catalog_has_no_connector(catalog):
    write(catalog, catalog.register, ("c", "s", "t"))
    with pytest.raises(NotFound):
        catalog.connectors.get("c")
    assert catalog.database.rows("SELECT catalog, format FROM connectors") == [("c", "external")]


def test_constraints_are_replaced_by_the_next_discovery(catalog):
    entry = discover(catalog, constraints=[("PRIMARY KEY", "pk", ["a", "b"], None), ("CHECK", "ck", None, "a > 0")])
    sql = "SELECT kind, column_name, ordinal_position FROM table_constraints WHERE table_key = ? ORDER BY ALL"
    assert catalog.database.rows(sql, entry.table_key) == [
        ("CHECK", None, 1),
        ("PRIMARY KEY", "a", 1),
        ("PRIMARY KEY", "b", 2),
    ]
    discover(catalog, constraints=[])
    assert catalog.database.rows(sql, entry.table_key) == []


def test_description_is_stored_again_only_when_it_changed(catalog, monkeypatch):
    described, store = [], Discovery._store_schemas
    monkeypatch.setattr(Discovery, "_store_schemas", lambda *given: described.append(given[-1]) or store(*given))
    for snapshots in ((1,), (1, 2), (1, 2, 3)):
        entry = discover(catalog, snapshots=snapshots, metadata_location=f"m{snapshots[-1]}")
    assert len(described) == 1 and len(catalog.snapshots(entry)) == 3
    assert catalog.database.rows("SELECT metadata_location FROM tables") == [("m3",)]
    discover(catalog, snapshots=(1, 2, 3, 4), comments={"a": "first"})
    assert catalog.database.rows("SELECT column_name, comment FROM table_columns ORDER BY 1") == [
        ("a", "first"),
        ("b", None),
    ]


def test_schema_of_a_snapshot_that_a_put_gave_another_is_kept(catalog):
    entry = discover(catalog)
    seen = pa.table({"table_key": [entry.table_key], "snapshot_id": [2], "schema_hash": ["other"]})
    write(catalog, catalog.snapshots_of_puts.register, seen, ())
    discover(catalog, snapshots=(1, 2))
    assert catalog.snapshot(entry, 2).schema_hash == "h1"
    assert [column[0] for column in catalog.schema_columns(entry, "h1")] == ["a", "b"]


ALIKE = (
    ["a", "STRUCT", True, None, ["a"]],
    ["a.b", "INT", True, None, ["a", "b"]],
    ["a.b", "STRING", True, None, ["a.b"]],
)


def test_columns_with_equal_dotted_names_get_distinct_ids(catalog):
    entry = discover(catalog, columns=ALIKE)
    assert columns(catalog, entry) == [("a", 1, "STRUCT"), ("a.b", 2, "INT"), ("a.b", 3, "STRING")]
    assert catalog.column_ids(entry) == {"a": 1, "a.b": 2, '"a.b"': 3}
    assert discover(catalog, columns=ALIKE[1:], schema_hash="h2") == entry
    assert catalog.column_ids(entry) == {"a": 1, "a.b": 2, '"a.b"': 3}
    with catalog.database.reading() as cursor:
        assert catalog.ambiguous_names(cursor, entry, ["a", "a.b"]) == ["a.b"]


def test_dotted_column_keeps_its_id_when_a_nested_namesake_appears(catalog):
    entry = discover(catalog, columns=[["z", "INT", True, None], ["a.b", "INT", True, None]])
    discover(catalog, columns=[["a.b", "INT", True, None, ["a.b"]]], schema_hash="h2")
    assert catalog.column_ids(entry) == {"z": 1, '"a.b"': 2, "a.b": 2}
    discover(catalog, columns=ALIKE, schema_hash="h3")
    assert catalog.column_ids(entry) == {"z": 1, '"a.b"': 2, "a": 3, "a.b": 4}


def test_unreadable_table_has_the_state_failing_and_the_error(catalog):
    entry = write(catalog, Discovery(catalog).note_unreadable, "lake", "delta", "s", "broken", "no log")
    good = discover(catalog)

    def states():
        return catalog.database.rows("SELECT table_name, last_error FROM tables ORDER BY table_key")

    assert states() == [("broken", "no log"), ("t", None)]
    write(catalog, Discovery(catalog).note_tables, [entry.table_key, good.table_key], {good.table_key: "gone"})
    assert states() == [("broken", None), ("t", "gone")]
    times = catalog.database.rows("SELECT discovered_at IS NULL, checked_at IS NULL FROM tables")
    assert set(times) == {(False, False), (False, True)}, "no inspection of t has succeeded"
    assert catalog.entries.committed.failing == {good.table_key}
    with catalog.database.reading() as cursor:
        catalog.reload(cursor)
    assert catalog.entries.committed.failing == {good.table_key}


def test_each_home_has_its_newest_publication(catalog):
    entry = discover(catalog)
    for state, names in (("FAILED", []), ("CURRENT", ["a", "b"])):
        write(catalog, catalog.publications.put, entry, "iceberg", snapshot_id=1, state=state, columns=names)
    write(catalog, catalog.publications.put, entry, "spark", snapshot_id=1, state="CURRENT", location="db.t")
    publications = catalog.publications.of(entry)
    assert [(p["home"], p["state"], p["columns"]) for p in publications] == [
        ("iceberg", "CURRENT", ["a", "b"]),
        ("spark", "CURRENT", []),
    ]


def test_ambiguous_column_name_is_refused_and_column_ids_resolve(catalog):
    entry = discover(catalog, columns=ALIKE)
    assert [catalog.column_id(entry, name) for name in ("a", "#2", "#3", '"a.b"')] == [1, 2, 3, 3]
    with pytest.raises(InvalidArgument, match=r'"lake.s.t" are written "a.b"; name one by its id: #2 or #3'):
        catalog.column_id(entry, "a.b")
    with pytest.raises(NotFound, match='has no column "#9"'):
        catalog.column_id(entry, "#9")
    with pytest.raises(InvalidArgument) as refusal:
        catalog.refuse_ambiguous(entry, ["a", "a.b"])
    assert refusal.value.code == "AMBIGUOUS_COLUMN"
    catalog.refuse_ambiguous(entry, ["a", "#2", "nosuch"])


COLUMNS = {"h1": (("a", "INT"), ("b", "STRING")), "h2": ALIKE, "h3": (("b", "INT", True, 1), ("c", "INT", True, 7))}
TABLES = st.builds(
    lambda id, hashes, numbers, live, keys: (
        found(
            table_id=id,
            columns=COLUMNS[hashes[-1]],
            schema_hash=hashes[-1],
            snapshots=sorted(numbers),
            live_snapshot_ids=live,
            constraints=[["PRIMARY KEY", "pk", keys, None]] if keys else [],
            partition_keys=keys,
        )
        | {"schemas": {h: [[*c, True, None] if len(c) == 2 else list(c) for c in COLUMNS[h]] for h in hashes}}
    ),
    st.sampled_from([A, B, None]),
    st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True),
    st.sets(st.integers(1, 4)),
    st.none() | st.lists(st.integers(1, 4), unique=True),
    st.lists(st.sampled_from("ab"), unique=True),
)
LAKES = st.lists(st.dictionaries(st.sampled_from("abcd"), TABLES, max_size=4), min_size=1, max_size=3)


@given(LAKES, st.booleans())
def test_storing_many_tables_equals_storing_each(lakes, full):
    """Over histories of a lake whose tables are renamed, replaced, copied, dropped, and get other schemas."""
    kept = []
    for together in (True, False):
        database = empty_database()
        catalog = DuckDBStatsStore(database, Catalog(database)).catalog
        for lake in lakes:
            items = [item | {"name": name, "location": f"/lake/{name}"} for name, item in lake.items()]
            names = {("s", name) for name in lake}
            store = Discovery(catalog).store
            if together:
                entries = write(catalog, store, "lake", "iceberg", items, names, full=full)
            else:
                entries = [write(catalog, store, "lake", "iceberg", [item], names, full=full)[0] for item in items]
            assert [entry.table_name for entry in entries] == list(lake)
            write(catalog, Discovery(catalog).forget_missing, "lake", lambda e: (e.table_schema, e.table_name) in names)  # noqa: B023
            assert {t.table_name for t in catalog.tables()} == set(lake)
        tables = ("schemas", "column_ids", "table_columns", "table_constraints", "snapshots", "identities")
        kept.append([database.rows(f"SELECT * FROM {table} ORDER BY ALL") for table in tables])
        kept[-1].append(database.rows("SELECT * EXCLUDE (discovered_at) FROM tables ORDER BY ALL"))
        assert {e.table_key: e for e in reopened(catalog).tables()} == {e.table_key: e for e in catalog.tables()}
        database.close()
    assert kept[0] == kept[1]


def test_two_new_tables_with_one_table_id_get_distinct_keys(catalog):
    lake = [found("a"), found("b")]
    entries = write(catalog, Discovery(catalog).store, "lake", "iceberg", lake, {("s", "a"), ("s", "b")})
    assert len({entry.table_key for entry in entries}) == 2
