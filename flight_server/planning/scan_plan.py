"""Plans of scans: the files of a table that can have a row for which a condition is true.

One query joins the files of the snapshot with the facts that the condition needs of its columns
(`store.model.predicates.pruning`), and returns the files that are kept. Bounds skip files only where their row is
PRUNING and of the same snapshot. Partition values are bounds of their columns, so they need no evaluation of their own;
the summary counts what they skip by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.reads.streams import Streams, never
from flight_server.planning import file_keys
from flight_server.planning.scan_columns import Columns
from store.catalog.capture_facts import snapshot_columns
from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.duckdb.lru import LruCache
from store.history.file_spans import listed_rows
from store.model import logical_types
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidField, NotCaptured
from store.model.format_facts import FormatFacts, facts_in
from store.model.freshness import is_whole_sql
from store.model.names import column_key, column_parts
from store.model.predicates import pruning
from store.model.predicates.buckets import Bucket
from store.model.predicates.literals import Scalar
from store.model.predicates.pruning import Column, FileCondition
from store.model.predicates.tree import Node
from store.model.schemas import FLIGHTS, PARTITION_SPECS
from store.model.statistics import INT, TEXT

T = TypeVar("T")

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
METADATA: Final = b"statflight.scan"
TABLE: Final = b"statflight.table"

SLICE: Final = 100_000
"""Files of a listing that are planned at once by readers that take plans in pages: 30 MB of rows if all are kept."""

_LISTINGS: Final = 1024  # snapshots of which the listing is cached
_ALL, _SOME = "ALL", "SOME"
_SUMMED: Final = ("s.row_count", "s.size_bytes")
_UNITS: Final = {"files": "count(*)", "rows": "sum(row_count)", "bytes": "sum(size_bytes)"}


Having: TypeAlias = Callable[[pa.Table, Column, Sequence[Scalar]], pa.Table | None]


@dataclass(frozen=True)
class Plan:
    """A planned scan.

    Attributes:
        files: The files that are kept, with the schema `SCHEMA` and the summary in its metadata.
        columns: Ids of the columns that the condition and the reader name.
    """

    files: pa.Table
    snapshot_id: int
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """One of several parts of the files of a listing, by the hash of their paths.

    Attributes:
        number: The part, from 0.
        of: Number of parts.
    """

    number: int = 0
    of: int = 1

    @property
    def condition(self) -> str:
        """SQL that is true for the rows `s` of the part's files."""
        return "TRUE" if self.of == 1 else f"hash(s.file_path) % {self.of} = {self.number}"


WHOLE: Final = Slice()
_MANY_FILES: Final = 250_000
_DECIDED: Final = "scan_decided"  # temporary table of a plan's cursor


def slices(files: int) -> list[Slice]:
    """The slices in which a number of files are planned."""
    number = max(1, -(-files // SLICE))
    return [Slice(at, number) for at in range(number)]


@dataclass(frozen=True)
class FileTotals:
    """The data files of a snapshot together.

    Attributes:
        rows, size_bytes: Their sums; None if those of a file are unknown.
        has_deletes: Row-level deletes apply to one of them.
        partitions: The different values of `partition_data_json`, in order.
    """

    files: int
    rows: int | None
    size_bytes: int | None
    has_deletes: bool
    partitions: tuple[str | None, ...]


@dataclass(frozen=True)
class Listing:
    """The files of a snapshot as a whole, and its columns.

    Attributes:
        generation: Generation of the table before this was read.
        positions: Family of rows → position of the snapshot's listing.
        partitioned: Ids of the columns whose values are those of the partition.
        facts: Facts about the format of the table.
        whole: The table's record says that there are no other files.
        buckets: Column id → its partition fields with bucket transforms, which no bounds stand for.
        covered: Condition on the rows of a column → whether each file has such a row; filled by scans.
    """

    generation: int
    snapshot_id: int
    positions: Mapping[str, int]
    columns: Columns
    partitioned: frozenset[int]
    facts: FormatFacts
    totals: Mapping[str, int]
    whole: bool
    buckets: Mapping[int, Sequence[Bucket]]
    covered: dict[str, bool] = field(default_factory=dict)


class ScanPlanner:
    """Plans scans by stored statistics. What is the same for all scans of a snapshot is cached."""

    def __init__(self, database: Database, catalog: Catalog, streams: Streams):
        self._database, self._catalog, self._streams = database, catalog, streams
        self._versions = database.versions
        self._listings: LruCache[tuple[int, int], Listing] = LruCache(_LISTINGS)

    def is_captured(self, table: TableEntry, snapshot: str | int) -> bool:
        """True if the files of a snapshot are stored.

        Args:
            snapshot: "current" or an id.
        """
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        if snapshot_id is None:
            return False
        with self._database.reading() as cursor:
            return "stats.files" in _positions(cursor, table.table_key, snapshot_id)

    def plan(
        self,
        table: TableEntry,
        node: Node | None,
        columns: Sequence[str] | None,
        snapshot: str | int,
        is_cancelled: Callable[[], bool] = never,
        find: Callable[[str], Column] | None = None,
        added: Sequence[str] = (),
    ) -> Plan:
        """Plans a scan.

        Args:
            columns: Names of the columns to be read; None for all.
            snapshot: "current" or an id.
            find: Name in the condition → column; None for the names of the snapshot's schema.
            added: Further columns of `stats.files` that the plan's files get, after those of `SCHEMA`.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN; BAD_LITERAL: a literal cannot be read as its column's
                type.
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def planned(cursor: Connection, listing: Listing) -> Plan:
            return _planned(table, listing, columns, Query(cursor, table.table_key, listing, node, find), added)

        return self.reading(table, snapshot, planned, is_cancelled)

    def listed(self, table: TableEntry, snapshot_id: int) -> int:
        """The number of data files of a snapshot.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """
        return self.reading(table, snapshot_id, lambda _, listing: listing.totals["files"])

    def kept(
        self,
        table: TableEntry,
        node: Node | None,
        columns: Sequence[str],
        snapshot_id: int,
        find: Callable[[str], Column],
        slice: Slice = WHOLE,
        added: Sequence[str] = (),
        most: int | None = None,
    ) -> pa.Table | None:
        """The files of a plan, or of a slice of it, without a summary; the arguments are those of `plan`.

        Args:
            most: Files; if more are kept, the result is None.
        """

        def planned(cursor: Connection, listing: Listing) -> pa.Table | None:
            read = [listing.columns.find(name).id for name in columns]
            return Query(cursor, table.table_key, listing, node, find, slice).kept(read or None, added, most)

        return self.reading(table, snapshot_id, planned)

    def digest(self, table: TableEntry, snapshot_id: int) -> tuple[Any, ...]:
        """Digest of the files that are listed for a snapshot, which stays while the same rows are stored.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def read(cursor: Connection, listing: Listing) -> tuple[Any, ...]:
            files = _data_files(table.table_key, listing.positions)
            sql = f"SELECT count(*), max(s.generation), bit_xor(hash(s.file_path)) {files}"
            (found,) = cursor.execute(sql).fetchall()
            return tuple(found)

        return self.reading(table, snapshot_id, read)

    def totals(self, table: TableEntry, snapshot_id: int) -> FileTotals:
        """The data files of a snapshot together.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def read(cursor: Connection, listing: Listing) -> FileTotals:
            sums = [f"CASE WHEN count({name}) = count(*) THEN coalesce(sum({name}), 0) END" for name in _SUMMED]
            sql = (
                f"SELECT count(*), {', '.join(sums)}, coalesce(bool_or(len(s.delete_files) > 0), false),"
                " list_sort(list(DISTINCT coalesce(s.partition_data_json, '')))"
                f" {_data_files(table.table_key, listing.positions)}"
            )
            ((files, rows, size_bytes, has_deletes, partitions),) = cursor.execute(sql).fetchall()
            known = tuple(text or None for text in partitions or ())
            return FileTotals(files, rows, size_bytes, has_deletes, known)

        return self.reading(table, snapshot_id, read)

    def reading(
        self,
        table: TableEntry,
        snapshot: str | int,
        read: Callable[[Connection, Listing], T],
        is_cancelled: Callable[[], bool] = never,
    ) -> T:
        """Calls a function with the listing of a snapshot and a cursor that sees the rows which the listing is of.

        Args:
            snapshot: "current" or an id.
            read: The function; it may be called twice.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """
        if isinstance(snapshot, int):
            self._catalog.snapshot(table, snapshot)
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        if snapshot_id is None:
            raise NotCaptured(f'"{table.full_name}" has no snapshot', hint="discover its catalog, or capture it first")
        cursor, segments = self._database.read(), self._database.segments

        def run() -> T:
            epoch = self._versions.steady()
            cached = self._listings.get((table.table_key, snapshot_id))
            if epoch is not None and cached is not None and cached.generation == self._generation(table):
                is_attached = segments.attach(cursor, [table.table_key])
                found = read(cursor, cached)
                if self._versions.steady() == epoch:  # no commit in between: the listing is of the rows just read
                    return found
                if is_attached:
                    cursor.execute("ROLLBACK")
            segments.begin(cursor, [table.table_key])
            return read(cursor, self._listing(cursor, table, snapshot_id))

        return self._streams.whole(cursor, run, is_cancelled)

    def _generation(self, table: TableEntry) -> int:
        return self._versions.generation(table.table_key)

    def _listing(self, cursor: Connection, table: TableEntry, snapshot_id: int) -> Listing:
        """The listing of a snapshot as the cursor's transaction sees it."""
        generation = self._generation(table)
        positions = _positions(cursor, table.table_key, snapshot_id)
        if "stats.files" not in positions:
            raise _not_captured(table, snapshot_id, "the files of snapshot {} are not known")
        totals = _sums(cursor, _data_files(table.table_key, positions))
        counted = cursor.execute(
            "SELECT data_file_count FROM stats_tables WHERE table_key = ? AND snapshot_id = ?",
            [table.table_key, snapshot_id],
        ).fetchall()
        if counted and counted[0][0] is not None and counted[0][0] > totals["files"]:  # such as a put of some files
            stated = f"{totals['files']} of {counted[0][0]} files of snapshot {{}} are known"
            raise _not_captured(table, snapshot_id, stated)
        columns = self._columns(cursor, table, snapshot_id, positions)
        ((partition_keys, properties),) = cursor.execute(
            "SELECT partition_keys, properties FROM tables WHERE table_key = ?", [table.table_key]
        ).fetchall()
        facts = facts_in(table.format, properties)
        specs = json.loads(properties or "{}").get(PARTITION_SPECS) if facts.iceberg_metadata else None
        listing = Listing(
            generation,
            snapshot_id,
            positions,
            columns,
            frozenset(columns.ids_of(partition_keys or [])),
            facts,
            totals,
            bool(counted) and counted[0][0] == totals["files"],
            _buckets(specs),
        )
        self._listings.put((table.table_key, snapshot_id), listing)
        return listing

    def _columns(
        self, cursor: Connection, table: TableEntry, snapshot_id: int, positions: Mapping[str, int]
    ) -> Columns:
        """The columns of the snapshot's schema; of a table without one, those that statistics name."""
        schema = snapshot_columns(self._database, [(table.table_key, snapshot_id)]).get((table.table_key, snapshot_id))
        if schema:
            ids = self._catalog.column_ids(table)
            of_schema = []
            for name, type, _, field_id, *path in schema:
                key = column_key(path[0]) if path and path[0] else name
                column_id = field_id if field_id is not None else ids.get(key)
                if column_id is not None:
                    of_schema.append((Column(column_id, name, _type(type)), column_parts(key)))
            return Columns(table, of_schema)
        rows_of_files = listed_rows("stats.file_columns", table.table_key, positions.get("stats.file_columns", -1))
        rows = cursor.execute(
            "SELECT DISTINCT column_id, column_name, logical_type FROM ("
            "SELECT column_id, column_name, logical_type FROM stats_columns WHERE table_key = ? AND snapshot_id = ?"
            f" UNION ALL SELECT column_id, column_name, logical_type {rows_of_files}"
            ") WHERE column_name IS NOT NULL ORDER BY ALL",
            [table.table_key, snapshot_id],
        ).fetchall()
        return Columns(table, [(Column(id, name, _type(type)), (name,)) for id, name, type in rows])


def _planned(
    table: TableEntry, listing: Listing, columns: Sequence[str] | None, query: Query, added: Sequence[str]
) -> Plan:
    read = [listing.columns.find(name).id for name in columns or ()]
    named = tuple(dict.fromkeys([*query.columns, *read]))
    kept = query.kept(read if columns else None, added)
    assert kept is not None  # there is no limit
    about = {
        "snapshot_id": listing.snapshot_id,
        "format": table.format,
        "by_id": listing.facts.reads_by_id,  # for clients that do not know of facts
        "facts": asdict(listing.facts),
        "columns": listing.columns.described(named if columns else None),
    }
    metadata = {METADATA: json.dumps(query.summary(kept)), TABLE: json.dumps(about)}
    return Plan(kept.replace_schema_metadata(metadata), listing.snapshot_id, named)


def _buckets(specs: str | None) -> dict[int, list[Bucket]]:
    """The bucket transforms of partition specs in Iceberg's JSON, by the ids of their source columns."""
    found: dict[int, list[Bucket]] = {}
    for spec in json.loads(specs or "[]"):
        for part in spec["fields"]:
            if count := re.fullmatch(r"bucket\[(\d+)\]", part["transform"]):
                found.setdefault(part["source-id"], []).append(Bucket(spec["spec-id"], part["name"], int(count[1])))
    return found


def _not_captured(table: TableEntry, snapshot_id: int, stated: str) -> NotCaptured:
    return NotCaptured(
        f'"{table.full_name}": {stated.format(snapshot_id)}',
        hint='capture the table first, or send "capture": true',
        params={"table": table.full_name, "snapshot": snapshot_id},
    )


def _type(text: str | None) -> logical_types.LogicalType | None:
    try:
        return None if text is None else logical_types.parse(text)
    except InvalidField:
        return None


def _positions(cursor: Connection, table_key: int, snapshot_id: int) -> dict[str, int]:
    """Family of rows → position of the listing of exactly this snapshot."""
    return dict(
        cursor.execute(
            "SELECT family, pos FROM file_snapshots WHERE table_key = ? AND snapshot_id = ?", [table_key, snapshot_id]
        ).fetchall()
    )


def _data_files(table_key: int, positions: Mapping[str, int]) -> str:
    """FROM and WHERE clauses of the data files `s`."""
    return listed_rows("stats.files", table_key, positions["stats.files"], "coalesce(s.file_content, 'DATA') = 'DATA'")


def _sums(cursor: Connection, rows: str, parameters: Sequence[Any] = ()) -> dict[str, int]:
    """Number, rows and bytes of files."""
    (sums,) = cursor.execute(f"SELECT {', '.join(_UNITS.values())} {rows}", list(parameters)).fetchall()
    return {unit: int(value or 0) for unit, value in zip(_UNITS, sums, strict=True)}


def _total(counts: pa.ChunkedArray) -> int:
    """The sum of int64, beyond 64 bits too."""
    return int(pc.sum(counts.cast(pa.decimal128(38))).as_py() or 0)


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
        *,
        counted: bool = False,
    ):
        self._cursor, self._key, self._listing, self._slice = cursor, table_key, listing, slice
        found = find or listing.columns.find
        condition = None if node is None else pruning.of_files(node, found, listing.buckets, counted=counted)
        self.columns: tuple[int, ...] = () if condition is None else tuple(condition.columns)
        """Ids of the columns that the condition names."""
        self._condition = pruning.undecided() if condition is not None and listing.facts.merges_rows else condition
        self._counted = counted
        self._files = _data_files(table_key, listing.positions)

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

    def counted(self, having: Having | None = None) -> pa.Table:
        """The files that are kept, with what the counts of their rows need.

        Args:
            having: Leaves out files whose sketches lack all of some values of a column, or None where it cannot tell;
                then the stored sketches are read.

        Returns:
            `file_path`, `row_count`, `size_bytes`, `whole` (the count is of all rows), `matches` (every row does), and
            the facts of `pruning.of_files` that are numbers of rows; those of a column whose rows are not the file's
            are null.
        """
        assert self._counted
        all_match, files, parameters = self.parts()
        numbers = ""
        for id, facts in () if self._condition is None else self._condition.columns.items():
            numbers += "".join(
                f", CASE WHEN r{id} = f.row_count THEN {name} END AS {name}" for name in sorted(facts.counted)
            )
        sql = (
            f"SELECT f.file_path, f.row_count, f.size_bytes, {is_whole_sql('f')} AS whole,"
            f" coalesce({all_match}, FALSE) AS matches{numbers} {files}"
        )
        return self._having(query(self._cursor, sql, parameters), having)

    @property
    def condition(self) -> FileCondition | None:
        """The condition on files; None if all are kept."""
        return self._condition

    def _having(self, rows: pa.Table, having: Having | None = None) -> pa.Table:
        """The files that may have the values that the condition asks for, by sketches."""
        for column, values in () if self._condition is None else self._condition.equalities():
            told = having(rows, column, values) if having is not None else None
            rows = (
                told
                if told is not None
                else file_keys.having(
                    rows, self._cursor, self._key, self._listing.positions, column, values, self._slice.condition
                )
            )
        return rows

    def parts(self) -> tuple[str, str, list[Any]]:
        """A condition that holds if every row of a file matches, FROM and WHERE clauses of the files `f` that are kept,
        and the parameters of these clauses."""
        files = f"FROM (SELECT s.* {self._files} AND {self._slice.condition}) f"
        if self._condition is None:
            return "TRUE", files, []
        joins, parameters = self._joined(self._condition.columns)
        if self._is_decided_first():
            joins, parameters = self._decided(parameters), []
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
        facts = pruning.facts_sql(columns, f"{self._rows(columns)} AND {self._slice.condition}", columns)
        found = f"SELECT * FROM ({facts}) WHERE {self._condition.may}"
        self._cursor.execute(f"CREATE OR REPLACE TEMP TABLE {_DECIDED} AS {found}", list(parameters))
        return f" JOIN {_DECIDED} c0 ON c0.file_path = f.file_path"

    def _bytes_of(self, read: Collection[int] | None) -> str:
        """The compressed bytes of columns in a file `f`, null where one's are unknown."""
        if read is None:
            return "f.size_bytes"
        return (
            f"(SELECT if(count(s.bytes_scanned) = {len(set(read))},"
            f" TRY_CAST(least(sum(s.bytes_scanned), f.size_bytes) AS BIGINT), NULL) {self._rows(set(read))}"
            " AND coalesce(s.row_groups_sampled, 0) = 0 AND s.file_path = f.file_path)"
        )

    def summary(self, kept: pa.Table) -> dict[str, dict[str, int]]:
        """Files, rows and bytes: all, kept, and skipped by partition values or else by bounds.

        Args:
            kept: The files that are kept.
        """
        left = {"files": kept.num_rows, "rows": _total(kept["row_count"]), "bytes": _total(kept["size_bytes"])}
        condition, by_partition = self._condition, dict.fromkeys(_UNITS, 0)
        among = self._listing.partitioned & condition.columns.keys() if condition is not None else set()
        by_value = condition is not None and (among or condition.buckets)
        if condition is not None and by_value and left["files"] < self._listing.totals["files"]:
            joins, parameters = self._joined(among)
            by_partition = _sums(
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
