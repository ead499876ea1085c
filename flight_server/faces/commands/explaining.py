"""`statflight explain`: Spark's plan of a query without and with published statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from flight_server.core.views.numbers import count, number
from flight_server.core.views.numbers import size as bytes_text
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions
from flight_server.faces.commands.output import CommandError, misuse, say, tell
from flight_server.faces.commands.parameters import argument, option

if TYPE_CHECKING:
    from capture.spark.plans import Operator, Plan, UsedTable

_COUNTED = ("LogicalRelation", "Filter", "Join", "Aggregate")


def explain(
    sql: Annotated[str, argument(metavar="SQL", help="A query of Spark's SQL.")],
    spark: Annotated[str, option("--spark", metavar="MASTER", help="Such as local[*] or spark://host:7077.")],
    spark_conf: Annotated[list[str] | None, option(metavar="KEY=VALUE", help="Spark setting.")] = None,
    run: Annotated[
        bool, option("--run", help="Count the true rows too: runs the query, operator by operator.")
    ] = False,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Plan a query without and with published statistics, side by side."""
    from capture.spark.session import Spark
    from flight_server.process.settings import load

    conf = load(None, {"spark": spark_conf or None}).spark
    if spark.startswith("sc://"):
        misuse("--spark: must be a classic master such as local[*]; Spark Connect shows no estimates")
    holder = Spark(spark, settings=conf)
    with holder.held() as session:
        opened = session()
        registered = _register(opened, holder, sql, connection.server, connection.credentials())
        _explain(opened, sql, run, registered)
    holder.stop()


def _explain(session: Any, sql: str, run: bool, registered: Sequence[str]) -> None:
    from capture.spark.plans import plan_of, true_rows, used_tables
    from capture.spark.session_catalog import SessionCatalog

    try:
        without = plan_of(session, sql, with_statistics=False)
        plan = plan_of(session, sql, with_statistics=True)
    except Exception as refusal:
        if type(refusal).__module__.partition(".")[0] not in ("py4j", "pyspark"):
            raise
        raise CommandError(f"Spark refuses the query: {str(refusal).splitlines()[0][:300]}") from None
    counts: dict[int, int] = {}
    if run:
        counts = {at: true_rows(session, op) for at, op in enumerate(plan.operators) if op.kind in _COUNTED}
    for title, shown, true in (
        ("without published statistics", without, {}),
        ("with published statistics", plan, counts),
    ):
        tell(f"{title}: {', '.join(shown.joins) or 'no joins'}")
        for line in _lines(shown.operators, true):
            tell(line)
        tell("")
    tell("the plan changes" if plan.shape != without.shape else "the plan stays as it is")
    for table in used_tables(session, plan):
        for line in _about(table, registered):
            tell(line)
    for note in _broadcasts(without, plan, SessionCatalog.of(session).broadcast_bytes):
        tell(note)
    for text in plan.unestimated_filters:
        tell(f"{text}: Spark estimates no LIKE, function or subquery, and takes it to match all rows")
    if str(session.conf.get("spark.sql.cbo.enabled")).lower() != "true":
        tell("spark.sql.cbo.enabled is false in this session: queries use the second plan only once it is true")


def _lines(operators: Sequence[Operator], true: Mapping[int, int]) -> list[str]:
    """The operators as an indented list with estimated and true rows."""
    head = ["rows", "size"] + (["true rows", "off by"] if true else [])
    rows = []
    for at, operator in enumerate(operators):
        cells = ["?" if operator.rows is None else count(operator.rows), bytes_text(operator.size_bytes)]
        if true:
            counted = true.get(at)
            cells += [count(counted), _off_by(operator.rows, counted)]
        rows.append((cells, f"{'  ' * operator.depth}{operator.text}"))
    widths = [max(len(cells[i]) for cells in [head, *(row[0] for row in rows)]) for i in range(len(head))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(head, widths, strict=True))]
    for cells, text in rows:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + f"  {text}")
    return lines


def _off_by(estimated: int | None, true: int | None) -> str:
    """The q-error: the greater of both divided by the lesser."""
    if estimated is None or true is None:
        return ""
    high, low = max(estimated, true, 1), max(min(estimated, true), 1)
    return f"{number(high / low, 2)}×"


def _about(table: UsedTable, registered: Sequence[str]) -> list[str]:
    name = table.name or "a relation"
    if table.reason:
        return [f"{name}: not used: {table.reason}"]
    how = " (registered for this session alone)" if name.rpartition(".")[2] in registered else ""
    lines = [f"{name}: {count(table.row_count)} rows, used{how}"]
    return lines + [f"{name}.{column}: {what}" for column, what in table.columns.items()]


def _broadcasts(without: Plan, plan: Plan, threshold: int) -> list[str]:
    """The tables of joins whose size crosses the broadcast threshold with the statistics."""
    before = without.join_inputs
    notes = []
    for chain, size in plan.join_inputs.items():
        was = before.get(chain)
        if was is not None and (was <= threshold) != (size <= threshold):
            notes.append(
                f"{chain[0]}, as it is joined: {bytes_text(size)} instead of {bytes_text(was)}: "
                f"{'above' if size > threshold else 'below'} the broadcast threshold of {bytes_text(threshold)}"
            )
    return notes


def _register(session: Any, holder: Any, sql: str, server: str, credentials: Mapping[str, Any]) -> list[str]:
    """Registers the server's Parquet tables that the query names and the session lacks, with their statistics.

    They go into the session's in-memory catalog, which ends with it; a persistent catalog is never changed.
    """
    import pyarrow as pa

    unknown = [name for name in _names(sql) if not _is_known(session, name)]
    if not unknown or str(session.conf.get("spark.sql.catalogImplementation")) != "in-memory":
        return []
    from flight_server.client.connection import Connection

    registered = []
    try:
        client = Connection(server, **credentials)
        try:
            rows = client.get({"table": "sys.tables"}).to_pylist()
            for name in unknown:
                matching = [row for row in rows if _matches(row, name)]
                if len(matching) == 1 and matching[0]["format"] == "parquet":
                    _publish(session, holder, client, matching[0], name)
                    registered.append(name[-1])
                elif matching:
                    why = "has several tables" if len(matching) > 1 else f"has no Parquet but a {matching[0]['format']}"
                    say(f"{'.'.join(name)}: not registered in Spark, and the server {why} of that name")
        finally:
            client.close()
    except (pa.ArrowException, OSError):
        say(f"no statistics of {', '.join('.'.join(name) for name in unknown)}: the server does not answer")
    return registered


def _publish(session: Any, holder: Any, client: Any, row: Mapping[str, Any], name: Sequence[str]) -> None:
    """Registers one table in the session with the server's statistics."""
    from capture.connectors.spi import ConnectorConfig, SnapshotListing
    from capture.publishers.spark_catalog import SparkCatalogPublisher
    from capture.publishers.spi import Destination
    from flight_server.publishing.work import stored_statistics
    from store.model.errors import StatflightError
    from store.model.names import join_name

    quoted = ".".join(f"`{part}`" for part in name[-2:])
    if len(name) > 1:
        session.sql(f"CREATE DATABASE IF NOT EXISTS `{name[-2]}`")
    location = str(row["location"]).replace("'", "\\'")
    session.sql(f"CREATE TABLE {quoted} USING parquet LOCATION '{location}'")
    key = {"catalog": row["table_catalog"], "schema": row["table_schema"], "name": row["table_name"]}
    payload = {
        "table": key | {"full_name": join_name(*key.values())},
        "snapshot_id": row["snapshot_id"],
        "allow_inherited": True,
    }
    try:
        statistics = stored_statistics(client, payload, SparkCatalogPublisher.sketches)
        listing = SnapshotListing((), frozenset({row["snapshot_id"]}), row["snapshot_id"])
        lake: Any = SimpleNamespace(enumerate_snapshots=lambda *_, **__: listing)  # of the statistics' snapshot alone
        config = ConnectorConfig(key["catalog"], row["format"], str(row["location"]), {})
        with holder.held() as opened:
            publisher = SparkCatalogPublisher(
                Destination(lake, config, {"table": ".".join(name[-2:])}, opened), statistics
            )
            publisher.write(publisher.prepare())
    except StatflightError as refusal:
        say(f"{'.'.join(name)}: {refusal}")


def _names(sql: str) -> list[tuple[str, ...]]:
    """The tables that a query names, as sqlglot parses it."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except SqlglotError:
        return []  # Spark reports the error
    made_here = {cte.alias for cte in tree.find_all(exp.CTE)}
    names = [tuple(part.name for part in table.parts) for table in tree.find_all(exp.Table)]
    return [name for name in dict.fromkeys(names) if 0 < len(name) < 3 and name[-1] not in made_here]


def _is_known(session: Any, name: Sequence[str]) -> bool:
    quoted = ".".join(f"`{part}`" for part in name)
    try:
        return bool(session.catalog.tableExists(quoted))
    except Exception:  # the database or catalog does not exist
        return False


def _matches(row: Mapping[str, Any], name: Sequence[str]) -> bool:
    """True if the full name of a server's table ends with the parts of a name."""
    own = [row["table_catalog"], *str(row["table_schema"]).split("."), row["table_name"]]
    return [part.lower() for part in own[-len(name) :]] == [part.lower() for part in name]
