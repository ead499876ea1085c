"""The commands that show statistics, their changes and their history: requests, output and exit status."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

from flight_server.core.views import table_summary
from tests.flight_server.command_line import KEY, NAME, column_row


def test_show_prints_a_line_for_each_column(server, run):
    server.rows(
        "stats.columns",
        column_row(
            column_id=2,
            column_name="b",
            min="x",
            null_count=1,
            row_count=4,
            ndv=900.0,
            ndv_lower=890.0,
            ndv_upper=918.0,
            freshness="INHERITED",
            max="y",
            max_is_exact=False,
        ),
        column_row(min="1", max="9", ndv=9.0, ndv_exact=True),
    )
    status, out, err = run("show", NAME)
    assert (status, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split()[:2] == ["column", "type"]
    assert first.split()[:2] == ["id", "INT"] and "9" in first
    assert "900 ±2.0%" in second and "25.0" in second and "≤ y" in second and "INHERITED (from 2)" in second


def test_show_rounds_quartiles_of_floats_as_the_mean_and_leaves_others_as_they_are(server, run):
    server.rows(
        "stats.columns",
        column_row(),
        column_row(column_id=2, column_name="x", logical_type="DOUBLE"),
    )
    of_column = {1: ["31360", "62592", "93824"], 2: ["-0.6712935996459628", "-3.247736277792369E-4", "Infinity"]}
    server.rows(
        "stats.quantiles",
        *(
            KEY | {"column_id": column, "quantile": rank, "value": value}
            for column, values in of_column.items()
            for rank, value in zip((0.25, 0.5, 0.75), values, strict=True)
        ),
    )
    _, out, _ = run("show", NAME, "--snapshot", "2")
    whole, floats = out.splitlines()[1:]
    assert {"31360", "62592", "93824"} <= set(whole.split())
    assert {"-0.671294", "-0.000324774", "Infinity"} <= set(floats.split())


def test_show_reads_no_shapes_of_a_wide_table_and_says_so(server, run, monkeypatch):
    monkeypatch.setattr(table_summary, "SHAPED", 1)
    server.rows("stats.columns", column_row(), column_row(column_id=2, column_name="b"))
    status, out, err = run("show", NAME)
    assert (status, err) == (
        0,
        f"{NAME}: no quantiles and shapes of 2 columns; statflight query stats.quantiles has them\n",
    )
    assert out.split()[0] == "column" and "shape" not in out and len(out.splitlines()) == 3
    read = {command["table"] for command in server.commands}
    assert "stats.columns" in read and not read & {"stats.histograms", "stats.most_common_values", "stats.quantiles"}
    monkeypatch.setattr(table_summary, "SHAPED", 2)
    assert "shape" in run("show", NAME)[1]


def test_show_lists_columns_that_are_not_captured_with_their_type(server, run):
    server.rows("stats.columns", column_row(column_id=3))
    names = {1: ("tags", "ARRAY"), 3: ("id", "INT"), 4: ("address", "STRUCT"), 5: ("labels", "MAP")}
    server.rows(
        "information_schema.columns",
        *(KEY | {"column_id": i, "column_name": name, "data_type": kind} for i, (name, kind) in names.items()),
    )
    _, out, _ = run("show", NAME)
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["tags", "ARRAY", "not", "captured"],
        ["id", "INT", "EXACT"],
        ["labels", "MAP", "not", "captured"],
    ]
    assert "tags" not in run("show", NAME, "--format", "csv")[1]


def test_show_reads_the_current_snapshot_and_allows_stale(server, run):
    server.rows("stats.columns", column_row())
    run("show", NAME, "--format", "json")
    command = server.commands[0]
    assert (command["table"], command["snapshot"], command["allow_stale"]) == ("stats.columns", "current", True)
    server.commands.clear()
    run("show", NAME, "--snapshot", "7", "--format", "json")
    assert server.commands[0]["snapshot"] == 7 and "allow_stale" not in server.commands[0]


def test_show_of_a_table_without_statistics_suggests_capture(run):
    status, out, err = run("show", NAME)
    assert status == 0 and f"statflight capture {NAME}" in err
    assert len(out.splitlines()) == 1


def test_show_of_a_table_that_cannot_be_read_says_why(server, run):
    server.rows("sys.tables", KEY | {"state": "FAILING", "last_error": "no such file"})
    status, _, err = run("show", NAME)
    assert (status, err) == (0, f"{NAME}: nothing captured, for it cannot be read: no such file\n")


def test_show_says_what_of_a_table_is_not_read(server, run):
    server.rows("stats.columns", column_row())
    server.rows("sys.tables", KEY | {"properties": '{"statflight.remark": "no columns of directories"}'})
    status, _, err = run("show", NAME)
    assert (status, err) == (0, f"{NAME}: no columns of directories\n")


def test_show_fails_for_an_unknown_table_or_snapshot(server, run):
    assert run("show", NAME, "--snapshot", 5)[0] == 1
    server.rows("information_schema.tables")
    status, out, err = run("show", "lake.s.u")
    assert (status, out) == (1, "") and "lake.s.u" in err


def test_diff_lists_changes_and_fail_on_sets_the_status(server, run, monkeypatch):
    answers = {
        0: [column_row(min="0", max="99", ndv=100.0, ndv_exact=True), column_row(column_id=2, column_name="gone")],
        2: [column_row(min="0", max="149", ndv=120.0, ndv_exact=True), column_row(column_id=3, column_name="new")],
    }
    tables = {at: KEY | {"snapshot_id": at, "row_count": rows} for at, rows in ((0, 100), (2, 120))}
    do_get = server.do_get

    def by_snapshot(context, ticket):
        at = json.loads(ticket.ticket).get("snapshot")
        if at is not None:
            server.rows("stats.columns", *answers[at])
            server.rows("stats.tables", tables[at])
        return do_get(context, ticket)

    monkeypatch.setattr(server, "do_get", by_snapshot)
    status, out, _ = run("diff", NAME, 0, 2, "--format", "json")
    assert status == 0
    changes = {(row.pop("of"), row.pop("statistic")): tuple(row.values()) for row in json.loads(out)}
    assert changes == {
        ("table", "row_count"): (100, 120, 20, 20.0, True),
        ("id", "max"): ("99", "149", None, None, True),
        ("id", "ndv"): (100.0, 120.0, 20.0, 20.0, True),
        ("gone", "dropped"): (None, None, None, None, True),
        ("new", "added"): (None, None, None, None, True),
    }
    status, out, _ = run("diff", NAME, 0, 2)
    assert status == 0 and "+20%" in out and "+20 " in out
    status, out, _ = run("diff", NAME, 0, 2, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0] == {
        "of": "table",
        "statistic": "row_count",
        "before": "100",
        "after": "120",
        "change": "20.0",
        "change_percent": "20.0",
        "certain": "true",
    }
    assert run("diff", NAME, 0, 2, "--fail-on", "row_count < -10%", "--fail-on", "gone: ndv > 5")[0] == 0
    status, _, err = run("diff", NAME, 0, 2, "--fail-on", "id: ndv > 10%")
    assert status == 1 and "id: ndv > 10%: 100 → 120 (+20%)" in err
    for mistake in ("row_count <", "nvd < 5", "row_count < 5%%"):
        assert run("diff", NAME, 0, 2, "--fail-on", mistake)[0] == 2


def test_diff_warns_of_inherited_records(server, run):
    server.rows(
        "stats.columns", column_row(snapshot_id=1, freshness="INHERITED"), column_row(column_id=2, snapshot_id=2)
    )
    server.rows("stats.tables", KEY | {"snapshot_id": 2, "row_count": 1, "freshness": "EXACT"})
    status, _, err = run("diff", NAME, 2, "current")
    assert status == 0
    for at in ("2", "current"):
        assert f"at snapshot {at}, 1 of 3 records are inherited (from 1), not its own" in err


def test_history_is_in_commit_order(server, run):
    rows = [
        column_row(snapshot_id=at, max=str(at * 10), row_count=at * 10**7 + 1, null_count=0, mean=at * 1.5)
        for at in (7, 3, 5)
    ]
    server.rows("stats.columns", *rows)
    server.rows(
        "sys.snapshots",
        *(
            KEY | {"snapshot_id": at, "committed_at": datetime(2026, 1, day, tzinfo=UTC)}
            for day, at in enumerate((5, 7, 3), 1)
        ),
    )
    status, out, err = run("history", NAME, "id")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["5", "7", "3"]
    assert "row_count       ▆█▄  50,000,001 → 30,000,001\n" in err
    printed = json.loads(run("history", NAME, "id", "--format", "json")[1])
    assert [(row["snapshot_id"], row["max"], row["mean"]) for row in printed] == [
        ("5", "50", 7.5),
        ("7", "70", 10.5),
        ("3", "30", 4.5),
    ]
    assert run("history", NAME, "id", "--format", "csv")[1].startswith("snapshot_id,committed_at,row_count")


def test_columns_with_the_same_name_are_labelled_by_id(server, run):
    server.rows("stats.columns", *(column_row(snapshot_id=3, column_id=at, max=str(at)) for at in (4, 5)))
    lines = run("show", NAME)[1].splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [["id", "#4"], ["id", "#5"]]
    server.rows("sys.tables", KEY | {"format": "delta", "location": "/lake/orders"})
    metrics = json.loads(run("emit", NAME, "--to", "openlineage")[1])["dataset"]["facets"]["dataQualityMetrics"]
    assert metrics["columnMetrics"].keys() == {"id #4", "id #5"}


def test_history_of_an_ambiguous_column_name_is_an_error(server, run):
    server.rows("stats.columns", *(column_row(snapshot_id=3, column_id=at, max=str(at)) for at in (4, 5)))
    server.rows("information_schema.columns", *(KEY | {"column_id": at, "column_name": "id"} for at in (4, 5)))
    status, out, err = run("history", NAME, "id")
    assert (status, out) == (1, "") and "[AMBIGUOUS_COLUMN]" in err and "#4 or #5" in err


def test_history_by_name_is_of_the_column_that_has_the_name_now(server, run):
    """Column 1 was renamed to `old` before column 2 took its name."""
    server.rows("stats.columns", column_row(snapshot_id=1), column_row(snapshot_id=2, column_name="old"))
    now = ((1, "old"), (2, "id"))
    server.rows("information_schema.columns", *(KEY | {"column_id": i, "column_name": name} for i, name in now))

    def snapshots(column):
        return [int(row["snapshot_id"]) for row in json.loads(run("history", NAME, column, "--format", "json")[1])]

    assert (snapshots("id"), snapshots("old"), snapshots("#1")) == ([], [1, 2], [1, 2])
    server.rows("information_schema.columns", KEY | {"column_id": 1, "column_name": "old"})
    server.rows("stats.columns", column_row(snapshot_id=1), column_row(snapshot_id=2, column_id=2))
    assert snapshots("id") == [2], "of two dropped columns the last one that had the name"


def test_history_of_an_unknown_column_suggests_the_nearest(run):
    status, out, err = run("history", NAME, "idd")
    assert (status, out) == (1, "") and '"idd"' in err and '"id"' in err
