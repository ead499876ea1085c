"""A lake of Parquet files and a sink in memory, for the tests of the computing engine."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.connectors.spi import Column, ScanColumn, ScanTask, container
from capture.spi import CaptureRequest, Sink
from store.model import schemas
from store.model.errors import Cancelled, UpstreamError
from store.model.targets import Target
from tests.capture.engine_contract import check_rows


class MemorySink(Sink):
    """A sink in memory; the newest row of a target is the stored one."""

    def __init__(self, cancel_after=None):
        self.rows = {}
        self.shares, self.messages = [], []
        self.cancel_after = cancel_after

    def put(self, flight, rows, *, extra=False, checked=False):
        check_rows(flight, rows, checked)
        self.rows.setdefault(flight, []).append(rows)

    def stored(self, flight, table, columns=None, column_ids=None):
        empty = schemas.FLIGHTS[flight].schema.empty_table()
        found = pa.concat_tables(self.rows[flight]) if flight in self.rows else empty
        if column_ids is not None:
            found = found.filter(pc.is_in(found["column_id"], pa.array(column_ids, pa.int64())))
        return found.select(columns) if columns else found

    def list_files(self, table, listing):
        return False

    def progress(self, share, message=""):
        self.shares.append(share)
        self.messages.append(message)
        if self.cancel_after is not None and len(self.shares) > self.cancel_after:
            raise Cancelled("cancelled")

    def get(self, flight):
        return pa.concat_tables(self.rows[flight]).to_pylist() if flight in self.rows else []

    def columns(self):
        return {row["column_name"]: row for row in self.get("stats.columns")}

    def content(self):
        """All rows without their times, sorted."""
        times = ("captured_at", "refreshed_at")
        rows = [
            (flight, {k: v for k, v in row.items() if k not in times})
            for flight in self.rows
            for row in self.get(flight)
        ]
        return sorted(map(repr, rows))


COLUMNS = (
    Column("id", "INT"),
    Column("word", "STRING"),
    Column("ratio", "DOUBLE"),
    Column("part", "STRING"),
    Column("tags", "ARRAY"),
    Column("pause", "INTERVAL"),
    Column("shape", "VARIANT"),
)
IDS = {column.name: number for number, column in enumerate(COLUMNS, 1)}


@dataclass
class Lake:
    """A connector of one table whose files lie in a directory."""

    path: object
    format: str = "parquet"
    states_files: bool = False
    error: Exception | None = None

    def add(self, name, ids, **options):
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": [None if i % 10 == 0 else f"w{i % 100}" for i in ids],
                "ratio": pa.array([i / 8 for i in ids], pa.float64()),
            }
        )
        pq.write_table(rows, self.path / name, **options)

    def plan_files(self, namespace, name, snapshot_id, ids, column_names=None):
        if self.error:
            raise self.error
        for file in sorted(self.path.glob("*.parquet"), reverse=True):
            columns = [ScanColumn(ids[c.name], c.name, c.logical_type, c.name) for c in COLUMNS[:3]]
            columns.append(ScanColumn(ids["part"], "part", "STRING", constant=pa.array([file.stem])))
            columns.append(ScanColumn(ids["pause"], "pause", "INTERVAL", constant=pa.nulls(1)))
            columns.append(container(ids["tags"], COLUMNS[4], "tags"))
            try:
                rows = pq.read_metadata(file).num_rows
            except pa.ArrowInvalid:
                rows = 1
            chosen = tuple(c for c in columns if column_names is None or c.name in column_names)
            fingerprint = f"{file.name}:{file.stat().st_size}:{file.stat().st_mtime_ns}"
            yield ScanTask("parquet", f"t/{file.name}", str(file), rows, file.stat().st_size, chosen, fingerprint)

    def capture_snapshot_target_stats(self, namespace, name, snapshot_id, ids, column_names=None):
        raise UpstreamError("no metadata")


def column(table, name, **options):
    return CaptureRequest.of(table, Target.column(IDS[name]), **options)


def all_columns(table, **options):
    return [column(table, name, **options) for name in ("id", "word", "ratio", "part")]
