"""The command line against a fake server: requests, output streams, and exit status."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server import cli
from flight_server.commands import common, output
from store.schemas import FLIGHTS
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
    """Function that runs a command and returns its exit status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        monkeypatch.setenv("STATFLIGHT_KEEP", "pandas")  # imported by other tests of this process
        monkeypatch.setattr(sys, "argv", ["statflight", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        return exited.value.code or 0, out, err

    return run


def set_capture_outcome(server, **outcome):
    server.answers["capture"] = lambda body: [
        {"outcome": "CAPTURED", "engine_id": "spark", "job_id": "j-1", "detail": ""} | outcome for _ in body["requests"]
    ]


def column_row(**values):
    base = KEY | {"snapshot_id": 2, "column_id": 1, "column_name": "id", "logical_type": "INT", "freshness": "EXACT"}
    return base | values


# show, diff


def test_show_prints_a_line_for_each_column(server, run):
    server.rows(
        "stats.columns",
        column_row(column_id=2, column_name="b", min="x", null_count=1, row_count=4, ndv=900.0, ndv_lower=890.0,
                  ndv_upper=918.0, freshness="INHERITED", max="y", max_is_exact=False),
        column_row(min="1", max="9", ndv=9.0, ndv_exact=True),
    )  # fmt: skip
    status, out, err = run("show", NAME)
    assert (status, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split()[:2] == ["column", "type"]
    assert first.split()[:2] == ["id", "INT"] and "9" in first
    assert "900 ±2.0%" in second and "25.0" in second and "≤ y" in second and "INHERITED (from 2)" in second


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


def test_show_fails_for_an_unknown_table_or_snapshot(server, run):
    assert run("show", NAME, "--snapshot", 5)[0] == 1
    server.rows("information_schema.tables")
    status, out, err = run("show", "lake.s.u")
    assert (status, out) == (1, "") and "lake.s.u" in err


def test_diff_lists_changes_and_fail_on_sets_the_status(server, run, monkeypatch):
    answers = {
        0: [column_row(min="0", max="99", ndv=100.0), column_row(column_id=2, column_name="gone")],
        2: [column_row(min="0", max="149", ndv=120.0), column_row(column_id=3, column_name="new")],
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
    changes = {(row.pop("of"), row.pop("statistic")): tuple(row.values()) for row in json.loads(out)}
    assert changes == {
        ("table", "row_count"): (100, 120, 20, 20.0),
        ("id", "max"): ("99", "149", None, None),
        ("id", "ndv"): (100.0, 120.0, 20.0, 20.0),
        ("gone", "dropped"): (None,) * 4,
        ("new", "added"): (None,) * 4,
    }
    status, out, _ = run("diff", NAME, 0, 2)
    assert status == 0 and "+20%" in out and "+20 " in out
    status, out, _ = run("diff", NAME, 0, 2, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0] == {"of": "table", "statistic": "row_count", "before": "100", "after": "120", "change": "20.0",
                       "change_percent": "20.0"}  # fmt: skip
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


# query


def test_query_sends_all_of_its_flags(server, run):
    pytest.importorskip("flight_server.conditions.sql")
    server.rows("stats.columns", column_row(ndv=3.0))
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


def test_server_error_is_one_line_on_stderr(server, run):
    server.tables["sys.flights"] = pa.ArrowKeyError("[UNKNOWN_FLIGHT] no such thing")
    status, out, err = run("query", "sys.flights", "--format", "json")
    assert (status, out, err) == (1, "", "statflight: [UNKNOWN_FLIGHT] no such thing\n")


# connect, capture


def test_connect_registers_discovers_and_lists_tables(server, run, tmp_path):
    server.answers["register_connector"] = lambda body: [body | {"tables": []}]
    (tmp_path / "delta").mkdir()
    status, out, _ = run("connect", "lake", "delta", tmp_path / "delta", "-o", "a=b=c", "-o", "empty=")
    assert (status, out) == (0, f"{NAME}\n")
    registered = {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "delta"), "discover": True}
    assert server.actions == [("register_connector", registered | {"options": {"a": "b=c", "empty": ""}})]
    assert run("connect", "lake", "delta", tmp_path / "delta", "--replace")[0] == 0
    assert server.actions[1][1]["replace"] is True


@pytest.mark.parametrize("command", [("connect", "lake", "delta", "s3://b"), ("discover", "lake")])
def test_unreadable_tables_are_reported_and_fail_the_command(server, run, command):
    found = [{"table": "lake.default.bad", "error": "its log is damaged"}, {"table": NAME, "snapshots": 1}]
    server.answers["register_connector"] = lambda body: [body | {"tables": found}]
    server.answers["discover"] = lambda body: found
    status, out, err = run(*command)
    assert (status, out) == (1, f"{NAME}\n")
    assert err == "statflight: lake.default.bad: its log is damaged\n"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("rest", "-o", "token=hush-hush", "-o", "s3.region=eu"), "token of lake"),
        (("sqlite://me:hush-hush@h/db",), "the password in the address of lake"),
        (("rest", "-o", "secret=prod", "-o", "token="), None),
    ],
)
def test_plain_text_secrets_are_warned_about(server, run, given, named):
    server.answers["register_connector"] = lambda body: [body | {"tables": []}]
    status, _, err = run("connect", "lake", "iceberg", *given)
    assert status == 0 and "hush" not in err
    assert (named in err and "-o secret=NAME" in err and "in clear" in err) if named else err == ""


def test_connect_makes_a_relative_path_absolute(server, run, tmp_path, monkeypatch):
    server.answers["register_connector"] = lambda body: [body | {"tables": []}]
    (tmp_path / "lake").mkdir()
    monkeypatch.chdir(tmp_path)
    run("connect", "lake", "delta", "lake")
    run("connect", "lake", "delta", "s3://bucket/lake")
    assert [body["uri"] for name, body in server.actions if name == "register_connector"] == [
        str(tmp_path / "lake"), "s3://bucket/lake",
    ]  # fmt: skip


def test_capture_prints_one_line_per_table(server, run):
    set_capture_outcome(server)
    status, out, err = run("capture", NAME)
    assert (status, err) == (0, "")
    assert out == f"{NAME}: table and 1 column captured by spark\n"
    assert len(server.actions) == 1


def test_capture_of_a_repeated_table_is_sent_once(server, run):
    set_capture_outcome(server)
    run("capture", NAME, NAME)
    ((_, body),) = server.actions
    assert len(body["requests"]) == 2


def test_capture_async_prints_each_job_once(server, run):
    set_capture_outcome(server, outcome="QUEUED")
    status, out, _ = run("capture", NAME, "--async")
    assert (status, out) == (0, "j-1\n")
    assert {request["mode"] for request in server.actions[0][1]["requests"]} == {"ASYNC"}


def test_capture_sends_the_sampling_flags(server, run):
    set_capture_outcome(server)
    assert run("capture", NAME, "--sample", "random")[0] == 0
    limits = ("--max-rows", 1000, "--max-bytes", 1 << 20, "--max-seconds", 1.5)
    assert run("capture", NAME, "--sample", "guided", *limits)[0] == 0
    sampling = [[request.get("sampling") for request in body["requests"]] for _, body in server.actions]
    budget = {"max_rows": 1000, "max_bytes": 1 << 20, "max_seconds": 1.5}
    assert sampling == [[None, "RANDOM_ROW_GROUP"], [None, {"method": "METADATA_GUIDED"} | budget]]


@pytest.mark.parametrize(("flags", "message"), [
    (["--sample", "some"], "must be random or guided"), (["--max-rows", "5"], "say --sample random"),
])  # fmt: skip
def test_invalid_sampling_flags_are_a_usage_error(server, run, flags, message):
    status, _, err = run("capture", NAME, *flags)
    assert status == 2 and message in err and not server.actions


def test_capture_fails_when_an_outcome_is_degraded(server, run):
    set_capture_outcome(server, outcome="DEGRADED", detail="capture failed: OSError")
    status, out, err = run("capture", NAME)
    assert (status, out) == (1, f"{NAME}: table and 1 column degraded\n")
    assert err == f"statflight: {NAME}: table and 1 column: DEGRADED capture failed: OSError\n"  # each reason once


def test_column_missing_in_an_old_snapshot_fails_only_when_named(server, run):
    lacks = {"outcome": "DEGRADED", "detail": "no column with id 1 in snapshot 5"}
    server.answers["capture"] = lambda body: [{"outcome": "CAPTURED", "engine_id": "spark"}, lacks]
    assert run("capture", NAME, "--snapshot", 5) == (0, f"{NAME}: table captured by spark\n", "")
    assert run("capture", NAME, "--snapshot", 5, "--columns", "id")[0] == 1
    assert run("capture", NAME)[0] == 1


def test_capture_continues_after_an_unknown_table(server, run, monkeypatch):
    set_capture_outcome(server)
    do_get = server.do_get

    def empty_for_unknown(context, ticket):
        is_unknown = "nosuch" in ticket.ticket.decode()
        reply = do_get(context, ticket)
        if not is_unknown:
            return reply
        return pa.flight.RecordBatchStream(server.tables[json.loads(ticket.ticket)["table"]].slice(0, 0))

    monkeypatch.setattr(server, "do_get", empty_for_unknown)
    status, out, err = run("capture", "lake.s.nosuch", NAME)
    assert status == 1 and "lake.s.nosuch" in err and out.startswith(NAME)


def test_jobs_prints_untruncated_job_ids(server, run):
    job = "j" * 200
    server.rows("sys.capture_jobs", KEY | {"job_id": job, "state": "SUCCEEDED", "progress": 1.0})
    status, out, _ = run("jobs")
    assert status == 0
    assert job in out and NAME in out and "100%" in out


PUBLISHED = {"table": NAME, "snapshot_id": 4, "to": "iceberg", "state": "CURRENT", "location": "file:///x.stats",
             "columns": ["id", "name"], "detail": ""}  # fmt: skip


def test_publish_prints_columns_snapshot_and_location(server, run):
    server.answers["publish"] = lambda body: [PUBLISHED]
    status, out, _ = run("publish", NAME, "--to", "iceberg", "--snapshot", 4)
    assert (status, out) == (0, f"{NAME}: 2 columns of snapshot 4 published to iceberg: file:///x.stats\n")
    assert server.actions == [("publish", {"table": NAME, "snapshot": 4, "to": "iceberg"})]


def test_publish_sends_its_flags_and_options(server, run):
    server.answers["publish"] = lambda body: [PUBLISHED | {"state": "DRY_RUN", "detail": "left out: tags"}]
    status, out, _ = run(
        "publish", NAME, "--to", "hive", "--dry-run", "--allow-inherited", "-o", "uri=thrift://h:1"
    )  # fmt: skip
    assert status == 0 and "would be published" in out and out.endswith("; left out: tags\n")
    assert server.actions[-1][1] == {
        "table": NAME, "snapshot": "current", "to": "hive", "dry_run": True, "allow_inherited": True,
        "options": {"uri": "thrift://h:1"},
    }  # fmt: skip
    assert run("publish", NAME, "--to", "hive", "-o", "nonsense")[0] == 2


def test_expire_is_a_dry_run_by_default(server, run):
    server.answers["expire"] = lambda body: [{"table": NAME, "deleted": 3}]
    assert run("expire")[0] == 0
    run("expire", NAME, "--no-dry-run")
    assert [body for _, body in server.actions] == [{"dry_run": True}, {"dry_run": False, "table": NAME}]


def test_doctor_succeeds_only_with_a_healthy_server(server, run):
    server.answers["health"] = lambda body: [{"status": "ok", "version": "1"}]
    status, out, _ = run("doctor")
    assert status == 0 and server.uri in out
    status, out, _ = run("doctor", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "statflight serve" in out


def test_report_to_a_missing_directory_fails(server, run, tmp_path):
    server.rows("stats.columns", column_row())
    assert run("report", NAME, "-o", tmp_path / "r.html")[0] == 0
    status, out, err = run("report", NAME, "-o", tmp_path / "no" / "such" / "r.html")
    assert (status, out) == (1, "") and "cannot write" in err


# Patterns.


def serve_tables(server, *names):
    """Sets tables of `lake.s`; reads with a predicate on table_name return the rows of that table only."""
    do_get = server.do_get
    tables = {name: KEY | {"table_name": name} for name in names}
    server.rows("information_schema.tables", *(row | {"table_type": "BASE TABLE"} for row in tables.values()))

    def filtered_by_table(context, ticket):
        command = json.loads(ticket.ticket)
        reply = do_get(context, ticket)
        requested = [leaf["values"][0] for leaf in command.get("predicates", ()) if leaf["column"] == "table_name"]
        table = server.tables.get(command["table"])
        if not requested or "table_name" not in FLIGHTS[command["table"]].schema.names or table is None:
            return reply
        matching = table.filter(pc.equal(table["table_name"], requested[0]))
        return pa.flight.RecordBatchStream(matching.select(command["columns"]) if "columns" in command else matching)

    server.do_get = filtered_by_table


@pytest.fixture
def tables(server):
    serve_tables(server, "a", "b")
    server.rows("stats.columns", *(column_row(table_name=name, max=f"max of {name}") for name in "ab"))
    server.rows(
        "information_schema.columns",
        *(KEY | {"table_name": name, "column_name": "id", "column_id": 1, "data_type": "INT"} for name in "ab"),
    )


def test_capture_and_show_accept_patterns(server, run, tables):
    set_capture_outcome(server)
    status, out, _ = run("capture", "lake.s.*", "lake.s.b")
    assert status == 0
    assert sorted(out.splitlines()) == [f"lake.s.{name}: table and 1 column captured by spark" for name in "ab"]
    status, out, _ = run("show", "lake.*")
    assert status == 0 and out.index("lake.s.a") < out.index("max of a") < out.index("lake.s.b") < out.index("max of b")
    status, out, _ = run("show", "lake.*", "--format", "json")
    assert status == 0 and [row["max"] for row in json.loads(out)] == ["max of a", "max of b"]


@pytest.mark.parametrize("command", [["capture"], ["show"], ["resolve"], ["publish", "--to", "iceberg"], ["ls"]])
def test_pattern_without_a_match_is_an_error(server, run, tables, command):
    status, out, err = run(*command, "lake.nosuch.*")
    assert (status, out) == (1, "") and "no table matches 'lake.nosuch.*'" in err
    assert not server.actions


def test_failed_table_is_reported_and_the_others_are_processed(server, run, tables):
    def capture(body):
        if body["requests"][0]["table"] == "lake.s.a":
            raise pa.ArrowInvalid("[UPSTREAM] the lake is gone")
        return [{"outcome": "CAPTURED", "engine_id": "native", "job_id": "j"} for _ in body["requests"]]

    server.answers["capture"] = capture
    status, out, err = run("capture", "lake.s.*")
    assert (status, out) == (1, "lake.s.b: table and 1 column captured by native\n")
    assert "lake.s.a: [UPSTREAM] the lake is gone" in err
    status, out, err = run("show", "lake.s.nosuch", "lake.s.b")
    assert status == 1 and "lake.s.nosuch" in err and "max of b" in out


def test_ls_prints_a_line_for_each_table(server, run, tables):
    server.rows("stats.tables", KEY | {"table_name": "a", "row_count": 1234, "total_size_bytes": 2048,
                                       "freshness": "EXACT", "snapshot_id": 1})  # fmt: skip
    server.rows("sys.tables", KEY | {"table_name": "broken", "state": "FAILING", "last_error": "no log"})
    status, out, _ = run("ls")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert list(lines) == ["lake.s.a", "lake.s.b", "lake.s.broken"]
    assert "1,234" in lines["lake.s.a"] and "2.0 KiB" in lines["lake.s.a"]
    assert "not captured" in lines["lake.s.b"] and "no log" in lines["lake.s.broken"]
    for pattern in ("lake", "lake.s", "lake.s.a", "*.a"):
        assert "lake.s.a" in run("ls", pattern)[1]
    assert "lake.s.b" not in run("ls", "*.a")[1]


# history


def test_history_is_in_commit_order(server, run):
    rows = [column_row(snapshot_id=at, max=str(at * 10), row_count=at, null_count=0, mean=at * 1.5) for at in (7, 3, 5)]
    server.rows("stats.columns", *rows)
    server.rows("sys.snapshots", *(
        KEY | {"snapshot_id": at, "committed_at": datetime(2026, 1, day, tzinfo=UTC)}
        for day, at in enumerate((5, 7, 3), 1)
    ))  # fmt: skip
    status, out, err = run("history", NAME, "id")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["5", "7", "3"]
    assert "▆█▄" in err and "row_count" in err
    printed = json.loads(run("history", NAME, "id", "--format", "json")[1])
    assert [(row["snapshot_id"], row["max"], row["mean"]) for row in printed] == [
        (5, "50", 7.5), (7, "70", 10.5), (3, "30", 4.5),
    ]  # fmt: skip
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
    status, out, err = run("history", NAME, "id")
    assert (status, out) == (1, "") and "[AMBIGUOUS_COLUMN]" in err and "#4 or #5" in err


def test_history_of_an_unknown_column_suggests_the_nearest(run):
    status, out, err = run("history", NAME, "idd")
    assert (status, out) == (1, "") and '"idd"' in err and '"id"' in err


# Output.


def test_quiet_prints_errors_only_and_verbose_prints_the_server(server, run):
    assert run("show", NAME, "--quiet")[2] == ""
    assert server.uri in run("show", NAME, "-v")[2]
    assert run("-q", "show", NAME)[2] == "" and server.uri in run("--verbose", "show", NAME)[2]
    status, _, err = run("show", "lake.s.*", "-q", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "127.0.0.1:9" in err
    run("ls")
    assert not output.quiet(), "--quiet ends with its command"


def test_misspelt_command_suggests_the_nearest(server, run):
    status, _, err = run("captur", NAME)
    assert status == 2 and "Did you mean 'capture'?" in err


def test_control_characters_are_escaped_on_terminals(monkeypatch, capfd):
    evil = "a\x1b[2Jb\u202e"
    output.warn(f"trouble with {evil}\nand a second line")
    output.tell(evil)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.tell(evil)
    out, err = capfd.readouterr()
    assert err == "trouble with a\\x1b[2Jb\\u202e\nand a second line\n"
    assert out.splitlines() == [evil, "a\\x1b[2Jb\\u202e"]  # a pipe receives the raw text


def test_unreachable_default_server_suggests_serve(server, run, monkeypatch):
    monkeypatch.setattr("flight_server.commands.common.DEFAULT_URI", "grpc://127.0.0.1:9")
    status, _, err = run("ls", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "statflight serve --db" in err and "STATFLIGHT_SERVER" in err


def test_rejected_token_names_the_token_flag(server, run):
    server.tables["sys.flights"] = pa.flight.FlightUnauthenticatedError("[UNAUTHENTICATED] the token is not known")
    status, _, err = run("query", "sys.flights", "--format", "json")
    assert status == 1 and "--token" in err and "header" not in err


def test_shell_completion_lists_tables_and_columns(server, run, tables, monkeypatch, capsys):
    monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
    monkeypatch.setenv("_STATFLIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "statflight show lake.s.")
    monkeypatch.setenv("COMP_CWORD", "2")
    _, out, _ = run("show")
    assert out.split() == ["lake.s.a", "lake.s.b"]
    monkeypatch.setenv("COMP_WORDS", "statflight history lake.s.a i")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run("history")[1].split() == ["id"]


def test_completion_without_a_server_is_empty(run, monkeypatch):
    nowhere = SimpleNamespace(params={"server": "grpc://127.0.0.1:9"})
    assert common.complete_table(nowhere, "lake") == []


def test_config_prints_values_and_sources(run, monkeypatch, tmp_path):
    (tmp_path / "statflight.toml").write_text(
        'port = 1234\ntoken = "hush-hush"\n[spark]\n"spark.hadoop.javax.jdo.option.ConnectionPassword" = "hush-hush"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATFLIGHT_WORKERS", "3")
    status, out, _ = run("config", "--json")
    printed = json.loads(out)
    assert status == 0
    assert printed["port"] == {"value": 1234, "from": "statflight.toml"}
    assert printed["workers"] == {"value": 3, "from": "STATFLIGHT_WORKERS"}
    assert printed["host"] == {"value": "127.0.0.1", "from": "default"}
    assert "hush" not in run("config")[1] + out
    (tmp_path / "statflight.toml").write_text("prot = 1\n")
    status, _, err = run("config")
    assert status == 2 and "port" in err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0 and cli.COMMANDS[name].help in " ".join(out.split()) and "--quiet" in out


# Usage errors.


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
        ["capture", "lake.*", "--every", "soon"],
        ["serve", "-o", "colour=red"],
        ["serve", "-o", "stream_seconds"],
        ["serve", "--port", "many"],
        ["serve", "--port", "70000"],
        ["serve", "--port", "0", "--tls-cert", "x.pem"],
    ],
    ids=" ".join,
)
def test_usage_error_is_status_2_without_a_request(server, run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and err
    assert not server.commands and not server.actions


def test_unreachable_server_is_status_1(run):
    status, out, err = run("query", "sys.flights", "--server", "grpc://127.0.0.1:9")
    assert (status, out) == (1, "")
    assert "127.0.0.1:9" in err and "statflight serve" in err


def test_help_lists_the_commands_and_version_is_printed(run):
    status, out, _ = run("--help")
    words = "serve worker connect capture show query diff jobs report publish resolve discover expire doctor backup"
    assert status == 0 and all(word in out for word in words.split())
    assert run("--version")[1].strip()[0].isdigit()


# check


def test_check_status_is_that_of_the_worst_result(server, run, tables, tmp_path):
    rows = [column_row(table_name=name, null_count=nulls, row_count=10) for name, nulls in (("a", 0), ("b", 5))]
    server.rows("stats.columns", *rows)
    strict, lenient = ("--rule", "null_fraction <= 0.1"), ("--rule", "null_fraction <= 0.5")
    assert run("check", "lake.s.a", *strict)[0] == 0
    status, out, _ = run("check", "lake.s.*", *strict)
    assert status == 1 and out.splitlines()[1].split()[:3] == ["failed", "lake.s.b", "id"] and "passed" in out
    assert run("check", "lake.s.*", *lenient)[0] == 0
    (tmp_path / "rules.toml").write_text('[[rule]]\ntable = "*.b"\nexpect = "null_fraction <= 0.1"\nlevel = "warn"\n')
    status, out, _ = run("check", "lake.s.*", "--rules", tmp_path / "rules.toml", "-f", "json")
    report = json.loads(out)
    assert status == 0 and report["passed"] and [result["state"] for result in report["results"]] == ["WARNED"]
    status, out, err = run("check", "lake.s.nosuch", "lake.s.a", *strict, "-f", "junit")
    assert status == 1 and 'errors="1"' in out and "lake.s.nosuch" in err


def test_check_without_a_rule_is_status_2_unless_the_table_is_unknown(server, run):
    status, out, err = run("check", NAME)
    assert (status, out) == (2, "") and "no rule given" in err
    server.rows("information_schema.tables")
    status, out, err = run("check", NAME)
    assert (status, out) == (1, "") and "UNKNOWN_TABLE" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--rule", "null_fraction <="], "cannot be read"),
    (["--rule", "drift < 1"], "--against"), (["--rules", "/no/such/file.toml"], "file.toml"),
    (["--rule", "ndv > 1", "--against", "yesterday"], "yesterday"),
])  # fmt: skip
def test_invalid_rule_is_status_2(server, run, arguments, message):
    status, out, err = run("check", NAME, *arguments)
    assert (status, out) == (2, "") and message in err
    assert not server.commands
