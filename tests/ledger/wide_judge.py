"""A judge of what a server says of a wide table, by what DuckDB reads from its files."""

from __future__ import annotations

import json
import math
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client import StatsClient
from store.model.logical_types import LogicalType, parse
from tests.integration.random_tables import bound
from tests.integration.test_differential_scans import aligned
from tests.ledger.conditions import Conditions, as_request, as_sql
from tests.ledger.ledger import Page
from tests.ledger.wide_tables import COLUMNS, PART, Read

COUNTS: Final = ("row_count", "null_count", "nan_count")
SERVED: Final = (
    "file_path",
    "column_name",
    "logical_type",
    *COUNTS,
    "ndv",
    "ndv_exact",
    "ndv_lower",
    "ndv_upper",
    "min",
    "max",
    "min_is_exact",
    "max_is_exact",
    "completeness",
    "usable_for",
)
AT_ONCE: Final = 2  # plans asked for
PEER_EVERY: Final = 40  # conditions, of which DuckDB evaluates one too
ANSWERED: Final = 60


def judge_rows(page: Page, served: pa.Table, read: Read) -> None:
    """Judges rows of `stats.file_columns`, with the columns `SERVED`."""
    at = pc.index_in(served["file_path"], value_set=pa.array(read.wide.paths))
    assert at.null_count == 0, (served["file_path"][0].as_py(), read.wide.paths[0])
    served = served.append_column("at", at)
    for name, facts in read.facts():
        rows = served.filter(pc.equal(served["column_name"], name)).to_pylist()
        if not rows:
            continue
        lt = parse(rows[0]["logical_type"])
        true = {side: aligned(facts[side], lt) for side in ("min", "max")}
        counts = {count: facts[count].to_pylist() for count in (*COUNTS, "ndv")}
        for row in rows:
            of_file = {of: values[row["at"]] for of, values in (true | counts).items()}
            judge_row(page, row, of_file, lt, f"{name} in {row['file_path']}")


def judge_row(page: Page, row: dict[str, Any], true: dict[str, Any], lt: LogicalType, where: str) -> None:
    """Judges the claims of a row about a column of a file or a table.

    Args:
        true: Counts, and `min` and `max` in the form of `comparables`, None without a number.
    """
    if row["completeness"] != "COMPLETE":
        return
    for count in COUNTS:
        if row[count] is not None:
            page.count("count")
            if row[count] != true[count]:
                page.wrong("count", f"{count} of {where} is {row[count]}, not {true[count]}")
    if row["usable_for"] == "PRUNING":
        for side in ("min", "max"):
            if row[side] is not None:
                page.count("bound")
                if problem := _refuted(side, bound(row[side], lt), true[side], row[f"{side}_is_exact"]):
                    page.wrong("bound", f"{side} of {where} {row[side]!r} {problem} {true[side]!r}")
    if row["ndv"] is None:
        return
    if row["ndv_exact"]:
        page.count("distinct count")
        if row["ndv"] != true["ndv"]:
            page.wrong("distinct count", f"ndv of {where} is {row['ndv']}, not {true['ndv']}")
    elif row["ndv_lower"] is not None and row["ndv_upper"] is not None:
        page.interval(row["ndv_lower"] <= true["ndv"] <= row["ndv_upper"])


def _refuted(side: str, served: Any, true: Any, exact: bool | None) -> str:
    if true is None:
        return "bounds no number:"
    if served > true if side == "min" else served < true:
        return "does not enclose"
    return "is called exact, and is not" if exact and served != true else ""


def judge_table(page: Page, tables: pa.Table, columns: pa.Table, read: Read) -> None:
    """Judges the rows of `stats.tables` and `stats.columns`."""
    for row in tables.to_pylist():
        for count, true in (("row_count", int(read.rows.sum())), ("data_file_count", len(read.rows))):
            if row[count] is not None:
                page.count("count")
                if row[count] != true:
                    page.wrong("count", f"{count} is {row[count]}, not {true}")
    facts = dict(read.facts())
    for row in columns.to_pylist():
        of_files, lt = facts[row["column_name"]], parse(row["logical_type"])
        true: dict[str, Any] = {count: pc.sum(of_files[count].cast(pa.int64())).as_py() for count in COUNTS}
        true["ndv"] = len(read.distinct[row["column_name"]])
        for side, pick in (("min", min), ("max", max)):
            true[side] = pick((value for value in aligned(of_files[side], lt) if value is not None), default=None)
        judge_row(page, row, true, lt, row["column_name"])


def judge_plan(
    page: Page, files: pa.Table, told: str, any_true: np.ndarray, all_true: np.ndarray, paths: pa.Array
) -> None:
    """Judges the files of a plan.

    Args:
        told: The condition.
        any_true: For each of the paths, whether a row matches for any reader.
        all_true: Whether every row matches for every reader.
    """
    at = pc.index_in(files["file_path"], value_set=paths).to_numpy(zero_copy_only=False)
    kept, whole = np.zeros(len(paths), bool), np.zeros(len(paths), bool)
    kept[at] = True
    whole[at] = pc.equal(files["match"], "ALL").to_numpy(zero_copy_only=False)
    page.count("planned file", int((~kept).sum() + whole.sum()))
    for number in np.flatnonzero(~kept & any_true):
        page.wrong("planned file", f"{told} skips {paths[number]}, which has a row that matches")
    for number in np.flatnonzero(whole & ~all_true):
        page.wrong("planned file", f"{told} keeps {paths[number]} as a whole, which has a row that does not match")


def judge_plans(page: Page, client: StatsClient, table: str, read: Read, seed: int, until: float) -> int:
    """Judges plans of random conditions until a time of the monotonic clock; returns their number.

    DuckDB evaluates some of the conditions on the files, with its own pruning, as a peer. It finds too few rows where
    it believes what a writer says wrongly: Polars counts the nulls of a chunk once for each page, and bounds of floats
    do not enclose NaN.
    """
    conditions = Conditions(read, random.Random(f"{seed} plans"))
    paths = pa.array(read.wide.paths)
    asked: deque[tuple[dict[str, Any], Future[pa.Table]]] = deque()
    done = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def ask() -> None:
            tree = conditions.tree()
            asked.append((tree, pool.submit(lambda: client.scan(table, where=as_request(tree)).files)))

        for _ in range(AT_ONCE + 1):
            ask()
        while asked:
            tree, future = asked[0]
            any_true, all_true = _for_all_readers(conditions, tree, read)
            if done % PEER_EVERY == 0:
                _ask_duckdb(page, read, conditions, tree)
            judge_plan(page, future.result(), json.dumps(as_request(tree)), any_true, all_true, paths)
            asked.popleft()
            done += 1
            if time.monotonic() < until:
                ask()
    return done


def _for_all_readers(conditions: Conditions, tree: dict[str, Any], read: Read) -> tuple[np.ndarray, np.ndarray]:
    true = conditions.truth(tree).true
    any_true, all_true = read.any_in_file(true), read.all_in_file(true)
    if conditions.has_nan(tree):
        other = conditions.truth(tree, nan_is_greatest=False).true
        any_true, all_true = any_true | read.any_in_file(other), all_true & read.all_in_file(other)
    return any_true, all_true


def _ask_duckdb(page: Page, read: Read, conditions: Conditions, tree: dict[str, Any]) -> None:
    hive = str(read.wide.in_paths).lower()
    sql = f"SELECT count(*) FROM read_parquet(?, hive_partitioning = {hive}) WHERE {as_sql(tree)}"
    ((count,),) = read.connection.execute(sql, [read.wide.paths]).fetchall()
    true = int(conditions.truth(tree).true.sum())
    page.ledger.asked("DuckDB, rows that a condition selects", 1, count != true)
    if count != true:
        page.ledger.unlike.append(f"{page.table}: {count:,} rows by DuckDB, {true:,} in truth, WHERE {as_sql(tree)}")


def judge_answers(
    page: Page,
    client: StatsClient,
    table: str,
    read: Read,
    seed: int,
    queries: int = ANSWERED,
    names: Sequence[str] = (PART, *COLUMNS),
) -> int:
    """Judges answers about all rows, and about the rows of some files in a row; returns how many queries had one."""
    rng = random.Random(f"{seed} answers")
    found = dict(read.facts())
    order = pc.sort_indices(found[PART]["min"])  # the files by their numbers, whatever their paths
    facts = {name: of_files.take(order).to_pydict() for name, of_files in found.items()}
    answered = 0
    for number in range(queries):
        name = rng.choice(names)
        low = rng.randrange(len(read.rows)) if number % 4 else 0
        high = min(low + rng.choice((0, 3, 50)), len(read.rows) - 1) if number % 4 else len(read.rows) - 1
        where = f" WHERE {PART} BETWEEN {low} AND {high}" if number % 4 else ""
        items = [f"{side}({name})" for side in rng.choice((("count",), ("count", "min", "max")))]
        answer = client.answer(f"SELECT count(*), {', '.join(items)} FROM {table}{where}")
        if answer.values is None:
            continue
        answered += 1
        for item, value in answer.values.items():
            page.count("answer")
            true = _answer(facts[name], item.partition("(")[0] if item != "count(*)" else item, low, high)
            if not _same(value, true):
                page.wrong("answer", f"{item}{where} is {value!r}, not {true!r}")
    return answered


def _answer(facts: dict[str, list[Any]], item: str, low: int, high: int) -> Any:
    def of(name: str) -> Iterator[Any]:
        return (value for value in facts[name][low : high + 1] if value is not None)

    match item:
        case "count(*)":
            return sum(of("row_count"))
        case "count":
            return sum(of("row_count")) - sum(of("null_count"))
        case "min":
            return math.nan if sum(of("nan_count")) else min(of("min"), default=None)
    return math.nan if sum(of("nan_count")) else max(of("max"), default=None)


def _same(value: Any, true: Any) -> bool:
    return value == true and (value is None) == (true is None)
