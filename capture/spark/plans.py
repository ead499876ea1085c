"""Spark's query plans with the optimizer's estimates of rows and sizes, and the actual row counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from capture.spark.session_catalog import SessionCatalog, name_of, row_count_of, statistics_of

COST_BASED: Final = ("spark.sql.cbo.enabled", "spark.sql.cbo.planStats.enabled", "spark.sql.cbo.joinReorder.enabled")
_CALCULATED: Final = re.compile(r"\w\(| R?LIKE |subquery")
_NOT_NULL: Final = re.compile(r"isnotnull\((?:[^()]|\([^()]*\))*\)?")
_IDS: Final = re.compile(r"#\d+L?")
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of an optimized plan.

    Attributes:
        depth: Depth in the plan; 0 for the root.
        kind: Class of the operator, such as Join, Filter, LogicalRelation.
        text: The operator as Spark prints it, shortened.
        rows: Estimated rows; None if Spark has no estimate.
        plan: The JVM plan object, for `true_rows`.
    """

    depth: int
    kind: str
    text: str
    rows: int | None
    size_bytes: int
    plan: Any = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a query: operators of the optimized plan from the root down, and physical joins."""

    operators: tuple[Operator, ...]
    joins: tuple[str, ...]
    physical: str

    @property
    def join_inputs(self) -> dict[tuple[str, ...], int]:
        """Operators of one table from its scan up to a join → estimated bytes of what reaches the join."""
        inputs: dict[tuple[str, ...], int] = {}
        path: list[Operator] = []
        for operator in self.operators:
            path = [*path[: operator.depth], operator]
            joins = [at for at, above in enumerate(path) if above.kind == "Join"]
            if operator.kind == "LogicalRelation" and joins:
                chain = path[joins[-1] + 1 :]
                inputs[tuple(part.text for part in reversed(chain))] = chain[0].size_bytes
        return inputs

    @property
    def unestimated_filters(self) -> list[str]:
        """The filters with a condition on a calculated value, which Spark takes to match all rows."""
        filters = [operator.text for operator in self.operators if operator.kind == "Filter"]
        return [text for text in dict.fromkeys(filters) if _CALCULATED.search(_NOT_NULL.sub("", text))]

    @property
    def shape(self) -> str:
        """Join strategies and scan order as text; equal for plans that run the same way."""
        scans = [operator.text for operator in self.operators if operator.kind == "LogicalRelation"]
        return " ".join([*self.joins, *scans])


@dataclass(frozen=True, slots=True)
class UsedTable:
    """A relation of a query and its statistics in Spark's catalog.

    Attributes:
        name: Name in the catalog; empty for a relation that is not registered.
        row_count: Row count in the catalog; None if missing.
        columns: Column in a filter, join or aggregate → `used, …`, or the reason why it has no statistics.
        reason: Reason why Spark uses no statistics of the table; empty if it uses them.
    """

    name: str
    row_count: int | None
    size_bytes: int
    columns: dict[str, str]
    reason: str = ""


@contextmanager
def cost_based(session: Any, on: bool) -> Iterator[None]:
    """Switches Spark's cost-based optimizer on or off within the block."""
    before = {name: session.conf.get(name) for name in COST_BASED}
    try:
        for name in COST_BASED:
            session.conf.set(name, str(on).lower())
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def plan_of(session: Any, sql: str, *, with_statistics: bool) -> Plan:
    """Plans a query with the statistics of the catalog, or with file sizes only. Does not run it."""
    with cost_based(session, with_statistics):
        execution = session.sql(sql)._jdf.queryExecution()
        operators = tuple(_operators(session, execution.optimizedPlan(), 0))
        physical = str(execution.executedPlan().toString())
    joins = tuple(
        re.findall(
            r"\b(BroadcastHashJoin|SortMergeJoin|ShuffledHashJoin|BroadcastNestedLoopJoin"
            r"|CartesianProduct)\b",
            physical,
        )
    )
    return Plan(operators, joins, physical)


def true_rows(session: Any, operator: Operator) -> int:
    """Counts the actual output rows of an operator by running it."""
    dataset = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, operator.plan)
    return int(dataset.count())


def used_tables(session: Any, plan: Plan) -> list[UsedTable]:
    """The relations of a plan, with the statistics of columns in its filters, joins and aggregates."""
    compared = {
        name
        for operator in plan.operators
        if operator.kind in ("Filter", "Join", "Aggregate")
        for name in re.findall(r"[A-Za-z_]\w*", operator.text)
    }
    tables = []
    for operator in plan.operators:
        if operator.kind != "LogicalRelation":
            continue
        entry = operator.plan.catalogTable()
        size = operator.size_bytes
        if not entry.isDefined():
            tables.append(UsedTable("", None, size, {}, "is read by its path: only a registered table has statistics"))
            continue
        table = entry.get()
        name, stats = name_of(table), statistics_of(table)
        wanted = [column for column in map(str, table.schema().fieldNames()) if column in compared]
        rows = None if stats is None else row_count_of(stats)
        if stats is None or rows is None:
            tables.append(UsedTable(name, None, size, {}, "has no row count in the catalog: publish --to spark"))
            continue
        of_columns = SessionCatalog.of(session).as_java(stats.colStats())
        tables.append(UsedTable(name, rows, size, {column: _of_column(of_columns, column) for column in wanted}))
    return tables


def _of_column(of_columns: Any, column: str) -> str:
    statistics = of_columns.get(column)
    if statistics is None:
        return "no statistics in the catalog"
    if not statistics.distinctCount().isDefined():
        return "used, without a number of distinct values"
    return "used, with histogram" if statistics.histogram().isDefined() else "used, without histogram"


def _operators(session: Any, plan: Any, depth: int) -> Iterator[Operator]:
    stats, kind = plan.stats(), str(plan.getClass().getSimpleName())
    yield Operator(depth, kind, _text(plan, kind), row_count_of(stats), int(str(stats.sizeInBytes())), plan)
    for child in SessionCatalog.of(session).as_java(plan.children()):
        yield from _operators(session, child, depth + 1)


def _text(plan: Any, kind: str) -> str:
    if kind == "LogicalRelation" and plan.catalogTable().isDefined():
        return f"Scan {plan.catalogTable().get().identifier().table()}"
    text = _IDS.sub("", str(plan.simpleString(25)))
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
