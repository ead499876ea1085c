"""The Python client: statistics as Arrow tables, over one Flight connection.

    import statflight

    with statflight.connect("grpc://127.0.0.1:8815") as client:
        client.columns("lake.sales.orders", snapshot="current")

It requires only pyarrow, and imports neither `store` nor `capture`; SQL conditions and retries load a library of the
extra `client` at first use. Errors are pyarrow's own classes with the server's message only; `reason()` formats one
with its code. A client is thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flight_server.client.capture_requests import new_among, requests_for, without_missing
from flight_server.client.notebook import show_tables_as_html
from flight_server.client.running_captures import RunningCaptures
from flight_server.client.stats_reader import StatsReader, Where, selection


class StatsClient(StatsReader):
    """A client of a statflight server: reads, puts and captures. See `connect`.

    Args:
        uri: `grpc://host:port` or `grpc+tls://host:port`, or several with commas between them; None for
            STATFLIGHT_SERVER or the default address.
        token: Bearer token sent with every call; None for STATFLIGHT_TOKEN if `uri` is None too.
        tls_roots: PEM certificates of the authorities to trust: a path, or the bytes.
        options: Further arguments of `Connection`.
    """

    def __init__(
        self,
        uri: str | None = None,
        token: str | None = None,
        tls_roots: str | Path | bytes | None = None,
        **options: Any,
    ):
        super().__init__(uri, token, tls_roots, **options)
        self.actions = Actions(self)
        self.captures = RunningCaptures(self)
        show_tables_as_html()

    # Writing.

    def put(self, flight: str, table: Any, mode: str = "create", idempotency_key: str | None = None) -> dict[str, int]:
        """Puts rows into a writable flight, atomically.

        Args:
            flight: Name of the flight, such as `stats.columns`.
            table: A Table, RecordBatch, RecordBatchReader, or any object with `__arrow_c_stream__`.
            mode: `create` refuses to change stored rows, `upsert` replaces a target's row, `replace_snapshot` replaces
                all rows of the snapshot.
            idempotency_key: Key of the put: repeating it with the same rows stores nothing and returns the first
                result.

        Returns:
            Counts of rows: received, created, unchanged, replaced.

        Raises:
            pa.ArrowInvalid: A row is not valid; or CONFLICT: another row is stored for its target.
        """
        command = {"table": flight, "mode": mode}
        if idempotency_key is not None:
            command["idempotency_key"] = idempotency_key
        return self.put_rows(command, table)

    def describe(
        self, table: str, *, owner: str | None = None, tags: Sequence[str] | None = None, notes: str | None = None
    ) -> dict[str, Any]:
        """Sets what people say of a table, which captures and inspections keep.

        Args:
            table: Full name of the table.
            owner: Who is responsible for it; empty for nobody, None leaves it as it is.
            tags: All of its tags; empty for none, None as above.
            notes: What to know of it, as above.

        Returns:
            `table`, the `description` that its format has, `owner`, `tags` and `notes`, as they are now.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        said = {"owner": owner, "tags": None if tags is None else list(tags), "notes": notes}
        answer = self.actions.call(
            "describe", {"table": self.find_table(table)} | {k: v for k, v in said.items() if v is not None}
        )
        described: dict[str, Any] = answer[0]
        return described

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
        """Builds requests for a table and its columns, for `capture` and `resolve`.

        Args:
            table: Full name of the table.
            snapshot: "current", an id, or "all".
            columns: Names of columns, case-insensitive, or `#<column_id>`; None for all that can have statistics.
            kinds: Kinds of statistics, such as MIN_MAX or NDV; None for all.
            mode: SYNC waits for the outcome, ASYNC returns QUEUED with a job id.
            partitions: Capture only files of these partitions, such as [{"day": "2024-05-01"}]; not for `resolve`.
            sampling: Sampling of the columns, such as "RANDOM_ROW_GROUP" or {"method": "METADATA_GUIDED", "max_rows":
                100_000}; None for none.

        Returns:
            One request for the table, and one for each column.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_COLUMN.
            pa.ArrowInvalid: AMBIGUOUS_COLUMN: Several columns have the name.
        """
        known = self.read_table("information_schema.columns", table, ["column_name", "column_id", "data_type"])
        common: dict[str, Any] = {"table": table, "snapshot": snapshot, "mode": mode}
        if partitions is not None:
            common["partitions"] = list(partitions)
        return requests_for(common, known.to_pylist(), columns, kinds, sampling)

    def capture(
        self,
        tables: str | Iterable[str | Mapping[str, Any]],
        *,
        snapshot: str | int = "current",
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        mode: str = "SYNC",
        partitions: Sequence[Mapping[str, Any]] | None = None,
        engine: str | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Captures statistics of tables and their columns, or those of given requests. Ctrl-C cancels the capture.

        Args:
            tables: A full name, or several full names and requests (see PROTOCOL.md). The other arguments are those of
                `capture_requests`.
            engine: Where data is read: "auto", "spark" or "local"; None for the server's setting.
            timeout: Timeout in seconds; None for that of the client.

        Returns:
            The requests in order, each with its `outcome`, `engine_id`, `job_id`, `detail` and `attributes`; then those
            for columns that the capture found to be new. Where all columns of tables were asked for by name, those that
            the snapshot does not have are left out.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_COLUMN.
            flight.FlightTimedOutError: The timeout has passed.
        """

        def ask(name: str) -> list[dict[str, Any]]:
            return self.capture_requests(
                name, snapshot=snapshot, columns=columns, kinds=kinds, mode=mode, partitions=partitions
            )

        requests: list[Mapping[str, Any]] = []
        items = [tables] if isinstance(tables, str) else list(tables)
        for item in items:
            if isinstance(item, str):
                requests += ask(item)
            else:
                requests.append({"snapshot": snapshot, "target": {"kind": "TABLE"}, "mode": mode, **item})
        more = {} if engine is None else {"engine": engine}
        outcomes = self.captures.call({"requests": requests} | more, timeout)
        if snapshot == "current" and columns is None:  # the capture looked at the lake and may have found new columns
            new = new_among((one for item in items if isinstance(item, str) for one in ask(item)), requests)
            outcomes += self.captures.call({"requests": new} | more, timeout) if new else []
            requests += new
        ended = [{**request, **outcome} for request, outcome in zip(requests, outcomes, strict=True)]
        if columns is not None or not all(isinstance(item, str) for item in items):
            return ended
        return without_missing(ended, snapshot, self.column_ids)

    def column_ids(self, table: str) -> set[int]:
        """The ids of the columns of a table, by its full name."""
        return set(self.read_table("information_schema.columns", table, ["column_id"])["column_id"].to_pylist())

    def resolve(
        self,
        requests: Iterable[Mapping[str, Any]],
        *,
        where: Where | None = None,
        engine: str | None = None,
        max_bytes: int | None = None,
        max_targets: int | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Reads statistics from the store; missing ones are captured within a budget.

        Args:
            requests: Requests, as `capture_requests` returns them, the most wanted first; so are their `kinds`.
            where: Condition on the rows of each table, as in `scan`, for requests without a `where` of their own.
            engine: As in `capture`.
            max_bytes: Greatest size of the records, as JSON in bytes; what does not fit is OMITTED_BY_BUDGET.
            max_targets: Greatest number of targets; the others are OMITTED_BY_BUDGET.
            timeout: Timeout in seconds; None for that of the client.

        Returns:
            `outcome`, `detail` and `record` of each request, in order; with a condition also `estimate`: what it
            leaves, as `StatsReader.estimate` returns it, of the column of the request alone. The record is of all rows.

        Raises:
            pa.ArrowInvalid: The condition does not suit a table.
        """
        common = {"snapshot": "current", "mode": "SYNC"} | selection(where, None)
        asked = [{**common, **request} for request in requests]
        more = {"engine": engine, "max_bytes": max_bytes, "max_targets": max_targets}
        body = {"requests": asked} | {name: value for name, value in more.items() if value is not None}
        answer: list[dict[str, Any]] = self.actions.call("resolve", body, timeout=timeout)
        return answer


_ONE_RESULT: Final = frozenset(
    {
        "register_connector",
        "validate_connector",
        "drop_connector",
        "get_job",
        "cancel_job",
        "wait_job",
        "delete_stats",
        "stats_meta",
        "health",
    }
)


class Actions:
    """Actions of the server as methods: `client.actions.health()`, `client.actions.wait_job(job_id="…")`."""

    def __init__(self, client: StatsClient):
        self._client = client

    def call(self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Any]:
        """Calls an action; returns all results, in order.

        Args:
            name: Name of the action; the flight `sys.functions` lists them.
            body: Arguments of the action.
            timeout: Timeout in seconds; None for that of the client.
        """
        return self._client.act(name, body, timeout)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def action(**body: Any) -> Any:
            results = self.call(name, body)
            return results[0] if name in _ONE_RESULT and len(results) == 1 else results

        return action


def connect(uri: str | None = None, token: str | None = None, **options: Any) -> StatsClient:
    """Connects to a server.

    Args:
        uri: `grpc://host:port` or `grpc+tls://host:port`, or several with commas between them; None for
            STATFLIGHT_SERVER or the default address.
        token: Bearer token sent with every call; None for STATFLIGHT_TOKEN if `uri` is None too.
        options: Further arguments of `StatsClient`: `tls_roots`, `timeout`, `attempts`, …

    Returns:
        The client, a context manager that closes it.

    Raises:
        ImportError: `attempts` is greater than 1, and the extra `client` is not installed.
    """
    return StatsClient(uri, token, **options)
