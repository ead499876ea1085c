"""The Python client: statistics as Arrow tables, over one Flight connection.

    import statflight

    with statflight.connect("grpc://127.0.0.1:8815") as client:
        client.columns("lake.sales.orders", snapshot="current")

It needs pyarrow and nothing else, and imports neither `store` nor `capture`: conditions written as SQL and retries load
a library of the extra `client` on first use. Errors are pyarrow's own classes with the server's message in plain;
`reason()` gives the code and the message of one. A client may be used by many threads at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import pyarrow as pa

from flight_server import notebook
from flight_server.client_errors import reason
from flight_server.connection import DEFAULT_URI, Connection, require
from flight_server.table_names import full_name, join_name, of_table, split_name

if TYPE_CHECKING:
    from flight_server.dataset import FlightDataset

__all__ = ["DEFAULT_URI", "Actions", "StatsClient", "connect", "full_name", "join_name", "of_table", "reason",
           "split_name"]  # fmt: skip

TABLE_KINDS: Final = frozenset({"ROW_COUNT", "FILE_COUNT", "TOTAL_BYTES"})  # the rest are kinds of a column
CONTAINERS: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")  # no statistics of their own: their leaves are columns

Where = Any
"""A condition: a `pyarrow.compute` expression, SQL text, a filter tree, or a list of trees that must all hold."""


class StatsClient(Connection):
    """Reads, puts and captures of a statflight server; `Connection` describes the arguments."""

    def __init__(
        self,
        uri: str | None = None,
        token: str | None = None,
        tls_roots: str | Path | bytes | None = None,
        **options: Any,
    ):
        super().__init__(uri, token, tls_roots, **options)
        self.actions = Actions(self)
        notebook.register()

    # Reading.

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        *,
        stream: Literal[True],
    ) -> pa.RecordBatchReader: ...

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Reads any flight, such as `stats.columns`, in one round trip.

        Args:
            flight: its name; `client.read("sys.flights")` lists them.
            columns: the columns wanted, in this order; all when None.
            where: the condition on its rows.
            snapshot: `stats.*` only: "current" or an id gives one valid row a target; None gives all stored rows.
            allow_stale: with `snapshot`: also rows of older snapshots, labelled STALE.
            limit: at most so many rows.
            stream: a RecordBatchReader instead of a Table, for results larger than memory.
        """
        command: dict[str, Any] = {"table": flight, "strict": True}
        if columns is not None:
            command["columns"] = list(columns)
        if where is not None:
            command |= _condition(where)
        if snapshot is not None:
            command["snapshot"] = snapshot
        if allow_stale:
            command["allow_stale"] = True
        if limit is not None:
            command["limit"] = limit
        return self.get(command, stream=True) if stream else self.get(command)

    def tables(self, catalog: str | None = None) -> pa.Table:
        """The tables the server knows."""
        where = None if catalog is None else [{"column": "table_catalog", "op": "EQ", "values": [catalog]}]
        return self.read("information_schema.tables", where=where)

    def columns(
        self,
        table: str,
        *,
        snapshot: str | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Column statistics of a table, by its full name."""
        return self.read_table("stats.columns", table, columns, where, snapshot, allow_stale)

    def files(
        self,
        table: str,
        *,
        snapshot: str | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Files of a table, by its full name."""
        return self.read_table("stats.files", table, columns, where, snapshot, allow_stale)

    def read_table(
        self,
        flight: str,
        table: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """The rows of one table in any flight that has table_catalog, table_schema and table_name.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, where no table has this name.
        """
        tree = [] if where is None else _tree(where)
        scope = of_table(table) + (tree if isinstance(tree, list) else [tree])
        found = self.read(flight, columns, scope, snapshot, allow_stale)
        if not found.num_rows:
            self.require_table(table)
        return found

    def quantiles(
        self,
        table: str,
        column: str | None = None,
        *,
        snapshot: str | int | None = "current",
        allow_stale: bool = False,
    ) -> pa.Table:
        """Quantiles of a table's columns, or of one: column_name, quantile (0 to 1), value and provenance."""
        where = None if column is None else _named(column)
        return self.read_table("stats.quantiles", table, where=where, snapshot=snapshot, allow_stale=allow_stale)

    def history(self, table: str, column: str) -> pa.Table:
        """Statistics of a column at every snapshot that has some, oldest first.

        Returns:
            The columns of `stats.columns`, and at the end `committed_at`.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE; UNKNOWN_COLUMN: the table has neither the column nor statistics of it.
            pa.ArrowInvalid: AMBIGUOUS_COLUMN: several columns of a snapshot have the name, `#<column_id>` picks one.
        """
        rows = self.read_table("stats.columns", table, where=_named(column))
        if len(rows["snapshot_id"].unique()) < len(rows):
            _chosen(table, column, list({row["column_id"]: row for row in rows.to_pylist()}.values()))
        if not rows.num_rows:
            known = self.read_table("information_schema.columns", table, ["column_name"])["column_name"].to_pylist()
            if column not in known:
                raise _unknown_column(table, column, known)
        commits = self.read_table("sys.snapshots", table, ["snapshot_id", "committed_at"])
        order = {row["snapshot_id"]: (at, row["committed_at"]) for at, row in enumerate(commits.to_pylist())}
        ids = rows["snapshot_id"].to_pylist()
        places = sorted(range(len(ids)), key=lambda at: order.get(ids[at], (-1, None))[0])
        times = [order.get(ids[at], (-1, None))[1] for at in places]
        committed_at = pa.array(times, commits.schema.field("committed_at").type)
        return rows.take(pa.array(places, pa.int64())).append_column("committed_at", committed_at)

    def adbc_statistics(self, catalog: str | None = None) -> pa.Table:
        """Current statistics in the schema of ADBC 1.1's GetStatistics: one row for each catalog, or for one."""
        where = None if catalog is None else [{"column": "catalog_name", "op": "EQ", "values": [catalog]}]
        return self.read("adbc.statistics", where=where)

    def arrow_statistics(self, table: str) -> pa.StructArray:
        """Current statistics of a table in Arrow's statistics schema: a row for the table, one for each column.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        from flight_server import arrow_statistics as made

        rows = self.read_table("stats.tables", table, made.TABLE_COLUMNS, snapshot="current").to_pylist()
        columns = self.read_table("stats.columns", table, made.COLUMNS, snapshot="current").to_pylist()
        names = self.read_table("information_schema.columns", table, ["column_id", "ordinal_position"]).to_pylist()
        ids = [row["column_id"] for row in sorted(names, key=lambda row: row["ordinal_position"])]
        # a table that only has put statistics has no schema: its columns are in the order of their ids
        ids = ids or sorted(row["column_id"] for row in columns)
        return made.build(rows[0] if rows else None, columns, {column: place for place, column in enumerate(ids)})

    def dataset(self, flight: str, snapshot: str | int | None = None, allow_stale: bool = False) -> FlightDataset:
        """A flight as a `pyarrow.dataset.Dataset`, for DuckDB, polars, DataFusion, pandas and pyarrow.

        Each scan asks the server anew, for the columns needed and with the filter as far as the server applies it.

        Args:
            flight: such as `stats.columns`.
            snapshot: as `read` takes it.
            allow_stale: as `read` takes it.
        """
        from flight_server.dataset import FlightDataset

        return FlightDataset(self, flight, snapshot, allow_stale)

    # Writing.

    def put(self, flight: str, table: Any, mode: str = "create", idempotency_key: str | None = None) -> dict[str, int]:
        """Puts rows into a writable flight, all of them or none.

        Args:
            flight: such as `stats.columns`.
            table: a Table, RecordBatch, RecordBatchReader, or anything with `__arrow_c_stream__`.
            mode: `create` refuses to change what is stored, `upsert` replaces a target's row, `replace_snapshot`
                replaces all rows of the snapshot.
            idempotency_key: the same key with the same rows may be put again, and is answered as the first time.

        Returns:
            Counts: received, created, unchanged, replaced.
        """
        command = {"table": flight, "mode": mode}
        if idempotency_key is not None:
            command["idempotency_key"] = idempotency_key
        return self.put_rows(command, table)

    # Capture.

    def capture_requests(
        self,
        table: str,
        *,
        snapshot: str | int = "current",
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        mode: str = "SYNC",
        partitions: Sequence[Mapping[str, Any]] | None = None,
        sampling: str | Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """The requests for a table and its columns, as `capture` and `resolve` take them.

        Args:
            table: its full name.
            snapshot: "current", an id, or "all".
            columns: names of columns, in any case, or `#<column_id>`; None means each that can have statistics.
            kinds: such as MIN_MAX or NDV; None means any.
            mode: SYNC waits for the outcome, ASYNC answers QUEUED with a job id.
            partitions: such as [{"day": "2024-05-01"}]: only statistics of the files in them; not for `resolve`.
            sampling: of the columns, such as "RANDOM_ROW_GROUP" or {"method": "METADATA_GUIDED", "max_rows": 100_000}.

        Raises:
            pa.ArrowKeyError: the server knows no such table or column.
            pa.ArrowInvalid: several columns are written so.
        """
        known = self.read_table("information_schema.columns", table, ["column_name", "column_id", "data_type"])
        rows = known.to_pylist()
        chosen = None if columns is None else {_chosen(table, name, rows): name for name in columns}
        of_columns = None if kinds is None else [kind for kind in kinds if kind not in TABLE_KINDS]
        common: dict[str, Any] = {"table": table, "snapshot": snapshot, "mode": mode}
        if partitions is not None:
            common["partitions"] = list(partitions)
        selected = {} if chosen is None else {"column_selectors": [_selector(i, rows) for i in chosen]}
        requests: list[dict[str, Any]] = [common | {"target": {"kind": "TABLE"}} | selected]
        if of_columns == []:
            return requests
        for row in rows:
            if row["column_id"] in chosen if chosen is not None else not _is_container(row["data_type"]):
                target = {"kind": "COLUMN", "column_id": row["column_id"]}
                more: dict[str, Any] = {"kinds": of_columns} if of_columns else {}
                if sampling is not None:
                    more["sampling"] = sampling
                requests.append(common | {"target": target} | more)
        return requests

    def require_table(self, table: str) -> None:
        """Raises `pa.ArrowKeyError` unless the server knows the table."""
        if self.read("information_schema.tables", ["table_name"], of_table(table)).num_rows:
            return
        near = difflib.get_close_matches(table, [full_name(row) for row in self.tables().to_pylist()], 1, 0.6)
        hint = f'; did you mean "{near[0]}"?' if near else "; `statflight query information_schema.tables` lists them"
        raise pa.ArrowKeyError(f'[UNKNOWN_TABLE] no table "{table}"{hint}')

    def capture(
        self,
        tables: str | Iterable[str | Mapping[str, Any]],
        *,
        snapshot: str | int = "current",
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        mode: str = "SYNC",
        partitions: Sequence[Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Captures statistics of tables (the table and its columns), or of requests as the wire has them.

        Returns:
            The requests in order, each with its `outcome`, `engine_id`, `job_id`, `detail` and `attributes`.
        """
        requests: list[Mapping[str, Any]] = []
        for item in [tables] if isinstance(tables, str) else tables:
            if isinstance(item, str):
                requests += self.capture_requests(
                    item, snapshot=snapshot, columns=columns, kinds=kinds, mode=mode, partitions=partitions
                )
            else:
                requests.append({"snapshot": snapshot, "target": {"kind": "TABLE"}, "mode": mode, **item})
        outcomes = self.actions.call("capture", {"requests": requests}, timeout=timeout)
        return [{**request, **outcome} for request, outcome in zip(requests, outcomes, strict=True)]

    def resolve(self, requests: Iterable[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Statistics from the store, or captured within a budget: per request `outcome`, `detail` and `record`."""
        body = {"requests": [{"snapshot": "current", "mode": "SYNC", **request} for request in requests]}
        answer: list[dict[str, Any]] = self.actions.call("resolve", body, timeout=timeout)
        return answer


def _unknown_column(table: str, column: str, known: Iterable[str]) -> pa.ArrowKeyError:
    return pa.ArrowKeyError(f'[UNKNOWN_COLUMN] table "{table}" has no column "{column}"; it has {", ".join(known)}')


def _named(column: str) -> list[dict[str, Any]]:
    named = {"column": "column_name", "op": "EQ", "values": [column]}
    by_id = {"column": "column_id", "op": "EQ", "values": [column[1:]]}
    return [{"or": [named, by_id]} if re.fullmatch(r"#[0-9]{1,18}", column) else named]


def _chosen(table: str, column: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """The id of the column that a name, in any case, or `#<column_id>` picks."""
    names = [row["column_name"] for row in rows]
    ids = {f"#{row['column_id']}": row["column_id"] for row in rows}
    if column in ids and column not in names:
        return int(ids[column])
    name = _known_as(column, dict.fromkeys(names))
    found = [row["column_id"] for row in rows if row["column_name"] == name]
    if not found:
        raise _unknown_column(table, column, dict.fromkeys(names))
    if len(found) > 1:
        choice = " or ".join(f"#{column_id}" for column_id in found)
        raise pa.ArrowInvalid(
            f'[AMBIGUOUS_COLUMN] several columns of "{table}" are written "{name}"; name one by its id: {choice}'
        )
    return int(found[0])


def _selector(column_id: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """A column's name where it has one of its own, else its id."""
    (name,) = (row["column_name"] for row in rows if row["column_id"] == column_id)
    alone = sum(row["column_name"] == name for row in rows) == 1 and not name.startswith("#")
    return name if alone else f"#{column_id}"


def _known_as(name: str, known: Iterable[str]) -> str:
    """The one column of this name, its case ignored unless several differ by it alone; else the name as given."""
    folded = [other for other in known if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else name


_ONE_RESULT = frozenset({
    "register_connector", "validate_connector", "drop_connector", "get_job", "cancel_job", "wait_job", "delete_stats",
    "stats_meta", "health",
})  # fmt: skip


class Actions:
    """The server's actions: `client.actions.health()`, `client.actions.wait_job(job_id="…")`."""

    def __init__(self, client: StatsClient):
        self._client = client

    def call(self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Any]:
        """All results of an action, in order."""
        return self._client.act(name, body, timeout)

    def call_raw(
        self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Iterator[bytes]:
        """The results as bytes, one by one as they arrive; `scan_system_table` answers Arrow messages."""
        return self._client.act_raw(name, body, timeout)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def action(**body: Any) -> Any:
            results = self.call(name, body)
            return results[0] if name in _ONE_RESULT and len(results) == 1 else results

        return action


def _is_container(data_type: str | None) -> bool:
    return re.split(r"[<(\s]", (data_type or "").upper(), maxsplit=1)[0] in CONTAINERS


def _tree(where: Where) -> Any:
    """The JSON form of a condition. Translators load here, so that the client itself needs pyarrow only."""
    if isinstance(where, str):
        require("sqlglot", "a condition written as SQL")
        from flight_server.conditions.sql import parse_where

        return parse_where(where)
    if isinstance(where, Mapping | list | tuple):
        return list(where) if isinstance(where, tuple) else where
    from flight_server.conditions.arrow_expressions import from_expression

    return from_expression(where)


def _condition(where: Where) -> dict[str, Any]:
    """The keys of the command that say it: predicates hold leaves only, anything else is a filter."""
    tree = _tree(where)
    if not isinstance(tree, list):
        return {"filter": tree}
    return {"predicates": tree} if all("column" in leaf for leaf in tree) else {"filter": {"and": tree}}


def connect(uri: str | None = None, token: str | None = None, **options: Any) -> StatsClient:
    """A client of the server at `uri`; the arguments are those of `StatsClient`."""
    return StatsClient(uri, token, **options)
