"""Staged rows: pieces are cut by the size of the rows, not by that of the buffers behind them."""

from __future__ import annotations

import pyarrow as pa

from store.history import staged


def sizes(rows: pa.Table) -> list[int]:
    pieces = list(staged._pieces(rows))
    assert pa.concat_tables(pieces).equals(rows) and all(piece.column(0).num_chunks == 1 for piece in pieces)
    return [piece.num_rows for piece in pieces]


def test_slice_of_a_large_table_is_cut_by_its_own_size(monkeypatch):
    monkeypatch.setattr(staged, "_PIECE_BYTES", 8_000)
    rows = pa.table({"a": pa.array(range(100_000), pa.int64())})
    assert sizes(rows.slice(70, 500)) == [500]
    assert sizes(rows.slice(70, 2_500)) == [1_000, 1_000, 500]


def test_small_chunks_make_one_piece():
    assert sizes(pa.table({"a": pa.chunked_array([[i] for i in range(300)])})) == [300]
