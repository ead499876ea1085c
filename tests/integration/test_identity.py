"""Tables that become others without a new snapshot id: another schema, or dropped and created again.

Nothing stored of the former may be EXACT, and a new capture is right.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.flight_server.live_server import Client, serving

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

OLD = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": pa.array([100, 200, 300], pa.int64())})
NEW = pa.table({"a": pa.array([100, 200, 300], pa.int64()), "b": pa.array([None, None, None], pa.int64())})


def lance(root: Path, rows: pa.Table, again: bool) -> None:
    import lance

    if again:
        shutil.rmtree(root / "t.lance")
    lance.write_dataset(rows, str(root / "t.lance"))


def paimon(root: Path, rows: pa.Table, again: bool) -> None:
    import pypaimon

    catalog = pypaimon.CatalogFactory.create({"warehouse": str(root)})
    catalog.create_database("default", True)
    if again:
        shutil.rmtree(root / "default.db" / "t")
    catalog.create_table("default.t", pypaimon.Schema.from_pyarrow_schema(rows.schema), False)
    builder = catalog.get_table("default.t").new_batch_write_builder()
    writer = builder.new_write()
    writer.write_arrow(rows)
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()


def delta(root: Path, rows: pa.Table, again: bool) -> None:
    """A table and a copy of its first version, which have the same id, diverge in the second one."""
    from deltalake import write_deltalake

    if not again:
        write_deltalake(str(root / "t"), OLD.slice(0, 0))
        shutil.copytree(root / "t", root.parent / "copy")
    else:
        shutil.rmtree(root / "t")
        shutil.copytree(root.parent / "copy", root / "t")
    write_deltalake(str(root / "t"), rows, mode="append")


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[Client]:
    flags = ("--workers", 1, "--watch-seconds", 0)
    with serving(tmp_path_factory.mktemp("s"), *flags) as server, server.connect() as client:
        client.timeout = 120
        yield client


def capture(client: Client, table: str) -> None:
    targets: list[dict[str, Any]] = [{"kind": "TABLE"}]
    targets += [{"kind": "COLUMN", "column_id": i} for i in ids(client, table).values()]
    outcomes = client.act(
        "capture",
        {"requests": [{"table": table, "snapshot": "current", "target": target, "mode": "SYNC"} for target in targets]},
    )
    assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}, outcomes


def of(table: str) -> list[dict[str, Any]]:
    return [{"column": "table_catalog", "op": "EQ", "values": [table.split(".")[0]]}]


def ids(client: Client, table: str) -> dict[str, int]:
    rows = client.get({"table": "information_schema.columns", "predicates": of(table)}).to_pylist()
    return {row["column_name"]: row["column_id"] for row in rows}


def read(client: Client, flight: str, table: str) -> list[dict[str, Any]]:
    return list(client.get({"table": flight, "snapshot": "current", "predicates": of(table)}).to_pylist())


def facts(client: Client, table: str) -> dict[str, tuple[Any, ...]]:
    rows = read(client, "stats.columns", table)
    assert {row["freshness"] for row in rows} <= {"EXACT"}
    return {row["column_name"]: (row["min"], row["max"], row["null_count"]) for row in rows}


def captured(client: Client, write: Callable[..., None], root: Path, catalog: str) -> dict[str, Any]:
    """Captures the old table in a new lake; returns what was discovered of it."""
    root.mkdir()
    write(root, OLD, False)
    client.act("register_connector", {"catalog": catalog, "format": write.__name__, "uri": str(root), "options": {}})
    (found,) = client.act("discover", {"catalog": catalog})
    capture(client, found["table"])
    return found


@pytest.mark.parametrize("write", [lance, paimon, delta])
def test_table_created_again_under_its_name_has_nothing_of_the_old_one(tmp_path, client, write: Callable[..., None]):
    root, name = tmp_path / "lake", f"{write.__name__}_again"
    found = captured(client, write, root, name)
    table = found["table"]
    assert facts(client, table) == {"a": ("1", "3", 0), "b": ("100", "300", 0)}
    before = {row["file_path"] for row in read(client, "stats.file_columns", table)}
    write(root, NEW, True)
    (again,) = client.act("discover", {"catalog": name})
    assert again["current_snapshot_id"] == found["current_snapshot_id"]
    assert facts(client, table) == {} and read(client, "stats.files", table) == []
    capture(client, table)
    assert facts(client, table) == {"a": ("100", "300", 0), "b": (None, None, 3)}
    assert not before & {row["file_path"] for row in read(client, "stats.file_columns", table)}
    client.act("discover", {"catalog": name})
    assert len(facts(client, table)) == 2, "the same table stays"


@pytest.mark.parametrize(("write", "home"), [(lance, "lance"), (paimon, "paimon"), (delta, "trino")])
def test_statistics_of_the_old_table_are_not_published_as_the_new_ones(tmp_path, client, write, home):
    root, name = tmp_path / "lake", f"{write.__name__}_published"
    table = captured(client, write, root, name)["table"]
    write(root, NEW, True)
    before = sorted(path for path in root.rglob("*") if path.is_file())
    with pytest.raises(pa.ArrowException, match=r"\[STALE\] .* was created again, restored or rolled back"):
        client.act("publish", {"table": table, "to": home})
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    client.act("discover", {"catalog": name})
    capture(client, table)
    (published,) = client.act("publish", {"table": table, "to": home})
    assert (published["state"], published["columns"]) == ("CURRENT", ["a", "b"])


def append(format: str, root: Path, value: int) -> None:
    """Makes a version of one more row."""
    rows = pa.table({"a": [value], "b": [None]}, OLD.schema)
    if format == "lance":
        import lance

        lance.write_dataset(rows, str(root / "t.lance"), mode="append" if (root / "t.lance").exists() else "create")
    elif format == "delta":
        from deltalake import write_deltalake

        write_deltalake(str(root / "t"), rows, mode="append")
    else:
        import pypaimon

        builder = (
            pypaimon.CatalogFactory.create({"warehouse": str(root)}).get_table("default.t").new_batch_write_builder()
        )
        writer = builder.new_write()
        writer.write_arrow(rows)
        builder.new_commit().commit(writer.prepare_commit())
        writer.close()


def go_back(format: str, root: Path) -> None:
    """Leaves a table with one version: created again, restored from a backup, or rolled back."""
    if format == "lance":
        shutil.rmtree(root / "t.lance")
        append(format, root, 1)
    elif format == "delta":
        shutil.rmtree(root / "t")
        shutil.copytree(root.parent / "backup", root / "t")
    else:
        import pypaimon

        pypaimon.CatalogFactory.create({"warehouse": str(root)}).get_table("default.t").rollback_to(1)


@pytest.mark.parametrize("format", ["lance", "delta", "paimon"])
def test_table_whose_history_went_back_has_nothing_of_what_followed(tmp_path, client, format):
    """Versions that were made later have the ids of others."""
    root, name = tmp_path / "lake", f"{format}_back"
    root.mkdir()
    if format == "paimon":
        paimon(root, pa.table({"a": [1], "b": [None]}, OLD.schema), False)
    else:
        append(format, root, 1)
    if format == "delta":
        shutil.copytree(root / "t", tmp_path / "backup")
    client.act("register_connector", {"catalog": name, "format": format, "uri": str(root), "options": {}})
    for value in (2, 3, 4):
        (found,) = client.act("discover", {"catalog": name})
        capture(client, found["table"])
        append(format, root, value)
    (found,) = client.act("discover", {"catalog": name})
    go_back(format, root)
    for value in (500, 600):
        append(format, root, value)
    (again,) = client.act("discover", {"catalog": name})
    assert again["current_snapshot_id"] == found["current_snapshot_id"] - 1
    assert facts(client, found["table"]) == {}
    capture(client, found["table"])
    assert facts(client, found["table"])["a"] == ("1", "600", 0)
    client.act("discover", {"catalog": name})
    assert facts(client, found["table"])["a"] == ("1", "600", 0), "the same table stays"


@pytest.mark.parametrize("how", [{}, {"full_rescan": True}, {"table": "default.t", "snapshots": [1]}], ids=str)
def test_no_way_to_discover_takes_old_versions_for_those_of_another_table(tmp_path, client, how):
    name = f"lance_{len(str(how))}"
    append("lance", tmp_path, 1)
    client.act("register_connector", {"catalog": name, "format": "lance", "uri": str(tmp_path), "options": {}})
    (found,) = client.act("discover", {"catalog": name})
    capture(client, found["table"])
    shutil.rmtree(tmp_path / "t.lance")
    for value in (500, 600):
        append("lance", tmp_path, value)
    for arguments in (how, {}):
        client.act("discover", {"catalog": name} | arguments)
        command = {"table": "stats.columns", "snapshot": 1, "predicates": of(found["table"])}
        assert client.get(command).num_rows == 0


def iceberg(root: Path, client: Client, catalog: str, rows: pa.Table) -> Any:
    """Makes the table `db.t` of a catalog in SQLite, and has the server discover it."""
    from pyiceberg.catalog.sql import SqlCatalog

    uri, options = f"sqlite:///{root}/c.db", {"warehouse": f"file://{root}/w", "name": "c"}
    made = SqlCatalog(uri=uri, **options)
    made.create_namespace("db")
    built = made.create_table("db.t", rows.schema)
    built.append(rows)
    client.act(
        "register_connector",
        {
            "catalog": catalog,
            "format": "iceberg",
            "uri": uri,
            "options": options | {"type": "sql"},
            "discover": True,
        },
    )
    return built


def test_iceberg_schema_without_a_new_snapshot_is_part_of_what_is_current(tmp_path, client):
    from pyiceberg.types import LongType

    built = iceberg(tmp_path, client, "ice", OLD)
    (found,) = client.act("discover", {"catalog": "ice"})
    table = found["table"]
    capture(client, table)
    assert facts(client, table) == {"a": ("1", "3", 0), "b": ("100", "300", 0)}
    with built.update_schema() as update:
        update.delete_column("a")
        update.rename_column("b", "a")
    with built.update_schema() as update:
        update.add_column("b", LongType())
    assert built.scan().to_arrow().sort_by("a").select(["a", "b"]).equals(NEW)
    (again,) = client.act("discover", {"catalog": "ice"})
    assert again["current_snapshot_id"] == found["current_snapshot_id"]
    assert facts(client, table) == {"a": ("100", "300", 0)}, "it has the id of what was b"
    assert {row["column_name"] for row in read(client, "stats.file_columns", table)} == {"a"}
    capture(client, table)
    assert facts(client, table) == {"a": ("100", "300", 0), "b": (None, None, 3)}
    assert {row["column_name"] for row in read(client, "stats.file_columns", table)} == {"a", "b"}


@pytest.mark.parametrize("takes", ["dropped", "renamed"])
def test_column_that_takes_the_name_of_another_has_statistics_of_its_own(tmp_path, client, takes):
    from pyiceberg.types import LongType

    built = iceberg(tmp_path, client, takes, OLD)
    table, first = f"{takes}.db.t", built.current_snapshot().snapshot_id
    capture(client, table)
    with built.update_schema() as update:
        update.delete_column("b") if takes == "dropped" else update.rename_column("b", "c")
    with built.update_schema() as update:
        update.add_column("b", LongType())
    rest = [4] if takes == "dropped" else [400, 4]
    names = built.schema().column_names
    built.append(pa.table(dict(zip(names, [[value] for value in [4, *rest]], strict=True))))
    client.act("discover", {"catalog": takes})
    assert {row["column_id"] for row in read(client, "stats.columns", table)} <= set(ids(client, table).values())
    capture(client, table)
    renamed = {"c": ("100", "400", 0)} if takes == "renamed" else {}
    assert facts(client, table) == {"a": ("1", "4", 0), "b": ("4", "4", 3)} | renamed
    client.act("delete_stats", {"table": table, "snapshot": first})
    targets = [{"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1}, {"kind": "COLUMN", "column_id": 2}]
    requests = [{"table": table, "snapshot": first, "target": target} for target in targets]
    assert {outcome["outcome"] for outcome in client.act("capture", {"requests": requests})} == {"CAPTURED"}
    rows = client.get({"table": "stats.columns", "snapshot": first, "predicates": of(table)}).to_pylist()
    found = [(row["column_id"], row["column_name"], row["min"], row["max"], row["ndv"]) for row in rows]
    assert sorted(found) == [(1, "a", "1", "3", 3), (2, "b", "100", "300", 3)]


def test_widened_integer_without_a_new_snapshot_changes_expressions(tmp_path, client):
    """The hash of a long is another than that of the int, though both are INT."""
    from pyiceberg.types import LongType

    built = iceberg(tmp_path, client, "wide", pa.table({"a": pa.array([1, 2, 3], pa.int32())}))
    capture(client, "wide.db.t")
    hashes = {
        "table_catalog": "wide",
        "table_schema": "db",
        "table_name": "t",
        "engine_kind": "spark",
        "snapshot_id": built.current_snapshot().snapshot_id,
        "engine_expression_key": b"hash(a)",
        "logical_type": "INT",
        "min": "-559580957",
        "max": "1765031574",
        "row_count": 3,
    }
    client.put("stats.expressions", pa.Table.from_pylist([hashes]))
    with built.update_schema() as update:
        update.update_column("a", doc="a comment changes no value")
    client.act("discover", {"catalog": "wide"})
    assert [row["freshness"] for row in read(client, "stats.expressions", "wide.db.t")] == ["EXACT"]
    with built.update_schema() as update:
        update.update_column("a", LongType())
    client.act("discover", {"catalog": "wide"})
    assert read(client, "stats.expressions", "wide.db.t") == []
    capture(client, "wide.db.t")
    built.append(pa.table({"a": [4]}))
    client.act("discover", {"catalog": "wide"})
    capture(client, "wide.db.t")
    (row,) = read(client, "stats.columns", "wide.db.t")
    assert (row["max"], row["avg_width_bytes"], row["max_width_bytes"]) == ("4", 8.0, 8)


def test_paimon_schema_without_a_new_snapshot_is_part_of_what_is_current(tmp_path, client):
    import pypaimon
    from pypaimon.schema.schema_change import SchemaChange

    paimon(tmp_path, OLD, False)
    client.act("register_connector", {"catalog": "pai", "format": "paimon", "uri": str(tmp_path), "options": {}})
    (found,) = client.act("discover", {"catalog": "pai"})
    table = found["table"]
    capture(client, table)
    catalog = pypaimon.CatalogFactory.create({"warehouse": str(tmp_path)})
    for change in (SchemaChange.drop_column("a"), SchemaChange.rename_column("b", "a")):
        catalog.alter_table("default.t", [change])
    client.act("discover", {"catalog": "pai"})
    assert facts(client, table) == {"a": ("100", "300", 0)}
    capture(client, table)
    assert facts(client, table) == {"a": ("100", "300", 0)}


def renamed_iceberg(root: Path) -> Iterator[Any]:
    """A table (yields its address and options) whose column is then renamed without a snapshot, before the next one."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{root}/c.db", warehouse=f"file://{root}/w")
    catalog.create_namespace("default")
    built = catalog.create_table("default.t", OLD.schema)
    built.append(OLD)
    yield f"sqlite:///{root}/c.db", {"warehouse": f"file://{root}/w", "name": "c", "type": "sql"}
    with built.update_schema() as update:
        update.rename_column("b", "later")
    yield
    built.append(pa.table({"a": [4], "later": [400]}))
    yield


def renamed_paimon(root: Path) -> Iterator[Any]:
    import pypaimon
    from pypaimon.schema.schema_change import SchemaChange

    paimon(root, OLD, False)
    yield str(root), {}
    catalog = pypaimon.CatalogFactory.create({"warehouse": str(root)})
    catalog.alter_table("default.t", [SchemaChange.rename_column("b", "later")])
    yield
    builder = catalog.get_table("default.t").new_batch_write_builder()
    writer = builder.new_write()
    writer.write_arrow(pa.table({"a": [4], "later": [400]}))
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()
    yield


@pytest.mark.parametrize("steps", [renamed_iceberg, renamed_paimon])
def test_snapshot_that_is_no_longer_current_has_its_own_schema_again(tmp_path, client, steps):
    """It has the table's while it is current, as do the records captured then; and it can be captured afterwards."""
    _, _, format = steps.__name__.partition("_")
    name, lake = f"{format}_renamed", steps(tmp_path)
    uri, options = next(lake)
    client.act(
        "register_connector",
        {
            "catalog": name,
            "format": format,
            "uri": uri,
            "options": options,
            "discover": True,
        },
    )
    snapshots = {"table": "sys.snapshots", "predicates": of(name)}
    (before,) = client.get(snapshots).to_pylist()
    current = {"table": "stats.columns", "snapshot": before["snapshot_id"], "predicates": of(name)}
    for names in ({"a": "1", "later": "100"}, {"a": "1", "b": "100"}):
        next(lake)
        client.act("discover", {"catalog": name})
        if "later" in names:
            capture(client, f"{name}.default.t")
        rows = [row for row in client.get(current).to_pylist() if row["freshness"] == "EXACT"]
        assert {row["column_name"]: row["min"] for row in rows} == names
        of_files = client.get({**current, "table": "stats.file_columns"}).to_pylist()
        assert {row["column_name"]: row["min"] for row in of_files} == names
    hashes = {row["snapshot_id"]: row["schema_hash"] for row in client.get(snapshots).to_pylist()}
    assert hashes.pop(before["snapshot_id"]) == before["schema_hash"]
    assert before["schema_hash"] not in hashes.values()
    target = {"kind": "COLUMN", "column_id": ids(client, name)["later"]}
    request = {"table": f"{name}.default.t", "snapshot": before["snapshot_id"], "target": target, "kinds": ["NDV"]}
    (outcome,) = client.act("capture", {"requests": [request]})
    assert outcome["outcome"] == "CAPTURED", outcome
    rows = client.get(current).to_pylist()
    assert {(row["column_name"], row["min"], row["max"]) for row in rows} == {("a", "1", "3"), ("b", "100", "300")}
    assert {row["ndv"] for row in rows if row["column_name"] == "b"} == {3}


def test_rollback_and_branches_of_iceberg_leave_current_what_readers_see(tmp_path, client):
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    built = catalog.create_table("db.t", OLD.schema)
    built.append(OLD)
    first = built.current_snapshot().snapshot_id
    options = {"warehouse": f"file://{tmp_path}/w", "name": "c", "type": "sql"}
    client.act(
        "register_connector",
        {
            "catalog": "rolled",
            "format": "iceberg",
            "uri": f"sqlite:///{tmp_path}/c.db",
            "options": options,
        },
    )

    def current() -> tuple[int, dict[str, tuple[Any, ...]]]:
        (found,) = client.act("discover", {"catalog": "rolled"})
        rows = [row for row in read(client, "stats.columns", found["table"]) if row["freshness"] == "EXACT"]
        values = {row["column_name"]: (row["min"], row["max"], row["null_count"]) for row in rows}
        return found["current_snapshot_id"], values

    current()
    capture(client, "rolled.db.t")
    old = {"a": ("1", "3", 0), "b": ("100", "300", 0)}
    assert current() == (first, old)
    built.append(NEW)
    second = built.current_snapshot().snapshot_id
    assert current() == (second, {})
    capture(client, "rolled.db.t")
    new = {"a": ("1", "300", 0), "b": ("100", "300", 3)}
    assert current() == (second, new)
    built.manage_snapshots().rollback_to_snapshot(first).commit()
    assert built.scan().to_arrow().num_rows == 3
    assert current() == (first, old)
    built.manage_snapshots().create_branch(first, "side").commit()
    built.append(NEW, branch="side")
    assert current() == (first, old), "rows of another branch are not the table's"
    built.manage_snapshots().set_current_snapshot(second).commit()
    assert current() == (second, new)


def test_restored_delta_table_has_the_statistics_of_its_new_version(tmp_path, client):
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(tmp_path / "t"), OLD)
    client.act(
        "register_connector",
        {
            "catalog": "restored",
            "format": "delta",
            "uri": str(tmp_path),
            "discover": True,
            "options": {},
        },
    )
    capture(client, "restored.default.t")
    write_deltalake(str(tmp_path / "t"), NEW, mode="append")
    client.act("discover", {"catalog": "restored"})
    capture(client, "restored.default.t")
    DeltaTable(str(tmp_path / "t")).restore(0)
    (found,) = client.act("discover", {"catalog": "restored"})
    rows = read(client, "stats.columns", found["table"])
    assert found["current_snapshot_id"] == 2 and {row["freshness"] for row in rows} == {"INHERITED"}
    assert {row["usable_for"] for row in rows} == {"PLANNING"}
    capture(client, found["table"])
    assert facts(client, found["table"]) == {"a": ("1", "3", 0), "b": ("100", "300", 0)}
