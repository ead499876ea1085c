"""The command line against a fake server: requests, output streams, and exit status."""

from __future__ import annotations

import errno
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flight_server import cli
from flight_server.faces.commands import output, targets
from flight_server.faces.commands.examples import EXAMPLES
from store.duckdb.database import Database
from store.plugins import Plugins
from tests.flight_server.command_line import (
    KEY,
    NAME,
    column_row,
    relationship,
    serve_tables,
    set_capture_outcome,
)
from tests.layouts import unpack
from tests.store.empty_store import empty_store

NAMES = cli.app.list_commands(None)


def test_query_sends_all_of_its_flags(server, run):
    pytest.importorskip("flight_server.client.conditions.sql")
    server.rows("stats.columns", column_row(ndv=3.0))
    status, out, _ = run(
        "query",
        "stats.columns",
        "--columns",
        "column_name, ndv",
        "--where",
        "ndv > 1",
        "--limit",
        5,
        "--snapshot",
        "current",
        "--allow-stale",
        "--format",
        "json",
    )
    assert status == 0 and json.loads(out) == [{"column_name": "id", "ndv": 3.0}]
    (command,) = server.commands
    condition = command.pop("filter", None) or command.pop("predicates")
    assert "ndv" in json.dumps(condition)
    assert command == {
        "table": "stats.columns",
        "strict": True,
        "columns": ["column_name", "ndv"],
        "limit": 5,
        "snapshot": "current",
        "allow_stale": True,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stats.columns"], "current"),
        (["stats.columns", "--snapshot", "all"], None),
        (["stats.columns", "--snapshot", "7", "--allow-stale"], 7),
        (["stats.columns", "--where", "snapshot_id = 7"], None),
        (["sys.flights"], None),
    ],
)
def test_query_reads_the_current_snapshot_of_statistics(server, run, arguments, expected):
    assert run("query", *arguments)[0] == 0
    assert server.commands[-1].get("snapshot") == expected


def test_server_error_is_one_line_on_stderr(server, run):
    server.tables["sys.flights"] = pa.ArrowKeyError("[UNKNOWN_FLIGHT] no such thing")
    status, out, err = run("query", "sys.flights", "--format", "json")
    assert (status, out, err) == (1, "", "statflight: [UNKNOWN_FLIGHT] no such thing\n")


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


@pytest.mark.parametrize(
    ("address", "why"), [("http://127.0.0.1:8816", "that is the address of pages"), ("ftp://h", "must be grpc://")]
)
def test_an_address_of_another_kind_is_refused(run, address, why):
    status, out, err = run("ls", "--server", address)
    assert (status, out) == (2, "") and why in err


def test_a_misspelt_file_is_told_of_where_no_server_answers(run, tmp_path, monkeypatch):
    (tmp_path / "x.parquet").touch()
    monkeypatch.chdir(tmp_path)
    status, out, err = run("show", "x.parquett", "--server", "grpc://127.0.0.1:9")
    assert (status, out) == (1, "") and "no server" in err and "did you mean ./x.parquet?" in err
    assert "./x" not in run("show", "lake.sales.orders", "--server", "grpc://127.0.0.1:9")[2]


def test_an_address_needs_no_scheme(server, run):
    assert run("ls", "--server", server.uri.removeprefix("grpc://"))[0] == 0


def test_doctor_checks_a_database(run, tmp_path):
    path = empty_store(tmp_path / "s.duckdb")
    database = Database(path)
    held = run("doctor", "--db", str(path))
    database.close()
    assert held[0] == 1 and "another process holds it" in held[2]
    assert run("doctor", "--db", str(path))[:2] == (0, "")
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO jobs (job_id, state) VALUES ('j', 'LOST')")
    status, out, _ = run("doctor", "--db", str(path))
    assert status == 1 and out.startswith("broken   jobs: unknown state: 1\n") and "→ restore a backup" in out
    status, out, _ = run("doctor", "--db", str(path), "-f", "json")
    assert status == 1 and [each["number"] for each in json.loads(out)] == [1]


def test_doctor_fails_with_a_token_that_the_server_refuses(server, run):
    server.answers["health"] = lambda body: [{"status": "ok", "version": "1"}]
    server.tables["sys.flights"] = pa.flight.FlightUnauthenticatedError("[UNAUTHENTICATED] the token is not known")
    status, out, _ = run("doctor", "--token", "wrong")
    assert status == 1 and "missing  server" in out and "the token is not known" in out and "give --token" in out
    server.tables["sys.flights"] = pa.flight.FlightUnauthorizedError("[PERMISSION_DENIED] it needs stats.read")
    assert run("doctor", "--token", "worker")[0] == 0


def test_report_to_a_missing_directory_fails(server, run, tmp_path):
    server.rows("stats.columns", column_row())
    assert run("report", NAME, "-o", tmp_path / "r.html")[0] == 0
    status, out, err = run("report", NAME, "-o", tmp_path / "no" / "such" / "r.html")
    assert (status, out) == (1, "") and "cannot write" in err


def test_report_does_not_go_into_a_lake(server, run, tmp_path):
    server.rows("stats.columns", column_row())
    table = tmp_path / "lake" / "t"
    table.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), table / "a.parquet")
    for directory, what in ((table, "is"), (table.parent, "has t,")):
        before = sorted(tmp_path.rglob("*"))
        status, out, err = run("report", NAME, "-o", directory)
        assert (status, out) == (1, "") and f"{directory} {what} a table of format parquet; a report goes into" in err
        assert sorted(tmp_path.rglob("*")) == before
    own = tmp_path / "lake" / "report"
    assert run("report", NAME, "-o", own)[0] == 0 and run("report", NAME, "-o", own)[0] == 0


# Patterns.


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
    server.rows(
        "stats.tables",
        KEY | {"table_name": "a", "row_count": 1234, "total_size_bytes": 2048, "freshness": "EXACT", "snapshot_id": 1},
    )
    broken = KEY | {"table_name": "broken", "state": "FAILING", "last_error": "no log"}
    server.rows("sys.tables", *server.tables["sys.tables"].to_pylist(), broken)
    status, out, _ = run("ls")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert list(lines) == ["lake.s.a", "lake.s.b", "lake.s.broken"]
    assert "1,234" in lines["lake.s.a"] and "2.0 KiB" in lines["lake.s.a"]
    assert "not captured" in lines["lake.s.b"] and "no log" in lines["lake.s.broken"]
    for pattern in ("lake", "lake.s", "lake.s.a", "*.a"):
        assert "lake.s.a" in run("ls", pattern)[1]
    assert "lake.s.b" not in run("ls", "*.a")[1]
    assert "lake.s.a" in run("ls", '"lake"."s"."a"')[1]


# Output.


def test_quiet_prints_errors_only_and_verbose_prints_the_server(server, run):
    assert run("show", NAME, "--quiet")[2] == ""
    assert server.uri in run("show", NAME, "-v")[2]
    assert run("-q", "show", NAME)[2] == "" and server.uri in run("--verbose", "show", NAME)[2]
    status, _, err = run("show", "lake.s.*", "-q", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "127.0.0.1:9" in err
    run("ls")
    assert not output.quiet(), "--quiet ends with its command"


@pytest.mark.parametrize(("limit", "expected"), [("row_count > 1", 1), ("row_count >= 0", 0)])
def test_reader_that_leaves_is_no_failure(server, run, monkeypatch, limit, expected):
    def leave(*_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    server.rows("stats.tables", KEY | {"snapshot_id": 2, "row_count": 1, "freshness": "EXACT"})
    server.rows("stats.columns", column_row())
    monkeypatch.setattr("flight_server.faces.present.render.write", leave)
    monkeypatch.setattr("flight_server.faces.present.check_results.write_table", leave)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert run("query", "stats.columns") == (0, "", "")
    assert run("check", NAME, "--rule", limit)[0] == expected  # the failure of a rule is told nevertheless


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
    monkeypatch.setattr("flight_server.faces.commands.connection.DEFAULT_URI", "grpc://127.0.0.1:9")
    status, _, err = run("ls", "--server", "grpc://127.0.0.1:9")
    assert status == 1 and "statflight serve --db" in err and "STATFLIGHT_SERVER" in err


def test_rejected_token_names_the_token_flag(server, run):
    server.tables["sys.flights"] = pa.flight.FlightUnauthenticatedError("[UNAUTHENTICATED] the token is not known")
    status, _, err = run("query", "sys.flights", "--format", "json")
    assert status == 1 and "--token" in err and "header" not in err


def test_shell_completion_lists_tables_and_columns(server, run, tables, monkeypatch, capsys):
    monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
    monkeypatch.setenv("_STATFLIGHT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "statflight show lake.s.")
    monkeypatch.setenv("COMP_CWORD", "2")
    _, out, _ = run("show")
    assert out.split() == ["plain,lake.s.a", "plain,lake.s.b"]
    monkeypatch.setenv("COMP_WORDS", "statflight history lake.s.a i")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run("history")[1].split() == ["plain,id"]


def test_completion_without_a_server_is_empty(run, monkeypatch):
    nowhere = SimpleNamespace(params={"server": "grpc://127.0.0.1:9"})
    assert targets.complete_table(nowhere, None, "lake") == []


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


def test_listing_tables_imports_little(server):
    """Each of these takes a twentieth to a third of the command's processor time."""
    code = (
        "import atexit, sys; from flight_server.cli import main;"
        "atexit.register(lambda: print(*(name for name, module in sys.modules.items() if module), file=sys.stderr));"
        f"sys.argv = ['statflight', 'ls', '--server', {server.uri!r}]; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stderr.split())
    assert NAME in ended.stdout and "pyarrow.flight" in loaded
    assert not loaded & {
        "numpy",
        "pandas",
        "pyarrow.compute",
        "pyarrow.acero",
        "pyarrow.dataset",
        "duckdb",
        "sqlglot",
        "msgspec",
        "rich",
        "pydantic",
        "datasketches",
        "pyspark",
        "deltalake",
        "pyiceberg",
        "importlib.metadata",
        "flight_server.core.app",
    }


def test_commands_about_many_tables_need_no_numpy(server):
    serve_tables(server, *"abc")  # the last two are read together
    server.rows("stats.columns", *(column_row(table_name=name, max="9") for name in "abc"))
    server.rows("sys.relationships", relationship("a", "b"))
    commands = [("show", "lake.*"), ("emit", "lake.*", "--to", "openlineage"), ("joins",)]
    code = f"""
import sys
from flight_server.cli import COMMANDS, main
for command in {commands}:
    sys.argv = ["statflight", *command, "--server", {server.uri!r}]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, COMMANDS[command[0]].computes, sys.modules["numpy"], "end")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *printed, rest = ended.stdout.split("None False None end\n")
    assert (ended.stderr, rest, len(printed)) == ("", "", len(commands))
    assert all(each.count("\n") > 1 for each in printed)


@pytest.mark.parametrize("command", [("upgrade", "--db", "{db}"), ("export", "--db", "{db}", "{out}")])
def test_a_command_that_opens_a_database_has_numpy(command, tmp_path):
    db = unpack(19, tmp_path)
    arguments = [word.format(db=db, out=tmp_path / "out") for word in command]
    code = f"import sys; from flight_server.cli import main; sys.argv = {['statflight', *arguments]}; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, "upgraded" in ended.stderr) == (0, True), ended.stderr


def test_no_command_imports_pandas_before_it_has_a_server():
    """It takes half of the processor time of `statflight check` and `diff`; with a server it is left out."""
    modules = {f"flight_server.faces.commands.{entry.function.partition(':')[0]}" for entry in cli.COMMANDS.values()}
    code = f"import sys, {', '.join(sorted(modules))}; print('numpy' in sys.modules, 'pandas' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0 and "--quiet" in out
    assert name not in cli.COMMANDS or cli.COMMANDS[name].help in " ".join(out.split())


# What a command did, as JSON.


def test_outcomes_are_json_arrays(server, run, tables):
    set_capture_outcome(server, detail="ß")
    status, out, _ = run("capture", "lake.s.*", "--format", "json")
    captured = json.loads(out)
    assert status == 0 and {row["table"] for row in captured} == {"lake.s.a", "lake.s.b"} and "ß" in out
    assert {row["outcome"] for row in captured} == {"CAPTURED"} and {row["job_id"] for row in captured} == {"j-1"}
    server.answers["resolve"] = lambda body: [{"outcome": "HIT", "record": None} for _ in body["requests"]]
    assert json.loads(run("resolve", "a", "-f", "json")[1])[0] == {
        "table": "lake.s.a",
        "outcome": "HIT",
        "record": None,
    }
    server.answers["expire"] = lambda body: [{"table": NAME, "deleted": 3}]
    assert json.loads(run("expire", "-f", "json")[1]) == [{"table": NAME, "deleted": 3}]
    server.answers["health"] = lambda body: [{"status": "ok"}]
    findings = json.loads(run("doctor", "-f", "json")[1])
    assert findings[-1]["what"] == "server" and findings[-1]["good"] is True and findings[-1].keys() >= {"remedy"}


def test_resolve_tells_what_a_condition_leaves(server, run):
    server.rows("sys.tables", KEY)
    server.rows("information_schema.columns", KEY | {"column_name": "id", "column_id": 1, "data_type": "INT"})
    few, none = {"estimate": 4, "low": 1, "high": 9}, {"estimate": 0, "low": 0, "high": 0}

    def answer(body):
        left = {"row_count": few, "columns": {}}
        of_id = left | {"columns": {"id": {"null_count": none, "ndv": None}}}
        answers = [
            {"outcome": "HIT", "detail": "", "record": {}, "estimate": left},
            {"outcome": "HIT", "detail": "", "record": {"column_name": "id"}, "estimate": of_id},
        ]
        assert [request["where"] for request in body["requests"]] == ["id > 5"] * 2
        return answers

    server.answers["resolve"] = answer
    code, told, _ = run("resolve", NAME, "--where", "id > 5")
    assert code == 0
    assert told.splitlines() == [
        f"{NAME}  TABLE  HIT  4 (1 to 9) rows left",
        f"{NAME}  id  HIT  0 nulls, unknown distinct values left",
    ]


def test_failures_are_in_the_json_too(server, run, tables):
    def fail(body):
        raise pa.ArrowInvalid("[NO_WORKER] no worker")

    server.answers |= {"capture": fail, "publish": fail}
    for command in (["capture", "a"], ["publish", "a", "--to", "trino"]):
        status, out, err = run(*command, "--format", "json")
        assert status == 1 and json.loads(out) == [{"table": "lake.s.a", "error": "[NO_WORKER] no worker"}]
        assert "no worker" in err
    unreadable = {"table": "lake.s.b", "error": "no log"}
    server.answers["register_connector"] = lambda body: [{"tables": [unreadable]}]
    status, out, _ = run("connect", "lake", "delta", "s3://b/l", "--format", "json")
    assert status == 1 and json.loads(out) == [{"table": "lake.s.a"}, unreadable]


def test_columns_without_room_are_named(server, run, monkeypatch):
    server.rows("stats.columns", column_row(ndv=3.0, max="x" * 60))
    wide = run("show", NAME)
    assert "no room" not in wide[2]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "72")
    status, out, err = run("show", NAME)
    assert status == 0 and "avg bytes" not in out
    assert err.startswith("no room for ") and "avg bytes" in err and "--format csv" in err


# Short names.


def test_name_that_only_one_table_ends_with_stands_for_it(server, run, tables):
    set_capture_outcome(server)
    assert "max of b" in run("show", "b")[1] and "max of b" not in run("show", "a")[1]
    assert run("capture", "s.b")[1].startswith("lake.s.b: ")
    server.answers["expire"] = lambda body: []
    run("expire", "a")
    assert server.actions[-1] == ("expire", {"dry_run": True, "table": "lake.s.a"})
    assert run("history", "b", "id", "-f", "json")[0] == 0
    assert "lake.s.b" in run("ls", "b")[1]


def test_ambiguous_or_unknown_short_name_lists_candidates(server, run, tables):
    serve_tables(server, "orders", "customers")
    row = KEY | {"table_type": "BASE TABLE"}
    for name in ("lake.x.orders", "shop.s.orders"):
        row |= dict(zip(("table_catalog", "table_schema", "table_name"), name.split("."), strict=True))
        server.tables["information_schema.tables"] = pa.concat_tables(
            [
                server.tables["information_schema.tables"],
                pa.Table.from_pylist([row], server.tables["information_schema.tables"].schema),
            ]
        )
    status, out, err = run("show", "orders")
    assert (status, out) == (1, "")
    assert err == "statflight: 'orders' may be lake.s.orders, lake.x.orders, shop.s.orders; say which\n"
    assert "say which" in run("diff", "s.orders", "1", "2")[2]
    assert run("show", "costumers")[2] == "statflight: no table 'costumers'; did you mean lake.s.customers?\n"
    assert run("show", "lake.s")[2] == "statflight: no table 'lake.s'; 'lake.s.*' matches 2\n"
    assert run("show", "rs")[2] == "statflight: no table 'rs'; `statflight ls` lists 4\n"


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_every_command_are_shown_and_can_be_read(run, name):
    out = run(name, "--help")[1]
    for line in EXAMPLES[name]:
        assert f"    {line}\n" in out
        words = shlex.split(re.sub(r" < \w\S*$", "", line))
        assert words[:2] == ["statflight", name]
        cli.app.get_command(None, name).make_context(name, words[2:])  # all options exist, all values fit


def test_module_runs_the_command_line(monkeypatch, capsys):
    import statflight

    monkeypatch.setattr("sys.argv", ["statflight", "--version"])
    main = Path(cli.__file__).parent / "public" / statflight.__name__ / "__main__.py"
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(main), run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out == f"{statflight.__version__}\n"


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
        ["query", "sys.flights", "--allow-stale"],
        ["query", "stats.columns", "--snapshot", "all", "--allow-stale"],
        ["query", "stats.columns", "--snapshot", "yesterday"],
        ["query", "sys.flights", "--server", "http://127.0.0.1:8816"],
        ["query", "sys.flights", "--server", "tcp://127.0.0.1:8815"],
        ["query", "sys.flights", "--tls-roots", "/no/such/file"],
        ["connect", "c", "delta"],
        ["connect", "c", "delta", "/tmp", "-o", "novalue"],
        ["connect", "c", "delta", "/tmp", "-o", "=value"],
        ["show", "a..t"],
        ["history", '"t', "id"],
        ["show", NAME, "--snapshot", "yesterday"],
        ["diff", NAME, "1", "all"],
        ["capture", NAME, "--kinds", "AVERAGE"],
        ["jobs", "--watch", "--format", "json"],
        ["capture", "lake.*", "--every", "soon"],
        ["capture", "lake.*", "--every", "15"],
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


# Commands of parts and of other packages.


def shout() -> None:
    """Says it loudly."""
    output.tell("LOUD")


def test_commands_of_other_packages_are_there(run, monkeypatch):
    own = Plugins("statflight.commands", "command", "command", {"shout": f"{__name__}:shout"})
    monkeypatch.setattr(cli, "_parts", lambda: own)
    assert run("shout")[:2] == (0, "LOUD\n")
    assert "Of parts:\n  shout" in run("--help")[1] and "Says it loudly." in run("shout", "--help")[1]


def test_command_of_a_part_that_was_left_out_says_so(run, monkeypatch):
    gone = {"gone": "flight_server.faces.gone:command"}
    monkeypatch.setattr(cli, "_parts", lambda: Plugins("statflight.commands", "command", "command", gone))
    status, out, err = run("gone")
    assert (status, out) == (1, "") and "not part of this build" in err
    assert "gone" not in run("--help")[1]
