"""Tables with equality deletes, which `client.scan` reads by DuckDB's extension, in an environment that has it.

DuckDB 1.5.5 deletes too many rows of some tables, and finds others corrupt; such a table is refused.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.faces.local.tables import LocalTables
from tests.integration import random_lakes
from tests.interop.duckdb_peer import installed
from tests.interop.processes import downloaded

pytestmark = pytest.mark.interop

SEEDS, ROWS, LEAST = range(12), 60, 500
LIBRARIES = ("pyarrow", "pyiceberg[pyarrow]")
_PROGRAM = """
import json, sys
from pathlib import Path
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from flight_server.client.scan import Scan

duckdb.sql("SET enable_progress_bar = false")  # it would be among the output
for name in ("avro", "iceberg"):
    (file,) = Path(duckdb.__file__).parents[1].rglob(f"{name}.duckdb_extension")
    duckdb.sql(f"INSTALL '{file}'")
answers = []
for table, plan, place in json.load(sys.stdin):
    files = pa.ipc.open_file(plan).read_all()
    try:
        dataset = Scan(lambda *_: pa.Table.from_pylist([place]), table, files).dataset()
    except ValueError as refusal:
        answers.append(str(refusal))
        continue
    some = dataset.to_table(["string", "id"], filter=pc.field("id") > 500)
    answers.append([sorted(map(repr, rows.to_pylist())) for rows in (dataset.to_table(["id", "string"]), some)])
print(json.dumps(answers))
"""


def test_duckdb_applies_equality_deletes(tmp_path: Path) -> None:
    peer = installed(tmp_path / "peer", ("avro", "iceberg"))
    downloaded("the libraries of the client", [tmp_path / "peer/bin/pip", "install", "-q", *LIBRARIES])
    tables, asked, expected = LocalTables(None, lambda _: None), [], []
    for seed in SEEDS:
        lake = random_lakes.iceberg_deletes(random.Random(seed), tmp_path / str(seed), ROWS)
        name = tables.add(lake.uri)
        files, plan = tables.client.scan(name).files, tmp_path / f"{seed}.arrow"
        if not any(
            each["file_content"] == "EQUALITY_DELETES" for row in files["delete_files"].to_pylist() for each in row
        ):
            continue
        with pa.ipc.new_file(plan, files.schema) as writer:
            writer.write_table(files)
        (place,) = tables.client.read_table("sys.tables", name, ["location", "metadata_location"]).to_pylist()
        asked.append([name, str(plan), place])
        live = lake.versions[-1]
        some = live.filter(pc.field("id") > LEAST)
        expected.append([told(live.select(["id", "string"])), told(some.select(["string", "id"]))])
    tables.close()
    done = subprocess.run(
        [peer.python, "-c", _PROGRAM],
        input=json.dumps(asked),
        text=True,
        capture_output=True,
        timeout=600,
        env=os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "TZ": "UTC"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert all("DuckDB" in each for each in refused) and len(refused) < len(answers) // 2
    for answer, rows in zip(answers, expected, strict=True):
        assert isinstance(answer, str) or answer == rows


def told(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))
