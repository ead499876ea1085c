"""The ledger finds what is planted: a wrong bound, count, number of distinct values, plan or answer; and it adds up."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.connectors import ConnectorConfig, open_connector
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.spi import TableHandle
from flight_server.client.answer import Answer
from flight_server.core.app import App
from flight_server.planning import answer_request, answers
from flight_server.planning.plan_request import of_json
from store.model.targets import Target
from tests.integration.test_differential import Sink, capture, targets
from tests.integration.test_differential_scans import TABLE, app_with
from tests.ledger import lake_judge, wide_judge
from tests.ledger.conditions import Conditions, as_sql
from tests.ledger.ledger import Ledger, Page, Source
from tests.ledger.wide_tables import BUILDERS, Read

FILES = 5
SECONDS = 0.3  # of plans
SOURCE = Source("parquet", "parquet-cpp-arrow")


@dataclass
class Captured:
    table: TableHandle
    sinks: list[Sink]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    build, _ = BUILDERS["parquet by arrow"]
    found = Read(build(3, tmp_path_factory.mktemp("wide"), FILES))
    yield found
    found.close()


@pytest.fixture(scope="module")
def captured(read: Read) -> Iterator[Captured]:
    connector = open_connector(ConnectorConfig("lake", "parquet", read.wide.uri, {}))
    schema, name = read.wide.name.split(".")
    (snapshot,) = connector.enumerate_snapshots(schema, name, full_rescan=True).snapshots
    ids = {column.key: number for number, column in enumerate(snapshot.schema.columns, 1)}
    table = TableHandle("lake", schema, name, "id", snapshot.snapshot_id, snapshot.schema, ids, connector)
    by_metadata, _ = capture(NativeEngine(), table, [Target.table(), *targets(table)], Sink())
    by_data, _ = capture(ComputeEngine(inline_max_cells=10**12), table, targets(table), Sink())
    yield Captured(table, [by_metadata, by_data])
    connector.close()


@pytest.fixture
def page() -> Page:
    return Ledger().page("t, seed 3", SOURCE)


@dataclass
class InProcess:
    """The two calls of a client that judges make, without a network."""

    app: App

    def scan(self, table: str, where: Mapping[str, Any]) -> Any:
        request = of_json({"scan": table, "where": where})
        entry = self.app.catalog.get(table)
        return SimpleNamespace(
            files=self.app.parts["planning"].planner.plan(entry, request.node, None, "current").files
        )

    def answer(self, sql: str) -> Answer:
        request = answer_request.of_sql(sql)
        found = answers.answer(
            self.app.parts["planning"].planner, self.app.catalog.get(request.table), request, "current"
        )
        return Answer.of_result({"exact": found.results is not None, **vars(found)})


def served(captured: Captured, **planted: Any) -> pa.Table:
    """Rows as the server has them, one of a column `i64` with other values."""
    rows = pa.concat_tables(captured.sinks[-1].rows["stats.file_columns"]).to_pylist()
    (changed,) = (row for row in rows if row["column_name"] == "i64" and "000001" in row["file_path"])
    changed |= planted
    names = [name for name in wide_judge.SERVED if name != "usable_for"]
    table = pa.Table.from_pylist([{name: row[name] for name in names} for row in rows])
    return table.append_column("usable_for", pa.repeat("PRUNING", len(rows)))


def with_planted(sink: Sink, **planted: str) -> Sink:
    """A sink whose rows of a column `i64` in one file have other values."""
    changed = Sink()
    for flight, parts in sink.rows.items():
        rows = pa.concat_tables(parts)
        if flight == "stats.file_columns":
            of_file = pc.and_(pc.equal(rows["column_name"], "i64"), pc.match_substring(rows["file_path"], "000001"))
            for name, value in planted.items():
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, name, pc.if_else(of_file, value, rows[name]))
        changed.rows[flight] = [rows]
    return changed


def test_rows_that_are_right_are_claims_and_none_is_wrong(captured, read, page):
    wide_judge.judge_rows(page, served(captured), read)
    assert page.ledger.wrong == []
    columns = len(read.types)
    assert page.ledger.total("count") >= FILES * columns * 2
    assert page.ledger.total("bound") > FILES * columns
    assert page.ledger.total("distinct count") == FILES * columns
    assert page.ledger.holds


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ({"min": str((1 << 63) - 1)}, "bound"),
        ({"max": str(-(1 << 63))}, "bound"),
        ({"min": str(-(1 << 63)), "min_is_exact": True}, "bound"),
        ({"null_count": 1000}, "count"),
        ({"row_count": 1}, "count"),
        ({"ndv": 999.0}, "distinct count"),
    ],
)
def test_a_planted_row_is_found(captured, read, page, planted, kind):
    wide_judge.judge_rows(page, served(captured, **planted), read)
    (wrong,) = page.ledger.wrong
    assert wrong.startswith(f"WRONG {kind}, t, seed 3 (parquet, by parquet-cpp-arrow): ") and "i64" in wrong
    assert not page.ledger.holds


def test_bounds_that_do_not_prune_claim_nothing(captured, read, page):
    rows = served(captured, min=str((1 << 63) - 1))
    at = rows.schema.get_field_index("usable_for")
    wide_judge.judge_rows(page, rows.set_column(at, "usable_for", pa.repeat("PLANNING", len(rows))), read)
    assert page.ledger.wrong == [] and page.ledger.total("bound") == 0


def test_plans_and_answers_of_right_rows_are_right(captured, read, page, tmp_path):
    with app_with(captured.sinks, tmp_path, captured.table) as app:
        client: Any = InProcess(app)
        planned = wide_judge.judge_plans(page, client, TABLE, read, 3, time.monotonic() + SECONDS)
        assert planned > wide_judge.AT_ONCE  # however slow the machine is
        assert wide_judge.judge_answers(page, client, TABLE, read, 3, queries=12, names=("i64", "word")) > 3
    assert page.ledger.wrong == []
    assert page.ledger.total("planned file") > 0 and page.ledger.total("answer") > 6
    ((compared, unlike),) = page.ledger.peers.values()
    assert compared and not unlike


def test_a_planted_bound_is_found_in_plans_and_answers(captured, read, page, tmp_path):
    """All values of a file are above the bounds that the server is told."""
    low = {"min": str(-(1 << 63)), "max": str(-(1 << 63))}
    sinks = [with_planted(captured.sinks[0], **low)]  # the means of the data would contradict it
    with app_with(sinks, tmp_path, captured.table) as app:
        client: Any = InProcess(app)
        conditions = Conditions(read, random.Random(1))
        tree = {"column": "i64", "op": "GTE", "values": [conditions.literal("i64", 0)]}
        files = client.scan(TABLE, {"column": "i64", "op": "GTE", "values": [tree["values"][0].text]}).files
        true = conditions.truth(tree).true
        paths = pa.array(read.wide.paths)
        wide_judge.judge_plan(page, files, "i64 >= …", read.any_in_file(true), read.all_in_file(true), paths)
        assert any("skips" in wrong and "000001" in wrong for wrong in page.ledger.wrong)
        page.ledger.wrong.clear()
        wide_judge.judge_answers(page, client, TABLE, read, 3, queries=12, names=("i64",))
    assert any("min(i64)" in wrong for wrong in page.ledger.wrong)


def test_a_file_kept_as_a_whole_has_only_rows_that_match(read, page):
    files = pa.table({"file_path": read.wide.paths, "match": ["ALL"] * FILES})
    true = read.columns["i64"] >= 0  # not for nulls
    wide_judge.judge_plan(
        page, files, "i64 IS NOT NULL", read.any_in_file(true), read.all_in_file(true), pa.array(read.wide.paths)
    )
    assert page.ledger.total("planned file") == FILES
    assert 0 < len(page.ledger.wrong) == int((~read.all_in_file(true)).sum())


def test_a_file_that_is_merely_kept_claims_nothing(read, page):
    files = pa.table({"file_path": read.wide.paths, "match": ["SOME"] * FILES})
    true = read.columns["i64"] >= 0
    wide_judge.judge_plan(page, files, "", read.any_in_file(true), read.all_in_file(true), pa.array(read.wide.paths))
    assert page.ledger.total() == 0 and not page.ledger.holds


@pytest.mark.parametrize("builder", ["parquet by polars", "delta", "iceberg"])
def test_conditions_are_true_where_duckdb_finds_rows(builder, tmp_path):
    build, _ = BUILDERS[builder]
    read = Read(build(7, tmp_path / "t", FILES))
    conditions = Conditions(read, random.Random(builder))
    for _ in range(100):
        tree = conditions.tree()
        (values,) = read.connection.sql(f"SELECT {as_sql(tree)} FROM t").to_arrow_table().columns
        true, unknown = conditions.truth(tree)
        assert values.fill_null(False).to_pylist() == true.tolist(), as_sql(tree)
        assert values.is_null().to_pylist() == unknown.tolist(), as_sql(tree)
    read.close()


def test_random_lakes_count_what_they_check(monkeypatch, tmp_path):
    monkeypatch.setattr(lake_judge, "CONDITIONS", 2)
    ledger = Ledger()
    for check in lake_judge.CHECKS:
        if check[0] == "delta":
            lake_judge.judge(ledger, check, 1, tmp_path)
    assert ledger.holds and list(ledger.tables) == ["random delta, seed 1"]
    assert {kind for kind, _ in ledger.claims} >= {"bound", "count", "distinct count", "answer"}


def test_a_wrong_random_lake_is_noted_with_its_seed(tmp_path):
    def check(*_: object) -> None:
        raise AssertionError("max does not enclose 5")

    ledger = Ledger()
    lake_judge.judge(ledger, ("lance names", check), 9, tmp_path)
    assert ledger.wrong == ["WRONG claim, random lance names, seed 9 (lance, by lance): max does not enclose 5"]


def test_figures_add_up():
    ledger = Ledger()
    assert not ledger.holds  # nothing was compared
    one, other = ledger.page("a", SOURCE), ledger.page("b", Source("delta", "delta-rs"))
    one.count("bound", 3)
    one.count("bound")
    other.count("answer", 2)
    other.count("count", 0)
    ledger.asked("DuckDB", 5, 0)
    ledger.asked("DuckDB", 1, 1)
    assert (ledger.total(), ledger.total("bound"), ledger.total("answer")) == (6, 4, 2)
    lines = ledger.report(7.0, "0 to 3").splitlines()
    assert "peer DuckDB: 6 compared, 1 unlike" in lines
    assert lines[-1] == "6 claims about 2 tables, 2 writers and 2 formats in 7 s: 0 wrong; seeds 0 to 3"
    assert ledger.holds
    other.wrong("answer", "2, not 3")
    assert not ledger.holds


def test_one_of_twenty_intervals_may_miss_but_not_more(page):
    for number in range(2000):
        page.interval(number % 20 != 0)
    assert page.ledger.missed == 100 and page.ledger.holds
    for _ in range(80):
        page.interval(False)
    assert not page.ledger.holds


def test_what_could_not_be_judged_fails(page):
    page.count("bound")
    page.ledger.unjudged.append("NOT JUDGED")
    assert not page.ledger.holds
