"""Which tables a notification of a store is about."""

from __future__ import annotations

import pytest

from flight_server.faces.costs.news import News
from flight_server.faces.costs.notifications import Locations, objects_of
from store.model.catalog_entries import Entries, TableEntry
from store.model.errors import InvalidArgument


def table(key: int, location: str | None) -> TableEntry:
    return TableEntry(key, "lake", "s", f"t{key}", str(key), "delta", location)


def found(*objects: tuple[str, str]) -> list[int]:
    tables = [table(1, "s3://b/lake/a"), table(2, "s3a://b/lake/b/"), table(3, "/lake/a"), table(4, None)]
    tables.append(table(5, "s3://b/lake/a"))  # connected twice
    entries = Entries({each.name: each for each in tables}, {each.table_key: each for each in tables})
    return [each.table_key for each in Locations().tables(entries, objects)]


def test_tables_are_found_by_their_location():
    assert found(("b", "lake/a/_delta_log/1.json")) == [1, 5]
    assert found(("b", "lake/b/x"), ("b", "lake/b/y")) == [2]
    assert found(("b", "lake/ab/x"), ("other", "lake/a/x"), ("b", "lake"), ("b", "")) == []
    assert found(("b", "lake/a")) == [1, 5], "a table may be one file"


def record(key: str) -> dict:
    return {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}


def test_keys_of_records_are_decoded_and_those_of_eventbridge_are_not():
    assert objects_of({"Records": [record("a+b%2Bc%C3%A4")]}) == [("b", "a b+cä")]
    assert objects_of({"EventName": "x", "Key": "b/k", "Records": [record("k")]}) == [("b", "k")], "MinIO"
    detail = {"bucket": {"name": "b"}, "object": {"key": "a+b%20"}}
    assert objects_of({"source": "aws.s3", "detail": detail}) == [("b", "a+b%20")]
    assert objects_of({"Service": "Amazon S3", "Event": "s3:TestEvent"}) == []


@pytest.mark.parametrize(
    "body",
    [{}, {"Records": 7}, {"Records": [7]}, {"Records": [{"s3": 7}]}, {"Records": [{"s3": {}}]}, {"detail": []}],
)
def test_what_is_no_notification_is_refused(body):
    with pytest.raises(InvalidArgument):
        objects_of(body)


def test_a_table_that_is_named_often_is_looked_at_once():
    looks: list[list[int]] = []
    news = News(lambda tables, _: looks.append([each.table_key for each in tables]))
    news.step()
    news.add([table(1, None)])
    news.add([table(2, None), table(1, None)])
    news.step()
    news.step()
    assert looks == [[1, 2]]
