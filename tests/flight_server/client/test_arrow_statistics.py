"""The Arrow statistics schema: keys, value types and column positions."""

from flight_server.client.arrow_statistics import COLUMNS, TYPE, build

EXACT_COMPLETE = {"freshness": "EXACT", "completeness": "COMPLETE"}


def column(number, **values):
    return dict.fromkeys(COLUMNS) | {"column_id": number, "column_name": f"c{number}"} | values


def test_statistic_keys_state_their_exactness():
    found = build(
        {"row_count": 7} | EXACT_COMPLETE,
        [
            column(
                3,
                null_count=1,
                ndv=2.0,
                ndv_exact=True,
                min="1",
                max="9",
                min_is_exact=True,
                logical_type="INT",
                **EXACT_COMPLETE,
            ),
            column(1, ndv=2.5, min="a", logical_type="STRING", avg_width_bytes=2, max_width_bytes=3),
            column(2),
            column(9, ndv=1.0),
        ],
        {1: 0, 2: 1, 3: 2},
    )
    assert found.type == TYPE
    assert [(row["column"], dict(row["statistics"])) for row in found.to_pylist()] == [
        (None, {"ARROW:row_count:exact": 7}),
        (
            0,
            {
                "ARROW:distinct_count:approximate": 2.5,
                "ARROW:min_value:approximate": "a",
                "ARROW:average_byte_width:approximate": 2.0,
                "ARROW:max_byte_width:approximate": 3,
            },
        ),
        (
            2,
            {
                "ARROW:null_count:exact": 1,
                "ARROW:distinct_count:exact": 2,
                "ARROW:max_value:approximate": 9,
                "ARROW:min_value:exact": 1,
            },
        ),
    ]
    found.validate(full=True)
    assert len(build(None, [], {})) == 0


def test_inherited_statistics_are_approximate():
    values = {"ndv": 2.0, "ndv_exact": True, "min": "1", "min_is_exact": True, "logical_type": "INT"}
    (row,) = build(None, [column(1, **values, **EXACT_COMPLETE | {"freshness": "INHERITED"})], {1: 0})
    assert [key for key, _ in row["statistics"].as_py()] == [
        "ARROW:distinct_count:approximate",
        "ARROW:min_value:approximate",
    ]
