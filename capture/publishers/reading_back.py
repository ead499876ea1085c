"""Statistics that other engines left in a catalog, taken over by captures of the tables registered there.

A catalog does not name the snapshot that was analysed. Its numbers count as those of the current snapshot when nothing
speaks against it and enough for it (`doubts`), else they are not taken and the capture says why. Only numbers of
distinct values are: null counts and bounds the files' own metadata proves, and of widths engines mean different things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import pyarrow as pa

from capture.connectors.spi import COLUMN_SCHEMA, Column, ColumnIds, Connector, ConnectorConfig, NativeStats, Snapshot
from capture.publishers import OPTION, READ_OPTION, catalogs_of, options_of, publisher_class
from capture.publishers.spi import ColumnStatistics, Destination, Held, TableStatistics
from store.errors import StatflightError

_SECOND: Final = timedelta(seconds=1)  # catalogs tell whole seconds
_LISTED: Final = "parquet"  # its snapshots are listings, in which nothing is left of a file that was deleted


def with_catalogs(connector: Connector, config: ConnectorConfig, spark: Callable[[], Any] | None = None) -> Connector:
    """The connector, reading statistics from the catalogs too that its option `statistics_from` names.

    Args:
        connector: Opened with `config`.
        config: Its options hold resolved secrets; `statistics_from.HOME.OPTION` are options of a catalog, as are those
            of publications to it.
        spark: Gives a Spark session, for the session catalog.

    Raises:
        InvalidArgument: The option names what is not a catalog.
    """
    homes = catalogs_of(config.options)
    return cast(Connector, _WithCatalogs(connector, config, homes, spark)) if homes else connector


class _WithCatalogs:
    def __init__(
        self, connector: Connector, config: ConnectorConfig, homes: Sequence[str], spark: Callable[[], Any] | None
    ):
        self._connector, self._config, self._homes, self._spark = connector, config, homes, spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        native = self._connector.capture_snapshot_target_stats(namespace, name, snapshot_id, ids, column_names)
        listing = self._connector.enumerate_snapshots(namespace, name, target_snapshot_ids=frozenset({snapshot_id}))
        snapshot = next((listed for listed in listing.snapshots if listed.snapshot_id == snapshot_id), None)
        if snapshot is None or listing.current_snapshot_id != snapshot_id:
            return native  # a catalog's statistics are of the table as it is now, or as it was at a time unknown
        rows = [] if native.columns is None else native.columns.to_pylist()
        with_ndv = {row["column_id"] or ids.get(row["column_name"]) for row in rows if row["ndv"] is not None}
        wanted = {
            column_id: column
            for column in snapshot.schema.leaves(column_names)
            if len(column.path) < 2 and (column_id := column.id_in(ids)) is not None and column_id not in with_ndv
        }
        records: dict[int, dict[str, Any]] = {}
        remarks = list(native.remarks)
        for home in self._homes:
            try:
                taken, doubt = self._from(home, namespace, name, snapshot, native, wanted)
            except PermissionError:
                taken, doubt = {}, "permission denied"
            except StatflightError as trouble:
                taken, doubt = {}, trouble.message.removeprefix(f"{home}: ")
            records = taken | records
            remarks += [f"no statistics of {home}: {doubt}"] if doubt else []
        rows = [row | {"ndv": records.pop(row["column_id"])["ndv"], "ndv_exact": False} if row["column_id"] in records
                else row for row in rows]  # fmt: skip
        columns = pa.Table.from_pylist([*rows, *records.values()], COLUMN_SCHEMA) if rows or records else native.columns
        return replace(native, columns=columns, remarks=tuple(remarks))

    def _from(
        self, home: str, namespace: str, name: str, snapshot: Snapshot, native: NativeStats,
        wanted: Mapping[int, Column],
    ) -> tuple[dict[int, dict[str, Any]], str]:  # fmt: skip
        """Rows of COLUMN_SCHEMA by column id from one catalog, and why there are none."""
        asked = tuple(ColumnStatistics(i, column.name, column.logical_type) for i, column in wanted.items())
        about = TableStatistics(namespace, name, snapshot.snapshot_id, asked)
        options = options_of(self._config.options, home, OPTION, READ_OPTION)
        publisher = publisher_class(home)(Destination(self._connector, self._config, options, self._spark), about)
        ids = {column.name: column_id for column_id, column in wanted.items()}
        records: dict[int, dict[str, Any]] = {}
        why = "it holds none" if wanted else ""
        for held in publisher.held_of_all():
            for column, distinct in held.distinct.items():
                column_id = ids.get(column)
                if column_id is None or distinct is None:
                    continue
                if doubt := doubts(held, column, snapshot, native, self._connector.format == _LISTED):
                    why = f"{held.location} {doubt}"
                    continue
                records.setdefault(column_id, {
                    "column_id": column_id, "column_name": column, "logical_type": wanted[column_id].logical_type,
                    "ndv": float(distinct), "ndv_exact": False,
                })  # fmt: skip
        return records, "" if records else why


def doubts(held: Held, column: str, snapshot: Snapshot, native: NativeStats, is_listing: bool) -> str:
    """Why a catalog's statistics of a column may be of other rows than a snapshot's; empty when they are of these.

    The row count and the size in bytes must be the snapshot's where the catalog tells them, and it must have been
    analysed after the snapshot was committed. A catalog that tells no row count is believed by the time alone, but not
    about a listing of files, from which one may have been deleted since.

    Args:
        held: What the catalog holds.
        column: One of its columns.
        snapshot: The current snapshot.
        native: Its own numbers.
        is_listing: True if the snapshot is a listing of files.
    """
    counted = ((held.row_count, native.row_count, "rows"), (held.total_size_bytes, native.total_size_bytes, "bytes"))
    for theirs, ours, unit in counted:
        if theirs is not None and ours is not None and theirs != ours:
            return f"was analysed at {theirs} {unit}, the table has {ours}"
    if held.row_count is None and is_listing:
        return "does not tell of how many rows they are"
    analyzed, committed = held.analyzed_at.get(column), snapshot.committed_at
    if analyzed is None or committed is None:
        return "does not tell when they were written"
    # Files of the same second may have come before or after: then the size has to tell.
    known = analyzed + (_SECOND if None not in (held.row_count, held.total_size_bytes) else timedelta())
    if known < (committed if committed.tzinfo else committed.replace(tzinfo=UTC)):
        return f"was analysed at {_text(analyzed)}, before the table's last change at {_text(committed)}"
    return ""


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at.tzinfo else f"{at:%Y-%m-%d %H:%M:%S}"
