"""The commands describe and joins."""

from __future__ import annotations

import json

from tests.flight_server.command_line import NAME, relationship

SAID = {"table": NAME, "description": "people", "owner": None, "tags": ["a", "b"], "notes": None}


def test_describe_sends_what_is_given_and_shows_what_is_said(server, run):
    sent = []
    server.answers["describe"] = lambda body: [sent.append(body) or SAID]
    assert run("describe", NAME, "--owner", "ann", "--tag", "a,b", "--note", "") == (
        0,
        "description: people\ntags: a, b\n",
        "",
    )
    run("describe", NAME, "--tag", "")
    run("describe", NAME)
    wanted = [{"owner": "ann", "tags": ["a", "b"], "notes": ""}, {"tags": []}, {}]
    assert sent == [{"table": NAME} | body for body in wanted]


def test_describe_as_json_and_of_nothing_said(server, run):
    server.answers["describe"] = lambda body: [dict.fromkeys(SAID) | {"table": NAME}]
    status, out, err = run("describe", NAME)
    assert (status, out) == (0, "") and "--owner" in err
    assert json.loads(run("describe", NAME, "--format", "json")[1])[0]["table"] == NAME


def test_joins_lists_the_keys_of_and_to_what_matches(server, run):
    server.rows(
        "sys.relationships",
        relationship("a", "b"),
        relationship("t", "a", kind="DECLARED", containment=None, containment_low=None, containment_high=None),
        relationship("c", "d"),
    )
    server.rows("information_schema.tables", {"table_catalog": "lake", "table_schema": "s", "table_name": "a"})
    for pattern in ("lake.s.a", "a", "*.a"):
        status, out, err = run("joins", pattern)
        assert (status, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()] == ["from", "lake.s.a", "lake.s.t"]
    assert "x_id" in out and "100 % (99.3–100)" in out and "DECLARED" in out
    assert len(json.loads(run("joins", "--format", "json")[1])) == 3
    assert "captures of columns" in run("joins", "lake.s.z*")[2]
