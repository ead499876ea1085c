"""What a transaction has changed, by groups of rows: recorded in one cache, stored as bytes, applied in another.

A group is the rows of one table of the database that have the same names (`naming`): of a record its table, snapshot
and target, of a job its id. A change has, for each table of the database, the groups that were updated or from which
rows were deleted, and rows: all rows that these groups have now, and all that were inserted. So to apply it means to
delete the groups and to insert the rows, whatever the statements were, and even if names are not unique; finer names
only make changes smaller. Row ids are of one file, and are in no change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from store.duckdb.arrow_sql import execute, quoted, within
from store.duckdb.commit_log import Applied
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, Connection, parts
from store.model.puts import IDENTITY

LOCAL: Final = frozenset({"settings"})
"""Tables of the database that are of one file, and never shared."""

KEY: Final = "table_key"
_NAMES: Final[dict[str, tuple[str, ...]]] = (
    {table: (KEY, "snapshot_id", *IDENTITY[flight]) for flight in BY_SNAPSHOT for table in parts(flight)}
    | {table: (KEY, *IDENTITY[family]) for family, table in BY_SPAN.items()}
    | dict.fromkeys(parts("stats.column_groups"), (KEY, "snapshot_id"))  # whose names would be lists
    | {
        "checks": (KEY, "snapshot_id", "rule", "column_name"),
        "column_ids": (KEY, "column_name"),
        "column_usage": (KEY, "column_name"),
        "connectors": ("catalog",),
        "costs": ("day", "catalog"),
        "file_snapshots": (KEY, "family", "snapshot_id"),
        "footers": ("path",),
        "idempotency": ("key",),
        "jobs": ("job_id",),
        "namespaces": ("table_catalog",),
        "publications": (KEY, "home"),
        "schemas": (KEY, "schema_hash"),
        "snapshots": (KEY, "snapshot_id"),
    }
)
"""Table of the database → columns that name a group; of others those of one table of a lake are a group."""


_FEW: Final = 64  # groups that are written as literals


class Change(NamedTuple):
    """Changes of one table of the database.

    Attributes:
        groups: The groups to delete, by some of its columns; None for none.
        rows: The rows to insert; None for none.
    """

    relation: str
    groups: pa.Table | None
    rows: pa.Table | None


class Commit(NamedTuple):
    """What one transaction has changed; the sets are those of `CommitLog.record`."""

    changes: Sequence[Change]
    touched: Set[int] = frozenset()
    outlived: Set[int] = frozenset()


class _Stored(msgspec.Struct, array_like=True):
    relation: str
    groups: bytes | None
    rows: bytes | None


class _StoredCommit(msgspec.Struct, array_like=True):
    changes: list[_Stored]
    touched: list[int]
    outlived: list[int]


def naming(relation: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that name a group of rows of a table of the database, which has these columns."""
    known = _NAMES.get(relation, (KEY,))
    return known if set(known) <= set(columns) else tuple(columns)


def layout_of(connection: Connection) -> dict[str, tuple[str, ...]]:
    """The shared tables of a database, each with its columns."""
    found: dict[str, list[str]] = {}
    rows = connection.execute(
        "SELECT c.table_name, c.column_name FROM duckdb_columns() c JOIN duckdb_tables() t USING (table_oid)"
        " WHERE NOT t.internal AND NOT t.temporary ORDER BY c.table_name, c.column_index"
    ).fetchall()
    for table, column in rows:
        if table not in LOCAL:
            found.setdefault(table, []).append(column)
    return {table: tuple(columns) for table, columns in found.items()}


# As bytes.


def encode(commit: Commit) -> bytes:
    """The bytes of a commit, compressed."""
    changes = [_Stored(name, _to_ipc(groups), _to_ipc(rows)) for name, groups, rows in commit.changes]
    document = msgspec.msgpack.encode(_StoredCommit(changes, sorted(commit.touched), sorted(commit.outlived)))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(document)
    return sink.getvalue().to_pybytes()


def decode(data: bytes) -> Commit:
    """The commit of the bytes."""
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        found = msgspec.msgpack.decode(stream.read(), type=_StoredCommit)
    changes = [Change(each.relation, _of_ipc(each.groups), _of_ipc(each.rows)) for each in found.changes]
    return Commit(changes, frozenset(found.touched), frozenset(found.outlived))


def _to_ipc(table: pa.Table | None) -> bytes | None:
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _of_ipc(data: bytes | None) -> pa.Table | None:
    if data is None:
        return None
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_all()


# In a database.


def _tables_of(change: Change) -> Iterator[int]:
    """The keys of the tables of lakes whose rows a change adds or removes."""
    for part in (change.groups, change.rows):
        if part is not None and KEY in part.column_names:
            yield from (key for key in part[KEY].unique().to_pylist() if key is not None)


def apply(connection: Connection, commits: Iterable[Commit]) -> Applied:
    """Applies commits in order, in the writer's transaction; returns what they have changed together."""
    touched, outlived = set[int](), set[int]()
    keys: dict[str, set[int]] = {}
    rows: dict[str, list[pa.Table]] = {}
    for commit in commits:
        touched |= commit.touched
        outlived |= commit.outlived
        for change in commit.changes:
            keys.setdefault(change.relation, set()).update(_tables_of(change))
            if change.groups is not None:
                _delete(connection, change.relation, change.groups)
            if change.rows is not None:
                execute(connection, f"INSERT INTO {change.relation} BY NAME FROM {{rows}}", rows=change.rows)
                rows.setdefault(change.relation, []).append(change.rows)
    return Applied(touched, outlived, {name: pa.concat_tables(parts) for name, parts in rows.items()}, keys)


def _delete(connection: Connection, relation: str, groups: pa.Table) -> None:
    condition, given = one_of(relation, groups)
    execute(connection, f"DELETE FROM {relation} WHERE {condition}", **given)


def one_of(relation: str, groups: pa.Table) -> tuple[str, dict[str, pa.Table]]:
    """SQL of the condition that a row of a table of the database is of one of the groups, and the Arrow table of the
    condition: none for few groups that differ in one name only, whose literals DuckDB plans in half of the time."""
    values = [column.unique().to_pylist() for column in groups.columns]
    names = [f'{relation}."{name}"' for name in groups.column_names]
    if all(len(each) == 1 for each in values[:-1]) and len(values[-1]) <= _FEW and _are_literals(values):
        lists = (", ".join(map(_literal, each)) for each in values)
        return f"({' AND '.join(f'{name} IN ({each})' for name, each in zip(names, lists, strict=True))})", {}
    same = [f'{name} IS NOT DISTINCT FROM g."{own}"' for name, own in zip(names, groups.column_names, strict=True)]
    condition = f"EXISTS (SELECT 1 FROM {{groups}} g WHERE {' AND '.join(same)})"
    if KEY in groups.column_names and not groups[KEY].null_count:  # by which DuckDB skips row groups
        condition = f"({within(f'{relation}.{KEY}', groups[KEY])} AND {condition})"
    return condition, {"groups": groups}


def _are_literals(values: Sequence[Sequence[object]]) -> bool:
    return all(type(value) in (int, str) for each in values for value in each)


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else quoted(value)


def distinct(groups: pa.Table) -> pa.Table:
    """Each group once."""
    found = groups.group_by(groups.column_names, use_threads=False).aggregate([])
    return found.select(groups.column_names)
