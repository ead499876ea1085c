"""Merging the rows of a put into flights of files, whose rows hold for a span of file listings (`store.file_spans`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.current_rows import CurrentRows
from store.file_spans import STORAGE_ID, remove_at
from store.freshness import EXACT
from store.layout import BY_SPAN, OPEN_END, Connection
from store.puts import Codes, Counts, Novel, PutMode, codes
from store.staged import NONE, NameOf, Staged
from store.views import execute, query, view


def waves(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in turns that have one snapshot of each table, in the order in which these come."""
    numbers = codes(rows, ["table_key", "snapshot_id"])
    distinct, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    if len(distinct) <= 1:
        yield rows
        return
    order = np.argsort(first)
    keys = rows["table_key"].take(pa.array(first[order])).to_pylist()
    seen: dict[int, int] = {}
    turns: Codes = np.empty(len(distinct), np.int64)
    for pair, key in zip(order, keys, strict=True):
        turns[pair] = seen[key] = seen.get(key, -1) + 1
    turn = turns[places]
    for number in range(int(turns.max()) + 1):
        yield rows if not turns.any() else rows.filter(pa.array(turn == number))


class SpanMerge:
    """A put of rows, at most one snapshot of each table; `apply` writes only what differs.

    Args:
        family: A flight of `BY_SPAN`.
        rows: With `table_key` and `snapshot_id`.
        current: Table key → current snapshot of each table.
        novel: What this transaction registered: nothing stored needs to be looked for there.
    """

    def __init__(
        self, mode: PutMode, family: str, rows: pa.Table, name_of: NameOf, current: Mapping[int, int | None],
        settling: CurrentRows, novel: Novel,
    ):  # fmt: skip
        self._has_novel_tables = novel.has_tables(family, rows)
        self.mode, self.family, self.physical = mode, family, BY_SPAN[family]
        self.current, self.settling = current, settling
        self.staged = Staged(family, rows, name_of)

    def apply(self, connection: Connection, generation: int) -> Counts:
        """Raises Conflict where mode `create` meets another record."""
        staged = self.staged
        turn = _first_turn(staged.rows) if self._has_novel_tables else _turn(connection, self.family, staged.rows)
        unchanged = replaced = 0
        kept = doomed = extended = None
        fresh = staged.rows
        with view(connection, turn=turn):
            if pc.any(pc.greater_equal(turn["last"], 0)).as_py():
                found = self._found(connection)
                other = found.filter(pc.and_not(found["own"], found["same"]))
                if self.mode is PutMode.CREATE and other.num_rows:
                    staged.refuse(connection, self.physical, other["row_no"][0].as_py(), other["rid"][0].as_py())
                # of a listing that is there; of a new one, equal rows of the one before go on
                settled = found.filter(found["own"]) if self.mode is PutMode.FILL else found.filter(
                    pc.and_(found["own"], found["same"]))  # fmt: skip
                unchanged = settled.num_rows
                carried = found.filter(pc.and_not(found["same"], found["own"]))
                done = pa.chunked_array([*settled["row_no"].chunks, *carried["row_no"].chunks], pa.int64())
                if self.mode is not PutMode.FILL:
                    replaced, doomed = other.num_rows, other["rid"]
                kept = found
                if turn["own"].null_count < turn.num_rows and len(done) < staged.rows.num_rows:
                    extended, done = self._extended(connection, done)
                fresh = staged.without(done)
                if self.mode is PutMode.REPLACE_SNAPSHOT:
                    absent = self._absent(connection, found)
                    more = absent.chunks if doomed is None else [*doomed.chunks, *absent.chunks]
                    doomed = pa.chunked_array(more, pa.int64())
            self._list_anew(connection, turn.filter(pc.is_null(turn["own"])))
            self._write(connection, turn, kept, doomed, extended)
            self._insert(connection, turn, fresh, generation)
            if self.family == "stats.files" and self.mode is PutMode.REPLACE_SNAPSHOT:
                self._drop_orphaned_sketches(connection)
        return Counts(staged.received, staged.rows.num_rows - unchanged - replaced, unchanged, replaced)

    def _held(self) -> str:
        """Subquery of the stored rows of the listing that a put is about; of a new one, of the newest before it."""
        return (
            f"SELECT t.rowid AS rid, w.own IS NOT NULL AS own, t.* FROM {self.physical} t JOIN turn w"
            f" ON w.table_key = t.table_key WHERE t.{self.staged.scope()} AND CASE WHEN w.own IS NULL"
            f" THEN t.to_pos = {OPEN_END} ELSE t.from_pos <= w.pos AND t.to_pos > w.pos END"
        )

    def _found(self, connection: Connection) -> pa.Table:
        keep = "t.own" if self.mode is PutMode.CAPTURE else None
        return self.staged.matches(connection, self._held(), ("own",), keep_complete=keep)

    def _extended(self, connection: Connection, done: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """A listing that comes in several puts: what its predecessor held is prolonged, not stored again.

        Returns:
            The row ids to prolong, and the row numbers that need no insert.
        """
        ended = (
            f"SELECT t.rowid AS rid, t.* FROM {self.physical} t JOIN turn w ON w.table_key = t.table_key"
            f" WHERE t.{self.staged.scope()} AND w.own IS NOT NULL AND t.to_pos = w.pos"
        )
        if not connection.execute(f"SELECT 1 FROM ({ended}) LIMIT 1").fetchall():
            return NONE, done
        before = self.staged.matches(connection, ended)
        before = before.filter(before["same"])
        if len(done):
            before = before.filter(pc.invert(pc.is_in(before["row_no"], done)))
        return before["rid"], pa.chunked_array([*done.chunks, *before["row_no"].chunks], pa.int64())

    def _absent(self, connection: Connection, found: pa.Table) -> pa.ChunkedArray:
        """Rows of listings that are there, and not in the put."""
        among = ""
        if self.family == "file_sketches":  # a file that stays keeps the sketches the new set lacks
            among = (
                " AND NOT EXISTS (SELECT 1 FROM staged s WHERE s.table_key = t.table_key"
                " AND s.storage_id = t.storage_id)"
            )
        with view(connection, kept=found.select(["rid"]), staged=self.staged.rows):
            return connection.sql(
                f"SELECT t.rid FROM ({self._held()}) t WHERE t.own AND t.rid NOT IN (SELECT rid FROM kept){among}"
            ).to_arrow_table()["rid"]

    def _list_anew(self, connection: Connection, new: pa.Table) -> None:
        """Before new listings are added: those of current snapshots answer from now on, others may."""
        if not new.num_rows:
            return
        keys, current = new["table_key"].to_pylist(), new["snapshot_id"].to_pylist()
        exact = [k for k, snapshot_id in zip(keys, current, strict=True) if self.current.get(k) == snapshot_id]
        self.settling.listed(set(keys) - set(exact))
        if exact and pc.any(pc.greater_equal(new["last"], 0)).as_py():
            with view(connection, exact=pa.table({"key": pa.array(exact, pa.int64())})):
                connection.execute(
                    "UPDATE file_snapshots SET freshness = NULL WHERE freshness IS NOT NULL"
                    f" AND family = '{self.family}' AND {self.staged.scope()}"
                    " AND table_key IN (SELECT key FROM exact)"
                )

    def _write(
        self, connection: Connection, turn: pa.Table, found: pa.Table | None, doomed: pa.ChunkedArray | None,
        extended: pa.ChunkedArray | None,
    ) -> None:  # fmt: skip
        """Closes, cuts and prolongs stored rows, and adds the new listings."""
        new = turn.filter(pc.is_null(turn["own"]))
        if found is not None and new.num_rows:
            stay = found.filter(pc.and_not(found["same"], found["own"])).select(["rid"])
            with view(connection, stay=stay):
                ended = connection.sql(
                    f"SELECT t.rid FROM ({self._held()}) t WHERE NOT t.own AND t.rid NOT IN (SELECT rid FROM stay)"
                ).to_arrow_table()
            self._end_at(connection, ended["rid"], "w.pos")
        if doomed is not None and len(doomed):
            remove_at(connection, self.family, doomed, self.staged.scope(), turn)
        if extended is not None:
            self._end_at(connection, extended, "w.upto")
        if new.num_rows:
            keys, ids = new["table_key"].to_pylist(), new["snapshot_id"].to_pylist()
            labels = [EXACT if self.current.get(key) == id_ else None for key, id_ in zip(keys, ids, strict=True)]
            listed = new.select(["table_key", "snapshot_id", "pos"])
            execute(
                connection, "INSERT INTO file_snapshots (table_key, family, snapshot_id, pos, freshness)"
                f" SELECT table_key, '{self.family}', snapshot_id, pos, freshness FROM {{listed}}",
                listed=listed.append_column("freshness", pa.array(labels, pa.string())),
            )  # fmt: skip

    def _end_at(self, connection: Connection, rowids: pa.ChunkedArray, position: str) -> None:
        if len(rowids):
            with view(connection, doomed=pa.table({"rid": rowids})):
                connection.execute(
                    f"UPDATE {self.physical} SET to_pos = {position} FROM turn w"
                    f" WHERE w.table_key = {self.physical}.table_key AND {self.physical}.{self.staged.scope()}"
                    f" AND {self.physical}.rowid IN (SELECT rid FROM doomed)"
                )

    def _insert(self, connection: Connection, turn: pa.Table, fresh: pa.Table, generation: int) -> None:
        if turn.num_rows == 1:  # no join for the many rows of one table
            one = turn.to_pylist()[0]
            leading, source = [str(one[name]) for name in ("table_key", "pos", "upto")], "staged s"
        else:
            leading = ["s.table_key", "w.pos", "w.upto"]
            source = "staged s JOIN turn w ON w.table_key = s.table_key"
        spans = dict(zip(("table_key", "from_pos", "to_pos"), leading, strict=True))
        self.staged.insert(connection, self.physical, fresh, generation, spans, source)

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Sketches of files that the new set lacks go from these snapshots' listings of them."""
        listed = f"SELECT 1 FROM file_snapshots WHERE family = 'file_sketches' AND {self.staged.scope()} LIMIT 1"
        if not connection.execute(listed).fetchall():
            return
        sketches = _turn(connection, "file_sketches", self.staged.rows)
        sketches = sketches.filter(pc.is_valid(sketches["own"]))
        if not sketches.num_rows:
            return
        files = self.staged.rows.select(["table_key", *self.staged.given])
        with view(connection, turn=sketches, staged=files):
            doomed = connection.sql(
                f"SELECT t.rid FROM (SELECT rowid AS rid, * FROM file_sketches WHERE {self.staged.scope()}) t"
                " JOIN turn w ON w.table_key = t.table_key AND t.from_pos <= w.pos AND t.to_pos > w.pos"
                " WHERE (t.table_key, t.storage_id) NOT IN"
                f" (SELECT (s.table_key, {STORAGE_ID[self.family].format('s')}) FROM staged s)"
            ).to_arrow_table()["rid"]
            if len(doomed):
                remove_at(connection, "file_sketches", doomed, self.staged.scope(), sketches)


def _first_turn(rows: pa.Table) -> pa.Table:
    """`_turn` of tables without listings."""
    pairs = rows.select(["table_key", "snapshot_id"]).group_by(["table_key", "snapshot_id"]).aggregate([])
    columns = {"pos": 0, "last": -1, "own": None, "upto": OPEN_END}
    for name, value in columns.items():
        pairs = pairs.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), pairs.num_rows))
    return pairs


def _turn(connection: Connection, family: str, rows: pa.Table) -> pa.Table:
    """table_key, snapshot_id, pos, last, own, upto of each table of a wave: the position of its listing (`own` where it
    is there already), that of the newest one (-1 where there is none), and where rows put at it end."""
    pairs = rows.select(["table_key", "snapshot_id"]).group_by(["table_key", "snapshot_id"]).aggregate([])
    return query(
            connection, "SELECT table_key, snapshot_id, coalesce(own, last + 1) AS pos, last, own,"
            f" CASE WHEN own IS NULL OR own = last THEN {OPEN_END} ELSE own + 1 END AS upto FROM ("
            "SELECT pairs.table_key, pairs.snapshot_id, coalesce(max(f.pos), -1) AS last,"
            " max(f.pos) FILTER (f.snapshot_id = pairs.snapshot_id) AS own FROM {pairs} LEFT JOIN file_snapshots f"
            " ON f.table_key = pairs.table_key AND f.family = $family GROUP BY ALL)", {"family": family}, pairs=pairs,
        )  # fmt: skip
