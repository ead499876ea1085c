"""Manifests that the Iceberg REST catalog writes: pyiceberg plans by them and finds the rows of brute force, a server
that starts again writes nothing anew, and nothing is written into a lake."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable

from tests.flight_server.faces.iceberg_rest.questions import FORMATS, OF_PARTITION, Reader, found, questions, whole
from tests.flight_server.live_server import STATFLIGHT, LiveServer, serving
from tests.integration.replica_servers import aws_variables

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

QUESTIONS: Final = int(os.environ.get("STATFLIGHT_QUESTIONS", "60"))  # of each table
SEED: Final = int(os.environ.get("STATFLIGHT_SEED", "1"))
WITHOUT: Final = "statflight.without-manifests"


def metadata_of(server: LiveServer, catalog: str, agent: str = "Trino") -> Mapping[str, Any]:
    base = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())[-1]
    url = f"{base}iceberg/v1/namespaces/{catalog}%1Fdefault/tables/t"
    with urlopen(Request(url, headers={"User-Agent": agent})) as answer:
        metadata: Mapping[str, Any] = json.load(answer)["metadata"]
        return metadata


def list_of(metadata: Mapping[str, Any]) -> str:
    (snapshot,) = metadata["snapshots"]
    return str(snapshot["manifest-list"])


def table_of(folder: Path, metadata: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> StaticTable:
    """The table as a client sees it that plans by itself."""
    path = folder / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    return StaticTable.from_metadata(str(path), dict(properties or {}))


def register(server: LiveServer, catalog: str, format: str, uri: Path) -> None:
    with server.connect() as client:
        client.act("register_connector", {"catalog": catalog, "format": format, "uri": str(uri)})
        client.act("discover", {"catalog": catalog})


def parquet(root: Path) -> Path:
    """A lake with a table `t` of two files."""
    (root / "t").mkdir(parents=True)
    for at in range(2):
        pq.write_table(pa.table({"id": range(10 * at, 10 * at + 10)}), root / "t" / f"{at}.parquet")
    return root


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_pyiceberg_plans_by_manifests_like_brute_force(tmp_path: Path, format: str) -> None:
    rows = whole(with_nan=True)
    with serving(
        tmp_path, "--http-port", 0, "--workers", 1, "-o", f"iceberg-manifests={tmp_path / 'manifests'}"
    ) as server:
        uri, _ = FORMATS[format](tmp_path / format, with_nan=True)
        register(server, "lake", format, uri)
        table = table_of(tmp_path, metadata_of(server, "lake"))
    kept = asked = 0
    for question in questions(QUESTIONS, SEED, rows):
        where = question.where.sql(typed=False)
        # pyiceberg takes the value of a partition only where it is selected; a null satisfies <> and NOT to it
        if question.where.columns & set(OF_PARTITION) and re.search("<>|NOT ", where):
            continue
        columns = tuple(dict.fromkeys([*question.columns, *(question.where.columns & set(OF_PARTITION))]))
        scan = table.scan(row_filter=where, selected_fields=columns)
        kept, asked = kept + len(list(scan.plan_files())), asked + 1
        answer = scan.to_arrow().select(question.columns).to_pylist()
        seen = found([list(row.values()) for row in answer])
        assert seen == question.answer(rows, Reader(null_in=False)), (where, question.columns)
    assert asked > QUESTIONS / 3 and kept < 0.8 * 6 * asked  # of six files


def test_a_server_that_starts_again_writes_nothing_anew(tmp_path: Path) -> None:
    lake, place = parquet(tmp_path / "lake"), tmp_path / "manifests"
    flags = ("--http-port", 0, "--workers", 1, "--db", tmp_path / "a.db", "-o", f"iceberg-manifests={place}")
    with serving(tmp_path, *flags) as server:
        register(server, "lake", "parquet", lake)
        first, before = list_of(metadata_of(server, "lake")), files(place)
    with serving(tmp_path, *flags) as server:
        assert list_of(metadata_of(server, "lake")) == first and files(place) == before
        pq.write_table(pa.table({"id": [100]}), lake / "t/new.parquet")
        with server.connect() as client:
            client.act("discover", {"catalog": "lake"})
        metadata = metadata_of(server, "lake")
    assert list_of(metadata) != first and files(place).items() > before.items()
    assert table_of(tmp_path, metadata).scan().to_arrow().num_rows == 21
    assert list_of(metadata).startswith(f"file://{place}/")


def test_pyiceberg_gets_no_manifests_by_which_it_would_lose_rows(tmp_path: Path) -> None:
    flags = ("--http-port", 0, "--workers", 1, "-o", f"iceberg-manifests={tmp_path / 'manifests'}")
    with serving(tmp_path, *flags) as server:
        register(server, "lake", "parquet", parquet(tmp_path / "lake"))
        for _ in range(2):  # whoever is served first
            assert list_of(metadata_of(server, "lake", "PyIceberg/0.9.1")).endswith("planned-by-the-server.avro")
            assert list_of(metadata_of(server, "lake")).startswith(f"file://{tmp_path}/manifests/")
        base = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())[-1]
        table = RestCatalog("door", uri=f"{base}iceberg").load_table("lake.default.t")
        assert str(table.metadata.snapshots[0].manifest_list).endswith("planned-by-the-server.avro")
        assert table.scan(row_filter="id > 4").to_arrow().num_rows == 15


def test_nothing_is_written_into_a_lake(tmp_path: Path) -> None:
    lake = parquet(tmp_path / "lake")
    before = files(lake)
    flags = ("--http-port", 0, "--workers", 1, "--db", tmp_path / "a.db")
    with serving(tmp_path, *flags, "-o", f"iceberg-manifests={lake}/manifests") as server:
        register(server, "lake", "parquet", lake)  # after it has started
        metadata = metadata_of(server, "lake")
    assert 'lies in the lake "lake"' in metadata["properties"][WITHOUT]
    assert list_of(metadata).endswith("planned-by-the-server.avro")
    started = [STATFLIGHT, "serve", "--port", "0", "--workers", "0", "--db", tmp_path / "a.db"]
    refused = subprocess.run(
        [*started, "-o", f"iceberg-manifests={lake}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode != 0 and "name a directory or bucket of the server's own" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert files(lake) == before


def test_manifests_in_a_bucket(tmp_path: Path, aws: Any) -> None:
    pytest.importorskip("obstore")
    place = f"s3://{aws.bucket}/manifests"
    flags = ("--http-port", 0, "--workers", 1, "-o", f"iceberg-manifests={place}")
    with serving(tmp_path, *flags, env=aws_variables(aws.endpoint)) as server:
        register(server, "lake", "parquet", parquet(tmp_path / "lake"))
        metadata = metadata_of(server, "lake")
    assert list_of(metadata).startswith(f"{place}/tables/")
    table = table_of(tmp_path, metadata, aws.iceberg)
    assert len(list(table.scan(row_filter="id = 15").plan_files())) == 1
    assert table.scan(row_filter="id > 4").to_arrow().num_rows == 15
