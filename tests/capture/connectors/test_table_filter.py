"""The options `include`, `exclude` and `source_statistics`."""

import pytest

from capture.connectors.options import TableFilter, check_options, takes_source_statistics
from store.model.errors import InvalidArgument


@pytest.mark.parametrize(
    ("options", "tables"),
    [
        ({}, {"sales.orders", "sales.tmp_1", "hr.people", "a.b.t"}),
        ({"include": "sales.*"}, {"sales.orders", "sales.tmp_1"}),
        ({"include": " sales.orders , hr.*"}, {"sales.orders", "hr.people"}),
        ({"exclude": "*.tmp_*"}, {"sales.orders", "hr.people", "a.b.t"}),
        ({"include": "sales.*", "exclude": "sales.tmp_*"}, {"sales.orders"}),
        ({"include": "a.*"}, {"a.b.t"}),
        ({"include": "no.*"}, set()),
    ],
)
def test_tables_of_a_part_of_a_lake(options, tables):
    part = TableFilter.of(options)
    every = [("sales", "orders"), ("sales", "tmp_1"), ("hr", "people"), ("a.b", "t")]
    assert {f"{namespace}.{name}" for namespace, name in every if part.has(namespace, name)} == tables


def test_namespaces_of_a_part_of_a_lake():
    part = TableFilter.of({"include": "sales.*,hr.people", "exclude": "old.*"})
    assert [name for name in ("sales", "hr", "old") if part.has_namespace(name)] == ["sales"]
    assert TableFilter.of({"exclude": "old.*"}).has_namespace("hr")


def test_patterns_that_match_no_table_are_told():
    part = TableFilter.of({"include": "sales.*,slaes.orders", "exclude": "*_tmp,*.orders"})
    assert part.unmatched([("sales", "orders"), ("hr", "people")]) == ["slaes.orders", "*_tmp"]
    assert TableFilter.of({}).unmatched([]) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include": ""}, 'expected patterns of schema.table such as sales.*, got ""'),
        ({"include": "sales.*,orders"}, 'got "orders"'),
        ({"exclude": " , "}, "options.exclude: must be patterns"),
        ({"source_statistics": "maybe"}, 'must be true or false: expected true | false, got "maybe"'),
    ],
)
def test_bad_values_are_refused(options, said):
    with pytest.raises(InvalidArgument) as refusal:
        check_options("delta", options)
    assert said in str(refusal.value)


def test_source_statistics_are_taken_unless_switched_off():
    assert takes_source_statistics({}) and takes_source_statistics({"source_statistics": "True"})
    assert not takes_source_statistics({"source_statistics": "false"})
