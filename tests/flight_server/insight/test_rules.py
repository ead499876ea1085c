"""The grammar of rules: valid and invalid rules, and error messages."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.insight import rules
from flight_server.insight.limits import Condition, Limit
from flight_server.insight.rules import Level
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
    assert (rule.columns, rule.measure, rule.condition.limits) == (columns, measure, (Limit(Fraction(number)),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("null_fraction <=", "cannot be read"),
        ("null_fraction <= 0.01; DROP TABLE x", "cannot be read"),
        ("null_fraction => 1", "cannot be read"),
        ("null_fractoin <= 1", "null_fraction"),
        ("no_such_measure < 1", "measures are row_count"),
        ("id: row_count > 1", "is of the table"),
        ("", "cannot be read"),
        ("1..5% of id in orders.id", "cannot be read"),
        ("ndv < 1e999999", "cannot be read"),
        ("ndv < 5%", "takes a number without a unit"),
        ("null_fraction <= 5h", "units are %"),
        ("age_seconds <= 2 weeks", "units are s, min, h, d"),
        ("ndv in (1, 2", "cannot be read"),
        ("ndv in (1, 'a)", "single quotes"),
        ("ndv between 1", "cannot be read"),
        ("ndv = 'x'", "only min and max"),
        ("row_count >= 80% of yesterday", "unknown measure 'yesterday'"),
        ("mean within 3 sigma of last 2", "last 3 or more"),
        ("mean within sigma", "N sigma of last N"),
        ("row_count >= 80% of last 0", "1 to 1000"),
        ("row_count >= 80% of last 99999999999999999999", "1 to 1000"),
        ("age_seconds < 2% of previous", "must be constants"),
        ("drift <= previous", "must be constants"),
        ("row_count <= ndv", "MEASURE of COLUMN"),
    ],
)
def test_invalid_rule_is_rejected_with_a_hint(text, message):
    with pytest.raises(InvalidArgument) as raised:
        rules.parse(text)
    assert message in str(raised.value)


@given(st.integers(-(10**30), 10**30))
def test_integers_are_compared_exactly(number):
    assert holds(f"max <= {number}", Fraction(number)) and not holds(f"max < {number}", Fraction(number))


@pytest.mark.parametrize("limit", ["0.01", "1%", "1 %"])
def test_decimal_limits_are_exact(limit):
    assert holds(f"null_fraction <= {limit}", Fraction(1, 100)) and holds(f"null_fraction <= {limit}", 0.01)
    assert not holds(f"null_fraction <= {limit}", Fraction(2, 100))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("age_seconds <= 2h", 7200, 7201),
        ("age_seconds < .5d", 43_199, 43_200),
        ("size_bytes >= 1.5 GB", 15 * 10**8, 10**9),
        ("size_bytes = 1KiB", 1024, 1000),
        ("ndv in (1, 2,3)", 3, 4),
        ("ndv not in (0)", 1, 0),
        ("ndv between 2 and 3", 3, 4),
        ("min between -5 and 5", -5, -6),
    ],
)
def test_units_ranges_and_lists(text, inside, outside):
    assert holds(text, Fraction(inside)) and not holds(text, Fraction(outside))


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("row_count >= 80% of previous", (Limit(Fraction(4, 5), 1),)),
        ("row_count > previous", (Limit(Fraction(1), 1),)),
        ("id: ndv >= 50% of last 7", (Limit(Fraction(1, 2), 7),)),
        ("mean within 3 sigma of last 14", (Limit(Fraction(-3), 14, sigma=True), Limit(Fraction(3), 14, sigma=True))),
        ("ndv >= 99% of ndv of id", (Limit(Fraction(99, 100), other=("ndv", "id")),)),
        ("row_count = ndv of a of b", (Limit(Fraction(1), other=("ndv", "a of b")),)),
        ("at: max <= '2026-01-01T10:00:00'", (Limit("2026-01-01T10:00:00"),)),
        ("at: max <= 2026-01-01T10:00:00", (Limit("2026-01-01T10:00:00"),)),
        ("name: min in ('a', 'it''s, well')", (Limit("a"), Limit("it's, well"))),
    ],
)
def test_limits_are_parsed(text, limits):
    assert rules.parse(text).condition.limits == limits


def holds(text: str, value: float | Fraction) -> bool:
    condition: Condition = rules.parse(text).condition
    return condition.holds(value, [limit.value for limit in condition.limits])


def test_rules_file_is_loaded(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rule]]\ntable = "lake.sales.*"\ncolumns = ["*_id", "key"]\nexpect = "null_fraction <= 0"\n'
        '[[rule]]\nexpect = "row_count > 0"\nlevel = "warn"\n'
    )
    first, second = rules.load(file).rules
    assert first.is_about("lake.sales.orders") and not first.is_about("lake.hr.people")
    assert first.takes("user_id") and first.takes("key") and not first.takes("name")
    assert (first.level, second.level) == (Level.FAIL, Level.WARN) and second.is_about("any.table.at all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no [[rule]]"),
        ("[[rule]]\n", "expect: must be a rule"),
        ('[[rule]]\nexpect = "row_count >"', "rule 1"),
        ('[[rule]]\nexpect = "row_count > 1"\nlevle = "warn"', "level"),
        ('[[rule]]\nexpect = "row_count > 1"\nlevel = "panic"', "level: is unknown: expected fail | warn"),
        ('[[rule]]\nexpect = "row_count > 1"\ntable = 5', "table: must be a pattern"),
        ('[[rule]]\nexpect = "row_count > 1"\nagainst = 1', "compares nothing"),
        ('[[rule]]\nexpect = "drift < 1"\nagainst = "then"', "against: must be the id of a snapshot"),
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


@pytest.mark.parametrize(
    ("text", "columns", "of", "least"),
    [
        ("orders.customer_id in customers.id", ("orders.customer_id",), "customers.id", 1),
        ("99.5% of customer_id in lake.s.customers.id", ("customer_id",), "lake.s.customers.id", Fraction(995, 1000)),
        ('x in "my table".id', ("x",), '"my table".id', 1),
    ],
)
def test_reference_is_parsed(text, columns, of, least):
    rule = rules.parse(text)
    assert (rule.measure, rule.columns, rule.of) == (rules.CONTAINMENT, columns, of)
    assert rule.condition == Condition(">=", (Limit(Fraction(least)),))


def test_select_is_parsed_up_to_its_last_parenthesis():
    rule = rules.parse("(SELECT max(ndv) FROM stats.columns WHERE (row_count > 5)) between 1 and 9")
    assert rule.of == "SELECT max(ndv) FROM stats.columns WHERE (row_count > 5)"
    assert rule.is_of_table and rule.condition.op == "between"
    assert rules.parse("(select min(name) from sys.flights) matches 'a.*'").condition.op == "matches"


def test_change_takes_percentages_of_the_value_before():
    for rule in (rules.parse("change of row_count >= -10%"), rules.parse("row_count >= -10%", of_change=True)):
        assert rule.of_change and rule.condition.limits == (Limit(Fraction(-1, 10), percent=True),)
        assert rule.needs_snapshot
    assert not rules.parse("drift > 0.1", of_change=True).of_change  # is a comparison already
    assert rules.parse("total_size_bytes > 2 GB", of_change=True).measure == "size_bytes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("change of drift > 1", "has none"),
        ("change of ndv > previous", "must be constants"),
        ("change of ndv between 5 and 10%", "all in % or none"),
        ("id: min matches 'a'", "match patterns"),
        ("most_common matches '('", "not a regular expression"),
        ("most_common < last 3", "must be constants"),
        ("id in customers", 'unknown measure "id"'),
        ("(DROP TABLE x) > 1", "cannot be read"),
    ],
)
def test_invalid_new_form_is_rejected_with_a_hint(text, message):
    with pytest.raises(InvalidArgument) as raised:
        rules.parse(text)
    assert message in str(raised.value)
