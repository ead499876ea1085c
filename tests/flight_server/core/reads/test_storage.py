"""`sys.storage`: what is stored of each table."""

from tests.flight_server.serving import app_in, command, put, read, rows


def test_rows_snapshots_and_bytes_by_kind():
    with app_in() as app:
        put(app, rows("a", 1, range(1, 4)))
        put(app, rows("a", 2, range(1, 4)))
        put(app, rows("b", 1, [1]))
        key = {"table_catalog": "lake", "table_schema": "s", "table_name": "b", "snapshot_id": 1}
        put(app, [key | {"file_path": "f" * 999}], "stats.files")
        found = {(row["table_name"], row["kind"]): row for row in read(app, command(None, "sys.storage")).to_pylist()}
    assert set(found) == {("a", "stats.columns"), ("b", "stats.columns"), ("b", "stats.files")}
    assert [found["a", "stats.columns"][name] for name in ("rows", "snapshots")] == [6, 2]
    assert found["a", "stats.columns"]["bytes"] > 5 * found["b", "stats.columns"]["bytes"]
    assert found["b", "stats.files"]["snapshots"] is None
    assert 999 < found["b", "stats.files"]["bytes"] < 1500


def test_one_table():
    with app_in() as app:
        put(app, rows("a", 1, [1]))
        put(app, rows("b", 1, [1]))
        (row,) = read(app, command("b", "sys.storage")).to_pylist()
    assert row["table_name"] == "b"
