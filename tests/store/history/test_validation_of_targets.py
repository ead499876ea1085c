"""Storage ids of records, and the targets of sketches."""

import json
from pathlib import Path

import duckdb
import pytest

from store.duckdb.arrow_sql import execute
from store.history.file_spans import STORAGE_ID
from store.history.validation import prepare
from store.model.schemas import FLIGHTS
from store.model.target_ids import with_storage_ids
from store.model.targets import Target
from tests.store.record_tables import HASH, put, refused, rows

# Storage ids.


def ids(name, *given):
    """The storage ids of rows of a flight, as a statement computes them from what is stored."""
    stored = prepare(FLIGHTS[name], rows(name, *given))
    sql = f"SELECT {STORAGE_ID[name].format('t')} FROM {{stored}} t"
    return [id_ for (id_,) in execute(duckdb.default_connection(), sql, stored=stored)]


def test_storage_ids_equal_those_of_the_targets():
    assert ids("stats.tables", {}) == ["table"]
    assert ids("stats.columns", {"column_id": 1}, {"column_id": 2**63 - 1}) == [
        Target.column(1).storage_id,
        Target.column(2**63 - 1).storage_id,
    ]
    files = [{"file_path": path} for path in ("a", " b", "a")]
    assert ids("stats.files", *files) == [Target.file(row["file_path"]).storage_id for row in files]
    expressions = [(kind, key) for kind in ("spark", "Trino") for key in (b"a", b"\x00\xff", b"a\x1fb")]
    assert ids("stats.expressions", *({"engine_kind": k, "engine_expression_key": b} for k, b in expressions)) == [
        Target.expression(*each).storage_id for each in expressions
    ]
    assert ids("stats.column_groups", {"column_ids": [3, 1]}, {"column_ids": [1, 2, 3]}) == [
        Target.column_group(group).storage_id for group in ([1, 3], [1, 2, 3])
    ]


GOLDEN = Path(__file__).parents[2] / "golden/target_identity.jsonl"


def test_storage_ids_agree_with_the_golden_vectors():
    flights = {
        "TABLE": "stats.tables",
        "COLUMN": "stats.columns",
        "FILE": "stats.files",
        "EXPRESSION": "stats.expressions",
        "COLUMN_GROUP": "stats.column_groups",
    }
    for line in GOLDEN.read_text().splitlines():
        vector = json.loads(line)
        fields = {name: value for name, value in vector["target"].items() if name != "kind"}
        if "engine_expression_key" in fields:
            fields["engine_expression_key"] = fields["engine_expression_key"].encode()
        name = flights[vector["target"]["kind"]]
        if "error" in vector:
            refused(vector["error"], call=lambda name=name, fields=fields: ids(name, fields))
        else:
            assert ids(name, fields) == [vector["storage_id"]] == [Target.parse(vector["target"]).storage_id]


# Sketches.

SKETCH = {"role": "NDV", "sketch_type": "x", "data": b"d"}


def test_sketch_has_its_target_as_fields_or_as_a_storage_id():
    given = [
        {"target_kind": "TABLE"},
        {"target_kind": "COLUMN", "column_id": 3},
        {"storage_id": Target.column(3).storage_id},
        {"target_kind": "FILE", "file_path": " a ", "column_id": 3},
        {"target_kind": "EXPRESSION", "storage_id": f"expression-spark-{HASH}"},
        {"target_kind": "COLUMN", "storage_id": Target.column(3).storage_id, "column_id": 3},
    ]
    flight = FLIGHTS["stats.sketches"]
    table = with_storage_ids(prepare(flight, rows("stats.sketches", *(SKETCH | row for row in given))))
    assert [(row["storage_id"], row["target_kind"], row["column_id"]) for row in table.to_pylist()] == [
        ("table", "TABLE", None),
        (Target.column(3).storage_id, "COLUMN", 3),
        (Target.column(3).storage_id, "COLUMN", 3),
        (Target.file("a").storage_id, "FILE", 3),
        (f"expression-spark-{HASH}", "EXPRESSION", None),
        (Target.column(3).storage_id, "COLUMN", 3),
    ]
    for row in given[:3]:
        table = with_storage_ids(prepare(flight, rows("stats.sketches", SKETCH | row)))
        assert [name for name in flight.schema.names if name in table.schema.names] == table.schema.names
        assert table["storage_id"].null_count == 0


BAD_SKETCHES = [
    ({"target_kind": "COLUMN"}, ["column_id"]),
    ({"target_kind": "FILE"}, ["file_path"]),
    ({"target_kind": "EXPRESSION"}, ["storage_id"]),
    ({"target_kind": "NOISE"}, ["target_kind", "NOISE"]),
    ({"storage_id": "x"}, ["storage_id", "x"]),
    ({"storage_id": "column-0000000000000000000"}, ["storage_id"]),
    ({"storage_id": "column-9999999999999999999"}, ["storage_id"]),
    ({"storage_id": "column-0000000000000000001\n"}, ["storage_id"]),
    ({"storage_id": f"file-{HASH}", "target_kind": "TABLE"}, ["storage_id"]),
    ({"storage_id": f"file-{HASH}", "target_kind": "FILE", "file_path": "a"}, ["storage_id", "file_path"]),
    ({"storage_id": Target.column(1).storage_id, "column_id": 2}, ["storage_id", "column_id"]),
    ({"target_kind": "TABLE", "role": "X"}, ["role", "X"]),
    ({"target_kind": "TABLE", "sketch_type": ""}, ["sketch_type"]),
    ({"target_kind": "TABLE", "params": "[]"}, ["params"]),
]


@pytest.mark.parametrize(("wrong", "mentions"), BAD_SKETCHES, ids=lambda part: str(part)[:60])
def test_invalid_sketch_is_refused(wrong, mentions):
    refused(*mentions, call=lambda: put("stats.sketches", SKETCH | wrong), where="row 1")
