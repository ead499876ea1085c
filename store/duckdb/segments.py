"""Segments: rows of files of large listings, which lie as Parquet files beside the database.

A segment has rows of one table and family. They are rows of the store as those of the family's table are: `sql` has
both, and `attach` gives a reader's cursor views of both by the table's name. The files never change. The span of a row
is that of its segment (`from_pos`, `to_pos`), unless `segment_ends` has another end for it; a row that ends before it
begins is deleted. A segment that was made of others has the begin of each row itself: its own `from_pos` is null.

A writer that changes single rows by their ids first moves them into the family's table (`lift`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.duckdb.arrow_sql import execute, query, quoted
from store.duckdb.layout import BY_SPAN, OPEN_END, SQL_TYPES, Connection, stored_columns
from store.duckdb.segment_files import SegmentFiles, Written
from store.model.names import quote
from store.model.predicates.float_ranges import ENDLESS

CELLS: Final = 1_000_000
"""Rows of files of a listing above which they lie in segments."""

_RANGED: Final = "stats.file_columns"
_DEAD: Final = -1  # end of a row that is in no listing
_ROWS_BITS: Final = 32  # of a row id: the number of the row in its segment
Ids: TypeAlias = npt.NDArray[np.int64]


class Segment(NamedTuple):
    """A row of `segments`."""

    segment: int
    table_key: int
    family: str
    name: str
    digest: str
    row_count: int
    from_pos: int | None
    to_pos: int
    generation: int
    created_us: int
    has_ends: bool


_FIND: Final = (
    "SELECT segment, table_key, family, name, digest, row_count, from_pos, to_pos, generation, epoch_us(created_at),"
    " has_ends FROM segments"
)


class Segments:
    """The segments of a database.

    Args:
        files: Their files; None for a database in memory, which has none.
    """

    def __init__(self, files: SegmentFiles | None):
        self.files = SegmentFiles(None) if files is None else files
        self.cells: int | None = CELLS if self.files.is_usable else None
        """Rows of files above which a listing lies in segments; None for never."""
        self._keys: set[int] = set()
        self._lock = threading.Lock()

    def use(self, files: SegmentFiles) -> None:
        """Uses the files at another place from here on."""
        files.continue_from(self.files)
        self.files = files

    # Tables that may have segments.

    def load(self, connection: Connection) -> None:
        """Reads which tables have segments."""
        self._keys = {key for (key,) in connection.execute("SELECT DISTINCT table_key FROM segments").fetchall()}

    def expect(self, table_key: int) -> None:
        """Registers a table that gets segments; called before the commit that shows them."""
        with self._lock:
            self._keys = self._keys | {table_key}

    def may_have(self, keys: Collection[int] | None = None) -> bool:
        """True if any of these tables may have segments; None for all tables."""
        return bool(self._keys) if keys is None else not self._keys.isdisjoint(keys)

    # Reading.

    def attach(
        self, cursor: Connection, keys: Collection[int] | None = None, families: Collection[str] = tuple(BY_SPAN)
    ) -> bool:
        """Gives a cursor views with the rows in segments, too, by the names of the families' tables. It begins a
        transaction, so that it sees the segments of what it reads. The view of rows of columns ends with the ranges of
        their bounds (`predicates.float_ranges`).

        Args:
            keys: Keys of the tables that are read; None for all.

        Returns:
            False if none of the tables may have segments, and nothing was done.

        Raises:
            SegmentError: A segment is missing or damaged.
        """
        if not self.may_have(keys):
            return False
        cursor.execute("BEGIN TRANSACTION")
        self._attach(cursor, keys, families)
        return True

    def _attach(self, cursor: Connection, keys: Collection[int] | None, families: Collection[str]) -> None:
        ((database,),) = cursor.execute("SELECT current_database()").fetchall()
        found = self.find(cursor, keys)
        for family in families:
            own, has_ranges = [each for each in found if each.family == family], family == _RANGED
            if not own and not has_ranges:
                continue
            table, columns = BY_SPAN[family], ", ".join(_columns(family))
            ends = "".join(f", {end} AS {name}" for name, end in ENDLESS.items()) if has_ranges else ""
            in_file = f"SELECT {columns}{ends} FROM {quote(database)}.main.{table}"
            branches = [in_file, *self._branches(family, own, has_ranges=has_ranges)]
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {table} AS {' UNION ALL '.join(branches)}")

    def begin(self, cursor: Connection, keys: Collection[int] | None = None) -> bool:
        """Begins a transaction that sees the rows in segments, too; the result is that of `attach`."""
        cursor.execute("BEGIN TRANSACTION")
        cursor.execute("SELECT 1 FROM segments LIMIT 0").fetchall()  # what commits from here on is not seen
        may_have = self.may_have(keys)
        if may_have:
            self._attach(cursor, keys, tuple(BY_SPAN))
        return may_have

    def count(self, connection: Connection) -> dict[str, int]:
        """Family → rows of its segments, the deleted ones too."""
        rows = connection.execute("SELECT family, sum(row_count)::BIGINT FROM segments GROUP BY 1").fetchall()
        return dict(rows)

    def find(
        self, connection: Connection, keys: Collection[int] | None = None, family: str | None = None
    ) -> list[Segment]:
        """The segments that a transaction sees, in the order in which they were made."""
        conditions = [] if keys is None else [f"table_key IN ({', '.join(str(int(key)) for key in keys) or 'NULL'})"]
        conditions += [] if family is None else [f"family = '{family}'"]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = connection.execute(f"{_FIND}{where} ORDER BY segment").fetchall()
        return [Segment(*row) for row in rows]

    def sql(self, connection: Connection, family: str, keys: Collection[int]) -> str:
        """SQL of the rows of tables in a family, in its table and in segments, to select from.

        Raises:
            SegmentError: A segment is missing or damaged.
        """
        found = self.find(connection, keys, family) if self.may_have(keys) else []
        if not found:
            return BY_SPAN[family]
        own = f"SELECT {', '.join(_columns(family))} FROM {BY_SPAN[family]}"
        return f"({' UNION ALL '.join([own, *self._branches(family, found)])})"

    def numbered_sql(self, family: str, segments: Sequence[Segment]) -> str | None:
        """SQL of the rows of segments with their ids (`rid`), to select from; None without segments.

        Raises:
            SegmentError: A segment is missing or damaged.
        """
        if not segments:
            return None
        self._bring(segments)
        return f"({' UNION ALL '.join(self._branch(family, [each], numbered=True) for each in segments)})"

    def _branches(self, family: str, segments: Sequence[Segment], *, has_ranges: bool = False) -> Iterator[str]:
        """SQL of the rows of segments, those of equal spans together."""
        self._bring(segments)
        groups: dict[tuple[Any, ...], list[Segment]] = {}
        for each in segments:
            alone = each.segment if each.has_ends else None
            shared = (each.table_key, each.from_pos, each.to_pos, each.generation, each.created_us, alone)
            groups.setdefault(shared, []).append(each)
        return (self._branch(family, group, has_ranges=has_ranges) for group in groups.values())

    def _bring(self, segments: Sequence[Segment]) -> None:
        self.files.bring({each.name: each.digest for each in segments})

    def _branch(
        self, family: str, group: Sequence[Segment], *, numbered: bool = False, has_ranges: bool = False
    ) -> str:
        """SQL of the rows of segments whose spans are equal; of one segment if it has `segment_ends` or is numbered."""
        first = group[0]
        has = frozenset.intersection(*(self.files.check(each.name, each.digest) for each in group))
        values = {"table_key": f"{first.table_key}::BIGINT", "to_pos": f"{first.to_pos}::BIGINT"}
        values["from_pos"] = "p.from_pos" if first.from_pos is None else f"{first.from_pos}::BIGINT"
        values["generation"] = "p.generation" if first.from_pos is None else f"{first.generation}::BIGINT"
        created = f"make_timestamptz({first.created_us})"
        values["created_at"] = "p.created_at" if first.from_pos is None else created
        for name, type in stored_columns(family).items():
            values[f'"{name}"'] = f'p."{name}"' if name in has else f"NULL::{SQL_TYPES[type]}"
        join, row = "", "p.file_row_number"
        if first.has_ends:
            values["to_pos"] = f"coalesce(e.to_pos, {first.to_pos})"
            ends = f"(SELECT row_number, to_pos FROM segment_ends WHERE segment = {first.segment})"
            join = f" LEFT JOIN {ends} e ON e.row_number = {row}"
        number = f"-({first.segment}::BIGINT << {_ROWS_BITS}) - {row} - 1 AS rid, " if numbered else ""
        if has_ranges:
            values |= {name: f"p.{name}" if name in has else end for name, end in ENDLESS.items()}
        names = [*_columns(family), *(ENDLESS if has_ranges else ())]
        chosen = ", ".join(f"{values[name]} AS {name}" for name in names)
        paths = ", ".join(quoted(self.files.pattern(each.name)) for each in group)
        with_rows = ", file_row_number = true" if numbered or first.has_ends else ""
        return f"SELECT {number}{chosen} FROM read_parquet([{paths}]{with_rows}) p{join}"

    # Writing.

    def add(
        self,
        connection: Connection,
        table_key: int,
        family: str,
        files: Sequence[Written],
        span: tuple[int | None, int],
        generation: int,
        created_us: int,
    ) -> list[int]:
        """Makes files the table's rows, inside of the commit that shows them; returns the numbers of the segments."""
        if not files:
            return []
        ((last,),) = connection.execute("SELECT coalesce(max(segment), 0) FROM segments").fetchall()
        ((ended,),) = connection.execute("SELECT coalesce(max(segment), 0) FROM segment_ends").fetchall()
        if self.files.is_shipped:
            self.files.to_ship.update(file.name for file in files)
        first = max(last, ended) + 1
        numbers = list(range(first, first + len(files)))
        of_files = {name: [file[at] for file in files] for at, name in enumerate(Written._fields)}
        added = pa.table({"segment": numbers, **of_files})
        begin, end = ("NULL" if pos is None else str(int(pos)) for pos in span)
        execute(  # one statement: each takes a millisecond, in which others wait
            connection,
            f"INSERT INTO segments SELECT segment, {int(table_key)}, '{family}', name, digest, size_bytes, row_count,"
            f" {begin}, {end}, {int(generation)}, make_timestamptz({int(created_us)}), false FROM {{added}}",
            added=added,
        )
        return numbers

    def lift(
        self, connection: Connection, family: str, keys: Collection[int], condition: str, **tables: pa.Table
    ) -> int:
        """Moves rows from segments into the family's table, for a writer that changes single ones.

        Args:
            condition: SQL of the condition on rows `t`; it is true for all rows that the writer changes.
            tables: Arrow tables that it reads.

        Returns:
            The number of rows.
        """
        if not self.may_have(keys):
            return 0
        rows = self.numbered_sql(family, self.find(connection, keys, family))
        if rows is None:
            return 0
        found = query(connection, f"SELECT * FROM {rows} t WHERE t.to_pos > t.from_pos AND ({condition})", **tables)
        if not found.num_rows:
            return 0
        columns = ", ".join(_columns(family))
        sql = f"INSERT INTO {BY_SPAN[family]} BY NAME SELECT {columns} FROM {{found}}"
        execute(connection, sql, found=found)
        self.end(connection, found["rid"].to_numpy(), _DEAD)
        return found.num_rows

    def end(self, connection: Connection, rids: Ids, to_pos: int) -> None:
        """Ends rows of segments, by their ids (`numbered_sql`), at a position."""
        if not len(rids):
            return
        numbers = -np.asarray(rids, np.int64) - 1
        ends = pa.table(
            {"segment": numbers >> _ROWS_BITS, "row_number": numbers & ((1 << _ROWS_BITS) - 1)},
        )
        execute(
            connection,
            "DELETE FROM segment_ends USING {ends} e WHERE segment_ends.segment = e.segment"
            " AND segment_ends.row_number = e.row_number",
            ends=ends,
        )
        execute(connection, f"INSERT INTO segment_ends SELECT segment, row_number, {to_pos} FROM {{ends}}", ends=ends)
        changed = np.unique(numbers >> _ROWS_BITS).tolist()
        connection.execute(f"UPDATE segments SET has_ends = true WHERE segment IN ({_listed(changed)})")

    @staticmethod
    def row_ids(segment: int, rows: Ids) -> Ids:
        """Ids of rows of a segment, by their numbers."""
        return -((segment << _ROWS_BITS) + rows) - 1

    def end_open(self, connection: Connection, family: str, positions: Mapping[int, int]) -> None:
        """Ends all rows of segments that the newest listing has.

        Args:
            positions: Table key → position where they end.
        """
        for key, pos in positions.items():
            if self.may_have([key]):
                connection.execute(
                    "UPDATE segments SET to_pos = ? WHERE table_key = ? AND family = ? AND to_pos = ?",
                    [pos, key, family, OPEN_END],
                )

    def end_files(self, connection: Connection, family: str, table_key: int, files: pa.Table, pos: int) -> None:
        """Ends the rows of files that the newest listing has at a position.

        Args:
            files: The column `file` with their paths.
        """
        if not self.may_have([table_key]):
            return
        rids = self.open_rows(connection, family, table_key, "t.file_path IN (SELECT file FROM {files})", files=files)
        self.end(connection, rids, pos)

    def open_rows(
        self, connection: Connection, family: str, table_key: int, condition: str = "true", **tables: pa.Table
    ) -> Ids:
        """Ids of the rows of segments that the newest listing has and a condition on rows `t` is true for."""
        rows = self.numbered_sql(family, self.find(connection, [table_key], family))
        if rows is None:
            return np.empty(0, np.int64)
        sql = f"SELECT rid FROM {rows} t WHERE t.to_pos = {OPEN_END} AND ({condition})"
        found: Ids = query(connection, sql, **tables)["rid"].to_numpy()
        return found

    def tidy(self, connection: Connection, family: str, keys: Collection[int]) -> int:
        """Restores the invariants of spans after listings were deleted: rows of no listing are deleted, those of the
        newest one do not end.

        Returns:
            The number of segments that changed.
        """
        if not self.may_have(keys):
            return 0
        changed = 0
        for key in keys:
            segments = self.find(connection, [key], family)
            if not segments:
                continue
            found = connection.execute(
                "SELECT pos FROM file_snapshots WHERE table_key = ? AND family = ? ORDER BY pos", [key, family]
            ).fetchall()
            listed = np.array([pos for (pos,) in found], np.int64)
            changed += self._tidy(connection, segments, listed)
        return changed

    def _tidy(self, connection: Connection, segments: Sequence[Segment], listed: Ids) -> int:
        """`tidy` for one table, by statements whose number is not that of the segments."""
        dead: list[int] = []
        parted: list[int] = []  # segments with rows of different ends
        usual_ends: dict[int, list[int]] = {}  # end → segments
        other_ends: dict[int, list[Ids]] = {}  # end → ids of rows
        for segment in segments:
            begins, ends = self._spans(connection, segment)
            first = np.searchsorted(listed, begins)
            is_listed = (first < len(listed)) & (first < np.searchsorted(listed, ends))
            if not is_listed.any():
                dead.append(segment.segment)
                continue
            new = np.where(is_listed, np.where(ends > listed[-1], OPEN_END, ends), _DEAD)
            if (new == ends).all():
                continue
            usual = OPEN_END if (new == OPEN_END).any() else int(new.max())
            usual_ends.setdefault(usual, []).append(segment.segment)
            if len(new) == 1 and segment.row_count != 1:  # all rows have the same span
                continue
            parted.append(segment.segment)
            for end in np.unique(new[new != usual]).tolist():
                rids = self.row_ids(segment.segment, np.flatnonzero(new == end))
                other_ends.setdefault(end, []).append(rids)
        if dead:
            self.remove(connection, dead)
        if parted:
            connection.execute(f"DELETE FROM segment_ends WHERE segment IN ({_listed(parted)})")
            connection.execute(f"UPDATE segments SET has_ends = false WHERE segment IN ({_listed(parted)})")
        for end, numbers in usual_ends.items():
            connection.execute(f"UPDATE segments SET to_pos = {end} WHERE segment IN ({_listed(numbers)})")
        for end, rids_of in other_ends.items():
            self.end(connection, np.concatenate(rids_of), end)
        return len(dead) + sum(map(len, usual_ends.values()))

    def _spans(self, connection: Connection, segment: Segment) -> tuple[Ids, Ids]:
        """Begins and ends of the rows of a segment, in their order; one of each if they are all the same."""
        if segment.from_pos is not None and not segment.has_ends:
            return np.array([segment.from_pos]), np.array([segment.to_pos])
        rows = self.numbered_sql(segment.family, [segment])
        found = query(connection, f"SELECT from_pos, to_pos FROM {rows} ORDER BY rid DESC")
        return found["from_pos"].to_numpy(), found["to_pos"].to_numpy()

    def remove(self, connection: Connection, numbers: Sequence[int]) -> None:
        """Removes segments from their tables; their files stay until nobody reads them."""
        connection.execute(f"DELETE FROM segments WHERE segment IN ({_listed(numbers)})")
        connection.execute(f"DELETE FROM segment_ends WHERE segment IN ({_listed(numbers)})")


def segment_of(rids: Ids) -> Ids:
    """The segments of rows, by the rows' ids."""
    numbers: Ids = (-rids - 1) >> _ROWS_BITS
    return numbers


def _columns(family: str) -> list[str]:
    """The columns of a family's table, in their order."""
    own = [f'"{name}"' for name in stored_columns(family)]
    return ["table_key", "from_pos", "to_pos", *own, "generation", "created_at"]


def _listed(numbers: Collection[int]) -> str:
    """SQL of the members of an IN list."""
    return ", ".join(str(int(number)) for number in numbers)
