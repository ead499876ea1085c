"""Plain Parquet tables for homes that are catalogs: they hold statistics of any format."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors.spi import ConnectorConfig
from tests.capture.publishers.contract import Table

_NUMBERS = itertools.count()


def built(home: str, root: Path, content: pa.Table, **options: str) -> Table:
    path = root / "t"
    path.mkdir()
    pq.write_table(content, path / "part-0.parquet")
    return Table(home, ConnectorConfig("c", "parquet", str(root)), "default", "t", path, content, options)


def append(table: Table, more: pa.Table) -> None:
    """Adds a file that becomes visible once it is complete."""
    file = table.path / f".more-{next(_NUMBERS)}.parquet"
    pq.write_table(more, file)
    file.rename(file.with_name(file.name[1:]))


def count(table: Table) -> int:
    return sum(pq.read_metadata(file).num_rows for file in table.path.glob("*.parquet"))
