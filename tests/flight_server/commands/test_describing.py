"""The command describe."""

from __future__ import annotations

import json

from tests.flight_server.command_line import NAME

SAID = {"table": NAME, "description": "people", "owner": None, "tags": ["a", "b"], "notes": None}


def test_describe_sends_what_is_given_and_shows_what_is_said(server, run):
    sent = []
    server.answers["describe"] = lambda body: [sent.append(body) or SAID]
    assert run("describe", NAME, "--owner", "ann", "--tag", "a,b", "--note", "") == (
        0, "description: people\ntags: a, b\n", "")  # fmt: skip
    run("describe", NAME, "--tag", "")
    run("describe", NAME)
    wanted = [{"owner": "ann", "tags": ["a", "b"], "notes": ""}, {"tags": []}, {}]
    assert sent == [{"table": NAME} | body for body in wanted]


def test_describe_as_json_and_of_nothing_said(server, run):
    server.answers["describe"] = lambda body: [dict.fromkeys(SAID) | {"table": NAME}]
    status, out, err = run("describe", NAME)
    assert (status, out) == (0, "") and "--owner" in err
    assert json.loads(run("describe", NAME, "--format", "json")[1])[0]["table"] == NAME
