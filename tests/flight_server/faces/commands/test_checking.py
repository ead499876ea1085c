"""The command `check`: exit status, reports and invalid rules."""

from __future__ import annotations

import json

import pytest

from tests.flight_server.command_line import KEY, NAME, column_row


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


@pytest.mark.parametrize("target", ["nosuch", "lake.hidden.*", "lake.s.nosuch"])
def test_a_target_without_a_table_is_in_the_report(server, run, tables, target):
    status, out, _ = run("check", target, "--rule", "row_count > 0", "-f", "json")
    report = json.loads(out)
    assert status == 1 and not report["passed"] and [error["table"] for error in report["errors"]] == [target]
    assert run("check", target, "--suggest")[:2] == (1, "")


def test_value_that_fails_is_not_shown_as_the_limit(server, run, tables):
    server.rows("stats.columns", column_row(null_count=1_000_001, row_count=10**9))
    _, out, _ = run("check", NAME, "--rule", "null_fraction <= 0.1%")
    assert out.splitlines()[1].split()[-1] == "0.001000001"


@pytest.mark.parametrize("rule", ["ndv >= 80% of previous", "ndv within 3 sigma of last 5", "change of ndv >= 0"])
def test_rules_with_nothing_to_compare_with_are_named(server, run, tables, rule):
    row = column_row(ndv=9.0)
    server.rows("stats.columns", row)
    server.rows("sys.snapshots", {name: row[name] for name in (*KEY, "snapshot_id")} | {"is_current": True})
    status, out, err = run("check", NAME, "--rule", rule, "--rule", "ndv >= 0", "--against", "previous")
    assert status == 0 and rule not in out and f"{NAME}: {rule}: not checked" in err


def test_check_without_a_rule_is_status_2_unless_the_table_is_unknown(server, run):
    status, out, err = run("check", NAME)
    assert (status, out) == (2, "") and "no rule given" in err
    server.rows("information_schema.tables")
    status, out, err = run("check", NAME)
    assert (status, out) == (1, "") and "UNKNOWN_TABLE" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "null_fraction <="], "cannot be read"),
        (["--rule", "drift < 1"], "--against"),
        (["--rules", "/no/such/file.toml"], "file.toml"),
        (["--rule", "ndv > 1", "--against", "yesterday"], "yesterday"),
    ],
)
def test_invalid_rule_is_status_2(server, run, arguments, message):
    status, out, err = run("check", NAME, *arguments)
    assert (status, out) == (2, "") and message in err
    assert not server.commands


def test_a_misspelt_column_of_a_typed_rule_is_status_2(server, run, tables, tmp_path):
    server.rows("stats.columns", column_row(column_name="amount", null_count=0, row_count=10))
    server.rows("information_schema.columns", KEY | {"column_name": "amount"}, KEY | {"column_name": "day"})
    for rule, hint in (("amuont: ndv > 1", 'did you mean "amount"?'), ("zzzz: ndv > 1", "it has amount, day")):
        status, out, err = run("check", NAME, "--rule", rule)
        assert (status, out) == (2, "") and f"{NAME} has no column {rule[: rule.index(':')]}; {hint}" in err
    (tmp_path / "rules.toml").write_text('[[rule]]\nexpect = "amuont: ndv > 1"\n')
    status, out, _ = run("check", NAME, "--rules", tmp_path / "rules.toml")
    assert status == 1 and "no such column" in out  # of a file: the column may have been dropped
