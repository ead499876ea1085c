"""Rules without a column, and the columns that they skip because these cannot have the measure."""

from __future__ import annotations

import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from tests.flight_server.insight.test_evaluate import FAILED, UNKNOWN, odd, odd_results
from tests.flight_server.serving import app_in


@pytest.fixture
def app():
    with app_in() as app:
        for snapshot in (1, 2):
            odd(app, snapshot, column_id=1, column_name="tags", logical_type="ARRAY", null_count=None)
            odd(app, snapshot, column_id=2, column_name="who", logical_type="STRUCT", null_count=None)
            odd(app, snapshot, column_id=3, column_name="ok", logical_type="BOOLEAN", min="false", max="true")
            odd(app, snapshot, column_id=4, column_name="void", logical_type="STRING", null_count=1000)
        yield app


def judged(app, text, columns=()):
    reader = LocalReader(app.scanner, ANONYMOUS)
    return {one.column: one for one in check(reader, "lake.s.odd", [rules.parse(text, columns=columns)], 1)}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("null_fraction >= 0", {"ok", "void"}),
        ("null_count >= 0", {"ok", "void"}),
        ("nan_count <= 0", set()),
        ("ndv >= 0", {"ok", "void"}),
        ("distinct_fraction >= 0", {"ok", "void"}),
        ("min >= 'false'", {"ok"}),
        ("max <= 5", set()),
        ("avg_width_bytes > 0", {"ok"}),
        ("drift <= 0.1", set()),
        ("most_common matches '.*'", {"ok", "void"}),
        ("change of null_count <= 0", {"ok", "void"}),
    ],
)
def test_rule_without_a_column_skips_columns_that_cannot_have_the_measure(app, text, columns):
    assert judged(app, text).keys() == columns


def test_named_column_that_cannot_have_the_measure_fails_and_says_why(app):
    texts = ("tags: ndv > 0", "who: max > 3", "ok: nan_count = 0", "ok: drift < 1", "tags: most_common in ('x')")
    for state, value, detail in odd_results(app, *texts, against=1):
        assert (state, value) == (FAILED, None) and ("ARRAY" in detail or "STRUCT" in detail or "BOOLEAN" in detail)


def test_nulls_of_a_named_list_may_come_with_a_capture_of_it(app):
    result = judged(app, "tags: null_count = 0")["tags"]
    assert result.state is UNKNOWN and result.pending
    assert result.detail == "null_count is unknown; capture the column by its name"


@pytest.mark.parametrize(
    ("columns", "judged_columns"),
    [(["*_id"], set()), (["id", "*_id"], set()), (["id", "o*"], {"ok"}), (["id"], {"id"}), (['"*"'], {'"*"'})],
)
def test_columns_that_a_table_lacks_fail_if_no_pattern_stands_beside_them(app, columns, judged_columns):
    assert judged(app, "null_count >= 0", columns).keys() == judged_columns
