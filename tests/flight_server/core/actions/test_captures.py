"""Outcomes of captures."""

from __future__ import annotations

import pytest

from flight_server.core.actions.captures import merge_outcome

LACKS, GONE = "no column with id 2 in snapshot 0; columns are: 1 a", 'file "f.parquet": no such file'


@pytest.mark.parametrize(
    ("details", "detail"),
    [
        (["", ""], ""),
        (["", GONE, ""], GONE),
        ([LACKS, ""], LACKS),
        ([LACKS, "", GONE], GONE),
        ([GONE, LACKS], GONE),
        ([GONE, "other"], GONE),
    ],
)
def test_failure_at_one_snapshot_is_not_hidden_by_another_that_lacks_the_column(details, detail):
    merged = None
    for one in details:
        word = "DEGRADED" if one else "CAPTURED"
        merged = merge_outcome(merged, {"outcome": word, "detail": one, "engine_id": "local", "attributes": {}})
    assert (merged["outcome"], merged["detail"]) == ("DEGRADED" if detail else "CAPTURED", detail)
