"""`adbc.statistics`: keys, value types, exactness, and unknown statistics."""

import json

import pyarrow as pa

from flight_server.core.reads.adbc_statistics import COLUMNS, FLIGHT, build
from tests.flight_server.serving import app_in, command, put, read, rows

NAME = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
EXACT_COMPLETE = {"freshness": "EXACT", "completeness": "COMPLETE"}


def column(**values):
    label = {"distribution_freshness": values.get("freshness")}
    return dict.fromkeys(COLUMNS) | NAME | {"column_name": "c"} | label | values


def statistics(table: pa.Table) -> dict:
    found = {}
    for catalog in table.to_pylist():
        for schema in catalog["catalog_db_schemas"]:
            for row in schema["db_schema_statistics"]:
                at = catalog["catalog_name"], schema["db_schema_name"], row["table_name"], row["column_name"]
                found[*at, row["statistic_key"]] = row["statistic_value"], row["statistic_is_approximate"]
    return found


def of_column(**values) -> dict:
    found = statistics(build([], [column(**values)]))
    return {key: value for (*_, key), value in found.items()}


def test_unknown_statistics_are_absent():
    assert of_column() == {} and build([], []).num_rows == 0
    assert statistics(build([NAME | {"row_count": None} | EXACT_COMPLETE], [])) == {}


def test_value_types_and_exactness():
    assert of_column(null_count=3, avg_width_bytes=2, max_width_bytes=4, **EXACT_COMPLETE) == {
        0: (2.0, False),
        2: (4, False),
        5: (3, False),
    }
    assert of_column(null_count=3, freshness="INHERITED", completeness="COMPLETE") == {5: (3, True)}
    assert of_column(ndv=3.0, ndv_exact=True, **EXACT_COMPLETE) == {1: (3, False)} and of_column(ndv=3.0) == {
        1: (3.0, True)
    }
    bounds = {"min_is_exact": True, "max_is_exact": None} | EXACT_COMPLETE
    assert of_column(logical_type="INT64", min="-5", max=str(2**70), **bounds) == {
        4: (-5, False),
        3: (str(2**70).encode(), True),
    }
    assert of_column(logical_type="DOUBLE", min="0.5", max="x") == {4: (0.5, True), 3: (b"x", True)}
    assert of_column(logical_type="DATE", min="2026-01-01", max="é") == {
        4: (b"2026-01-01", True),
        3: ("é".encode(), True),
    }


def test_inherited_or_partial_statistics_are_approximate():
    values = {
        "logical_type": "INT",
        "ndv": 3.0,
        "ndv_exact": True,
        "min": "1",
        "max": "5",
        "min_is_exact": True,
        "max_is_exact": True,
        "null_count": 1,
        "max_width_bytes": 4,
    }
    for label in ({"freshness": "INHERITED"}, {"completeness": "PARTIAL"}):
        found = of_column(**(values | EXACT_COMPLETE | label))
        assert len(found) == 5 and all(approximate for _, approximate in found.values()), found
    assert not any(approximate for _, approximate in of_column(**values, **EXACT_COMPLETE).values())
    nan_unknown = of_column(**(values | EXACT_COMPLETE | {"logical_type": "DOUBLE"}))
    assert {key for key, (_, approximate) in nan_unknown.items() if approximate} == {3, 4}
    assert of_column(**(values | {"freshness": "EXACT"}))[1] == (
        3,
        False,
    )  # exact by ndv_exact alone, without a completeness


def test_widths_of_an_inherited_distribution_are_approximate():
    values = {"null_count": 1, "avg_width_bytes": 2.0, "max_width_bytes": 4, "distribution_freshness": "INHERITED"}
    assert of_column(**values, **EXACT_COMPLETE) == {0: (2.0, True), 2: (4, True), 5: (1, False)}


def test_one_row_per_catalog():
    names = [("b", "x", "t"), ("a", "x", "t"), ("b", "x", "u"), ("b", "w", "t")]
    tables = [
        EXACT_COMPLETE | {"table_catalog": c, "table_schema": s, "table_name": t, "row_count": n}
        for n, (c, s, t) in enumerate(names)
    ]
    table = build(tables, [])
    assert table.schema == FLIGHT.schema and table["catalog_name"].to_pylist() == ["a", "b"]
    assert {at[:3]: value for at, (value, _) in statistics(table).items()} == {name: n for n, name in enumerate(names)}
    assert build(tables, [], lambda name: name == "b")["catalog_name"].to_pylist() == ["b"]


def test_scan_applies_columns_filter_limit_and_output_format():
    with app_in() as app:
        put(app, rows("t", 1, [1, 2]))
        assert len(statistics(read(app, command(flight="adbc.statistics")))) == 4  # ndv of two, nulls of two
        assert read(app, command(flight="adbc.statistics", columns=["catalog_name"])).to_pylist() == [
            {"catalog_name": "lake"}
        ]
        other = {"column": "catalog_name", "op": "EQ", "values": ["other"]}
        assert read(app, command(flight="adbc.statistics", filter=other)).num_rows == 0
        for op, count in {"IS_NOT_NULL": 1, "IS_NULL": 0}.items():
            condition = {"column": "catalog_db_schemas", "op": op}
            assert read(app, command(flight="adbc.statistics", filter=condition)).num_rows == count
        assert read(app, command(flight="adbc.statistics", limit=0)).num_rows == 0
        (text,) = read(app, command(flight="adbc.statistics", output_format="ROWS"))["row"].to_pylist()
        assert json.loads(text)[0] == "lake"


def test_count_beyond_64_bits_is_an_estimate():
    assert of_column(ndv=1e19, ndv_exact=True, **EXACT_COMPLETE) == {1: (1e19, True)}
    assert of_column(ndv=2.0**62, ndv_exact=True, **EXACT_COMPLETE) == {1: (2**62, False)}
    assert of_column(max_width_bytes=2**64, **EXACT_COMPLETE) == {2: (float(2**64), True)}
