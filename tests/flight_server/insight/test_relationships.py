"""Foreign keys that declarations and key sketches tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.insight.relationships import containment
from store.model import sketches
from store.model.sketches import murmur3
from tests.flight_server.planning.key_columns import put_columns
from tests.flight_server.serving import app_in, command, read

RANDOM = np.random.default_rng(7)
IDS = RANDOM.choice(10**9, 20_000, replace=False)  # a sparse key
COUNTER = np.arange(1, 5001)


@pytest.fixture
def app():
    with app_in() as app:
        yield app


def found(app, principal=ANONYMOUS) -> list[dict[str, Any]]:
    return read(app, command(flight="sys.relationships"), principal).to_pylist()


def ends(rows) -> set[tuple[str, ...]]:
    return {(r["from_table"], *r["from_columns"], r["to_table"], *r["to_columns"]) for r in rows}


def theta(values) -> sketches.Theta:
    return sketches.read_theta(sketches.theta(murmur3.hash_longs(np.asarray(values, np.int64))))


def test_containment_has_bounds_that_hold_the_truth():
    key = theta(IDS)
    for share in (0.0, 0.5, 0.9, 1.0):
        values = np.concatenate([IDS[: int(5000 * share)], -1 - np.arange(5000 - int(5000 * share))])
        told = containment(theta(values), key)
        assert told.low <= share <= told.high and told.high - told.low < 0.1
    assert containment(theta(COUNTER[:10]), theta(COUNTER[:20])) == (1, 1, 1)
    assert containment(theta(IDS[:3]), key) is None  # of so few values the sketch of the key may have none
    assert containment(theta([]), theta([1])) is None


def test_values_of_a_sparse_key_refer_to_it_whatever_they_are_called(app):
    put_columns(app, "one", pa.table({"x": IDS, "y": COUNTER[np.arange(20_000) % 5000]}))
    put_columns(app, "many", pa.table({"z": RANDOM.choice(IDS[:2000], 30_000), "w": RANDOM.choice(10**9, 30_000)}))
    (row,) = found(app)
    assert ends([row]) == {("many", "z", "one", "x")}
    assert (row["kind"], row["cardinality"]) == ("INFERRED", "MANY_TO_ONE")
    assert row["containment"] == 1 and row["containment_low"] < 1
    assert (row["from_ndv"], row["to_ndv"]) == (pytest.approx(2000, rel=0.1), pytest.approx(20_000, rel=0.1))


@pytest.mark.parametrize(("orphans", "is_known"), [(0.005, True), (0.1, False)])
def test_a_few_orphans_are_usual(app, orphans, is_known):
    put_columns(app, "one", pa.table({"x": IDS}))
    values = np.concatenate([RANDOM.choice(IDS, 5000, replace=False), -1 - np.arange(int(5000 * orphans))])
    put_columns(app, "many", pa.table({"z": np.repeat(values, 2)}))
    assert bool(found(app)) is is_known


def test_numbers_of_a_counter_refer_to_it_only_if_they_reach_its_ends(app):
    put_columns(app, "longer", pa.table({"id": np.arange(1, 8001)}))
    put_columns(app, "counter", pa.table({"id": COUNTER, "line": 1 + np.arange(5000) % 50}))
    early = RANDOM.integers(1, 3000, 40_000)
    put_columns(app, "facts", pa.table({"c": RANDOM.choice(COUNTER, 40_000), "early": early}))
    assert ends(found(app)) == {("facts", "c", "counter", "id")}


def test_the_key_of_the_same_lake_is_meant_rather_than_that_of_a_copy(app):
    rows = pa.table({"x": IDS}), pa.table({"z": np.repeat(IDS, 2)})
    for catalog in ("test", "live"):
        for name, columns in zip(("one", "many"), rows, strict=True):
            put_columns(app, name, columns, catalog=catalog)
    assert [(row["from_catalog"], row["to_catalog"]) for row in found(app)] == [("test", "test"), ("live", "live")]


def test_groups_of_columns_refer_to_groups_that_are_keys(app):
    a, b = np.divmod(np.arange(20_000), 100)
    parts = pa.table({"a": a * 7919 % 100_003, "b": b})
    put_columns(app, "pairs", parts, [[1, 2]])
    put_columns(app, "facts", parts.take(RANDOM.integers(0, 20_000, 50_000)), [[1, 2]])
    assert ("facts", "a", "b", "pairs", "a", "b") in ends(found(app))


def test_a_declared_key_goes_before_what_values_tell(app):
    put_columns(app, "one", pa.table({"x": IDS}))
    put_columns(app, "other", pa.table({"x": IDS}))
    put_columns(app, "many", pa.table({"z": np.repeat(IDS, 2)}))
    key = app.catalog.get("lake.s.many").table_key
    app.database.write(
        lambda c: c.execute(
            "INSERT INTO table_constraints VALUES (?, 'FOREIGN KEY', 'a', 1, 'z', ?),"
            " (?, 'FOREIGN KEY', 'b', 1, 'z', ?)",
            [key, '["s", "one", ["x"]]', key, '["s", "gone", ["x"]]'],
        )
    )
    (row,) = (row for row in found(app) if row["from_table"] == "many")
    assert (row["kind"], row["to_table"], row["containment"]) == ("DECLARED", "one", 1)


def test_only_tables_that_the_caller_sees_are_told(app):
    put_columns(app, "one", pa.table({"x": IDS}))
    put_columns(app, "many", pa.table({"z": np.repeat(IDS, 2)}))
    assert len(found(app)) == 1
    assert found(app, Principal("p", ALL_SCOPES, ("lake.s.many",))) == []
    assert len(found(app, Principal("p", ALL_SCOPES, ("lake.s.*",)))) == 1
