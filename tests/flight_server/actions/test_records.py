"""Actions on stored records: sketches of samples are not merged unless asked for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flight_server.actions import ACTIONS, Call
from flight_server.auth.principal import ALL_SCOPES, Principal
from store import schemas, sketches
from store.errors import InvalidArgument
from store.sketches import murmur3
from store.targets import Target
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


@pytest.fixture
def app(tmp_path):
    with app_in(tmp_path) as made:
        put(made, [KEY | {"column_id": 1, "column_name": "c1", "logical_type": "INT", "row_count": 2000}])
        yield made


def sketch(target: Target, values: range, **params: Any) -> dict[str, Any]:
    data = sketches.theta(np.unique(murmur3.hash_longs(np.array(values, np.int64))))
    named = {"target_kind": str(target.kind), "storage_id": target.storage_id, "column_id": 1}
    return KEY | named | {"file_path": target.file_path, "role": "NDV", "sketch_type": schemas.THETA, "data": data,
                          "params": json.dumps(params)}  # fmt: skip


def merge(app, **more: Any) -> list[dict[str, Any]]:
    body = {"table": "lake.s.t", "snapshot": 1, "column": "c1"} | more
    call = Call(app, Principal("p", ALL_SCOPES), "", lambda: False)
    return list(ACTIONS["merge_sketches"].run(call, json.dumps(body).encode()))


def test_the_sketch_of_a_sample_is_not_merged_unless_asked_for(app):
    put(app, [sketch(Target.column(1), range(200), completeness="PARTIAL", rows=2000, rows_seen=200)],
        "stats.sketches")  # fmt: skip
    with pytest.raises(InvalidArgument, match="is of a sample") as refused:
        merge(app)
    assert refused.value.code == "PARTIAL_SKETCH"
    (answer,) = merge(app, allow_partial=True)
    assert answer["ndv"] == 200


def test_sketches_of_files_go_before_the_sketch_of_a_sample(app):
    put(app, [sketch(Target.column(1), range(200), completeness="PARTIAL")], "stats.sketches")
    put(app, [sketch(Target.file(f"f{n}"), range(n * 500, n * 500 + 500)) for n in range(2)], "stats.sketches")
    assert merge(app)[0]["ndv"] == 1000
