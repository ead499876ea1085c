"""Per-file column statistics of a Delta table, from the log, or from Parquet footers if the log has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.bounds import log_facts
from capture.connectors.delta.lake_table import LakeTable
from capture.connectors.delta.log import DeltaColumn
from capture.connectors.delta.table_version import TableVersion, has_statistics, position_in, wanted_columns
from capture.connectors.file_columns import ROWS_PER_TABLE, column_rows, partition_facts
from capture.connectors.footers.reader import batched
from capture.connectors.footers.statistics import FooterCache, footer_facts, of_live_rows
from capture.connectors.spi import FILE_COLUMN_SCHEMA, ColumnIds
from store.model.logical_types import parse

MAX_FOOTERS: Final = 10_000  # files without statistics up to which footers are read; beyond, they stay unknown
_FOOTERS: Final = 256  # footers read at once


class ColumnStatistics:
    """Per-file statistics of some columns.

    Args:
        ids: Column key → id.
        names: Names or keys of the columns; None for all.
    """

    def __init__(self, table: LakeTable, footers: FooterCache, ids: ColumnIds, names: frozenset[str] | None):
        self._table, self._footers, self._ids, self._names = table, footers, ids, names

    def rows(self, load: Callable[[], TableVersion]) -> Iterator[pa.Table]:
        """Yields tables of FILE_COLUMN_SCHEMA for the files that `load` returns."""
        version = load()
        leaves = wanted_columns(version.schema, self._names)
        if not len(version) or not leaves:
            yield FILE_COLUMN_SCHEMA.empty_table()
            return
        lacking = self._lacking(version, leaves)
        yield from self._logged(version, leaves, frozenset(lacking))
        for positions in batched(lacking, _FOOTERS):
            yield from self._of_footers(version, leaves, positions)

    def _lacking(self, version: TableVersion, leaves: Sequence[DeltaColumn]) -> list[int]:
        """Indexes of files without complete statistics in the log; empty if there are too many to read footers."""
        logged = [leaf for leaf in leaves if not version.is_partition(leaf)]
        lacking = [i for i, is_complete in enumerate(has_statistics(version, logged)) if not is_complete]
        return lacking if len(lacking) <= MAX_FOOTERS else []

    def _logged(
        self, version: TableVersion, leaves: Sequence[DeltaColumn], lacking: frozenset[int]
    ) -> Iterator[pa.Table]:
        """Rows from the log: all of partition columns, of other columns those of files that are not in `lacking`."""
        files = len(version)
        step = min(files, ROWS_PER_TABLE)
        whole: npt.NDArray[np.bool_] = np.ones(files, bool)
        whole[sorted(lacking)] = False
        for start in range(0, files, step):
            part = version.part(slice(start, start + step))
            from_log = pa.array(whole[start : start + step])
            # few columns of many files per table, because each call has a fixed cost
            for some in batched(leaves, max(1, ROWS_PER_TABLE // step)):
                tables = []
                for leaf in some:
                    if part.is_partition(leaf):
                        values = part.partition(leaf)
                        columns = partition_facts(values, part.rows) if values is not None else {}
                        tables.append(column_rows(part.paths, leaf.column, self._ids, part.rows, **columns))
                        continue
                    table = column_rows(part.paths, leaf.column, self._ids, part.rows, **_logged_facts(part, leaf))
                    tables.append(table.filter(from_log) if lacking else table)
                yield pa.concat_tables(tables).combine_chunks()

    def _of_footers(
        self, version: TableVersion, leaves: Sequence[DeltaColumn], positions: Sequence[int]
    ) -> Iterator[pa.Table]:
        """Rows of some files, from the log, and from their footers what the log does not have."""
        with self._table.reading_files():
            footers = self._footers.readable_statistics(self._table.listed(version.actions, positions))
        records = pa.array([None if footer is None else footer[0].row_count for footer in footers], pa.int64())
        part = version.part(pa.array(positions, pa.int64()))
        tables = []
        for leaf in leaves:
            if part.is_partition(leaf):
                continue
            facts = footer_facts(footers, partial(position_in, leaf), parse(leaf.column.logical_type))
            columns = of_live_rows(facts, part.rows, records, part.has_tight_statistics)
            table = column_rows(part.paths, leaf.column, self._ids, part.rows, **columns)
            if (nulls := part.statistic("null_count", leaf.physical)) is not None:
                columns = _logged_facts(part, leaf) | {"size_bytes": facts["size_bytes"]}
                logged = column_rows(part.paths, leaf.column, self._ids, part.rows, **columns)
                tables.append(logged.filter(pc.is_valid(nulls)))
                table = table.filter(pc.is_null(nulls))
            tables.append(table)
        if tables:
            yield pa.concat_tables(tables).combine_chunks()


def _logged_facts(version: TableVersion, leaf: DeltaColumn) -> dict[str, Any]:
    """Arguments of `column_rows` for a column, from the log."""
    return log_facts(
        parse(leaf.column.logical_type),
        version.statistic("null_count", leaf.physical),
        version.bound("min", leaf),
        version.bound("max", leaf),
        version.rows,
        version.column("num_records"),
        version.has_tight_statistics,
        was_float="float" in leaf.widened_from,
    )
