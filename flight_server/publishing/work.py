"""Publications in a worker: hands the server's statistics to a home's publisher, or has it withdraw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import CONTAINERS, Connector, ConnectorConfig
from capture.homes import HOMES
from capture.publishers.publishing import publish, withdraw
from capture.publishers.spi import CURRENT, ColumnStatistics, Destination, TableStatistics
from flight_server.client.connection import Connection
from store.model.catalog_entries import is_another_table
from store.model.columns import DISTRIBUTION, DISTRIBUTION_LABELS
from store.model.errors import Conflict, InvalidArgument, NotFound
from store.model.freshness import EXACT, INHERITED, PRUNING, STALE, held, is_unconfirmed
from store.model.sketches import estimate, is_partial
from store.model.statistics import BY_NAME, of_kind

_NAME = ("table_catalog", "table_schema", "table_name")
COPIED = ("logical_type", *(field.name for field in fields(ColumnStatistics) if field.name in BY_NAME))
_NEVER = datetime.min.replace(tzinfo=UTC)
_ROLES = {"NDV": "theta", "QUANTILES": "quantiles"}


def publish_table(
    server: Connection,
    connector: Connector,
    options: Mapping[str, str],
    payload: Mapping[str, Any],
    spark: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Publishes or withdraws statistics, as a lease of kind `publish` says.

    Args:
        payload: The lease's payload: operation (`publish` or `withdraw`), connector, table, snapshot_id, to, options;
            of `publish` dry_run, allow_inherited and identity (`capture_facts.identities`) too.

    Returns:
        A `Publication` as JSON, or `withdrawn`: False if the home had no statistics.

    Raises:
        StatflightError: The home refused, or failed.
    """
    chosen = HOMES.load(payload["to"])
    lake = payload["connector"]
    if chosen.formats and lake["format"] not in chosen.formats:
        raise InvalidArgument(
            f"to: {payload['to']} holds statistics of {' and '.join(sorted(chosen.formats))} tables; "
            f'"{payload["table"]["full_name"]}" is a {lake["format"]} table',
            code="WRONG_FORMAT",
            params={"field": "to", "actual": payload["to"]},
        )
    config = ConnectorConfig(lake["catalog"], lake["format"], lake["uri"], options)
    destination = Destination(connector, config, payload["options"], spark)
    if payload["operation"] == "withdraw":
        return {"withdrawn": withdraw(chosen(destination, _without_statistics(connector, payload)))}
    names_snapshot = chosen.labels is not None and chosen.labels.snapshot
    statistics = stored_statistics(server, payload, chosen.sketches, or_older=names_snapshot)
    if chosen.takes_files:
        statistics = with_files(server, payload, statistics)
    _check_same(connector, payload)
    published = publish(chosen(destination, statistics), dry_run=payload["dry_run"])
    if published.state == CURRENT and published.snapshot_id != payload["snapshot_id"]:
        published = replace(published, state=STALE)
    return published.to_json()


def _check_same(connector: Connector, payload: Mapping[str, Any]) -> None:
    """Refuses statistics of a table that another one of its name has replaced, some snapshots of which have its ids.

    Raises:
        Conflict: The table was created again, restored or rolled back since the server last inspected it.
    """
    known, table = payload.get("identity"), payload["table"]  # of some formats, and of a server of this version
    if known is None:
        return
    snapshot_id, identity = known
    found = connector.enumerate_snapshots(
        table["schema"], table["name"], known_snapshot_ids=frozenset({snapshot_id}), target_snapshot_ids=frozenset()
    )
    now = (found.identities, found.live_snapshot_ids, found.current_snapshot_id)
    if is_another_table((snapshot_id, identity), *now):
        raise Conflict(
            f'"{table["full_name"]}" was created again, restored or rolled back: the statistics are of the former',
            code="STALE",
            hint="capture it again, then publish",
            params={"snapshot": payload["snapshot_id"]},
        )


def _without_statistics(connector: Connector, payload: Mapping[str, Any]) -> TableStatistics:
    """The table and its columns, for a publisher that removes their statistics."""
    table = payload["table"]
    columns = connector.describe(table["schema"], table["name"]).schema.leaves(None)
    named = tuple(ColumnStatistics(at, column.name, column.logical_type) for at, column in enumerate(columns))
    return TableStatistics(table["schema"], table["name"], payload["snapshot_id"], named)


def stored_statistics(
    server: Connection, payload: Mapping[str, Any], roles: frozenset[str], *, or_older: bool = False
) -> TableStatistics:
    """Reads the statistics of a table at a snapshot that may be published.

    `left_out` names the columns whose record comes from a sample; the publisher leaves out those that are too old.

    Args:
        payload: The lease's payload: `table`, `snapshot_id`, `allow_inherited`.
        roles: Roles of the sketches that the home takes.
        or_older: Whether those of an earlier snapshot are read, as its own, if all of these columns are inherited from
            it and may be: the home says which snapshot its statistics are of.

    Returns:
        The statistics, each with its freshness.

    Raises:
        NotFound: The store has no record of any column of the table.
    """
    table, snapshot_id, allow_inherited = payload["table"], payload["snapshot_id"], payload["allow_inherited"]
    columns, left_out = {}, {}
    rows = _table(server, "stats.columns", table, snapshot_id).to_pylist()
    if or_older and allow_inherited and (older := _older_snapshot(rows)) is not None:
        remark = f"inherited: all of snapshot {older}, since snapshot {snapshot_id} has none of its own"
        return replace(stored_statistics(server, {**payload, "snapshot_id": older}, roles), remarks=(remark,))
    sampled = _sampled_distributions(server, table, rows) if allow_inherited else frozenset()
    for row in rows:
        if (row["column_id"], row["distribution_snapshot_id"]) in sampled:
            row |= dict.fromkeys(DISTRIBUTION)
        if row["logical_type"] in CONTAINERS:
            continue  # no home has statistics of them
        if reason := _refusal(row):
            left_out[row["column_name"]] = reason
        else:
            columns[row["column_id"]] = _column(row)
    if not columns and not left_out:
        raise NotFound(
            f'no statistics of "{table["full_name"]}" at snapshot {snapshot_id} are stored',
            code="UNKNOWN_STATISTICS",
            hint="capture it first",
        )
    if roles:
        of_roles = {"target_kind": ["COLUMN"], "role": sorted(roles)}
        for row in _table(server, "stats.sketches", table, snapshot_id, **of_roles).to_pylist():
            column = columns.get(row["column_id"])
            if column is not None and not is_partial(row["params"]):
                _add_sketch(column, row, snapshot_id)
    records = _table(server, "stats.tables", table, snapshot_id).to_pylist()
    usable = (row for row in records if not _refusal(row) and row["freshness"] == EXACT)
    whole: dict[str, Any] = next(usable, {})
    found = tuple(ColumnStatistics(column_id, **column) for column_id, column in sorted(columns.items()))
    return TableStatistics(
        table["schema"],
        table["name"],
        snapshot_id,
        found,
        _row_count(whole, found),
        whole.get("total_size_bytes"),
        whole.get("merged_size_bytes"),
        left_out,
        allow_inherited,
    )


def with_files(server: Connection, payload: Mapping[str, Any], statistics: TableStatistics) -> TableStatistics:
    """Adds the files of the snapshot, none of an earlier one, and the statistics by which readers may skip each."""
    table, snapshot_id = payload["table"], payload["snapshot_id"]
    files, rows = (_table(server, flight, table, snapshot_id) for flight in ("stats.files", "stats.file_columns"))
    return replace(
        statistics,
        files=files.filter(pc.equal(files["freshness"], EXACT)),
        file_columns=rows.filter(pc.equal(rows["usable_for"], PRUNING)),
    )


def _refusal(row: Mapping[str, Any]) -> str:
    """The reason why a record of any age may not be published; empty if there is none."""
    if row["completeness"] != "COMPLETE":
        return "is of a sample" if row["completeness"] == "PARTIAL" else "is not known"
    return "is of a sample" if row["row_groups_sampled"] else ""


def _older_snapshot(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The newest snapshot from which columns inherit their statistics; None if one of them has some of its own."""
    usable = [row for row in rows if not _refusal(row) and row["logical_type"] not in CONTAINERS]
    if any(EXACT in (row["freshness"], row["distribution_freshness"]) for row in usable):
        return None
    inherited = [row for row in usable if row["freshness"] == INHERITED]
    newest = max(inherited, key=lambda row: row["captured_at"] or _NEVER, default=None)
    return None if newest is None else newest["snapshot_id"]


def _sampled_distributions(
    server: Connection, table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> frozenset[tuple[int, int]]:
    """Column id and snapshot id of the records from samples whose distribution rows of a later snapshot inherit:
    the labels of these rows are those of their counts."""
    old = {row["distribution_snapshot_id"] for row in rows if row["distribution_freshness"] == INHERITED}
    records = (row for id in sorted(old) for row in _table(server, "stats.columns", table, id).to_pylist())
    return frozenset((row["column_id"], row["snapshot_id"]) for row in records if _refusal(row))


def _column(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ColumnStatistics` from a record, without its sketches."""
    labels = ("snapshot_id", "freshness", "usable_for")
    column = {name: row[name] for name in (*COPIED, *labels)} | {"name": row["column_name"]}
    if is_unconfirmed(row):  # no home can say so
        column |= dict.fromkeys(of_kind("MIN_MAX"))
    if row["ndv"] is not None:
        column |= {name: row[name] for name in DISTRIBUTION_LABELS}
    return column


def _add_sketch(column: dict[str, Any], row: Mapping[str, Any], snapshot_id: int) -> None:
    """Adds a sketch to a column, if its other distribution is of the same snapshot or unknown."""
    captured_at = row["snapshot_id"]
    if column.setdefault("distribution_snapshot_id", captured_at) != captured_at:
        return
    column["distribution_freshness"] = held(is_own=captured_at == snapshot_id)
    column[_ROLES[row["role"]]] = row["data"]
    if row["role"] == "NDV" and column["ndv"] is None:
        column["ndv"] = estimate(row["data"]).ndv


def _row_count(whole: Mapping[str, Any], columns: tuple[ColumnStatistics, ...]) -> int | None:
    """The row count of the snapshot, from the table's record or a column's; none of an earlier one."""
    counts = [whole.get("row_count"), *(column.row_count for column in columns if column.freshness == EXACT)]
    return next((rows for rows in counts if rows is not None), None)


def _table(server: Connection, flight: str, table: Mapping[str, Any], snapshot_id: int, **equal: list[Any]) -> pa.Table:
    names = zip(_NAME, (table["catalog"], table["schema"], table["name"]), strict=True)
    predicates = [{"column": column, "op": "EQ", "values": [value]} for column, value in names]
    predicates += [{"column": column, "op": "IN", "values": values} for column, values in equal.items()]
    return server.get({"table": flight, "snapshot": snapshot_id, "predicates": predicates})
