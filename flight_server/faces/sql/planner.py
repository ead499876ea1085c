"""Plans of statements: their sources, conditions and result schemas, kept by text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from flight_server.core.reads.stream import never
from flight_server.faces.sql import parameter_types, plan, shapes, statement_answers, statements
from flight_server.faces.sql.flights import naive
from flight_server.faces.sql.plan import Plan
from flight_server.faces.sql.relations import schema_of
from flight_server.faces.sql.statements import Explain, Statement
from store.duckdb.lru import LruCache
from store.model.errors import Cancelled, InvalidArgument, NotFound, ShuttingDown

if TYPE_CHECKING:
    from flight_server.core.app import App
    from flight_server.faces.sql.sandbox import Sandbox

MAX_TRIED: Final = 16  # most parameters of a statement whose types are found by trying
BIND_SECONDS: Final = 10.0  # longest time to bind a statement
PLAN_COST: Final = 8192
"""Estimated bytes of a plan besides its text."""

_PLANS_BYTES: Final = 16 << 20
_NULL: Final = "CAST(NULL AS "  # of `Plan.typed_sql`, in the names of columns that are expressions
_NO_PLAN: Final = Plan((), (), "", "", False, None)


@dataclass(frozen=True)
class Planned:
    """A statement, and the schema of its result."""

    plan: Plan
    schema: pa.Schema
    statement: Statement | None = None  # then the plan is empty
    of_all_tables: dict[str, int] = field(default_factory=dict)
    """Label of a source whose last scan was of all tables → number of the newest commit then."""


class Planner:
    """Makes the plans of statements, and keeps them.

    Args:
        sandbox: Binds statements, which tells the schemas of their results.
    """

    def __init__(self, app: App, sandbox: Sandbox):
        self._app, self._sandbox = app, sandbox
        self._plans: LruCache[str, Planned] = LruCache(_PLANS_BYTES)

    def plan(self, sql: str, is_cancelled: Callable[[], bool] = never) -> Planned:
        """The plan of a statement.

        Raises:
            InvalidArgument: The statement is not supported, or DuckDB cannot bind it.
            NotFound: A table does not exist.
            DeadlineExceeded: DuckDB needs more than BIND_SECONDS to bind the statement.
        """
        planned = self._plans.get(sql)
        if planned is None:
            planned = self._by_shape(sql, is_cancelled)
            if planned is None:
                if (statement := statements.parse(sql)) is not None:
                    schema = statement_answers.schema(statement, lambda sql: self.plan(sql, is_cancelled))
                    explained = self.plan(statement.sql, is_cancelled).plan if isinstance(statement, Explain) else None
                    parameters = explained.parameters if explained is not None else ()
                    planned = Planned(replace(_NO_PLAN, parameters=parameters), schema, statement)
                else:
                    planned = self._bound(sql, is_cancelled)
            self._plans.put(sql, planned, 4 * len(sql) + PLAN_COST)
        return planned

    def _bound(self, sql: str, is_cancelled: Callable[[], bool]) -> Planned:
        """The plan of a SELECT with the first types of its untold parameters with which DuckDB can bind it."""
        parsed = plan.make(sql)
        try:
            return Planned(parsed, self._schema(parsed, is_cancelled))
        except InvalidArgument:
            if not 0 < len(parsed.untold) <= MAX_TRIED:
                raise
            types = self._types_that_bind(sql, parsed.untold, is_cancelled)
            if types is None:
                raise
            typed = plan.make(sql, types)
            return Planned(typed, self._schema(typed, is_cancelled))

    def _types_that_bind(
        self, sql: str, untold: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> dict[int, pa.DataType] | None:
        """A type for each of these parameters, one found after the other; None if there is none for one of them."""
        types: dict[int, pa.DataType] = dict.fromkeys(untold, pa.null())
        for number in untold:
            for candidate in parameter_types.CANDIDATES:
                types[number] = candidate
                with suppress(InvalidArgument):
                    self._schema(plan.make(sql, types), is_cancelled)
                    break
            else:
                return None
        return types

    def _by_shape(self, sql: str, is_cancelled: Callable[[], bool]) -> Planned | None:
        """The plan of a statement, from one for statements with other literals; None if there is none."""
        if (parts := shapes.split(sql)) is not None:
            with suppress(InvalidArgument, NotFound):
                shared = self.plan(parts[0], is_cancelled)
                is_named = not any(_NULL in name for name in shared.schema.names)  # else by a literal
                if shared.statement is None and is_named and (own := shapes.filled(shared.plan, parts[1])) is not None:
                    return replace(shared, plan=own)
        return None

    def _schema(self, parsed: Plan, is_cancelled: Callable[[], bool]) -> pa.Schema:
        if parsed.direct is not None:
            (source,) = parsed.sources
            fields = schema_of(source)
            return pa.schema([field.with_name(n) for field, n in zip(fields, parsed.direct.names, strict=True)])
        tables = {source.label: schema_of(source) for source in parsed.sources}
        known = {name for source in parsed.sources for name in source.table.flight.schema.names}
        queue, cursor = self._app.queue, self._sandbox.cursor()
        stops = lambda: queue.closing or is_cancelled()  # noqa: E731
        try:
            return self._app.streams.whole(
                cursor,
                lambda: naive(self._sandbox.schema(cursor, parsed.typed_sql, tables, known)),
                stops,
                BIND_SECONDS,
            )
        except Cancelled:
            if queue.closing:
                raise ShuttingDown("the server is shutting down", hint="ask again once it is back") from None
            raise
