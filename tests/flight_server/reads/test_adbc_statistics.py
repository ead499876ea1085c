"""`adbc.statistics`: keys, kinds of values, exactness, and what is not known."""

import json

import pyarrow as pa

from flight_server.reads.adbc_statistics import COLUMNS, FLIGHT, build
from tests.flight_server.serving import app_in, command, put, read, rows

NAME = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
SURE = {"freshness": "EXACT", "completeness": "COMPLETE"}


def column(**values):
    return dict.fromkeys(COLUMNS) | NAME | {"column_name": "c"} | values


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


def test_what_is_not_known_is_not_there():
    assert of_column() == {} and build([], []).num_rows == 0
    assert statistics(build([NAME | {"row_count": None} | SURE], [])) == {}


def test_kinds_and_exactness():
    assert of_column(null_count=3, avg_width_bytes=2, max_width_bytes=4, **SURE) == {
        0: (2.0, False),
        2: (4, False),
        5: (3, False),
    }
    assert of_column(null_count=3, freshness="INHERITED", completeness="COMPLETE") == {5: (3, True)}
    assert of_column(ndv=3.0, ndv_exact=True, **SURE) == {1: (3, False)} and of_column(ndv=3.0) == {1: (3.0, True)}
    bounds = {"min_is_exact": True, "max_is_exact": None} | SURE
    assert of_column(logical_type="INT64", min="-5", max=str(2**70), **bounds) == {
        4: (-5, False),
        3: (str(2**70).encode(), True),
    }
    assert of_column(logical_type="DOUBLE", min="0.5", max="x") == {4: (0.5, True), 3: (b"x", True)}
    assert of_column(logical_type="DATE", min="2026-01-01", max="é") == {
        4: (b"2026-01-01", True),
        3: ("é".encode(), True),
    }


def test_nothing_is_exact_of_an_earlier_snapshot_or_a_part():
    told = {"logical_type": "INT", "ndv": 3.0, "ndv_exact": True, "min": "1", "max": "5", "min_is_exact": True,
            "max_is_exact": True, "null_count": 1, "max_width_bytes": 4}  # fmt: skip
    for unsure in ({"freshness": "INHERITED"}, {"completeness": "PARTIAL"}):
        found = of_column(**(told | SURE | unsure))
        assert len(found) == 5 and all(rough for _, rough in found.values()), found
    assert not any(rough for _, rough in of_column(**told, **SURE).values())
    nan_unknown = of_column(**(told | SURE | {"logical_type": "DOUBLE"}))
    assert {key for key, (_, rough) in nan_unknown.items() if rough} == {3, 4}
    assert of_column(**(told | {"freshness": "EXACT"}))[1] == (3, False)  # what was put says no more than ndv_exact


def test_one_row_for_each_catalog():
    names = [("b", "x", "t"), ("a", "x", "t"), ("b", "x", "u"), ("b", "w", "t")]
    tables = [SURE | {"table_catalog": c, "table_schema": s, "table_name": t, "row_count": n}
              for n, (c, s, t) in enumerate(names)]  # fmt: skip
    table = build(tables, [])
    assert table.schema == FLIGHT.schema and table["catalog_name"].to_pylist() == ["a", "b"]
    assert {at[:3]: value for at, (value, _) in statistics(table).items()} == {name: n for n, name in enumerate(names)}
    assert build(tables, [], lambda name: name == "b")["catalog_name"].to_pylist() == ["b"]


def test_it_is_scanned_like_any_flight(tmp_path):
    with app_in(tmp_path) as app:
        put(app, rows("t", 1, [1, 2]))
        assert len(statistics(read(app, command(flight="adbc.statistics")))) == 4  # ndv of two, nulls of two
        assert read(app, command(flight="adbc.statistics", columns=["catalog_name"])).to_pylist() == [
            {"catalog_name": "lake"}
        ]
        other = {"column": "catalog_name", "op": "EQ", "values": ["other"]}
        assert read(app, command(flight="adbc.statistics", filter=other)).num_rows == 0
        assert read(app, command(flight="adbc.statistics", limit=0)).num_rows == 0
        (text,) = read(app, command(flight="adbc.statistics", output_format="ROWS"))["row"].to_pylist()
        assert json.loads(text)[0] == "lake"
