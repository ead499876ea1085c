"""Every flight is read after rows with odd values, each of which a put accepts: none stops a flight for all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.history import validation
from store.model import sketches
from store.model.columns import KLL
from store.model.errors import StatflightError
from store.model.schemas import FLIGHTS
from store.stats_store import Put, PutMode
from tests.flight_server.serving import app_in, command, read

BOUNDS = {
    "INT": [str(-(2**63)), "-1", "0", str(2**63 - 1)],
    "DOUBLE": ["-Infinity", "4.9E-324", "1.7976931348623157E308", "Infinity"],
    "FLOAT": ["-3.4028235E38", "0", "1.4E-45"],
    "DECIMAL(76,38)": ["-" + "9" * 38, "0", "0." + "0" * 37 + "1"],
    "STRING": ["", "\x00", "é", "😀" * 500],
    "BINARY": ["", "AA==", "/////w=="],
    "UUID": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "DATE": ["0001-01-01", "1970-01-01", "9999-12-31"],
    "TIME": ["00:00:00", "23:59:59.999999"],
    "TIMESTAMP": ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"],
    "TIMESTAMPTZ": ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"],
    "BOOLEAN": ["false", "true"],
    "INTERVAL": ["P1D"],
    "JSON": [],
    "MAP": [],
}
COUNTS = st.sampled_from([0, 1, 2**53 + 1, 2**63 - 1])
NUMBERS = st.sampled_from([0.0, -0.0, 5e-324, 0.5, 1.0, 2.0**63, 1e19, 1e300, -1e300])
SNAPSHOTS = st.sampled_from([0, 1, 2**62 + 1, 2**63 - 1])
KEY = {"table_catalog": st.just("lake"), "table_schema": st.just("s"), "table_name": st.sampled_from(["t", 'a"b'])}


@st.composite
def column_rows(draw):
    type = draw(st.sampled_from(list(BOUNDS)))
    low, high = sorted(
        draw(st.tuples(*[st.sampled_from([None, *range(len(BOUNDS[type]))])] * 2)), key=lambda at: at or 0
    )
    odd = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "row_count": COUNTS,
                "null_count": COUNTS,
                "ndv": NUMBERS,
                "ndv_exact": st.booleans(),
                "mean": NUMBERS,
                "stddev": NUMBERS,
                "avg_width_bytes": NUMBERS,
                "max_width_bytes": COUNTS,
                "rows_scanned": COUNTS,
                "confidence_level": st.sampled_from([0.0, 0.5, 1.0]),
                "min_is_exact": st.booleans(),
                "max_is_exact": st.booleans(),
            },
        )
    )
    key = draw(st.fixed_dictionaries(KEY | {"snapshot_id": SNAPSHOTS}))
    ends = {name: None if at is None else BOUNDS[type][at] for name, at in (("min", low), ("max", high))}
    column = {
        "column_id": draw(st.sampled_from([1, 2**63 - 1])),
        "column_name": draw(st.sampled_from(["a", "a.b", ""])),
    }
    return key | column | {"logical_type": type, "completeness": "COMPLETE"} | ends | odd


OF_TABLES = st.fixed_dictionaries(
    KEY | {"snapshot_id": SNAPSHOTS},
    optional=dict.fromkeys(("row_count", "data_file_count", "total_size_bytes", "merged_size_bytes"), COUNTS),
)
OF_FILES = st.fixed_dictionaries(
    KEY | {"snapshot_id": SNAPSHOTS, "file_path": st.sampled_from(["f", "a'b", "é"])},
    optional={
        "file_content": st.sampled_from(["DATA", "POSITION_DELETES"]),
        "row_count": COUNTS,
        "size_bytes": COUNTS,
        "sequence_number": COUNTS,
        "partition_data_json": st.sampled_from(["{}", '{"p": null}', '{"p": 1e400}', '{"p": "\\u0000"}']),
    },
)
VALUES = st.lists(st.sampled_from([-math.inf, -1e300, -1.0, 0.0, 5e-324, 1.0, 2.0**63, 1e300, math.inf]), max_size=6)


def put(app: Any, flight: str, row: dict[str, Any]) -> bool:
    """Puts a row as a client does; False if it is refused."""
    schema = pa.schema([FLIGHTS[flight].schema.field(name) for name in row])
    try:
        rows = validation.prepare(FLIGHTS[flight], pa.Table.from_pylist([row], schema))
        app.store.put([Put(flight, rows, PutMode.UPSERT)])
    except StatflightError:
        return False
    return True


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        yield app


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6, deadline=None)
@given(
    columns=st.lists(column_rows(), max_size=6),
    tables=st.lists(OF_TABLES, max_size=3),
    files=st.lists(OF_FILES, max_size=3),
    values=VALUES,
)
def test_no_value_that_a_put_accepts_stops_a_flight(app, columns, tables, files, values):
    for row in columns:
        if put(app, "stats.columns", row):
            key = {name: row[name] for name in (*KEY, "snapshot_id", "column_id")}
            sketch = {"target_kind": "COLUMN", "storage_id": f"column-{row['column_id']:019}", "role": "QUANTILES"}
            data = sketches.kll(np.sort(np.array(values, np.float64)))
            put(app, "stats.sketches", key | sketch | {"sketch_type": KLL, "data": data})
    for row in tables:
        put(app, "stats.tables", row)
    for row in files:
        put(app, "stats.files", row)
    for flight in FLIGHTS:
        read(app, command(None, flight))
        if FLIGHTS[flight].family == "stats":
            read(app, command(None, flight, snapshot="current", allow_stale=True))


def test_record_of_the_greatest_snapshot_id_stops_no_other_put(app):
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "greatest", "snapshot_id": 2**63 - 1}
    assert put(app, "stats.columns", key | {"column_id": 1, "logical_type": "INT", "avg_width_bytes": 1.0})
    assert put(app, "stats.columns", key | {"column_id": 2, "logical_type": "INT", "row_count": 5})
    found = read(app, command("greatest", "stats.columns", snapshot="current")).to_pylist()
    assert 2 in [row["column_id"] for row in found]
