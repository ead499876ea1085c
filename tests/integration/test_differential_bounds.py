"""Files skipped by conditions on bounds, as a planner asks for them in every language, compared with the rows of each
file: a file that has a matching row is never skipped."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.compute.readers import tasks
from capture.engines.compute.engine import ComputeEngine
from flight_server.client import StatsClient
from flight_server.core.wire.flight_sql import write_any
from store.model import bounds
from store.model.logical_types import Kind, parse
from tests.flight_server.live_server import LiveServer, serving
from tests.integration.random_lakes import FORMATS
from tests.integration.random_tables import bound, comparables
from tests.integration.test_differential import Sink, capture, lake_of, targets

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

SEEDS = (1,)  # more of them, and of literals: tests/benchmarks/bench_differential.py
LITERALS = 2  # of each column
FLIGHT = "stats.file_columns"
MATCHES = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
# Of a condition on a column: the condition on the bounds of the files that it skips.
SKIPS: dict[str, list[tuple[str, str]]] = {
    "=": [("max", "<"), ("min", ">")],
    ">": [("max", "<=")],
    ">=": [("max", "<")],
    "<": [("min", ">=")],
    "<=": [("min", ">")],
}
OPS = {"<": "LT", "<=": "LTE", ">": "GT", ">=": "GTE"}
SQL_TYPES = {
    Kind.INT: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.FLOAT: "FLOAT",
    Kind.DATE: "DATE",
    Kind.STRING: "VARCHAR",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.BOOLEAN: "BOOLEAN",
}
NUMERIC = (Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def languages(kind: Kind, text: str, skips: list[tuple[str, str]]) -> Iterator[Any]:
    """The conditions on bounds, in every language that has the literal."""
    literals: list[Any] = [text]
    if kind in NUMERIC and text not in ("NaN", "Infinity", "-Infinity"):
        literals.append(int(text) if kind is Kind.INT else Decimal(text) if kind is Kind.DECIMAL else float(text))
    for literal in literals:
        yield {"or": [{"column": column, "op": OPS[op], "values": [literal]} for column, op in skips]}
        if kind is not Kind.DECIMAL or literal is text or -38 < literal.adjusted() < 38:  # a Decimal of pyarrow
            terms = [
                getattr(operator, OPS[op].lower().replace("te", "e"))(pc.field(column), literal) for column, op in skips
            ]
            yield terms[0] if len(terms) == 1 else terms[0] | terms[1]
        if "\x00" not in text:
            shown = quoted(text) if literal is text else text
            yield " OR ".join(f"{column} {op} {shown}" for column, op in skips)


class Skips:
    """Reads the files of a table that a condition on bounds skips."""

    def __init__(self, client: StatsClient, server: LiveServer, catalog: str):
        self.client, self.catalog = client, catalog
        self.live = server.connect()
        self.dataset = client.dataset(FLIGHT, snapshot="current")

    def paths(self, where: Any, column_id: int, as_dataset: bool) -> set[str]:
        if isinstance(where, str):
            where = f"table_catalog = {quoted(self.catalog)} AND column_id = {column_id} AND ({where})"
        elif isinstance(where, dict):
            where = [
                {"column": "table_catalog", "op": "EQ", "values": [self.catalog]},
                {"column": "column_id", "op": "EQ", "values": [column_id]},
                where,
            ]
        else:
            where = (pc.field("table_catalog") == self.catalog) & (pc.field("column_id") == column_id) & where
            if as_dataset:
                return set(self.dataset.to_table(columns=["file_path"], filter=where)["file_path"].to_pylist())
        rows = self.client.read(FLIGHT, ["file_path"], where, snapshot="current")
        return set(rows["file_path"].to_pylist())

    def by_statement(self, kind: Kind, text: str, column_id: int, skips: list[tuple[str, str]]) -> set[str]:
        type, literal = SQL_TYPES[kind], quoted(text)
        terms = " OR ".join(f"TRY_CAST({column} AS {type}) {op} CAST({literal} AS {type})" for column, op in skips)
        sql = (
            f"SELECT file_path FROM stats.file_columns WHERE table_catalog = {quoted(self.catalog)} AND"
            f" column_id = {column_id} AND ({terms})"
        )
        return set(self.live.get(write_any("CommandStatementQuery", (1, sql.encode())))["file_path"].to_pylist())


def check_skipped(format: str, seed: int, server: LiveServer, count: int = LITERALS) -> int:
    """Checks conditions on the files of a lake's newest version; returns their number."""
    rng = random.Random(f"{format} {seed} skipped")
    lake = lake_of(format, seed)
    table = lake.handles()[-1]
    sink, _ = capture(ComputeEngine(inline_max_cells=10**12), table, targets(table), Sink())
    catalog = f"{format} {seed}"
    values: dict[int, dict[str, pa.ChunkedArray]] = {}
    for task in table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids):
        for column, found in tasks.read(task, task.columns):
            values.setdefault(column.column_id, {})[task.file_path] = found
    rows = pa.concat_tables(sink.rows[FLIGHT])
    at = rows.schema.get_field_index("table_catalog")
    rows = rows.set_column(at, "table_catalog", pa.repeat(catalog, rows.num_rows))
    checked = 0
    with StatsClient(server.uri) as client:
        client.put(FLIGHT, rows)
        stored = client.read(
            FLIGHT, where=[{"column": "table_catalog", "op": "EQ", "values": [catalog]}], snapshot="current"
        ).to_pylist()
        skipped = Skips(client, server, catalog)
        for column_id, files in values.items():
            lt = parse(table.by_id[column_id].logical_type)
            of_column = [row for row in stored if row["column_id"] == column_id]
            usable = {row["file_path"] for row in of_column if row["usable_for"] == "PRUNING"}
            texts = [bounds.encode_array(found, lt).drop_null().to_pylist() for found in files.values()]
            pool = sorted({text for of_file in texts for text in of_file})
            for text in rng.sample(pool, min(count, len(pool))) if lt.orderable else ():
                x = bound(text, lt)
                if isinstance(x, float) and math.isnan(x):
                    continue
                for op, skips in SKIPS.items():
                    matching = {
                        path
                        for path, found in files.items()
                        if any(MATCHES[op](value, x) for value in comparables(found, lt))
                    }
                    expected = {
                        row["file_path"]
                        for row in of_column
                        if any(
                            row[side] is not None and MATCHES[compare](bound(row[side], lt), x)
                            for side, compare in skips
                        )
                    }
                    forms = list(languages(lt.kind, text, skips))
                    where = rng.choice(forms)
                    paths = skipped.paths(where, column_id, rng.random() < 0.5)
                    told = f"{catalog}, {table.by_id[column_id].key} {lt.text} {op} {text!r}: {where}"
                    assert paths == expected, told
                    assert not paths & usable & matching, told
                    checked += 1
                    if lt.kind in SQL_TYPES and rng.random() < 0.2 and "\x00" not in text and text != "Infinity":
                        assert skipped.by_statement(lt.kind, text, column_id, skips) == expected, told
    table.connector.close()
    return checked


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_no_file_with_a_matching_row_is_skipped(server, format, seed):
    assert check_skipped(format, seed, server) > 20
