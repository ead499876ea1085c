"""The command line against a canned server: what it asks, what it writes where, and its exit status."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest

from flight_server import cli
from tests.flight_server.fake_server import FakeServer

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
NAME = "lake.s.t"


@pytest.fixture
def server():
    with FakeServer() as server:
        server.rows("information_schema.tables", KEY | {"table_type": "BASE TABLE"})
        server.rows("information_schema.columns", KEY | {"column_name": "id", "column_id": 1, "data_type": "INT"})
        yield server


@pytest.fixture
def run(server, monkeypatch, capsys):
    """Runs a command; its status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        monkeypatch.setattr(sys, "argv", ["statflight", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return run


def captured(server, **outcome):
    server.answers["capture"] = lambda body: [
        {"outcome": "CAPTURED", "engine_id": "spark", "job_id": "j-1", "detail": ""} | outcome for _ in body["requests"]
    ]


def of_column(**values):
    base = KEY | {"snapshot_id": 2, "column_id": 1, "column_name": "id", "logical_type": "INT", "freshness": "EXACT"}
    return base | values


# show, diff


def test_show_is_a_line_for_each_column(server, run):
    server.rows(
        "stats.columns",
        of_column(column_id=2, column_name="b", min="x", null_count=1, row_count=4, ndv=900.0, ndv_lower=890.0,
                  ndv_upper=918.0, freshness="INHERITED", max="y", max_is_exact=False),
        of_column(min="1", max="9", ndv=9.0, ndv_exact=True),
    )  # fmt: skip
    status, out, err = run("show", NAME)
    assert (status, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split()[:2] == ["column", "type"]
    assert first.split()[:2] == ["id", "INT"] and "9" in first
    assert "900 ±2.0%" in second and "25.0" in second and "≤ y" in second and "INHERITED (of 2)" in second


def test_show_asks_for_current_and_allows_stale(server, run):
    server.rows("stats.columns", of_column())
    run("show", NAME, "--format", "json")
    command = server.commands[0]
    assert (command["table"], command["snapshot"], command["allow_stale"]) == ("stats.columns", "current", True)
    server.commands.clear()
    run("show", NAME, "--snapshot", "7", "--format", "json")
    assert server.commands[0]["snapshot"] == 7 and "allow_stale" not in server.commands[0]


def test_show_of_a_table_without_statistics_tells_how_to_capture(run):
    status, out, err = run("show", NAME)
    assert status == 0 and f"statflight capture {NAME}" in err
    assert len(out.splitlines()) == 1


def test_show_of_an_unknown_table_fails_and_of_an_unknown_snapshot_too(server, run):
    assert run("show", NAME, "--snapshot", 5)[0] == 1
    server.rows("information_schema.tables")
    status, out, err = run("show", "lake.s.u")
    assert (status, out) == (1, "") and "lake.s.u" in err


def test_diff_tells_what_changed(server, run, monkeypatch):
    answers = {
        0: [of_column(min="0", max="99", ndv=100.0), of_column(column_id=2, column_name="gone")],
        2: [of_column(min="0", max="149", ndv=120.0), of_column(column_id=3, column_name="new")],
    }
    tables = {at: KEY | {"snapshot_id": at, "row_count": rows} for at, rows in ((0, 100), (2, 120))}
    do_get = server.do_get

    def by_snapshot(context, ticket):
        at = json.loads(ticket.ticket).get("snapshot")
        server.rows("stats.columns", *answers[at])
        server.rows("stats.tables", tables[at])
        return do_get(context, ticket)

    monkeypatch.setattr(server, "do_get", by_snapshot)
    status, out, _ = run("diff", NAME, 0, 2, "--format", "json")
    assert status == 0
    changes = {(row["of"], row["statistic"]): (row["before"], row["after"], row["change"]) for row in json.loads(out)}
    assert changes == {
        ("table", "row_count"): ("100", "120", "+20"),
        ("id", "max"): ("99", "149", ""),
        ("id", "ndv"): ("100", "120", "+20"),
        ("gone", "dropped"): ("", "", ""),
        ("new", "added"): ("", "", ""),
    }


def test_diff_tells_what_is_inherited(server, run):
    server.rows("stats.columns", of_column(snapshot_id=1, freshness="INHERITED"), of_column(column_id=2, snapshot_id=2))
    server.rows("stats.tables", KEY | {"snapshot_id": 2, "row_count": 1, "freshness": "EXACT"})
    status, _, err = run("diff", NAME, 2, "current")
    assert status == 0
    for at in ("2", "current"):
        assert f"at snapshot {at}, 1 of 3 records are inherited (of 1), not its own" in err


# query


def test_query_passes_everything_on(server, run):
    pytest.importorskip("flight_server.conditions.sql")
    server.rows("stats.columns", of_column(ndv=3.0))
    status, out, _ = run(
        "query", "stats.columns", "--columns", "column_name, ndv", "--where", "ndv > 1", "--limit", 5,
        "--snapshot", "current", "--allow-stale", "--format", "json",
    )  # fmt: skip
    assert status == 0 and json.loads(out) == [{"column_name": "id", "ndv": 3.0}]
    (command,) = server.commands
    condition = command.pop("filter", None) or command.pop("predicates")
    assert "ndv" in json.dumps(condition)
    assert command == {
        "table": "stats.columns", "strict": True, "columns": ["column_name", "ndv"], "limit": 5,
        "snapshot": "current",
        "allow_stale": True,
    }  # fmt: skip


def test_a_refusal_is_one_line_on_stderr(server, run):
    server.tables["sys.flights"] = pa.ArrowKeyError("[UNKNOWN_FLIGHT] no such thing")
    status, out, err = run("query", "sys.flights", "--format", "json")
    assert (status, out, err) == (1, "", "statflight: [UNKNOWN_FLIGHT] no such thing\n")


# connect, capture


def test_connect_registers_discovers_and_lists(server, run, tmp_path):
    server.answers["register_connector"] = lambda body: [body]
    server.answers["discover"] = lambda body: []
    (tmp_path / "delta").mkdir()
    status, out, _ = run("connect", "lake", "delta", tmp_path / "delta", "-o", "a=b=c", "-o", "empty=")
    assert (status, out) == (0, f"{NAME}\n")
    registered = {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "delta")}
    assert server.actions == [
        ("register_connector", registered | {"options": {"a": "b=c", "empty": ""}}),
        ("discover", {"catalog": "lake"}),
    ]


def test_a_relative_path_is_made_absolute(server, run, tmp_path, monkeypatch):
    server.answers["register_connector"] = server.answers["discover"] = lambda body: [body]
    (tmp_path / "lake").mkdir()
    monkeypatch.chdir(tmp_path)
    run("connect", "lake", "delta", "lake")
    run("connect", "lake", "delta", "s3://bucket/lake")
    assert [body["uri"] for name, body in server.actions if name == "register_connector"] == [
        str(tmp_path / "lake"), "s3://bucket/lake",
    ]  # fmt: skip


def test_capture_sums_up_a_table_in_a_line(server, run):
    captured(server)
    status, out, err = run("capture", NAME)
    assert (status, err) == (0, "")
    assert out == f"{NAME}: 2 captured by spark\n"
    assert len(server.actions) == 1


def test_capture_of_the_same_table_twice_asks_once(server, run):
    captured(server)
    run("capture", NAME, NAME)
    ((_, body),) = server.actions
    assert len(body["requests"]) == 2


def test_capture_async_prints_each_job_once(server, run):
    captured(server, outcome="QUEUED")
    status, out, _ = run("capture", NAME, "--async")
    assert (status, out) == (0, "j-1\n")
    assert {request["mode"] for request in server.actions[0][1]["requests"]} == {"ASYNC"}


def test_capture_of_a_sample(server, run):
    captured(server)
    assert run("capture", NAME, "--sample", "random")[0] == 0
    limits = ("--max-rows", 1000, "--max-bytes", 1 << 20, "--max-seconds", 1.5)
    assert run("capture", NAME, "--sample", "guided", *limits)[0] == 0
    asked = [[request.get("sampling") for request in body["requests"]] for _, body in server.actions]
    budget = {"max_rows": 1000, "max_bytes": 1 << 20, "max_seconds": 1.5}
    assert asked == [[None, "RANDOM_ROW_GROUP"], [None, {"method": "METADATA_GUIDED"} | budget]]


@pytest.mark.parametrize(("flags", "told"), [
    (["--sample", "some"], "expected random or guided"), (["--max-rows", "5"], "say --sample random"),
])  # fmt: skip
def test_a_sample_that_is_none_is_told(server, run, flags, told):
    status, _, err = run("capture", NAME, *flags)
    assert status == 2 and told in err and not server.actions


def test_capture_fails_when_an_outcome_does(server, run):
    captured(server, outcome="DEGRADED", detail="capture failed: OSError")
    status, out, err = run("capture", NAME)
    assert status == 1 and "2 degraded" in out and "capture failed: OSError" in err


def test_a_column_that_an_old_snapshot_lacks_is_no_failure_unless_named(server, run):
    lacks = {"outcome": "DEGRADED", "detail": "no column with id 1 in snapshot 5"}
    server.answers["capture"] = lambda body: [{"outcome": "CAPTURED", "engine_id": "spark"}, lacks]
    assert run("capture", NAME, "--snapshot", 5) == (0, f"{NAME}: 1 captured by spark\n", "")
    assert run("capture", NAME, "--snapshot", 5, "--columns", "id")[0] == 1
    assert run("capture", NAME)[0] == 1


def test_capture_goes_on_after_an_unknown_table(server, run, monkeypatch):
    captured(server)
    do_get = server.do_get

    def only_known(context, ticket):
        nowhere = "nosuch" in ticket.ticket.decode()
        answer = do_get(context, ticket)
        if not nowhere:
            return answer
        return pa.flight.RecordBatchStream(server.tables[json.loads(ticket.ticket)["table"]].slice(0, 0))

    monkeypatch.setattr(server, "do_get", only_known)
    status, out, err = run("capture", "lake.s.nosuch", NAME)
    assert status == 1 and "lake.s.nosuch" in err and out.startswith(NAME)


def test_jobs_are_never_cut_short(server, run):
    job = "j" * 200
    server.rows("sys.capture_jobs", KEY | {"job_id": job, "state": "SUCCEEDED", "progress": 1.0})
    status, out, _ = run("jobs")
    assert status == 0
    assert job in out and NAME in out and "100%" in out


def test_publish_tells_what_was_written(server, run):
    server.answers["publish"] = lambda body: [{"path": "x.puffin", "blobs": 3, "note": None}]
    status, out, _ = run("publish", NAME, "--to", "iceberg", "--snapshot", 4)
    assert (status, out) == (0, "path=x.puffin  blobs=3\n")
    assert server.actions == [("publish", {"table": NAME, "snapshot": 4, "to": "iceberg"})]


def test_expire_deletes_nothing_by_default(server, run):
    server.answers["expire"] = lambda body: [{"table": NAME, "deleted": 3}]
    assert run("expire")[0] == 0
    run("expire", NAME, "--no-dry-run")
    assert [body for _, body in server.actions] == [{"dry_run": True}, {"dry_run": False, "table": NAME}]


def test_doctor_is_content_with_a_server_that_answers(server, run):
    server.answers["health"] = lambda body: [{"status": "ok", "version": "1"}]
    status, out, _ = run("doctor")
    assert status == 0 and server.uri in out
    status, out, _ = run("doctor", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "statflight serve" in out


def test_a_report_nowhere_fails(server, run, tmp_path):
    server.rows("stats.columns", of_column())
    assert run("report", NAME, "-o", tmp_path / "r.html")[0] == 0
    status, out, err = run("report", NAME, "-o", tmp_path / "no" / "such" / "r.html")
    assert (status, out) == (1, "") and "cannot write" in err


# Mistakes.


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["query"],
        ["query", "sys.flights", "--colour", "red"],
        ["query", "sys.flights", "--limit", "ten"],
        ["query", "sys.flights", "--limit", "-1"],
        ["query", "sys.flights", "--format", "xml"],
        ["query", "sys.flights", "--columns", ","],
        ["query", "stats.columns", "--allow-stale"],
        ["query", "sys.flights", "--server", "127.0.0.1:8815"],
        ["query", "sys.flights", "--tls-roots", "/no/such/file"],
        ["connect", "c", "delta"],
        ["connect", "c", "delta", "/tmp", "-o", "novalue"],
        ["connect", "c", "delta", "/tmp", "-o", "=value"],
        ["show", "t"],
        ["show", NAME, "--snapshot", "yesterday"],
        ["diff", NAME, "1", "all"],
        ["capture", NAME, "--kinds", "AVERAGE"],
        ["capture", "not.full"],
        ["jobs", "--watch", "--format", "json"],
        ["serve", "--port", "many"],
        ["serve", "--port", "70000"],
        ["serve", "--port", "0", "--tls-cert", "x.pem"],
    ],
    ids=" ".join,
)
def test_misuse_is_status_2_and_asks_nothing(server, run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and err
    assert not server.commands and not server.actions


def test_no_server_is_status_1(run):
    status, out, err = run("query", "sys.flights", "--server", "grpc://127.0.0.1:9")
    assert (status, out) == (1, "")
    assert "127.0.0.1:9" in err and "statflight serve" in err


def test_help_and_version(run):
    status, out, _ = run("--help")
    words = "serve worker connect capture show query diff jobs report publish resolve discover expire doctor backup"
    assert status == 0 and all(word in out for word in words.split())
    assert run("--version")[1].strip()[0].isdigit()
