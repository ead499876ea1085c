"""What the page of a table shows to paste into engines."""

from __future__ import annotations

import ast

import pytest

from flight_server.faces.web.engines import recipes

CATALOG = "http://127.0.0.1:8816/iceberg"


def about(format: str, name: str = "t", schema: str = "a.b") -> dict[str, str]:
    return {"table_catalog": "lake", "table_schema": schema, "table_name": name, "format": format}


def test_engines_that_read_manifests_are_named_for_iceberg_tables_alone():
    assert [engine.split()[0] for engine, _ in recipes(CATALOG, about("delta"))] == ["pyiceberg", "Polars", "Spark"]
    found = {engine.split()[0].rstrip(","): text for engine, text in recipes(CATALOG, about("iceberg"))}
    assert list(found) == ["pyiceberg", "Polars", "Spark", "Trino", "DuckDB"]
    assert found["Trino"].endswith('SELECT * FROM statflight."lake.a.b"."t"')
    assert found["Spark"].endswith("SELECT * FROM `statflight`.`lake`.`a`.`b`.`t`")
    assert all(CATALOG in text for text in found.values())


def test_names_are_quoted_as_each_language_has_it():
    found = dict(recipes(CATALOG, about("iceberg", "a\"b`c'd")))
    assert "`a\"b``c'd`" in found["Spark with Iceberg 1.11 or later"] and '"a""b`c\'d"' in found["DuckDB"]
    call = ast.parse(found["pyiceberg"].partition(".scan")[0], mode="eval").body
    assert isinstance(call, ast.Call) and ast.literal_eval(call.args[0]) == ("lake", "a", "b", "a\"b`c'd")


@pytest.mark.parametrize("catalog, format", [("", "iceberg"), (CATALOG, "lance"), (CATALOG, None)])
def test_nothing_is_shown_where_the_catalog_has_no_such_table(catalog, format):
    assert recipes(catalog, about(format)) == []
