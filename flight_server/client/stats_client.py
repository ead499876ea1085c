"""The Python client: statistics as Arrow tables, over one Flight connection.

    import statflight

    with statflight.connect("grpc://127.0.0.1:8815") as client:
        client.columns("lake.sales.orders", snapshot="current")

It needs pyarrow and nothing else, and imports neither `store` nor `capture`: conditions written as SQL and retries load
a library of the extra `client` on first use. Errors are pyarrow's own classes with the server's message in plain;
`reason()` gives the code and the message of one. A client may be used by many threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flight_server.client.capture_requests import requests_for
from flight_server.client.notebook import show_tables_as_html
from flight_server.client.stats_reader import StatsReader


class StatsClient(StatsReader):
    """A client of a statflight server: reads, puts and captures. `connect` makes one.

    Args:
        uri: `grpc://host:port`, or `grpc+tls://host:port`; when None, STATFLIGHT_SERVER or the default address.
        token: Bearer token sent with every call; when `uri` is None too, STATFLIGHT_TOKEN.
        tls_roots: PEM certificates that the server's is checked against: a path, or the bytes.
        options: The other arguments of `Connection`.
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
        show_tables_as_html()

    # Writing.

    def put(self, flight: str, table: Any, mode: str = "create", idempotency_key: str | None = None) -> dict[str, int]:
        """Puts rows into a writable flight, all of them or none.

        Args:
            flight: Its name, such as `stats.columns`.
            table: A Table, RecordBatch, RecordBatchReader, or anything with `__arrow_c_stream__`.
            mode: `create` refuses to change stored rows, `upsert` replaces a target's row, `replace_snapshot` replaces
                all rows of the snapshot.
            idempotency_key: The same key with the same rows may be put again, and is answered as the first time.

        Returns:
            Counts of rows: received, created, unchanged, replaced.

        Raises:
            pa.ArrowInvalid: A row is not valid, or CONFLICT: Something else is stored for its target.
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
        """Makes the requests for a table and its columns, as `capture` and `resolve` take them.

        Args:
            table: Its full name.
            snapshot: "current", an id, or "all".
            columns: Names of columns, in any case, or `#<column_id>`; None means each that can have statistics.
            kinds: Such as MIN_MAX or NDV; None means any.
            mode: SYNC waits for the outcome, ASYNC answers QUEUED with a job id.
            partitions: Such as [{"day": "2024-05-01"}]: only statistics of the files in them; not for `resolve`.
            sampling: Of the columns, such as "RANDOM_ROW_GROUP" or {"method": "METADATA_GUIDED", "max_rows": 100_000}.

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
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Captures statistics of tables (the table and its columns), or of requests as the wire has them.

        Args:
            tables: A full name, or full names and requests.
            snapshot: As `capture_requests` takes it, and so are `columns`, `kinds`, `mode` and `partitions`.
            columns: See `snapshot`.
            kinds: See `snapshot`.
            mode: See `snapshot`.
            partitions: See `snapshot`.
            timeout: Seconds that the call may take; that of the client when None.

        Returns:
            The requests in order, each with its `outcome`, `engine_id`, `job_id`, `detail` and `attributes`.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_COLUMN.
            flight.FlightTimedOutError: The timeout has passed.
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
        """Reads statistics from the store, or has them captured within a budget.

        Args:
            requests: Such as `capture_requests` makes.
            timeout: Seconds that the call may take; that of the client when None.

        Returns:
            Per request, in order: `outcome`, `detail` and `record`.
        """
        body = {"requests": [{"snapshot": "current", "mode": "SYNC", **request} for request in requests]}
        answer: list[dict[str, Any]] = self.actions.call("resolve", body, timeout=timeout)
        return answer


_ONE_RESULT: Final = frozenset({
    "register_connector", "validate_connector", "drop_connector", "get_job", "cancel_job", "wait_job", "delete_stats",
    "stats_meta", "health",
})  # fmt: skip


class Actions:
    """Actions of the server as methods: `client.actions.health()`, `client.actions.wait_job(job_id="…")`.

    Args:
        client: The connection.
    """

    def __init__(self, client: StatsClient):
        self._client = client

    def call(self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Any]:
        """Calls an action.

        Args:
            name: Its name; the flight `sys.functions` lists them.
            body: Its arguments.
            timeout: Seconds that the call may take; that of the client when None.

        Returns:
            All results, in order.
        """
        return self._client.act(name, body, timeout)

    def call_raw(
        self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Iterator[bytes]:
        """Calls an action whose results are not JSON, such as `scan_system_table`, which answers Arrow messages.

        Args:
            name: Its name.
            body: Its arguments.
            timeout: Seconds that the call may take; that of the client when None.

        Returns:
            The results as bytes, one by one as they arrive.
        """
        return self._client.act_raw(name, body, timeout)

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
        uri: `grpc://host:port`, or `grpc+tls://host:port`; when None, STATFLIGHT_SERVER or the default address.
        token: Bearer token sent with every call; when `uri` is None too, STATFLIGHT_TOKEN.
        options: The other arguments of `StatsClient`: `tls_roots`, `timeout`, `attempts`, …

    Returns:
        The client, a context manager that closes itself.

    Raises:
        ImportError: `attempts` is more than 1, and the extra `client` is not installed.
    """
    return StatsClient(uri, token, **options)
