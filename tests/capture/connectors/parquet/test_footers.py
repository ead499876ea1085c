"""Footers of Parquet files: writers that truncate bounds, damaged footers, and DuckDB's reading of the same."""

import pyarrow.parquet as pq
import pytest

from capture.connectors.footers.reader import read_footer
from capture.connectors.footers.thrift import read_chunks
from capture.connectors.footers.writers import Writer
from capture.connectors.storage.places import open_place

WRITERS = {
    None: None,
    "": None,
    "parquet-cpp-arrow version 14.0.2": True,
    "parquet-cpp version 1.5.1-SNAPSHOT": True,
    "parquet-mr version 1.8.2 (build c6522788629e590a53eb79874b95f6c3ff11f16c)": None,
    "parquet-mr version 1.10.0 (build 031a)": True,
    "parquet-mr version 1.12.0-SNAPSHOT (build 69)": None,
    "parquet-mr": None,
    "parquet-rs version 55.1.0": None,
    "impala version 1.3.0-INTERNAL (build 8a48)": None,
}


@pytest.mark.parametrize("text", WRITERS)
def test_writer_versions_that_never_truncate_bounds(text):
    assert Writer.of(text, {}).keeps_bytes_whole is WRITERS[text]


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_damaged_thrift_footer_raises_only_value_errors(cut):
    data = bytes((i * 37 + cut) % 256 for i in range(cut))
    with pytest.raises(ValueError, match="damaged"):
        read_chunks(data + b"\x1f")


def test_thrift_footer_agrees_with_that_of_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "t").mkdir()
    sql = "SELECT repeat('x', 250 + (i % 20)::INT) AS s, i AS n, 'k' AS k FROM range(5000) r(i)"
    duckdb.connect().execute(f"COPY ({sql}) TO '{tmp_path}/t/a.parquet' (ROW_GROUP_SIZE 2048)")
    footer = read_footer(open_place(f"{tmp_path}/t/a.parquet", {}))
    query = "SELECT row_group_id, column_id, min_is_exact, max_is_exact FROM parquet_metadata(?) ORDER BY 1, 2"
    expected = duckdb.connect().execute(query, [f"{tmp_path}/t/a.parquet"]).fetchall()
    assert [(g, c, footer.groups[g][c].min_exact, footer.groups[g][c].max_exact) for g, c, *_ in expected] == expected
    assert (expected[0][2:], footer.groups[0][0].ordered) == ((True, False), True)
    metadata = pq.read_metadata(f"{tmp_path}/t/a.parquet")
    for g, c, *_ in expected:
        chunk, column = footer.groups[g][c], metadata.row_group(g).column(c)
        assert (chunk.physical, chunk.num_values) == (column.physical_type, column.num_values)
        assert chunk.null_count == column.statistics.null_count
