"""The declaration of statistics is consistent, and the flights follow from it."""

import pytest

from capture.compute.partial import FIELD_TYPES, OWN
from store.model import statistics
from store.model.schemas import FLIGHTS
from store.model.statistics import BY_NAME, SCALARS, STATISTICS, Limit, StatisticGroup


def test_names_are_declared_once():
    assert len(BY_NAME) == len(STATISTICS)


@pytest.mark.parametrize("each", STATISTICS, ids=lambda each: each.name)
def test_a_statistic_refers_to_others_of_its_kind_and_group(each):
    if each.of:
        other = BY_NAME[each.of]
        assert (other.kind, other.group, other.types) == (each.kind, each.group, each.types)
        assert not other.of, "a record that has it could not answer its kind"
    assert set(each.at_most) <= BY_NAME.keys() and each.name not in each.at_most
    assert each.is_number or each.limit is Limit.NONE


@pytest.mark.parametrize("kind", statistics.KINDS)
def test_every_kind_can_be_answered(kind):
    assert set(statistics.answering(kind)) <= set(statistics.of_kind(kind))
    assert statistics.answering(kind)


@pytest.mark.parametrize("flight", ["stats.columns", "stats.file_columns", "stats.expressions", "stats.column_groups"])
def test_flights_have_every_statistic_with_its_type(flight):
    schema = FLIGHTS[flight].schema
    assert {each.name: schema.field(each.name).type for each in SCALARS} == {each.name: each.type for each in SCALARS}
    provenance = schema.names.index("producer")
    for each in SCALARS:
        assert (schema.names.index(each.name) > provenance) == bool(each.since), "columns of others would move"


def test_tables_have_their_statistics():
    of_tables = [each.name for each in STATISTICS if each.group is StatisticGroup.TABLE]
    assert FLIGHTS["stats.tables"].payload == ("row_count", *of_tables)


def test_partials_have_a_field_for_what_is_merged():
    assert set(OWN) <= FIELD_TYPES.keys()
    merged = {each.name for each in SCALARS if each.merge is not statistics.Merge.SKETCH and each.kind != "WIDTH"}
    assert merged == FIELD_TYPES.keys() - OWN.keys()
