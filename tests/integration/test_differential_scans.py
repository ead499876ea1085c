"""Planned scans of random lakes of every format, with schema evolution and deletes, by random conditions: compared with
brute force over the rows of each file. A file that has a matching row is never skipped. Queries that statistics answer
have the same answer by brute force."""

from __future__ import annotations

import functools
import json
import math
import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.compute.readers import tasks
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.spi import TableHandle
from flight_server.core.app import App
from flight_server.faces.iceberg_rest.expressions import condition
from flight_server.planning import answers
from flight_server.planning.answer_request import FUNCTIONS, AnswerRequest, Item
from flight_server.planning.plan_request import of_json
from flight_server.planning.scan_plan import METADATA
from store.history import validation
from store.model import bounds
from store.model.columns import PARTITION_SPECS
from store.model.logical_types import Kind, LogicalType, parse
from store.model.predicates.tree import Node
from store.model.schemas import FLIGHTS
from store.model.targets import Target
from store.stats_store import Put, PutMode
from tests.flight_server.serving import app_in
from tests.integration.random_lakes import FORMATS, Lake
from tests.integration.random_tables import bound, comparables
from tests.integration.test_differential import Sink, capture, lake_of, targets
from tests.integration.transformed_lakes import transformed
from tests.ledger.ledger import Page

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

SEEDS = (1,)
CONDITIONS: Final = 8  # of each lake and way of capture; tests/benchmarks/bench_differential.py tries more
TABLE: Final = "lake.s.t"
KNOWN: Final = ("stats.columns", "stats.file_columns")
NAMES: Final = ("table_catalog", "table_schema", "table_name")
COMPARES: Final = {
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "LT": operator.lt,
    "LTE": operator.le,
    "GT": operator.gt,
    "GTE": operator.ge,
}
ICEBERG: Final = {
    "EQ": "eq",
    "NEQ": "not-eq",
    "LT": "lt",
    "LTE": "lt-eq",
    "GT": "gt",
    "GTE": "gt-eq",
    "IS_NULL": "is-null",
    "IS_NOT_NULL": "not-null",
}
ABOVE: Final = ("NEQ", "GT", "GTE")  # true for NaN, to readers that order it above every number
DATA: Final = pc.field("file_content") == "DATA"
READERS: Final = [(greatest, double) for greatest in (True, False) for double in (True, False)]

Truth = bool | None
Columns = dict[str, tuple[LogicalType, dict[str, list[Any]]]]
"""Column → type, and file → values in the forms of `comparables`, None for null."""


def columns_of(table: TableHandle) -> Columns:
    """The live rows of each file, by column; without columns whose name several have."""
    found: Columns = {}
    names = [column.name for column in table.by_id.values()]
    for task in table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids):
        for column, values in tasks.read(task, task.columns):
            described = table.by_id[column.column_id]
            if names.count(described.name) == 1:
                lt = parse(described.logical_type)
                found.setdefault(described.name, (lt, {}))[1][task.file_path] = aligned(values, lt)
    return found


def aligned(values: pa.ChunkedArray, lt: LogicalType) -> list[Any]:
    if pa.types.is_null(values.type):
        return [None] * len(values)
    present = iter(comparables(values, lt))
    return [next(present) if valid else None for valid in values.is_valid().to_pylist()]


class Conditions:
    """Random conditions on columns, their literals from the values of files, and their truth for a row."""

    def __init__(self, rng: random.Random, columns: Columns, texts: Mapping[str, list[str]]):
        self.rng, self.columns, self.texts = rng, columns, texts

    def tree(self, depth: int = 0) -> dict[str, Any]:
        kind = self.rng.random()
        if depth < 3 and kind < 0.45:
            if kind < 0.1:
                return {"not": self.tree(depth + 1)}
            return {self.rng.choice(("and", "or")): [self.tree(depth + 1) for _ in range(self.rng.randint(1, 3))]}
        name = self.rng.choice(list(self.columns))
        texts = self.texts.get(name)
        if not texts or kind > 0.93:
            return {"column": name, "op": self.rng.choice(("IS_NULL", "IS_NOT_NULL"))}
        op = self.rng.choice((*COMPARES, "BETWEEN", "IN", "IN"))
        count = {"BETWEEN": 2, "IN": self.rng.choice((1, 3, 30))}.get(op, 1)
        values: list[Any] = [self.rng.choice(texts) for _ in range(count)]
        if op == "IN" and self.rng.random() < 0.1:
            values.append(None)
        return {"column": name, "op": op, "values": values}

    def truth(self, tree: Mapping[str, Any], path: str, row: int, reader: tuple[bool, bool]) -> Truth:
        if "not" in tree:
            inner = self.truth(tree["not"], path, row, reader)
            return None if inner is None else not inner
        for word, decisive in (("and", False), ("or", True)):
            if word in tree:
                parts = [self.truth(part, path, row, reader) for part in tree[word]]
                return decisive if decisive in parts else None if None in parts else not decisive
        lt, files = self.columns[tree["column"]]
        value, op = files[path][row], tree["op"]
        if op in ("IS_NULL", "IS_NOT_NULL"):
            return (value is None) == (op == "IS_NULL")
        if op == "BETWEEN":
            low, high = tree["values"]
            parts = [compared("GTE", value, low, lt, reader), compared("LTE", value, high, lt, reader)]
            return False if False in parts else None if None in parts else True
        if op == "IN":
            parts = [compared("EQ", value, literal, lt, reader) for literal in tree["values"]]
            return True if True in parts else None if None in parts else False
        return compared(op, value, tree["values"][0], lt, reader)


def compared(op: str, value: Any, literal: str | None, lt: LogicalType, reader: tuple[bool, bool]) -> Truth:
    nan_is_greatest, floats_as_double = reader
    if value is None or literal is None:
        return None
    if isinstance(value, float) and math.isnan(value):
        return op in ABOVE if nan_is_greatest else op == "NEQ"
    other = float(literal) if lt.kind is Kind.FLOAT and floats_as_double else bound(literal, lt)
    return bool(COMPARES[op](value, other))


def literals_of(columns: Columns, table: TableHandle) -> dict[str, list[str]]:
    """Column → canonical texts of its values, for orderable columns."""
    texts: dict[str, set[str]] = {}
    for task in table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids):
        for column, values in tasks.read(task, task.columns):
            name = table.by_id[column.column_id].name
            if name in columns and columns[name][0].orderable and not pa.types.is_null(values.type):
                found = bounds.encode_array(values, columns[name][0]).drop_null().to_pylist()
                texts.setdefault(name, set()).update(text for text in found if text != "NaN")
    return {name: sorted(of_name) for name, of_name in texts.items() if of_name}


@contextmanager
def app_with(sinks: Sequence[Sink], root: Path, table: TableHandle) -> Iterator[App]:
    """A server's parts with the rows of sinks, put one after the other, and what is said of an Iceberg table itself."""
    with app_in(root) as app:
        for sink in sinks:
            for flight in ("stats.tables", "stats.columns", "stats.files", "stats.file_columns", "stats.sketches"):
                for rows in sink.rows.get(flight, ()):
                    named = rows
                    for column, name in zip(NAMES, TABLE.split("."), strict=True):
                        at = named.schema.get_field_index(column)
                        named = named.set_column(at, column, pa.repeat(name, named.num_rows))
                    app.store.put([Put(flight, validation.prepare(FLIGHTS[flight], named), PutMode.UPSERT)])
        described = table.connector.describe(table.schema, table.name)
        if PARTITION_SPECS in described.properties:
            stored = json.dumps(dict(described.properties) | described.facts.as_property)
            app.database.write(
                lambda connection: connection.execute("UPDATE tables SET format = 'iceberg', properties = ?", [stored])
            )
            app.catalog.reload(app.database.read())
            app.database.versions.renew()
        yield app


def check_scans(format: str, seed: int, root: Path, count: int = CONDITIONS, page: Page | None = None) -> int:
    """Checks scans of a random lake; returns how many files they skip."""
    return check_lake(lake_of(format, seed), f"{format} {seed}", root, count, page)


def check_lake(lake: Lake, name: str, root: Path, count: int = CONDITIONS, page: Page | None = None) -> int:
    """Checks scans of a lake's newest version by its metadata, and by its data; returns how many files they skip. Of
    files that readers merge by a key, or of which each has some columns of a row, the rows are not known, and nothing
    is checked."""
    rng = random.Random(f"{name} scans")
    table = lake.handles()[-1]
    columns = columns_of(table)
    literals = literals_of(columns, table)
    by_metadata, _ = capture(NativeEngine(), table, [Target.table(), *targets(table)], Sink())
    by_data, _ = capture(ComputeEngine(inline_max_cells=10**12), table, targets(table), Sink())
    skipped = answered = 0
    listed = {path for rows in by_metadata.rows["stats.files"] for path in rows.filter(DATA)["file_path"].to_pylist()}
    read = next((files.keys() for _, files in columns.values()), set())
    if not read and not listed:  # a table that is left without a file
        return 0
    if listed != read:
        assert name.startswith(("paimon", "lance names"))
        return 0
    for way, sinks in (("metadata", [by_metadata]), ("data", [by_metadata, by_data])):
        (root / way).mkdir()
        stored = [rows for sink in sinks for flight in KNOWN for rows in sink.rows.get(flight, ())]
        named = {name for rows in stored for name in rows["column_name"].unique().to_pylist()}
        conditions = Conditions(rng, {name: columns[name] for name in columns if name in named}, literals)
        with app_with(sinks, root / way, table) as app:
            where = f"{name} by {way}"
            answered += check_answers(app, conditions, None, where, list(conditions.columns), page=page)
            for _ in range(count):
                skipped += check_scan(app, conditions, where, page)
    table.connector.close()
    assert answered
    return skipped


def check_scan(app: App, conditions: Conditions, where: str, page: Page | None = None) -> int:
    tree = conditions.tree()
    request = of_json({"scan": TABLE, "where": tree})
    files = app.parts["planning"].planner.plan(app.catalog.get(TABLE), request.node, None, "current").files
    kept = dict(zip(files["file_path"].to_pylist(), files["match"].to_pylist(), strict=True))
    by_door = kept_by_door(app, tree)
    every = next(iter(conditions.columns.values()))[1]
    told = f"{where}: {json.dumps(tree, default=str)}"
    assert json.loads(files.schema.metadata[METADATA])["files"]["kept"] == len(kept), told
    for path, values in every.items():
        for reader in READERS:
            truths = [conditions.truth(tree, path, row, reader) for row in range(len(values))]
            assert path in kept or True not in truths, f"{told}: {path} has a row for which it is true to {reader}"
            assert path in by_door or True not in truths, (
                f"{told}: {path} is missing from the plan of an Iceberg client"
            )
            assert kept.get(path) != "ALL" or all(truths), f"{told}: not every row of {path} matches to {reader}"
    if page:  # of an Iceberg client's plan, the files that it skips
        decided = [*kept.values()].count("ALL") + len(every.keys() - kept) + len(every.keys() - by_door)
        page.count("planned file", decided)
    if set(kept.values()) <= {"ALL"} or conditions.rng.random() < 0.1:
        names = [conditions.rng.choice(list(conditions.columns))]
        check_answers(app, conditions, request.node, told, names, kept, page)
    return len(every) - len(kept)


def kept_by_door(app: App, tree: Mapping[str, Any]) -> set[str]:
    """The files that an Iceberg client gets for the same condition."""
    table = app.catalog.get(TABLE)
    find = app.parts["planning"].planner.listings.reading(table, "current", lambda _, listing: listing.columns).find
    node = condition(as_iceberg(tree), find)
    if node is False:
        return set()
    plan = app.parts["planning"].planner.plan(table, None if node is True else node, (), "current", find=find)
    return set(plan.files["file_path"].to_pylist())


def as_iceberg(tree: Mapping[str, Any]) -> Any:
    """A condition as an expression of Iceberg."""
    if "not" in tree:
        return {"type": "not", "child": as_iceberg(tree["not"])}
    for word in ("and", "or"):
        if word in tree:
            sides = map(as_iceberg, tree[word])
            return functools.reduce(lambda left, right: {"type": word, "left": left, "right": right}, sides)
    term, values = tree["column"], tree.get("values", ())
    if tree["op"] == "BETWEEN":
        low, high = (
            {"type": type, "term": term, "value": v} for type, v in zip(("gt-eq", "lt-eq"), values, strict=True)
        )
        return {"type": "and", "left": low, "right": high}
    if tree["op"] == "IN":
        return {"type": "in", "term": term, "values": [value for value in values if value is not None]}
    return {"type": ICEBERG[tree["op"]], "term": term} | ({"value": values[0]} if values else {})


def check_answers(
    app: App,
    conditions: Conditions,
    node: Node | None,
    told: str,
    names: Sequence[str],
    kept: Mapping[str, str] | None = None,
    page: Page | None = None,
) -> int:
    """Checks answers about columns by the rows of the files that are kept; returns how many there are."""
    files = next(iter(conditions.columns.values()))[1]
    paths = list(files if kept is None else kept)

    def check(name: str, *functions: str) -> bool:
        lt, values = conditions.columns[name]
        items = (Item("count", None, "count(*)"), *(Item(function, name, function) for function in functions))
        found = answers.answer(
            app.parts["planning"].planner, app.catalog.get(TABLE), AnswerRequest(TABLE, items, node), "current"
        )
        if found.results is None:
            assert found.reason
            return False
        assert kept is None or set(kept.values()) <= {"ALL"}, told
        rows = [value for path in paths for value in values[path]]
        present = [value for value in rows if value is not None]
        count, *of_column = (item["value"] for item in found.results)
        assert count == len(rows), f"{told}: {count} of {len(rows)} rows"
        for function, value in zip(functions, of_column, strict=True):
            if function == "count":
                assert value == len(present), f"{told}: count({name})"
            else:
                assert not any(isinstance(value, float) and math.isnan(value) for value in present), f"{told}: {name}"
                brute = {"min": min, "max": max}[function](present, default=None)
                assert (None if value is None else bound(value, lt)) == brute, f"{told}: {function}({name})"
        if page:
            page.count("answer", len(found.results))
        return True

    # a query is answered whole or not at all
    return sum(
        len(FUNCTIONS) if check(name, *FUNCTIONS) else sum(check(name, function) for function in FUNCTIONS)
        for name in names
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_no_file_with_a_matching_row_is_missing(tmp_path, format, seed):
    check_scans(format, seed, tmp_path)


@pytest.mark.parametrize("metrics", [pytest.param(True, marks=pytest.mark.benchmark), False])
def test_partitions_of_iceberg_skip_files(tmp_path, metrics):
    """Bucket, truncate and the transforms of dates, with bounds in manifests and without."""
    lake = transformed(random.Random(f"transforms {metrics}"), tmp_path / "lake", metrics=metrics)
    assert check_lake(lake, f"transforms {metrics}", tmp_path) > 0
