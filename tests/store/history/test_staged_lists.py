"""Lists without any member, as they are handed to DuckDB."""

from __future__ import annotations

import pyarrow as pa

from store.history.staged import Staged, _with_own_children
from store.model.columns import DELETE_FILE


def test_empty_children_are_made_anew_and_values_stay():
    whole = pa.table(
        {
            "id": [1, 2, 3],
            "nulls": pa.nulls(3, pa.list_(pa.int64())),
            "empty": pa.array([[], None, []], pa.list_(DELETE_FILE)),
            "full": [[1], None, []],
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    message = sink.getvalue()
    rows = pa.ipc.open_stream(message).read_all()

    def in_message(table: pa.Table, name: str) -> bool:
        """Whether a child of a list has buffers of the message."""
        buffers = table[name].chunk(0).values.buffers()
        return any(b and message.address <= b.address <= message.address + message.size for b in buffers)

    found = _with_own_children(rows)
    assert found.equals(whole) and found.schema.equals(whole.schema)
    assert in_message(rows, "empty") and not in_message(found, "empty")
    assert in_message(rows, "full") and in_message(found, "full")


def test_staged_rows_have_their_own_children():
    """Comparisons read them as inserts do."""
    files = pa.table(
        {
            "table_key": pa.array([1, 1], pa.int64()),
            "snapshot_id": pa.array([1, 1], pa.int64()),
            "file_path": ["a", "b"],
            "delete_files": pa.array([[], []], pa.list_(DELETE_FILE)),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as writer:
        writer.write_table(files)
    message = sink.getvalue()
    staged = Staged("stats.files", pa.ipc.open_stream(message).read_all(), str)
    buffers = staged.rows["delete_files"].chunk(0).values.buffers()
    assert not any(b and message.address <= b.address <= message.address + message.size for b in buffers)
