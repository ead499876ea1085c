"""`statflight sql`: statements of the argument, of standard input, and of the prompt."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pytest

from flight_server.faces.commands import sql


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", ([], "SELECT 1")),
        ("SELECT 1;", (["SELECT 1"], "")),
        ("SELECT 1; SELECT 2", (["SELECT 1"], "SELECT 2")),
        (";; SELECT 1 ;\n; -- the end;", (["SELECT 1"], "")),
        ("""SELECT ';', ";", `;` -- one; two\n;""", (["""SELECT ';', ";", `;` -- one; two"""], "")),
        ("SELECT /* ; */ 1;", (["SELECT /* ; */ 1"], "")),
        ("SELECT 'it''s;'; SELECT 2;", (["SELECT 'it''s;'", "SELECT 2"], "")),
        ("SELECT 'open;", ([], "SELECT 'open;")),
        ("/* open ;", ([], "")),
    ],
)
def test_statements_end_at_semicolons_outside_of_quotes_and_comments(text, expected):
    assert sql.split(text) == expected


def test_statement_is_sent_as_it_is_and_its_rows_are_printed(server, run):
    statement = f"SELECT 1 AS n, '{'ö' * 200}' AS t"
    server.tables[statement] = pa.table({"n": [1]})
    status, out, _ = run("sql", statement, "--format", "json")
    assert status == 0 and json.loads(out) == [{"n": 1}]
    assert run("sql", f"{statement};", "--format", "csv")[1] == "n\n1\n"


def test_statements_of_standard_input_run_in_order_up_to_the_first_that_fails(server, run, monkeypatch):
    server.tables |= {"A": pa.table({"a": [1]}), "C": pa.table({"c": [3]})}
    server.tables["B"] = pa.ArrowInvalid("[INVALID_ARGUMENT] no such thing")
    monkeypatch.setattr("sys.stdin", io.StringIO("A;\nB;\nC"))
    assert run("sql", "-f", "csv") == (1, "a\n1\n", "statflight: [INVALID_ARGUMENT] no such thing\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(" -- nothing\n"))
    assert run("sql")[0] == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_without_a_statement_needs_a_terminal_for_its_prompt(server, run, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal())
    status, _, err = run("sql")
    assert status == 2 and "no statement" in err


def test_prompt_goes_on_after_errors_and_interrupts(server, run, monkeypatch, capsys):
    server.tables |= {"SELECT\n1": pa.table({"n": [1]}), "BAD": pa.ArrowInvalid("[INVALID_ARGUMENT] no such thing")}
    typed = iter(["SELECT", "1;", "BAD;", "SEL", KeyboardInterrupt, "SELECT", "1 ; ", "exit"])
    prompts = []

    def ask(prompt):
        prompts.append(prompt)
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    saved = []
    monkeypatch.setattr(sql, "_remember", lambda words: lambda: saved.append(1))
    status, out, err = run("sql", "--format", "csv")
    assert status == 0 and out == "n\n1\nn\n1\n" and "no such thing" in err and saved == [1]
    assert prompts[:3] == [sql.PROMPT, sql.CONTINUED, sql.PROMPT] and prompts[5] == sql.PROMPT
    assert next(typed, None) is None


def test_prompt_completes_keywords_flights_columns_and_tables(server):
    from flight_server.client import StatsClient

    with StatsClient(server.uri) as client:
        words = sql._Words(client)
        found = lambda word: [words(word, place) for place in range(3)]  # noqa: E731
        assert found("lake.s") == ["lake.s.t", None, None]
        assert found("sele")[0] == "SELECT" and "stats.columns" in found("stats.co") and "null_count" in found("null_")
