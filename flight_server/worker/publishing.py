"""Publications in a worker: reads the statistics from the server, and hands them to the home's publisher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from capture.connectors.spi import Connector, ConnectorConfig
from capture.publishers import publisher_class
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics, Destination, TableStatistics
from flight_server.worker.connection import Server
from store.errors import InvalidArgument, NotFound
from store.sketches import is_partial

_NAME = ("table_catalog", "table_schema", "table_name")
COPIED = (
    "logical_type", "row_count", "null_count", "nan_count", "ndv", "min", "max", "min_is_exact", "max_is_exact",
    "avg_width_bytes", "max_width_bytes",
)  # fmt: skip
_ROLES = {"NDV": "theta", "QUANTILES": "quantiles"}


def publish_table(
    server: Server, connector: Connector, options: Mapping[str, str], payload: Mapping[str, Any],
    spark: Callable[[], Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Publishes what a lease of kind `publish` names.

    Args:
        server: Has the stored statistics.
        connector: The opened connector of the table's lake.
        options: Its options, secrets resolved.
        payload: The lease's payload: connector, table, snapshot_id, to, dry_run, allow_inherited, options.
        spark: Gives a Spark session.

    Raises:
        StatflightError: The home refused, or failed.
    """
    chosen = publisher_class(payload["to"])
    lake = payload["connector"]
    if chosen.formats and lake["format"] not in chosen.formats:
        raise InvalidArgument(
            f'to: {payload["to"]} holds statistics of {" and ".join(sorted(chosen.formats))} tables; '
            f'"{payload["table"]["full_name"]}" is a {lake["format"]} table',
            code="WRONG_FORMAT", params={"field": "to", "actual": payload["to"]},
        )  # fmt: skip
    statistics = stored_statistics(server, payload, chosen.sketches)
    config = ConnectorConfig(lake["catalog"], lake["format"], lake["uri"], options)
    publisher = chosen(Destination(connector, config, payload["options"], spark), statistics)
    return publish(publisher, dry_run=payload["dry_run"]).to_json()


def stored_statistics(server: Server, payload: Mapping[str, Any], roles: frozenset[str]) -> TableStatistics:
    """Reads the statistics of a table at a snapshot that may be published.

    `left_out` names the columns whose record comes from a sample, or is inherited without `allow_inherited`.

    Args:
        server: Has the stored statistics.
        payload: The lease's payload: `table`, `snapshot_id`, `allow_inherited`.
        roles: Roles of the sketches that the home takes.

    Returns:
        The statistics to publish.

    Raises:
        NotFound: The store has no record of any column of the table.
        InvalidArgument: No record may be published.
    """
    table, snapshot_id = payload["table"], payload["snapshot_id"]
    columns, left_out = {}, {}
    for row in _rows(server, "stats.columns", table, snapshot_id):
        if reason := _refusal(row, payload["allow_inherited"]):
            left_out[row["column_name"]] = reason
        else:
            columns[row["column_id"]] = {name: row[name] for name in COPIED} | {"name": row["column_name"]}
    where = f'"{table["full_name"]}" at snapshot {snapshot_id}'
    if not columns:
        if not left_out:
            raise NotFound(f"no statistics of {where} are stored", code="UNKNOWN_STATISTICS", hint="capture it first")
        name, reason = next(iter(left_out.items()))
        raise InvalidArgument(
            f'no statistics of {where} may be published: column "{name}" {reason}',
            code="NOT_PUBLISHABLE", hint="capture the table at its current snapshot, without sampling",
        )  # fmt: skip
    if roles:
        for row in _rows(server, "stats.sketches", table, snapshot_id, target_kind=["COLUMN"], role=sorted(roles)):
            column = columns.get(row["column_id"])
            if column is not None and not is_partial(row["params"]):
                column[_ROLES[row["role"]]] = row["data"]
    records = _rows(server, "stats.tables", table, snapshot_id)
    whole = next((row for row in records if not _refusal(row, payload["allow_inherited"])), {})
    found = tuple(ColumnStatistics(column_id, **column) for column_id, column in sorted(columns.items()))
    return TableStatistics(
        table["schema"], table["name"], snapshot_id, found,
        _row_count(whole, found), whole.get("total_size_bytes"), whole.get("merged_size_bytes"), left_out,
    )  # fmt: skip


def _refusal(row: Mapping[str, Any], allow_inherited: bool) -> str:
    """The reason why a record may not be published; empty if it may."""
    if row["completeness"] != "COMPLETE":
        return "is of a sample" if row["completeness"] == "PARTIAL" else "is not known"
    if row["row_groups_sampled"]:
        return "is of a sample"
    if row["freshness"] == "EXACT" or (row["freshness"] == "INHERITED" and allow_inherited):
        return ""
    return f"is {row['freshness']}: of snapshot {row['snapshot_id']}"


def _row_count(whole: Mapping[str, Any], columns: tuple[ColumnStatistics, ...]) -> int | None:
    if whole.get("row_count") is not None:
        return int(whole["row_count"])
    return next((column.row_count for column in columns if column.row_count is not None), None)


def _rows(
    server: Server, flight: str, table: Mapping[str, Any], snapshot_id: int, **equal: list[Any]
) -> list[dict[str, Any]]:
    names = zip(_NAME, (table["catalog"], table["schema"], table["name"]), strict=True)
    predicates = [{"column": column, "op": "EQ", "values": [value]} for column, value in names]
    predicates += [{"column": column, "op": "IN", "values": values} for column, values in equal.items()]
    found: list[dict[str, Any]] = server.get(
        {"table": flight, "snapshot": snapshot_id, "predicates": predicates}
    ).to_pylist()
    return found
