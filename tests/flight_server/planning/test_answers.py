"""Answers of queries by statistics: values that are known exactly, the reasons why others are not, and refusals."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from flight_server.client.answer import Answer
from flight_server.core.actions import Call
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.planning import answers
from store.model.errors import InvalidArgument, NotFound
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "completeness": "COMPLETE"}
FILES = 4
TYPES = {"id": "INT", "word": "STRING", "price": "DOUBLE", "day": "DATE", "amount": "DECIMAL(10,2)", "tags": "ARRAY"}
IDS = {name: at for at, name in enumerate(TYPES, 1)}


@pytest.fixture
def app():
    with app_in() as app:
        yield app


@pytest.fixture(scope="module")
def filled():
    with app_in() as app:
        put_files(app, *spans())
        yield app


def put_files(app, *rows: dict[str, dict[str, Any]], counted: bool = True, **file: Any) -> None:
    """Puts a file of 10 rows per argument: column → what is stored of it beside 0 nulls and exact bounds."""
    files = [KEY | {"file_path": f"f{at}", "file_content": "DATA", "row_count": 10} | file for at in range(len(rows))]
    put(app, files, "stats.files")
    if counted:
        put(app, [KEY | {"data_file_count": len(rows)}], "stats.tables")
    columns = [
        KEY
        | {
            "file_path": f"f{at}",
            "column_id": IDS[name],
            "column_name": name,
            "logical_type": TYPES[name],
            "row_count": 10,
            "null_count": 0,
            "nan_count": 0 if name == "price" else None,
            "min": None,
            "max": None,
            "min_is_exact": True,
            "max_is_exact": True,
        }
        | told
        for at, row in enumerate(rows)
        for name, told in row.items()
    ]
    if columns:
        put(app, columns, "stats.file_columns")


def ask(app, select: str, where: str = "", **more: Any) -> Answer:
    sql = f"SELECT {select} FROM lake.s.t" + (f" WHERE {where}" if where else "")
    (found,) = app.parts.actions["answer"].run(call(app), json.dumps({"sql": sql} | more).encode())
    answered = Answer.of_result(found)
    assert answered.exact == (answered.values is not None) == (answered.reason is None)
    return answered


def call(app) -> Call:
    return Call(app, ANONYMOUS, "", lambda: False)


def values(app, select: str, where: str = "") -> list[Any]:
    answered = ask(app, select, where)
    assert answered.values is not None, answered.reason
    return list(answered.values.values())


def spans(**more: Any) -> list[dict[str, dict[str, Any]]]:
    """File i has ids from 10 i to 10 i + 9."""
    return [{"id": {"min": str(10 * at), "max": str(10 * at + 9)} | more} for at in range(FILES)]


def test_counts_minima_and_maxima(app):
    put_files(app, *spans(null_count=1))
    assert values(app, "count(*), count(id), min(id), max(id)") == [40, 36, 0, 39]
    assert values(app, "COUNT(*) AS n, max(ID) m FROM lake.s.t WHERE id > 5 OR id IS NULL;".partition(" FROM")[0]) == [
        40,
        39,
    ]
    answered = ask(app, 'count(*) AS n, min("id")')
    assert answered.values == {"n": 40, "min(id)": 0} and answered.snapshot_id == 1


def test_files_that_match_as_a_whole(app):
    put_files(app, *spans())
    assert values(app, "count(*), min(id), max(id)", "id >= 20") == [20, 20, 39]
    assert values(app, "count(*), count(id), min(id)", "id > 100") == [0, 0, None]
    assert values(app, "count(*)", "id BETWEEN 10 AND 19 OR id < -5") == [10]
    assert ask(app, "count(*)", "id >= 25").reason == "1 of 2 files have rows that may not match, as far as is known"


def test_values_have_their_types(app):
    put_files(
        app,
        {
            "word": {"min": "", "max": "é"},
            "price": {"min": "-0.5", "max": "Infinity"},
            "day": {"min": "2026-01-31", "max": "2026-02-01"},
            "amount": {"min": "-12.5", "max": "100"},
        },
    )
    assert values(app, "min(word), max(word), min(price), max(price)") == ["", "é", -0.5, float("inf")]
    assert values(app, "min(day), max(amount), min(amount)") == [date(2026, 1, 31), Decimal(100), Decimal("-12.5")]


def test_columns_are_read_a_few_at_a_time(app, monkeypatch):
    monkeypatch.setattr(answers, "_AT_ONCE", 2)
    columns = {"id": 1, "word": "a", "price": 0.5, "day": "2026-01-31", "amount": 7}
    put_files(app, {name: {"min": str(value), "max": str(value)} for name, value in columns.items()})
    found = values(app, ", ".join(["count(*)", *(f"min({name})" for name in columns)]))
    assert found == [10, 1, "a", 0.5, date(2026, 1, 31), Decimal(7)]


def test_counts_beyond_64_bits_are_exact(app):
    put_files(app, *spans(row_count=2**62), row_count=2**62)
    assert values(app, "count(*), count(id)") == [FILES * 2**62] * 2


def test_bounds_compare_by_value(app):
    put_files(app, {"id": {"min": "9", "max": "9"}}, {"id": {"min": "-10", "max": "10"}})
    assert values(app, "min(id), max(id)") == [-10, 10]


def test_only_the_bound_that_decides_needs_to_be_exact(app):
    cut = {"min_is_exact": False, "max_is_exact": None}
    put_files(app, {"word": {"min": "a", "max": "b"}}, {"word": {"min": "aa", "max": "b"} | cut})
    assert values(app, "min(word), max(word)") == ["a", "b"]
    put_files(app, {"word": {"min": "a", "max": "b"}}, {"word": {"min": "Z", "max": "c"} | cut})
    for side, bound in (("min", "Z"), ("max", "c")):
        assert f"{side}imum of word is not exact: {bound}" in ask(app, f"{side}(word)").reason


def test_files_of_nulls_alone_have_no_bounds(app):
    put_files(app, {"id": {"null_count": 10}}, {"id": {"min": "1", "max": "2", "null_count": 9}})
    assert values(app, "count(id), min(id), max(id)") == [1, 1, 2]
    put_files(app, {"id": {"null_count": 10}}, {"id": {"null_count": 10}})
    assert values(app, "count(id), min(id), max(id)") == [0, None, None]


@pytest.mark.parametrize(
    ("told", "select", "reason"),
    [
        ({"null_count": None}, "count(id)", "no count of the nulls of id"),
        ({"min": None}, "min(id)", "no minimum of id"),
        ({"min": None, "null_count": None}, "min(id)", "no minimum of id"),
        ({"completeness": "PARTIAL"}, "count(id)", "no exact statistics of id"),
        ({"row_count": 9}, "count(id)", "no exact statistics of id"),
        ({"row_count": None}, "max(id)", "no exact statistics of id"),
        ({"logical_type": "STRING"}, "max(id)", "no exact statistics of id"),
    ],
)
def test_what_is_not_known_is_no_answer(app, told, select, reason):
    put_files(app, {"id": {"min": "1", "max": "2"}}, {"id": {"min": "1", "max": "2"} | told})
    assert values(app, "count(*)") == [20]
    assert f"1 of 2 files have {reason}" in ask(app, select).reason
    assert "may not match" in ask(app, "count(*)", "id > 1").reason


def test_columns_that_files_have_no_rows_of(app):
    put_files(app, {"id": {"min": "1", "max": "2"}, "tags": {}}, {"id": {"min": "1", "max": "2"}})
    assert "1 of 2 files have no exact statistics of tags" in ask(app, "count(tags)").reason
    put_files(app, *[{"id": {"min": "1", "max": "2"}, "tags": {"null_count": 3}}] * 2)
    assert values(app, "count(tags)") == [14]
    assert "tags has no order" in ask(app, "min(tags)").reason


def test_nan_has_no_place_that_all_readers_agree_on(app):
    put_files(app, {"price": {"min": "1.0", "max": "2.0", "nan_count": 1}})
    assert values(app, "count(price)") == [10]
    assert "NaN" in ask(app, "min(price)").reason and "NaN" in ask(app, "max(price)").reason
    put_files(app, {"price": {"min": "1.0", "max": "2.0", "nan_count": None}})
    assert "no exact statistics of price" in ask(app, "min(price)").reason


def test_a_listing_that_may_lack_files_is_no_answer(app):
    put_files(app, *spans(), counted=False)
    assert ask(app, "count(*)").reason == "the number of the table's files is not known"


def test_files_without_an_exact_count_are_no_answer(app):
    put_files(app, *spans(), completeness="PARTIAL")
    assert "no exact count of rows" in ask(app, "count(*)").reason
    put_files(app, *spans(), row_count=None)
    assert "no exact count of rows" in ask(app, "count(*)").reason


def test_records_of_the_table_answer_what_its_files_do_not(app):
    put_files(app, {}, {})
    put(app, [KEY | {"row_count": 15, "data_file_count": 2}], "stats.tables")
    column = KEY | {"column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": 15, "null_count": 5}
    put(app, [column | {"min": "1", "max": "9", "min_is_exact": True, "max_is_exact": False}])
    assert values(app, "count(*), count(id), min(id)") == [15, 10, 1]
    assert ask(app, "max(id)").reason == "2 of 2 files have no exact statistics of id"
    put(app, [column | {"min": "1", "max": "9", "min_is_exact": True, "completeness": "PARTIAL"}])
    assert not ask(app, "min(id)").exact


def test_statistics_of_another_snapshot_are_no_answer(app):
    put_files(app, *spans())
    later = KEY | {"snapshot_id": 2}
    put(app, [later | {"file_path": "f0", "file_content": "DATA", "row_count": 10}], "stats.files")
    put(app, [later | {"data_file_count": 1, "row_count": 10}], "stats.tables")
    put(app, [later | {"column_id": 1, "column_name": "id", "logical_type": "INT"}])
    assert ask(app, "count(*)", snapshot=2).values == {"count(*)": 10}
    assert not ask(app, "min(id)", snapshot=2).exact
    assert ask(app, "min(id)", snapshot=1).values == {"min(id)": 0}
    put(app, [later | {"snapshot_id": 3, "row_count": 10}], "stats.tables")
    assert "files of snapshot 3 are not known" in ask(app, "count(*)", snapshot=3).reason


def test_rows_that_readers_merge_are_not_counted_by_files(app):
    put_files(app, *spans())
    app.database.write(lambda connection: connection.execute("UPDATE tables SET format = 'made-up'"))
    app.catalog.reload(app.database.read())
    app.database.versions.renew()
    for select, where in (("count(*)", ""), ("min(id)", ""), ("count(*)", "id >= 0")):
        assert "merge" in ask(app, select, where).reason


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("", "empty"),
        (";", "SELECT"),
        ("DELETE FROM lake.s.t", '"DELETE" where SELECT'),
        ("SELECT id FROM lake.s.t", '"id" is not answered'),
        ("SELECT sum(id) FROM lake.s.t", '"sum" is not answered'),
        ("SELECT count(DISTINCT id) FROM lake.s.t", '"id" where ")"'),
        ("SELECT min(*) FROM lake.s.t", "the name of a column"),
        ("SELECT min('id') FROM lake.s.t", "the name of a column"),
        ("SELECT min(t.id) FROM lake.s.t", '")"'),
        ("SELECT min(id) + 1 FROM lake.s.t", "a name"),
        ("SELECT count(*), count(*) FROM lake.s.t", "2 results have 1 names"),
        ("SELECT count(*) FROM lake.s.t x", '"x" where WHERE'),
        ("SELECT count(*) FROM lake.s.t GROUP BY id", '"GROUP" where WHERE'),
        ("SELECT count(*) FROM lake.s.t; SELECT 1", '"SELECT" where'),
        ("SELECT count(*) FROM lake.s.t WHERE", "where"),
        ("SELECT count(*) FROM lake.s.t WHERE id = 1 GROUP BY id", "GROUP"),
        ("SELECT count(*) FROM lake.s.t WHERE id = 1; SELECT 1", "semicolon"),
        ("SELECT count(*) FROM lake.s.t WHERE lower(id) = 1", "LOWER"),
        ("SELECT count(*) FROM lake.s.t WHERE id = 'abc", "quote"),
        ("SELECT count(*) FROM lake.s.t WHERE id = 'abc'", "INT"),
        ("SELECT count(*) FROM lake.s.t WHERE idd = 1", "idd"),
        ("SELECT min(idd) FROM lake.s.t", "idd"),
        (f"SELECT count(*) FROM lake.s.t WHERE id = {'1' * 70_000}", "longer"),
    ],
)
def test_other_queries_are_refused(filled, sql, told):
    with pytest.raises(InvalidArgument) as refusal:
        filled.parts.actions["answer"].run(call(filled), json.dumps({"sql": sql}).encode())
    assert told in str(refusal.value)


def test_the_end_of_a_name_is_enough_if_one_table_has_it(filled):
    def answered(name):
        body = json.dumps({"sql": f"SELECT count(*) FROM {name}"}).encode()
        return filled.parts.actions["answer"].run(call(filled), body)

    assert answered("t") == answered("s.t") == answered('"t"') == answered("lake.s.t")
    for wrong in ("tt", "r.t"):
        with pytest.raises(NotFound, match=f'no table "{wrong}"'):
            answered(wrong)
    put(filled, [{"table_catalog": "other", "table_schema": "s", "table_name": "t", "snapshot_id": 1}], "stats.tables")
    with pytest.raises(InvalidArgument, match=r"lake\.s\.t or other\.s\.t"):
        answered("t")


def test_unknown_tables_and_snapshots_are_refused(app):
    put_files(app, *spans())
    for sql, snapshot in (("SELECT count(*) FROM lake.s.u", 1), ("SELECT count(*) FROM lake.s.t", 9)):
        with pytest.raises(NotFound):
            app.parts.actions["answer"].run(call(app), json.dumps({"sql": sql, "snapshot": snapshot}).encode())
