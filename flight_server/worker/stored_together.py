"""Stored results of the files of several tables, read with one call per flight. For small tables, one call per table
would cost the server more time than the capture costs the worker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from capture.spi import TableHandle
from flight_server.client.connection import Connection
from flight_server.worker.turns import Turns

MAX_RESULTS: Final = 2000  # of columns of files, each some 15 kB with its sketches; with more, each table is read alone
_COLUMNS, _SKETCHES = "stats.file_columns", "stats.sketches"
_NAMES: Final = ("table_catalog", "table_schema", "table_name")

_Name: TypeAlias = tuple[str, str, str]


class StoredTogether:
    """Rows of `stats.file_columns` and `stats.sketches` of the tables of some leases at their current snapshots, read
    when the first of the tables is asked for. A capture uses only results of unchanged files, which it finds by their
    fingerprints, so the rows may be older than those that the store has meanwhile.

    Args:
        leases: Of captures, as `lease_job` answers them.
        turns: Those of the worker: other threads compute while this one waits for the server.
    """

    def __init__(self, server: Connection, leases: Iterable[Mapping[str, Any]], turns: Turns):
        payloads = (lease["payload"] for lease in leases)
        tables = [payload["table"] for payload in payloads if payload.get("has_statistics")]
        self._server, self._turns = server, turns
        self._names = {(table["catalog"], table["schema"], table["name"]) for table in tables}
        self._rows: Mapping[str, Mapping[_Name, pa.Table]] | None = None

    def rows(self, flight: str, table: TableHandle, column_ids: Collection[int]) -> pa.Table | None:
        """The rows about columns of a table; None if they are not read together, or there are none."""
        if len(self._names) < 2:
            return None
        if self._rows is None:
            with self._turns.handed_over():
                self._rows = self._read()
        rows = self._rows.get(flight, {}).get((table.catalog, table.schema, table.name))
        return None if rows is None else rows.filter(pc.is_in(rows["column_id"], pa.array(column_ids, pa.int64())))

    def _read(self) -> Mapping[str, Mapping[_Name, pa.Table]]:
        columns = self._current(_COLUMNS, self._names, limit=MAX_RESULTS + 1)
        if not columns or sum(rows.num_rows for rows in columns.values()) > MAX_RESULTS:
            return {}
        return {_COLUMNS: columns, _SKETCHES: self._current(_SKETCHES, columns)}

    def _current(self, flight: str, names: Collection[_Name], **more: int) -> dict[_Name, pa.Table]:
        """The rows by table."""
        predicates = [
            {"column": column, "op": "IN", "values": sorted(set(values))}
            for column, values in zip(_NAMES, zip(*names, strict=True), strict=True)
        ]
        rows = self._server.get({"table": flight, "predicates": predicates, "snapshot": "current", **more})
        places: dict[_Name, list[int]] = {}
        for at, name in enumerate(zip(*(rows[column].to_pylist() for column in _NAMES), strict=True)):
            places.setdefault(name, []).append(at)
        return {name: rows.take(of_table) for name, of_table in places.items()}
