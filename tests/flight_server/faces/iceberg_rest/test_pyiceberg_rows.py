"""What pyiceberg finds in files without the columns of a partition, compared with pyiceberg itself."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.expressions.visitors import bind, translate_column_names
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from flight_server.faces.iceberg_rest.expressions import condition
from flight_server.faces.iceberg_rest.pyiceberg_rows import Lacking, Rows
from store.model.bounds import canonical
from store.model.logical_types import parse
from store.model.predicates.arrow import to_mask
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import Node

# Of each column: Iceberg's type, the logical type, values. Files lack all but the last.
COLUMNS: Final[dict[str, tuple[IcebergType, str, list[Any]]]] = {
    "word": (StringType(), "STRING", ["", "a", "ab", "b", "é"]),
    "day": (DateType(), "DATE", [date(1969, 12, 31), date(2026, 1, 1), date(2026, 1, 2)]),
    "moment": (TimestampType(), "TIMESTAMP(6)", [datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1)]),
    "price": (DecimalType(9, 2), "DECIMAL(9,2)", [Decimal("-1.50"), Decimal("2.00"), Decimal("10.25")]),
    "flag": (BooleanType(), "BOOLEAN", [True, False]),
    "number": (LongType(), "INT", [-1, 2, 10]),
    "own": (LongType(), "INT", [1, 2, 3]),
}
SCHEMA: Final = Schema(*(NestedField(at, name, type) for at, (name, (type, _, _)) in enumerate(COLUMNS.items(), 1)))
LACKING: Final = [name for name in COLUMNS if name != "own"]
OF_FILE: Final = Schema(SCHEMA.find_field("own"))
OWN: Final = [1, 2, 3, None]


def find(name: str) -> Column:
    return Column(SCHEMA.find_field(name).field_id, name, parse(COLUMNS[name][1]))


def filters() -> st.SearchStrategy[ice.BooleanExpression]:
    def test(name: str) -> st.SearchStrategy[ice.BooleanExpression]:
        value = st.sampled_from(COLUMNS[name][2])
        several = st.sets(value, min_size=1, max_size=3)
        compares = [ice.EqualTo, ice.NotEqualTo]
        if name != "flag":
            compares += [ice.LessThan, ice.LessThanOrEqual, ice.GreaterThan, ice.GreaterThanOrEqual]
        kinds = [
            *(value.map(partial(kind, name)) for kind in compares),
            *(several.map(partial(kind, name)) for kind in (ice.In, ice.NotIn)),
            *(st.just(kind(name)) for kind in (ice.IsNull, ice.NotNull)),
        ]
        if name == "word":
            kinds += [value.map(partial(kind, name)) for kind in (ice.StartsWith, ice.NotStartsWith)]
        return st.one_of(kinds)

    leaves = st.sampled_from(list(COLUMNS)).flatmap(test)
    joins = (ice.And, ice.Or)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(inner.map(ice.Not), *(st.tuples(inner, inner).map(partial(_joined, j)) for j in joins)),
        max_leaves=6,
    )


def _joined(join: type[ice.And | ice.Or], sides: tuple[ice.BooleanExpression, ...]) -> ice.BooleanExpression:
    return join(*sides)


def sent(expression: ice.BooleanExpression) -> Any:
    body = PlanTableScanRequest(filter=expression).model_dump_json(by_alias=True, exclude_none=True)
    return json.loads(body)["filter"]


def found(expression: ice.BooleanExpression, schema: Schema, rows: pa.Table, known: dict[int, Any]) -> list[Any]:
    """The values of `own` that pyiceberg finds in a file of a schema."""
    bound = bind(SCHEMA, expression, case_sensitive=True)
    of_file = bind(schema, translate_column_names(bound, schema, True, known), case_sensitive=True)
    return rows.filter(expression_to_pyarrow(of_file, schema))["own"].to_pylist()


def as_scalar(value: Any) -> Any:
    """A value as pyiceberg has it in a partition."""
    if isinstance(value, datetime):
        return int((value - datetime(1970, 1, 1)).total_seconds() * 1_000_000)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def as_text(name: str, value: Any) -> str | None:
    text = value.isoformat() if isinstance(value, date) else str(value).lower() if name == "flag" else str(value)
    return None if value is None else canonical(text, parse(COLUMNS[name][1]))


def check(filter: ice.BooleanExpression, values: dict[str, Any], selected: set[str]) -> tuple[bool, bool]:
    """Compares; whether the plan is refused, and whether it leaves the file out."""
    lacking = {
        find(name).id: Lacking(find(name).type, pa.array([as_text(name, values[name])], pa.string()), name in selected)
        for name in LACKING
    }
    rows = Rows(sent(filter), find, lacking, 1)
    own = pa.table({"own": pa.array(OWN, pa.int64())})
    whole = own
    for name in LACKING:
        type = SCHEMA.find_field(name).field_type
        arrow = {
            "string": pa.string(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "boolean": pa.bool_(),
            "long": pa.int64(),
        }
        whole = whole.append_column(
            name, pa.array([values[name]] * len(OWN), arrow.get(str(type), pa.decimal128(9, 2)))
        )
    right = found(filter, SCHEMA, whole, {})
    known = {find(name).id: as_scalar(values[name]) for name in LACKING if name in selected}
    seen = found(filter, OF_FILE, own, {id: value for id, value in known.items() if value is not None})
    if rows.none[0]:
        assert right == []
    elif not rows.doubtful[0]:
        assert seen == right
    else:
        ((groups, differing),) = rows.differences()
        assert list(groups) == [True]
        assert set(seen) ^ set(right) <= set(matching(differing))
    return bool(rows.doubtful[0]), bool(rows.none[0])


def matching(node: Node | bool) -> list[int | None]:
    """The values of `own` for which a condition is true."""
    if isinstance(node, bool):
        return OWN if node else []
    batch = pa.record_batch({"own": pa.array(OWN, pa.int64())})
    return batch.filter(to_mask(node, batch.schema)(batch))["own"].to_pylist()


WITHOUT_NULLS: Final = st.fixed_dictionaries({name: st.sampled_from(COLUMNS[name][2]) for name in LACKING})
VALUES: Final = st.fixed_dictionaries({name: st.sampled_from([None, *COLUMNS[name][2]]) for name in LACKING})


@given(filters(), VALUES, st.sets(st.sampled_from(LACKING)))
def test_a_plan_that_is_not_refused_is_right(filter, values, selected):
    check(filter, values, selected)


@given(filters(), WITHOUT_NULLS)
def test_without_nulls_nothing_is_refused_if_all_columns_are_selected(filter, values):
    refused, _ = check(filter, values, set(LACKING))
    assert not refused


NONE: Final = dict.fromkeys(LACKING)
A: Final = NONE | {"word": "a"}
IS_A: Final = ice.EqualTo("word", "a")


@pytest.mark.parametrize(
    ("filter", "values", "selected", "refused", "left_out"),
    [
        (IS_A, A, {"word"}, False, False),
        (IS_A, A, set(), True, False),
        (ice.And(IS_A, ice.EqualTo("own", 2)), A, set(), True, False),
        (IS_A, NONE, set(), False, True),
        (ice.Not(IS_A), NONE, {"word"}, False, True),
        (ice.NotEqualTo("word", "b"), A, set(), False, False),
        (ice.NotEqualTo("word", "b"), NONE, {"word"}, False, True),
        (ice.Or(ice.NotEqualTo("word", "b"), ice.EqualTo("own", 2)), NONE, {"word"}, True, False),
        (ice.IsNull("word"), NONE, set(), False, False),
        (ice.NotNull("word"), A, set(), True, False),
    ],
    ids=str,
)
def test_what_is_refused_and_what_left_out(filter, values, selected, refused, left_out):
    assert check(filter, values, selected) == (refused, left_out)


def test_a_test_that_cannot_be_evaluated_is_refused_where_its_column_is_not_selected():
    term = {"type": "transform", "transform": "truncate[1]", "term": "word"}
    filter = {"type": "eq", "term": term, "value": "a"}
    for is_shown in (True, False):
        lacking = {1: Lacking(parse("STRING"), pa.array(["a"]), is_shown)}
        assert list(Rows(filter, find, lacking, 1).doubtful) == [not is_shown]
        assert condition(filter, find) is True
