"""Reads statistics that other engines stored in a catalog, so that captures of the registered tables include them.

A catalog does not record the analysed snapshot. Its statistics are attributed to the current snapshot if `doubts` finds
no objection; otherwise they are ignored and the capture's detail has the reason. Only ndv is taken over: file metadata
provides null counts and bounds, and engines define widths differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa

from capture.connectors.options import takes_source_statistics
from capture.connectors.spi import COLUMN_SCHEMA, Column, ColumnIds, Connector, ConnectorConfig, NativeStats, Snapshot
from capture.homes import HOMES, OPTION, READ_OPTION, catalogs_of, options_of
from capture.publishers.spi import ColumnStatistics, Destination, HomeStatistics, TableStatistics
from store.model.errors import StatflightError

_SECOND: Final = timedelta(seconds=1)  # resolution of times in catalogs
_LISTED: Final = "parquet"  # its snapshots are directory listings, which have no trace of deleted files


class WithCatalogs:
    """A connector that also reads statistics from the catalogs in its option `statistics_from`; with
    `source_statistics=false` it leaves out what the source itself says of the distribution.

    Args:
        config: Configuration with resolved secrets. Options of a catalog are `statistics_from.HOME.OPTION`, else
            `publish.HOME.OPTION`.
        spark: Returns a Spark session, for its session catalog.

    Raises:
        InvalidArgument: The option names something that is not a catalog.
    """

    def __init__(self, connector: Connector, config: ConnectorConfig, spark: Callable[[], Any] | None = None):
        self._connector, self._config, self._spark = connector, config, spark
        self._homes = catalogs_of(config.options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        """The statistics of the connector, with those of the catalogs; see `Connector`."""
        native = self._connector.capture_snapshot_target_stats(namespace, name, snapshot_id, ids, column_names)
        if not takes_source_statistics(self._config.options):
            native = replace(native, columns=None, sketches=(), earlier=(), remarks=(), sources=())
        if not self._homes:
            return native
        listing = self._connector.enumerate_snapshots(namespace, name, target_snapshot_ids=frozenset({snapshot_id}))
        snapshot = next((listed for listed in listing.snapshots if listed.snapshot_id == snapshot_id), None)
        if snapshot is None or listing.current_snapshot_id != snapshot_id:
            return native  # catalog statistics can only be attributed to the current snapshot
        rows = [] if native.columns is None else native.columns.to_pylist()
        with_ndv = {row["column_id"] or ids.get(row["column_name"]) for row in rows if row["ndv"] is not None}
        wanted = {
            column_id: column
            for column in snapshot.schema.leaves(column_names)
            if len(column.path) < 2 and (column_id := column.id_in(ids)) is not None and column_id not in with_ndv
        }
        records: dict[int, dict[str, Any]] = {}
        remarks, sources = list(native.remarks), list(native.sources)
        for home in self._homes:
            read = partial(self._from, home, namespace, name, snapshot, native, wanted)
            taken, doubt = _read_or_reason(home, read)
            records = taken | records
            sources += [f"the catalog {home}"] if taken else []
            remarks += [f"no statistics of {home}: {doubt}"] if doubt else []
        merged = _with_distinct(rows, records)
        columns = pa.Table.from_pylist(merged, COLUMN_SCHEMA) if merged else native.columns
        return replace(native, columns=columns, remarks=tuple(remarks), sources=tuple(sources))

    def _from(
        self,
        home: str,
        namespace: str,
        name: str,
        snapshot: Snapshot,
        native: NativeStats,
        wanted: Mapping[int, Column],
    ) -> tuple[dict[int, dict[str, Any]], str]:
        """Column id → row of COLUMN_SCHEMA from one catalog, and the reason if there are none."""
        requested = tuple(ColumnStatistics(i, column.name, column.logical_type) for i, column in wanted.items())
        about = TableStatistics(namespace, name, snapshot.snapshot_id, requested)
        options = options_of(self._config.options, home, OPTION, READ_OPTION)
        publisher = HOMES.load(home)(Destination(self._connector, self._config, options, self._spark), about)
        ids = {column.name: column_id for column_id, column in wanted.items()}
        records: dict[int, dict[str, Any]] = {}
        why = "it has none" if wanted else ""
        for found in publisher.read_all():
            for column, distinct in found.distinct.items():
                column_id = ids.get(column)
                if column_id is None or distinct is None:
                    continue
                if doubt := doubts(found, column, snapshot, native, self._connector.format == _LISTED):
                    why = f"{found.location} {doubt}"
                    continue
                records.setdefault(
                    column_id,
                    {
                        "column_id": column_id,
                        "column_name": column,
                        "logical_type": wanted[column_id].logical_type,
                        "ndv": float(distinct),
                        "ndv_exact": False,
                    },
                )
        return records, "" if records else why


_Records = dict[int, dict[str, Any]]  # by column id


def _read_or_reason(home: str, read: Callable[[], tuple[_Records, str]]) -> tuple[_Records, str]:
    """The result of `read`; no records and the reason if the catalog cannot be read."""
    try:
        return read()
    except PermissionError:
        return {}, "permission denied"
    except StatflightError as error:
        return {}, error.message.removeprefix(f"{home}: ")


def _with_distinct(rows: Sequence[dict[str, Any]], records: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of COLUMN_SCHEMA with the ndv of the records of their columns, then the records that are left."""
    left = dict(records)
    merged = [
        row | {"ndv": left.pop(row["column_id"])["ndv"], "ndv_exact": False} if row["column_id"] in left else row
        for row in rows
    ]
    return [*merged, *left.values()]


def _other_count(found: HomeStatistics, native: NativeStats) -> str:
    """The first count of a table that a catalog and the table have differently; empty if there is none."""
    counted = ((found.row_count, native.row_count, "rows"), (found.total_size_bytes, native.total_size_bytes, "bytes"))
    for theirs, ours, unit in counted:
        if theirs is not None and ours is not None and theirs != ours:
            return f"was analysed at {theirs} {unit}, the table has {ours}"
    return ""


def doubts(found: HomeStatistics, column: str, snapshot: Snapshot, native: NativeStats, is_listing: bool) -> str:
    """The reason why a catalog's statistics of a column may not apply to a snapshot; empty if they do.

    Row count and size in bytes must equal the snapshot's, if the catalog has them, and the table must have been
    analysed after the snapshot was committed. Without a row count the time is sufficient, except for a listing of
    files, because a file may have been deleted since.
    """
    if differs := _other_count(found, native):
        return differs
    if found.row_count is None and is_listing:
        return "has no row count"
    analyzed, committed = found.analyzed_at.get(column), snapshot.committed_at
    if analyzed is None or committed is None:
        return "has no time of analysis"
    # Files may have been added in the same second; allowed if row count and size are equal.
    known = analyzed + (_SECOND if None not in (found.row_count, found.total_size_bytes) else timedelta())
    if known < (committed if committed.tzinfo else committed.replace(tzinfo=UTC)):
        return f"was analysed at {_text(analyzed)}, before the table's last change at {_text(committed)}"
    return ""


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at.tzinfo else f"{at:%Y-%m-%d %H:%M:%S}"
