"""Paimon warehouses that the library writes, and what the connector reads of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from capture.compute.readers.tasks import read
from capture.connectors.spi import ConnectorConfig

if TYPE_CHECKING:
    from capture.connectors.paimon.connector import PaimonConnector

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("label", pa.string()), ("part", pa.string())])
IDS = {"id": 1, "label": 2, "part": 3}
FULL = {"metadata.stats-mode": "full"}


def rows(start: int, stop: int, mark: str = "v") -> pa.Table:
    ids = range(start, stop)
    labels = [None if i % 5 == 0 else f"{mark}{i:03}" for i in ids]
    return pa.table({"id": ids, "label": labels, "part": [f"p{i % 2}" for i in ids]}, SCHEMA)


class Warehouse:
    """A warehouse that the library writes."""

    def __init__(self, path, **options):
        from pypaimon import CatalogFactory

        self.path = path
        self.catalog = CatalogFactory.create({"warehouse": str(path), **options})
        self.catalog.create_database("sales", True)

    def create(self, name, schema=SCHEMA, options=None, **keys):
        from pypaimon import Schema

        created = Schema.from_pyarrow_schema(schema, options={**FULL, **(options or {})}, **keys)
        self.catalog.create_table(f"sales.{name}", created, False)
        return self.path / "sales.db" / name

    def write(self, name, *tables):
        for table in tables:
            builder = self.catalog.get_table(f"sales.{name}").new_batch_write_builder()
            writer = builder.new_write()
            writer.write_arrow(table)
            builder.new_commit().commit(writer.prepare_commit())
            writer.close()


def analyze(path, statistics, name="stat-87effd5d-0"):
    """Commits as ANALYZE does: a statistics file, and a snapshot with the rows of the one before."""
    (path / "statistics").mkdir(exist_ok=True)
    (path / "statistics" / name).write_text(json.dumps(statistics))
    commit_as(path, "ANALYZE", statistics=name)


def commit_as(path, kind, **changes):
    """Commits a snapshot that is like the latest one."""
    latest = max((path / "snapshot").glob("snapshot-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    snapshot = json.loads(latest.read_text())
    snapshot |= {"id": snapshot["id"] + 1, "commitKind": kind, **changes}
    (path / "snapshot" / f"snapshot-{snapshot['id']}").write_text(json.dumps(snapshot))
    (path / "snapshot" / "LATEST").write_text(str(snapshot["id"]))


def connect(uri, **options) -> PaimonConnector:
    from capture.connectors.paimon.connector import PaimonConnector

    return PaimonConnector(ConnectorConfig("c", "paimon", str(uri), options))


def stats(connector, table, snapshot_id, columns=None, ids=None):
    return connector.capture_snapshot_target_stats("sales", table, snapshot_id, ids or IDS, columns)


def file_rows(native) -> list[dict]:
    return [row for table in native.file_columns() for row in table.to_pylist()]


def contents(connector, table, snapshot_id, ids=None) -> dict[str, list]:
    found: dict[str, list] = {}
    for task in connector.plan_files("sales", table, snapshot_id, ids or IDS):
        for column, values in read(task, task.columns):
            found.setdefault(column.name, []).extend(values.to_pylist())
    return found


def atomic(name):
    from pypaimon.schema.data_types import AtomicType

    return AtomicType(name)
