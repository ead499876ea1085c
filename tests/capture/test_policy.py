"""Auto-analyze: parsing of policies, verdicts and their reasons."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from capture.policy import Because, Policy, Rules, TableState, Verdict, columns_verdict, parse, table_verdict
from store.model.errors import InvalidField

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULES = Rules()
FRESH = TableState(
    snapshot_id=7,
    schema_hash="h",
    columns=(1, 2),
    has_table_record=True,
    captured_snapshot_id=7,
    captured_schema_hash="h",
    captured_at=NOW - timedelta(hours=1),
    captured_columns=frozenset({1, 2}),
)
BEHIND = replace(FRESH, captured_snapshot_id=6, captured_columns=frozenset(), changed_share=0.01)
NEVER = replace(
    FRESH, captured_snapshot_id=None, captured_at=None, captured_columns=frozenset(), has_table_record=False
)


def test_columns_of_rules_are_read_of_each_snapshot_at_once():
    """However little changed, and whatever was tried of another snapshot a moment ago; again after the interval."""
    ruled = replace(BEHIND, ruled=frozenset({2}), tried_at=NOW, tried_snapshot_id=6)
    assert columns_verdict(RULES, ruled, NOW) == Verdict(True, Because.RULE, (2,))
    assert columns_verdict(parse("metadata").rules("s", "t"), ruled, NOW) == Verdict(True, Because.RULE, (2,))
    assert not columns_verdict(RULES, replace(ruled, tried_snapshot_id=7), NOW).capture
    assert columns_verdict(RULES, replace(ruled, tried_snapshot_id=7), NOW + RULES.min_interval).columns == (2,)
    assert not columns_verdict(RULES, replace(ruled, busy=True), NOW).capture
    assert columns_verdict(RULES, replace(ruled, captured_columns=frozenset({2})), NOW).because is not Because.RULE


# Parsing.


def test_a_policy_is_off_by_default():
    assert Policy().is_off and parse("").is_off and parse("off").is_off
    assert Policy().rules("s", "t") is None


def test_on_selects_the_default_rules():
    assert parse("on").rules("any", "table") == RULES
    assert not parse("on").is_off


def test_rules_are_parsed():
    found = parse("max_age=2h, changed=25%, min_interval=30s, columns=all, wide=10").rules("s", "t")
    assert found == Rules(timedelta(hours=2), 0.25, timedelta(seconds=30), "all", 10)
    assert parse("changed=0.5").rules("s", "t") == replace(RULES, changed=0.5)


def test_first_matching_pattern_applies():
    policy = parse("sales.tmp_*: off; sales.*: changed=0.5; *: off")
    assert policy.rules("sales", "tmp_1") is None
    assert policy.rules("sales", "orders") == replace(RULES, changed=0.5)
    assert policy.rules("hr", "people") is None
    assert Policy((("a.*", RULES),)).rules("b", "c") is None


WRONG = ["maybe", "changed=2", "changed=x", "max_age=1", "max_age=1w", "columns=some", "colour=red", "a.*: wat"]


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_policy_is_refused(wrong):
    with pytest.raises(InvalidField, match="policy"):
        parse(wrong)


# Tables.


@pytest.mark.parametrize(
    ("facts", "capture", "because"),
    [
        (FRESH, False, Because.FRESH),
        (NEVER, True, Because.NEW_SNAPSHOT),
        (replace(BEHIND, has_table_record=False), True, Because.NEW_SNAPSHOT),
        (replace(NEVER, snapshot_id=None), False, Because.NO_SNAPSHOT),
        (replace(NEVER, busy=True), False, Because.BUSY),
        (replace(NEVER, tried_at=NOW - timedelta(minutes=1), tried_snapshot_id=7), False, Because.TOO_SOON),
        (replace(NEVER, tried_at=NOW - timedelta(minutes=6), tried_snapshot_id=7), True, Because.NEW_SNAPSHOT),
        (replace(NEVER, tried_at=NOW - timedelta(seconds=1), tried_snapshot_id=6), True, Because.NEW_SNAPSHOT),
    ],
)
def test_table_verdict_follows_its_state(facts, capture, because):
    verdict = table_verdict(RULES, facts, NOW)
    assert (verdict.capture, verdict.because, verdict.columns) == (capture, because, None)


# Columns.


@pytest.mark.parametrize(
    ("facts", "capture", "because"),
    [
        (FRESH, False, Because.FRESH),
        (NEVER, True, Because.NEVER),
        (replace(NEVER, snapshot_id=None), False, Because.NO_SNAPSHOT),
        (BEHIND, False, Because.LITTLE),
        (replace(BEHIND, changed_share=None), False, Because.UNKNOWN),
        (replace(BEHIND, changed_share=0.1), True, Because.CHANGED),
        (replace(BEHIND, changed_share=0.0), False, Because.LITTLE),
        (replace(BEHIND, captured_schema_hash="other"), True, Because.SCHEMA),
        (replace(BEHIND, captured_at=NOW - timedelta(days=2)), True, Because.AGE),
        (replace(BEHIND, changed_share=0.9, busy=True), False, Because.BUSY),
        (replace(BEHIND, changed_share=0.4, tried_at=NOW, tried_snapshot_id=6), False, Because.TOO_SOON),
        (replace(BEHIND, changed_share=0.5, tried_at=NOW, tried_snapshot_id=6), True, Because.CHANGED),
        (replace(BEHIND, changed_share=0.9, tried_at=NOW, tried_snapshot_id=7), False, Because.TOO_SOON),
        (replace(BEHIND, changed_share=None, least_changed_share=0.09), False, Because.UNKNOWN),
        (replace(BEHIND, changed_share=None, least_changed_share=0.5), True, Because.CHANGED),
        (replace(BEHIND, changed_share=0.0, least_changed_share=0.5), False, Because.LITTLE),
        (replace(FRESH, captured_columns=frozenset({1})), True, Because.ASKED),
    ],
)
def test_columns_verdict_follows_the_state(facts, capture, because):
    verdict = columns_verdict(RULES, facts, NOW)
    assert (verdict.capture, verdict.because) == (capture, because)
    assert bool(verdict.columns) == capture


@pytest.mark.parametrize(("behind", "capture"), [(3, False), (4, True), (None, False)])
def test_statistics_too_many_snapshots_behind_are_captured_again(behind, capture):
    rules = parse("max_snapshots_behind=3").rules("s", "t")
    verdict = columns_verdict(rules, replace(BEHIND, changed_share=0.0, snapshots_behind=behind), NOW)
    assert verdict.capture is capture
    if capture:
        assert verdict.text == "now, because: the statistics are of too old a snapshot (4 snapshots, of 3)"
    assert not columns_verdict(RULES, replace(BEHIND, changed_share=0.0, snapshots_behind=behind), NOW).capture


def test_bound_of_zero_snapshots_renews_at_each_snapshot():
    rules = parse("max_snapshots_behind=0").rules("s", "t")
    assert columns_verdict(rules, replace(BEHIND, snapshots_behind=1), NOW).because is Because.BEHIND
    assert not columns_verdict(rules, replace(FRESH, snapshots_behind=0), NOW).capture


@pytest.mark.parametrize("text", ["-1", "1.5", "", "many"])
def test_wrong_bound_of_snapshots_is_refused(text):
    with pytest.raises(InvalidField, match="max_snapshots_behind"):
        parse(f"max_snapshots_behind={text}")


def test_only_missing_columns_are_captured():
    assert columns_verdict(RULES, replace(FRESH, captured_columns=frozenset({2})), NOW).columns == (1,)


def test_wide_table_captures_only_the_columns_in_use():
    wide = replace(NEVER, columns=tuple(range(1, 201)))
    assert columns_verdict(RULES, wide, NOW).because is Because.UNUSED
    assert columns_verdict(RULES, replace(wide, used={7: 3, 5: 1}), NOW).columns == (5, 7)
    assert len(columns_verdict(replace(RULES, columns="all"), wide, NOW).columns or ()) == 200
    rules = parse("metadata").rules("s", "t")
    assert rules == parse("columns=none").rules("s", "t")
    assert columns_verdict(rules, wide, NOW) == Verdict(False, Because.METADATA, ())
    assert table_verdict(rules, wide, NOW).capture


def test_fresh_statistics_are_never_captured_again():
    old = replace(FRESH, captured_at=NOW - timedelta(days=400), changed_share=1.0)
    assert not columns_verdict(RULES, old, NOW).capture and not table_verdict(RULES, old, NOW).capture


def test_verdict_text_has_the_reason_and_the_threshold():
    verdict = columns_verdict(RULES, BEHIND, NOW)
    assert verdict.text == "not now, because: little changed (1%, of 10%)"
