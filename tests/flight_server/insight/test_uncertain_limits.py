"""Limits that name a measure which is not known for certain."""

from __future__ import annotations

import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from store.model.freshness import UNCONFIRMED
from tests.flight_server.insight.test_evaluate import FAILED, KEY, PASSED, UNKNOWN, odd, odd_results
from tests.flight_server.serving import app_in, put


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("a: max <= max of b", UNKNOWN),
        ("a: max <= 10% of max of b", FAILED),
        ("a: max >= 10% of max of b", PASSED),
        ("a: max >= max of b", UNKNOWN),
        ("a: min between min of b and max of b", FAILED),
        ("a: max < row_count", PASSED),
        ("a: max != max of b", UNKNOWN),
        ("a: max > -10% of max of b", PASSED),
        ("a: max = max of b", UNKNOWN),
        ("a: ndv <= ndv of b", UNKNOWN),
        ("a: ndv <= 30% of row_count", PASSED),
        ("a: ndv >= 1% of ndv of b", PASSED),
        ("a: mean < mean of b", UNKNOWN),
        ("row_count >= ndv of b", PASSED),
        ("row_count > 200% of ndv of b", UNKNOWN),
    ],
)
def test_limit_that_is_not_certain_passes_no_rule_that_it_could_break(text, state):
    with app_in() as app:
        at = KEY | {"table_name": "odd", "snapshot_id": 1, "row_count": 1000}
        put(app, [at], "stats.tables")
        odd(app, 1, column_name="a", min="5.0", max="15.0", mean=5.0, ndv=200.0, ndv_exact=True, nan_count=0)
        odd(
            app,
            1,
            column_id=2,
            column_name="b",
            min="10.0",
            max="20.0",
            min_is_exact=False,
            max_is_exact=False,
            completeness="PARTIAL",
            rows_scanned=100,
            mean=11.0,
            ndv=300.0,
            ndv_lower=100.0,
            ndv_upper=1000.0,
        )
        assert odd_results(app, text)[0][0] is state


def test_detail_tells_how_surely_a_limit_is_known():
    with app_in() as app:
        odd(app, 1, column_name="a", min="5.0", max="15.0")
        odd(app, 1, column_id=2, column_name="b", max="20.0", max_is_exact=False, min="1.0", mean=9.0)
        (_, value, detail), (_, _, compared) = odd_results(app, "a: max <= max of b", "a: max <= 200% of max of b")
        assert (value, detail) == (15, "compared with 20 (between 1 and 20, inexact)")
        assert compared == "compared with 40 (between 2 and 40, inexact)"
        odd(app, 2, column_name="a", mean=5.0)
        odd(app, 2, column_id=2, column_name="b", mean=None)
        reader = LocalReader(app.scanner, ANONYMOUS)
        (result,) = check(reader, "lake.s.odd", [rules.parse("a: mean < mean of b")], allow_inherited=True)
        assert (result.state, result.detail) == (PASSED, "compared with 9 (inherited from 1)")
        assert result.pending  # a capture of the other column may still turn it


def test_bounds_by_an_unknown_writer_decide_nothing():
    with app_in() as app:
        odd(app, 1, column_name="a", min="5", max="15", confidence_level=UNCONFIRMED)
        (state, value, detail), (of_counts, *_) = odd_results(app, "a: max <= 20", "a: null_count >= 0")
        assert (state, value) == (UNKNOWN, None)
        assert detail == "the max is by a writer that is not known to be right; reading the column tells"
        assert of_counts is PASSED
