"""Foreign keys that key sketches tell, of TPC-H with renamed columns: nothing but the values can tell them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flight_server.planning.key_columns import put_columns
from tests.flight_server.serving import app_in, command, read

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
GROUPS = {"partsupp": ("ps_partkey", "ps_suppkey"), "lineitem": ("l_partkey", "l_suppkey")}
TRUTH = {
    ("lineitem", "l_orderkey"): ("orders", "o_orderkey"),
    ("lineitem", "l_partkey"): ("part", "p_partkey"),
    ("lineitem", "l_suppkey"): ("supplier", "s_suppkey"),
    ("partsupp", "ps_partkey"): ("part", "p_partkey"),
    ("partsupp", "ps_suppkey"): ("supplier", "s_suppkey"),
    ("orders", "o_custkey"): ("customer", "c_custkey"),
    ("customer", "c_nationkey"): ("nation", "n_nationkey"),
    ("supplier", "s_nationkey"): ("nation", "n_nationkey"),
    ("nation", "n_regionkey"): ("region", "r_regionkey"),
    ("lineitem", "l_partkey", "l_suppkey"): ("partsupp", "ps_partkey", "ps_suppkey"),
}


@pytest.mark.parametrize("scale", ["0.01", pytest.param("0.1", marks=pytest.mark.benchmark)])
def test_foreign_keys_of_tpch_are_found_by_their_values(tmp_path, scale):
    generator = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([generator, "parquet", "-s", scale, "--output-dir", tmp_path], check=True, capture_output=True)
    renamed = {}
    with app_in(tmp_path) as app:
        for number, table in enumerate(TABLES):
            rows = pq.read_table(tmp_path / f"{table}.parquet")
            groups = [[rows.column_names.index(name) + 1 for name in GROUPS.get(table, ())]]
            names = [f"c{place}" for place in range(rows.num_columns)]
            renamed |= {(f"t{number}", new): (table, old) for new, old in zip(names, rows.column_names, strict=True)}
            put_columns(app, f"t{number}", rows.rename_columns(names), [group for group in groups if group])
        rows = read(app, command(flight="sys.relationships")).to_pylist()
    ends = [tuple((row[f"{end}_table"], *row[f"{end}_columns"]) for end in ("from", "to")) for row in rows]
    found = {
        tuple((renamed[end[0], end[1]][0], *(renamed[end[0], column][1] for column in end[1:])) for end in pair)
        for pair in ends
    }
    right = found & set(TRUTH.items())
    print(
        f"\nscale {scale}: {len(right)} of {len(TRUTH)} found; wrong: {sorted(found - right)};"
        f" missed: {sorted(set(TRUTH.items()) - right)}"
    )
    assert len(right) >= 0.95 * len(TRUTH)
    assert len(right) >= 0.9 * len(found)
    for row in rows:
        assert row["kind"] == "INFERRED" and row["cardinality"] == "MANY_TO_ONE"
        assert 0.98 <= row["containment_low"] <= row["containment"] <= row["containment_high"] <= 1
