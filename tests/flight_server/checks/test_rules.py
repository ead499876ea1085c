"""The grammar of rules: valid and invalid rules, and error messages."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.checks import rules
from flight_server.checks.rules import Level
from store.model.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "columns", "measure", "number"),
    [
        ("null_fraction <= 0.01", (), "null_fraction", Fraction(1, 100)),
        ("  id :ndv>=1e3 ", ("id",), "ndv", 1000),
        ("a: b: min > -5", ("a: b",), "min", -5),
        ("*_id: distinct_fraction = .5", ("*_id",), "distinct_fraction", Fraction(1, 2)),
        ("row_count != 0", (), "row_count", 0),
    ],
)
def test_rule_is_parsed(text, columns, measure, number):
    rule = rules.parse(text)
    assert (rule.columns, rule.measure, rule.number) == (columns, measure, number)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("null_fraction <=", "cannot be read"),
        ("null_fraction <= 0.01; DROP TABLE x", "cannot be read"),
        ("null_fraction <= 1%", "cannot be read"),
        ("null_fraction => 1", "cannot be read"),
        ("null_fractoin <= 1", "null_fraction"),
        ("no_such_measure < 1", "measures are row_count"),
        ("id: row_count > 1", "is of the table"),
        ("", "cannot be read"),
        ("ndv < 1e999999", "cannot be read"),
    ],
)
def test_invalid_rule_is_rejected_with_a_hint(text, message):
    with pytest.raises(InvalidArgument) as raised:
        rules.parse(text)
    assert message in str(raised.value)


@given(st.integers(-(10**30), 10**30))
def test_integers_are_compared_exactly(number):
    assert rules.parse(f"max <= {number}").holds(Fraction(number))
    assert not rules.parse(f"max < {number}").holds(Fraction(number))


def test_decimal_limits_are_exact():
    rule = rules.parse("null_fraction <= 0.01")
    assert rule.holds(Fraction(1, 100)) and rule.holds(0.01) and not rule.holds(Fraction(2, 100))


def test_rules_file_is_loaded(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rule]]\ntable = "lake.sales.*"\ncolumns = ["*_id", "key"]\nexpect = "null_fraction <= 0"\n'
        '[[rule]]\nexpect = "row_count > 0"\nlevel = "warn"\n'
    )
    first, second = rules.load(file)
    assert first.is_about("lake.sales.orders") and not first.is_about("lake.hr.people")
    assert first.takes("user_id") and first.takes("key") and not first.takes("name")
    assert (first.level, second.level) == (Level.FAIL, Level.WARN) and second.is_about("any.table.at all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no [[rule]]"),
        ("[[rule]]\n", '"expect" must be a rule'),
        ('[[rule]]\nexpect = "row_count >"', "rule 1"),
        ('[[rule]]\nexpect = "row_count > 1"\nlevle = "warn"', "level"),
        ('[[rule]]\nexpect = "row_count > 1"\nlevel = "panic"', "must be fail or warn"),
        ('[[rule]]\nexpect = "row_count > 1"\ntable = 5', "must be a pattern"),
        ('[[rule]]\nexpect = "row_count > 1"\nagainst = 1', "compares nothing"),
        ('[[rule]]\nexpect = "drift < 1"\nagainst = "then"', "must be the id of a snapshot"),
        ('[[rules]]\nexpect = "row_count > 1"', 'unknown key "rules"'),
        ("not toml", "TOML"),
    ],
)
def test_invalid_rules_file_is_rejected(tmp_path, content, message):
    file = tmp_path / "rules.toml"
    file.write_text(content)
    with pytest.raises(InvalidArgument) as raised:
        rules.load(file)
    assert message in str(raised.value) and "rules.toml" in str(raised.value)


def test_missing_rules_file_is_named(tmp_path):
    with pytest.raises(InvalidArgument) as raised:
        rules.load(tmp_path / "none.toml")
    assert "none.toml" in str(raised.value)
