"""Residuals: the rows that they select are those of the filter, and none has an infinity."""

from __future__ import annotations

import json
import math
import operator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.rest.scan_planning import RESTFileScanTask
from pyiceberg.expressions import AlwaysTrue

from flight_server.faces.iceberg_rest.residuals import residual_of
from store.model.logical_types import parse
from store.model.predicates.plain_conditions import Column

TYPES: Final = {"double": "DOUBLE", "single": "FLOAT", "word": "STRING"}
LARGEST: Final = {"double": 1.7976931348623157e308, "single": 3.4028234663852886e38}
NUMBERS: Final = [None, math.nan, math.inf, -math.inf, 0.0, 1.5, -1.5]
COMPARES: Final = {
    "eq": operator.eq,
    "lt": operator.lt,
    "lt-eq": operator.le,
    "gt": operator.gt,
    "gt-eq": operator.ge,
}


def find(name: str) -> Column:
    return Column(list(TYPES).index(name), name, parse(TYPES[name]))


def key(number: float) -> tuple[bool, float]:
    """NaN is above all other numbers."""
    return number != number, 0.0 if number != number else number


def holds(filter: Any, rows: dict[str, float | None]) -> bool:
    """Truth of a filter for a row, as Iceberg's evaluator of rows in Java has it."""
    match filter:
        case bool():
            return filter
        case {"type": "and", "left": left, "right": right}:
            return holds(left, rows) and holds(right, rows)
        case {"type": "or", "left": left, "right": right}:
            return holds(left, rows) or holds(right, rows)
        case {"type": "in" | "not-in" as kind, "term": name, "values": values}:
            return any(holds({"type": "eq", "term": name, "value": v}, rows) for v in values) is (kind == "in")
    kind, value = filter["type"], rows[filter["term"]]
    match kind:
        case "is-null" | "not-null":
            return (value is None) is (kind == "is-null")
        case "is-nan" | "not-nan":
            return (value is not None and value != value) is (kind == "is-nan")
        case "not-eq":
            return not holds(filter | {"type": "eq"}, rows)
    return value is not None and COMPARES[kind](key(value), key(float(filter["value"])))


LITERALS: Final = st.sampled_from(["Infinity", "-Infinity", 1.5, 0.0])
LEAVES: Final = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from([*COMPARES, "not-eq"]), "term": st.sampled_from(list(LARGEST)), "value": LITERALS}
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["in", "not-in"]),
            "term": st.sampled_from(list(LARGEST)),
            "values": st.lists(LITERALS, min_size=1, max_size=4),
        }
    ),
)
FILTERS: Final = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries({"type": st.sampled_from(["and", "or"]), "left": inner, "right": inner}),
    max_leaves=4,
)
ROWS: Final = st.fixed_dictionaries(
    {name: st.sampled_from([*NUMBERS, largest, -largest]) for name, largest in LARGEST.items()}
)


@given(FILTERS, ROWS)
def test_the_same_rows_without_infinities(filter, row):
    residual = residual_of(filter, find)
    assert holds(residual, row) == holds(filter, row)
    assert "Infinity" not in json.dumps(residual)


@pytest.mark.parametrize(
    "filter",
    [
        {"type": "eq", "term": "word", "value": "Infinity"},
        {"type": "in", "term": "double", "values": [1.5, 2]},
        {"type": "not", "child": {"type": "and", "left": True, "right": {"type": "is-nan", "term": "single"}}},
        True,
    ],
    ids=str,
)
def test_other_filters_come_back_as_they_are(filter):
    assert residual_of(filter, find) is filter


def test_an_infinity_below_not():
    inner = {"type": "gt", "term": "double", "value": "Infinity"}
    assert residual_of({"type": "not", "child": inner}, find) == {
        "type": "not",
        "child": {"type": "is-nan", "term": "double"},
    }


@pytest.mark.parametrize(
    "filter",
    [
        {"type": "eq", "term": "double", "value": None},
        {"type": "not-in", "term": "double", "values": [1.5, None]},
        {
            "type": "or",
            "left": {"type": "lt", "term": "single", "value": None},
            "right": {"type": "is-null", "term": "word"},
        },
    ],
    ids=str,
)
def test_pyiceberg_reads_the_residual_of_an_infinity_that_it_sent_as_null(filter):
    task = {
        "data-file": {
            "spec-id": 0,
            "content": "data",
            "file-path": "a",
            "file-format": "parquet",
            "file-size-in-bytes": 1,
            "record-count": 1,
        },
        "residual-filter": residual_of(filter, find),
    }
    residual = RESTFileScanTask.model_validate_json(json.dumps(task)).residual_filter
    assert residual is not None and residual != AlwaysTrue(), "it would count the rows by the metadata"
