"""The query of one scan: it joins the files of a listing with the facts that a condition needs of its columns
(`store.model.predicates.pruning`), and returns the files that are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.planning import file_keys
from flight_server.planning.listings import UNITS, Listing, data_files, sums
from flight_server.planning.slices import WHOLE, Slice
from store.duckdb.arrow_sql import query, quoted
from store.duckdb.database import Connection
from store.history.file_spans import listed_rows
from store.model.predicates import pruning
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import Node
from store.model.schemas import FLIGHTS
from store.model.statistics import INT, TEXT

_FILES: Final = FLIGHTS["stats.files"].schema
_OF_FILES: Final = (
    "file_path",
    "file_format",
    "row_count",
    "size_bytes",
    "partition_data_json",
    "sequence_number",
    "delete_files",
)
SCHEMA: Final = pa.schema(
    [
        *(_FILES.field(name) for name in _OF_FILES[:4]),
        ("bytes_to_read", INT),
        *(_FILES.field(name) for name in _OF_FILES[4:]),
        ("match", TEXT),
        ("kept_because", TEXT),
    ]
)
"""The columns of the files that are kept."""

_ALL, _SOME = "ALL", "SOME"
_MANY_FILES: Final = 250_000
_DECIDED: Final = "scan_decided"  # temporary table of a plan's cursor
_NAMED_FILES: Final = 200  # that a query names, so that segments skip the row groups of all others


class Query:
    """The query of one scan.

    Args:
        find: Name in the condition → column; None for the names of the snapshot's schema.
        slice: The files among which those that are kept are found.
    """

    def __init__(
        self,
        cursor: Connection,
        table_key: int,
        listing: Listing,
        node: Node | None,
        find: Callable[[str], Column] | None = None,
        slice: Slice = WHOLE,
    ):
        self._cursor, self._key, self._listing, self._slice = cursor, table_key, listing, slice
        found = find or listing.columns.find
        condition = None if node is None else pruning.of_files(node, found, listing.buckets)
        self.columns: tuple[int, ...] = () if condition is None else tuple(condition.columns)
        """Ids of the columns that the condition names."""
        self._condition = pruning.undecided() if condition is not None and listing.facts.merges_rows else condition
        self._among = "TRUE"  # a condition on the rows `s` of the files that are kept
        self._files = data_files(table_key, listing.positions)

    def kept(self, read: Collection[int] | None, added: Sequence[str] = (), most: int | None = None) -> pa.Table | None:
        """The files that are kept, by path.

        Args:
            read: Ids of the columns that are read; None for all.
            added: Further columns of `stats.files`.
            most: Files; if bounds keep more, the result is None.
        """
        condition, (all_match, files, parameters) = self._condition, self.parts()
        names = [f'f."{name}"' for name in _OF_FILES]
        columns = ", ".join([*names[:4], f"{self._bytes_of(read)} AS bytes_to_read", *names[4:]])
        reason = "NULL::VARCHAR"
        if condition is not None:
            reason = f"CASE WHEN NOT ({condition.known} OR {condition.all}) THEN {condition.reason} END"
        match = f"CASE WHEN {all_match} THEN '{_ALL}' ELSE '{_SOME}' END"
        more = "".join(f', f."{name}"' for name in added)
        sql = f'SELECT {columns}, {match} AS "match", {reason} AS kept_because{more} {files}'
        rows = query(self._cursor, sql if most is None else f"{sql} LIMIT {most + 1}", parameters)
        if most is not None and rows.num_rows > most:
            return None
        rows = self._having(rows)
        return rows.cast(pa.schema([*SCHEMA, *map(_FILES.field, added)])).sort_by("file_path")

    def _having(self, rows: pa.Table) -> pa.Table:
        """The files that may have the values that the condition asks for, by sketches."""
        for column, values in () if self._condition is None else self._condition.equalities():
            rows = file_keys.having(
                rows, self._cursor, self._key, self._listing.positions, column, values, self._slice.condition
            )
        return rows

    def parts(self) -> tuple[str, str, list[Any]]:
        """A condition that holds if every row of a file matches, FROM and WHERE clauses of the files `f` that are kept,
        and the parameters of these clauses."""
        joins, parameters = "", []  # type: str, list[Any]
        if self._condition is not None:
            joins, parameters = self._joined(self._condition.columns)
            if self._is_decided_first():
                joins, parameters = self._decided(parameters), []
        files = f"FROM (SELECT s.* {self._files} AND {self._slice.condition} AND {self._among}) f"
        if self._condition is None:
            return "TRUE", files, []
        return self._condition.all, f"{files}{joins} WHERE {self._condition.may}", parameters

    def _is_decided_first(self) -> bool:
        """True if the bounds of one column are looked at before any file is: DuckDB does not know how few rows a
        condition leaves, and would read all of many files to join them."""
        assert self._condition is not None
        if self._listing.totals["files"] < _MANY_FILES or len(self._condition.columns) != 1:
            return False
        ((id, facts),) = self._condition.columns.items()
        return "f." not in self._condition.may and self._is_covered(f"{self._rows({id})} AND {facts.prunes}")

    def _decided(self, parameters: Sequence[Any]) -> str:
        """Finds the files that a condition on one column keeps, all of which have bounds of it; returns the join of the
        files `f` with their facts."""
        assert self._condition is not None
        columns = self._condition.columns
        rows = f"{self._rows(columns)} AND {self._slice.condition}"
        if self._listing.has_ranges:
            rows += f" AND {self._condition.in_ranges('s')}"
        facts = pruning.facts_sql(columns, rows, columns)
        found = f"SELECT * FROM ({facts}) WHERE {self._condition.may}"
        self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE {_DECIDED} AS {found}", list(parameters))
        paths = self._cursor.execute(f"SELECT file_path FROM {_DECIDED} LIMIT {_NAMED_FILES + 1}").fetchall()
        if len(paths) <= _NAMED_FILES:
            self._among = f"s.file_path IN ({', '.join(quoted(path) for (path,) in paths) or 'NULL'})"
        return f" JOIN {_DECIDED} c0 ON c0.file_path = f.file_path"

    def _bytes_of(self, read: Collection[int] | None) -> str:
        """The compressed bytes of columns in a file `f`, null where one's are unknown."""
        if read is None:
            return "f.size_bytes"
        if not self._is_measured(frozenset(read)):
            return "NULL::BIGINT"
        return (
            f"(SELECT if(count(s.bytes_scanned) = {len(set(read))},"
            f" TRY_CAST(least(sum(s.bytes_scanned), f.size_bytes) AS BIGINT), NULL) {self._rows(set(read))}"
            f" AND coalesce(s.row_groups_sampled, 0) = 0 AND s.file_path = f.file_path AND {self._among})"
        )

    def _is_measured(self, read: frozenset[int]) -> bool:
        measured = self._listing.measured
        if read not in measured:
            known = f"{self._rows(read)} AND s.bytes_scanned IS NOT NULL"
            ((measured[read],),) = self._cursor.execute(f"SELECT EXISTS (SELECT 1 {known})").fetchall()
        return measured[read]

    def summary(self, kept: pa.Table) -> dict[str, dict[str, int]]:
        """Files, rows and bytes: all, kept, and skipped by partition values or else by bounds.

        Args:
            kept: The files that are kept.
        """
        left = {"files": kept.num_rows, "rows": _total(kept["row_count"]), "bytes": _total(kept["size_bytes"])}
        condition, by_partition = self._condition, dict.fromkeys(UNITS, 0)
        among = self._listing.partitioned & condition.columns.keys() if condition is not None else set()
        by_value = condition is not None and (among or condition.buckets)
        if condition is not None and by_value and left["files"] < self._listing.totals["files"]:
            joins, parameters = self._joined(among)
            by_partition = sums(
                self._cursor,
                f"FROM (SELECT s.* {self._files}) f{joins} WHERE NOT {condition.may_by(among)}",
                parameters,
            )
        return {
            unit: {
                "all": total,
                "kept": left[unit],
                "skipped_by_partition": by_partition[unit],
                "skipped_by_bounds": total - left[unit] - by_partition[unit],
            }
            for unit, total in self._listing.totals.items()
        }

    def _joined(self, columns: Collection[int]) -> tuple[str, list[Any]]:
        """Joins of the files `f` with the facts of columns, and their parameters."""
        joins, parameters = "", []  # type: str, list[Any]
        assert self._condition is not None
        for at, group in enumerate(self._condition.groups(columns)):
            certain = {id for id, facts in group.items() if self._is_covered(f"{self._rows({id})} AND {facts.prunes}")}
            join = "JOIN" if certain else "LEFT JOIN"
            sql = pruning.facts_sql(group, f"{self._rows(group)} AND {self._slice.condition}", certain)
            joins += f" {join} ({sql}) c{at} ON c{at}.file_path = f.file_path"
            parameters += [value for facts in group.values() for value in facts.parameters]
        return joins, parameters

    def _rows(self, columns: Collection[int]) -> str:
        """FROM and WHERE clauses of the rows `s` of columns."""
        ids = ", ".join(str(int(id)) for id in columns)
        pos = self._listing.positions.get("stats.file_columns", -1)
        return listed_rows("stats.file_columns", self._key, pos, f"s.column_id IN ({ids})")

    def _is_covered(self, rows: str) -> bool:
        """True if each file has one of some rows: then those that skip a file need not be joined with it."""
        covered = self._listing.covered
        if rows not in covered:
            lacking = f"(SELECT s.file_path {self._files}) f ANTI JOIN (SELECT s.file_path {rows}) c USING (file_path)"
            ((covered[rows],),) = self._cursor.execute(f"SELECT NOT EXISTS (FROM {lacking})").fetchall()
        return covered[rows]


def _total(counts: pa.ChunkedArray) -> int:
    """The sum of int64, beyond 64 bits too."""
    return int(pc.sum(counts.cast(pa.decimal128(38))).as_py() or 0)
