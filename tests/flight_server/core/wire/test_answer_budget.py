"""Budgets of `resolve`: what fits, by priority, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from flight_server.core.wire.answer_budget import limit, omitted
from flight_server.core.wire.status import to_json

RECORD = {"table_name": "t", "column_id": 1, "row_count": 10, "null_count": 1, "ndv": 5.0, "min": "a", "max": "z"}
SKETCH = {"role": "QUANTILES", "sketch_type": "kll", "data": "A" * 500, "params": None}


def hit(**more):
    return {"outcome": "HIT", "detail": "", "record": RECORD} | more


def test_all_that_fits_is_unchanged():
    answers = [hit(sketches=[SKETCH]), {"outcome": "SKIPPED", "detail": "no_budget", "record": None}]
    assert limit(answers, [[], []], 10_000) == answers


@pytest.mark.parametrize("budget", range(0, 900, 50))
def test_answers_are_within_the_budget_and_say_what_is_left_out(budget):
    answers = limit([hit(sketches=[SKETCH]) for _ in range(3)], [["NDV", "HISTOGRAM"]] * 3, budget)
    taken = [answer for answer in answers if answer["record"] is not None]
    used = sum(len(to_json(answer["record"])) + sum(len(to_json(s)) for s in answer["sketches"]) for answer in taken)
    assert used <= budget
    for answer in answers:
        if answer not in taken:
            assert answer == omitted("max_bytes")
        elif "NDV" in answer.get("omitted", ()):
            assert "ndv" not in answer["record"]


def test_first_kind_of_all_comes_before_the_second_of_any():
    base = len(json.dumps({"table_name": "t", "column_id": 1})) + len(json.dumps({"ndv": 5.0}))
    first, second = limit([hit(), hit()], [["NDV", "MIN_MAX"]] * 2, 2 * base)
    assert first["record"]["ndv"] == second["record"]["ndv"] == 5.0
    assert "min" not in first["record"] and first["omitted"] == ["MIN_MAX", "ROW_COUNT", "NULL_COUNT"]


def test_sketch_that_does_not_fit_leaves_the_record():
    (answer,) = limit([hit(sketches=[SKETCH])], [[]], 400)
    assert answer["record"] == RECORD and answer["sketches"] == [] and answer["omitted"] == ["HISTOGRAM"]


def test_no_room_is_omitted():
    assert limit([hit()], [[]], 0) == [{"outcome": "OMITTED_BY_BUDGET", "detail": "max_bytes", "record": None}]
