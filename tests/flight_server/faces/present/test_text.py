"""Text tables: never truncated on a pipe; within the window, and without broken words, on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.faces.present import text

HEADERS = ("column", "type", "value", "note")
ROW = ("a_rather_long_column_name", "DECIMAL(38,10)", "123456789.0123456789", "some words that go on for quite a while")


def fit(headers, rows, columns, **more):
    return list(text.fit(headers, rows, [False] * len(headers), columns, **more))


def test_fitting_table_is_aligned():
    assert fit(("a", "b"), [("1", "x"), ("22", "y")], 80) == ["a   b", "1   x", "22  y"]


def test_slightly_wide_table_has_its_widest_column_elided():
    lines = fit(HEADERS, [ROW], 90)
    assert all(text.width_of(line) <= 90 for line in lines)
    assert "DECIMAL(38,10)" in lines[1] and lines[1].endswith("…")


def test_whole_columns_are_never_elided():
    lines = fit(("job", "message"), [("j" * 36, "words " * 40)], 60, whole=("job",))
    assert "j" * 36 in lines[1] and lines[1].endswith("…")


def test_much_too_wide_table_is_a_block_per_row():
    headers, row = [f"column_{number}" for number in range(35)], ["value of some length"] * 34 + [""]
    lines = fit(headers, [row, row], 80)
    assert len(lines) == 2 * 35  # a rule and 34 values; empty values are left out
    assert all(text.width_of(line) <= 80 for line in lines)


def test_block_breaks_only_between_words():
    sentence = "supercalifragilistic expialidocious antidisestablishmentarianism floccinaucinihilipilification"
    lines = fit([f"c{n}" for n in range(12)], [[sentence] * 12], 60)
    assert set(" ".join(lines).split()) >= set(sentence.split())


@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N"]), max_size=40), min_size=3, max_size=3),
        max_size=5,
    ),
    st.integers(20, 200),
)
def test_no_line_is_longer_than_the_window(rows, columns):
    safe = [[text.harmless(cell) for cell in row] for row in rows]
    longest = max((text.width_of(word) for row in safe for cell in row for word in cell.split()), default=0)
    for line in fit(("a", "b", "c"), safe, columns):
        assert text.width_of(line) <= max(columns, longest + 3, 23)


def test_text_on_a_pipe_is_never_truncated(monkeypatch):
    out = io.BytesIO()
    text.write_text(HEADERS, [tuple("x" * 500 for _ in HEADERS)], out, heading="of\x1b[2J it")
    lines = out.getvalue().decode().splitlines()
    assert lines[0] == "of\\x1b[2J it" and lines[2].count("x") == 2000


@pytest.mark.parametrize(("value", "width", "shown"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字漢字", 5, "漢字…")])
def test_elide(value, width, shown):
    assert text.elide(value, width) == shown


def test_pager_receives_output_that_does_not_fit(monkeypatch, tmp_path, capsys):
    paged = tmp_path / "paged"
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("STATFLIGHT_PAGER", f"tee {paged}")
    text.page(["a", "b", "c"], 3)
    assert paged.read_text() == "a\nb\nc\n"
    text.page(["short"], 3)
    assert capsys.readouterr().out == "short\n"
    monkeypatch.setenv("STATFLIGHT_PAGER", "/no/such/pager")
    text.page(["a", "b", "c"], 3)
    assert capsys.readouterr().out == "a\nb\nc\n"


def test_narrow_terminal_drops_optional_columns():
    headers, rows = ("column", "spare", "sparer", "value"), [("x" * 12,) * 4] * 3
    assert text.without(headers, rows, 80, (), ("sparer", "spare")) == [0, 1, 2, 3]
    assert text.without(headers, rows, 45, (), ("sparer", "spare")) == [0, 1, 3]
    assert text.without(headers, rows, 30, (), ("sparer", "spare")) == [0, 3]
    assert text.without(headers, rows, 20, (), ("sparer", "spare")) == [0, 1, 2, 3]  # a block per row has all columns


@pytest.mark.parametrize(
    ("width", "shown"), [(11, "lake.orders"), (10, "lake.…ders"), (5, "la…rs"), (2, "l…"), (1, "…")]
)
def test_elide_middle_keeps_both_ends(width, shown):
    assert text.elide_middle("lake.orders", width) == shown


def test_long_names_are_shortened_on_a_terminal(monkeypatch):
    long = "lake." + "s" * 60 + ".orders"
    assert text.short_names([long, "a\x1bb"]) == [long, "a\\x1bb"]  # unchanged on a pipe
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: SimpleNamespace(columns=100, lines=30))
    (short, other) = text.short_names([long, "lake.s.t"])
    assert len(short) == 40 and short.startswith("lake.s") and short.endswith("s.orders") and other == "lake.s.t"
    assert text.short_names(["lake.s.t"]) == ["lake.s.t"]


def test_grey_rows_are_styled_as_a_whole():
    rows = [("a", "1"), ("b", "2")]
    assert list(text.fit(("of", "n"), rows, (False, True), 80, styled=True, dim=[1])) == [
        "\x1b[1mof  n\x1b[0m",
        "a   1",
        "\x1b[2mb   2\x1b[0m",
    ]
    assert list(text.fit(("of", "n"), rows, (False, True), 80, dim=[1])) == ["of  n", "a   1", "b   2"]
