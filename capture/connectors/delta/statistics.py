"""Per-file column statistics of a Delta table, from the log, or from Parquet footers if the log has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

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
        """Rows from the log, except those of files in `lacking` that come from footers."""
        files = len(version)
        tight, step = version.has_tight_statistics, min(files, ROWS_PER_TABLE)
        whole: npt.NDArray[np.bool_] = np.ones(files, bool)
        whole[sorted(lacking)] = False
        for start in range(0, files, step):

            def cut(values: pa.Array | None, start: int = start) -> pa.Array | None:
                return None if values is None else values.slice(start, step)

            paths, rows, reliable, from_log = cut(version.paths), cut(version.rows), cut(tight), cut(pa.array(whole))
            # few columns of many files per table, because each call has a fixed cost
            for some in batched(leaves, max(1, ROWS_PER_TABLE // step)):
                tables = []
                for leaf in some:
                    if version.is_partition(leaf):
                        values = cut(version.partition(leaf))
                        columns = partition_facts(values, rows) if values is not None else {}
                        tables.append(column_rows(paths, leaf.column, self._ids, rows, **columns))
                        continue
                    nulls = cut(version.statistic("null_count", leaf.physical))
                    columns = log_facts(
                        parse(leaf.column.logical_type),
                        nulls,
                        cut(version.bound("min", leaf)),
                        cut(version.bound("max", leaf)),
                        rows,
                        cut(version.column("num_records")),
                        reliable,
                        was_float="float" in leaf.widened_from,
                    )
                    table = column_rows(paths, leaf.column, self._ids, rows, **columns)
                    if lacking:
                        table = table.filter(from_log if nulls is None else pc.or_(from_log, pc.is_valid(nulls)))
                    tables.append(table)
                yield pa.concat_tables(tables).combine_chunks()

    def _of_footers(
        self, version: TableVersion, leaves: Sequence[DeltaColumn], positions: Sequence[int]
    ) -> Iterator[pa.Table]:
        """Rows from the footers of some files, for the columns that are missing in the log."""
        at = pa.array(positions, pa.int64())
        with self._table.reading_files():
            footers = self._footers.readable_statistics(self._table.listed(version.actions, positions))
        paths, rows, tight = version.paths.take(at), version.rows.take(at), version.has_tight_statistics.take(at)
        records = pa.array([None if footer is None else footer[0].row_count for footer in footers], pa.int64())
        tables = []
        for leaf in leaves:
            if version.is_partition(leaf):
                continue
            nulls = version.statistic("null_count", leaf.physical)
            kind, known_here = parse(leaf.column.logical_type), nulls is not None and nulls.take(at)
            facts = footer_facts(footers, partial(position_in, leaf), kind)
            columns = of_live_rows(facts, rows, records, tight)
            table = column_rows(paths, leaf.column, self._ids, rows, **columns)
            tables.append(table if known_here is False else table.filter(pc.is_null(known_here)))
        if tables:
            yield pa.concat_tables(tables).combine_chunks()
