"""The commands that connect a lake, capture and publish: requests, output and exit status."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from capture.homes import HOMES
from flight_server.faces.commands.common import names_of
from tests.flight_server.command_line import KEY, NAME, set_capture_outcome


def test_connect_registers_discovers_and_lists_tables(server, run, tmp_path):
    server.answers["register_connector"] = lambda body: [body | {"tables": []}]
    (tmp_path / "delta").mkdir()
    status, out, _ = run("connect", "lake", "delta", tmp_path / "delta", "-o", "a=b=c", "-o", "empty=")
    assert (status, out) == (0, f"{NAME}\n")
    registered = {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "delta"), "discover": True}
    assert server.actions == [("register_connector", registered | {"options": {"a": "b=c", "empty": ""}})]
    assert run("connect", "lake", "delta", tmp_path / "delta", "--replace")[0] == 0
    assert server.actions[1][1]["replace"] is True


def test_discover_reads_the_snapshots_that_are_named(server, run):
    server.answers["discover"] = lambda body: []
    assert run("discover", "lake", "lake.s.t", "--snapshot", 7, "--snapshot", 9, "--full-rescan")[0] == 0
    body = {"catalog": "lake", "table": "lake.s.t", "full_rescan": True, "snapshots": [7, 9]}
    assert server.actions == [("discover", body)]


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
        str(tmp_path / "lake"),
        "s3://bucket/lake",
    ]


def test_capture_prints_one_line_per_table(server, run):
    set_capture_outcome(server)
    status, out, err = run("capture", NAME)
    assert (status, err) == (0, "")
    assert out == f"{NAME}: table and 1 column captured by spark\n"
    assert len(server.actions) == 1


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"files": 30, "files_read": 2, "files_reused": 28}, ", 2 of 30 files read"),
        ({"files": 1, "files_read": 1, "files_reused": 0}, ", 1 of 1 file read"),
        ({"files": 30, "files_read": 0, "files_reused": 30}, ", unchanged: no file read"),
        ({"execution": "inline"}, ""),
    ],
)
def test_capture_says_what_was_read(server, run, facts, told):
    set_capture_outcome(server, attributes=facts)
    assert run("capture", NAME)[1] == f"{NAME}: table and 1 column captured by spark{told}\n"


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sample", "some"], "must be random or guided"),
        (["--max-rows", "5"], "say --sample random"),
    ],
)
def test_invalid_sampling_flags_are_a_usage_error(server, run, flags, message):
    status, _, err = run("capture", NAME, *flags)
    assert status == 2 and message in err and not server.actions


def test_capture_sends_partitions(server, run):
    set_capture_outcome(server, outcome="CAPTURED")
    given = ("--partition", 'day=2024-05-01, "city=a,b.c"', "--partition", "city=")
    status, _, err = run("capture", NAME, *given)
    assert status == 0 and err.startswith("--partition captures files alone")
    (request, *_) = server.actions[-1][1]["requests"]
    assert request["partitions"] == [{"day": "2024-05-01", "city": "a,b.c"}, {"city": None}]


@pytest.mark.parametrize("text", ["today", "day=1,city", "=1"])
def test_malformed_partition_is_a_usage_error(run, text):
    status, _, err = run("capture", NAME, "--partition", text)
    assert status == 2 and f"--partition '{text}': must be FIELD=VALUE" in err


def test_capture_fails_when_an_outcome_is_degraded(server, run):
    set_capture_outcome(server, outcome="DEGRADED", detail="capture failed: OSError")
    status, out, err = run("capture", NAME)
    assert (status, out) == (1, f"{NAME}: table and 1 column degraded\n")
    assert err == f"statflight: {NAME}: table and 1 column: DEGRADED capture failed: OSError\n"  # each reason once


def test_capture_says_which_files_it_lacks_and_has_not_failed(server, run):
    set_capture_outcome(server, detail='file "a.parquet": no such file', attributes={"files": 4, "files_failed": 1})
    assert run("capture", NAME) == (
        0,
        f"{NAME}: table and 1 column captured by spark\n",
        f'statflight: {NAME}: table and 1 column: CAPTURED, but file "a.parquet": no such file\n',
    )


def test_column_missing_in_an_old_snapshot_fails_only_when_named(server, run):
    lacks = {"outcome": "DEGRADED", "detail": "no column with id 1 in snapshot 5"}
    server.answers["capture"] = lambda body: [{"outcome": "CAPTURED", "engine_id": "spark"}, lacks]
    assert run("capture", NAME, "--snapshot", 5) == (0, f"{NAME}: table captured by spark\n", "")
    assert run("capture", NAME, "--snapshot", 5, "--columns", "id")[0] == 1
    assert run("capture", NAME)[0] == 1


def test_columns_that_the_capture_finds_to_be_new_or_gone(server, run):
    """The capture looks at the lake, whose schema may have changed since the columns were listed."""
    new = KEY | {"column_id": 2, "column_name": "new", "data_type": "INT"}

    def capture(body):
        server.rows("information_schema.columns", new)
        lacks = {"outcome": "DEGRADED", "detail": "no column with id 1 in snapshot 5"}
        targets = [request["target"] for request in body["requests"]]
        return [
            lacks if target.get("column_id") == 1 else {"outcome": "CAPTURED", "engine_id": "spark"}
            for target in targets
        ]

    server.answers["capture"] = capture
    status, out, err = run("capture", NAME)
    assert (status, out, err) == (0, f"{NAME}: table and 1 column captured by spark\n", "")
    asked = [[request["target"] for request in body["requests"]] for _, body in server.actions]
    assert asked == [[{"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1}], [{"kind": "COLUMN", "column_id": 2}]]
    server.actions.clear()
    assert run("capture", NAME)[0] == 0 and len(server.actions) == 1


def test_columns_add_up_and_an_unknown_one_fails_before_anything_is_captured(server, run):
    set_capture_outcome(server)
    assert run("capture", NAME, "--columns", "id", "--columns", "id, id")[0] == 0
    (request, *_) = server.actions[-1][1]["requests"]
    assert request["column_selectors"] == ["id"]
    server.actions.clear()
    status, out, err = run("capture", NAME, "--columns", "id", "--columns", "nosuch")
    assert (status, out) == (1, "") and 'has no column "nosuch"' in err
    assert not [action for action in server.actions if action[0] == "capture"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ('"a,b",c', ["a,b", "c"]),
        ('c, st."x,y"', ["c", "st.x,y"]),
        ('"m""n,o"', ['m"n,o']),
        ('"d.e",q"t', ["d.e", 'q"t']),
        ('"a,b', ['"a', "b"]),
        ('"a b","m""n",x"', ["a b", 'm"n', 'x"']),
        ('"k=c d"', ["k=c d"]),
        ('"a"b"', ['"a"b"']),
    ],
)
def test_names_may_be_quoted(given, names):
    assert names_of([given]) == names


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


def test_jobs_cancels_the_jobs_it_is_given(server, run):
    states = {"a": "CANCELLED", "b": "SUCCEEDED"}
    server.answers["cancel_job"] = lambda body: [{"job_id": body["job_id"], "state": states[body["job_id"]]}]
    assert run("jobs", "--cancel", "a", "--cancel", "b")[:2] == (0, "a: CANCELLED\nb: SUCCEEDED\n")


def test_jobs_lists_what_waited_for_captures_of_the_last_hour_did(server, run):
    now = datetime.now(UTC)

    def made(minutes, target, outcome="CAPTURED", engine="native", call="call-1", detail=None):
        return KEY | {
            "decided_at": now - timedelta(minutes=minutes),
            "correlation_id": call,
            "snapshot_id": 4,
            "target_kind": target.partition("-")[0].upper(),
            "storage_id": target,
            "outcome": outcome,
            "engine_id": engine,
            "detail": detail,
            "elapsed_ms": 40.0,
        }

    server.rows(
        "sys.capture_decisions",
        made(9, "table"),
        made(9, "column-1", "DEGRADED", "local", detail="out of memory"),
        made(8, "column-1"),
        made(5, "table", "FAILED", "native", "call-2", "no such file"),
        made(4, "file-1", "DEGRADED", "native", "call-4"),
        made(4, "expression-1", "UNCAPTURABLE", None, "call-4"),
        made(20, "table", call="of-the-job"),
        made(6, "table", "SKIPPED", "policy", "call-3"),
    )
    server.rows(
        "sys.capture_jobs",
        KEY
        | {
            "job_id": "stored",
            "state": "SUCCEEDED",
            "progress": 1.0,
            "queued_at": now,
            "started_at": now - timedelta(minutes=21),
            "finished_at": now - timedelta(minutes=20),
        },
    )
    status, out, _ = run("jobs", "--format", "json")
    told = [(job["job_id"], job["state"], job["progress"], job["message"]) for job in json.loads(out)]
    assert told == [
        ("stored", "SUCCEEDED", 1.0, None),
        ("call-4", "FAILED", 0.0, "1 file degraded; 1 expression uncapturable"),
        ("call-2", "FAILED", 0.0, "table failed; no such file"),
        ("call-1", "SUCCEEDED", 1.0, "table and 1 column captured by native"),
    ]
    assert status == 0
    (asked,) = [body for body in server.commands if body["table"] == "sys.capture_decisions"]
    assert "decided_at" in json.dumps(asked)


PUBLISHED = {
    "table": NAME,
    "snapshot_id": 4,
    "to": "iceberg",
    "state": "CURRENT",
    "location": "file:///x.stats",
    "columns": ["id", "name"],
    "detail": "",
}


def test_publish_prints_columns_snapshot_and_location(server, run):
    server.answers["publish"] = lambda body: [PUBLISHED]
    status, out, _ = run("publish", NAME, "--to", "iceberg", "--snapshot", 4)
    assert (status, out) == (0, f"{NAME}: 2 columns of snapshot 4 published to iceberg: file:///x.stats\n")
    assert server.actions == [("publish", {"table": NAME, "snapshot": 4, "to": "iceberg"})]


def test_publish_sends_its_flags_and_options(server, run):
    server.answers["publish"] = lambda body: [PUBLISHED | {"state": "DRY_RUN", "detail": "left out: tags"}]
    status, out, _ = run("publish", NAME, "--to", "hive", "--dry-run", "--allow-inherited", "-o", "uri=thrift://h:1")
    assert status == 0 and "would be published" in out and out.endswith("; left out: tags\n")
    assert server.actions[-1][1] == {
        "table": NAME,
        "snapshot": "current",
        "to": "hive",
        "dry_run": True,
        "allow_inherited": True,
        "options": {"uri": "thrift://h:1"},
    }
    assert run("publish", NAME, "--to", "hive", "-o", "nonsense")[0] == 2


def test_help_lists_all_homes(run):
    for command in ("publish", "withdraw"):
        _, out, _ = run(command, "--help")
        assert not {home for home in HOMES.built_in if home not in out}
