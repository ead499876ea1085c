"""Metadata of the Iceberg REST catalog, of every table of the corpora, as the libraries of its clients validate it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError

from tests.flight_server.live_server import serving
from tests.interop import corpora
from tests.interop.duckdb_peer import installed
from tests.interop.java import jars, jvm
from tests.interop.test_java_readers import ICEBERG

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not corpora.LAKES.exists(), reason="the shared lakes are elsewhere"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning"),
]

MADE_UP: Final = "read-only://this-catalog-takes-no-writes"

Name = tuple[str, ...]


def test_metadata_of_all_corpora_is_valid_to_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpora.WITHIN)
    (tmp_path / "data").symlink_to(corpora.WITHIN / "data")
    (tmp_path / "made").mkdir()
    with (
        serving(tmp_path, "--http-port", 0, "--workers", 1) as server,
        server.connect() as client,
    ):
        client.timeout = 300.0
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        corpora.register(client, tmp_path / "made")
        rows = client.read({"table": "sys.tables"}).to_pylist()
        names = [(row["table_catalog"], *row["table_schema"].split("."), row["table_name"]) for row in rows]
        answers = {name: metadata_of(f"{base}iceberg", name) for name in names}
        shown = {name: answer for name, answer in answers.items() if isinstance(answer, Mapping)}
        refused = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        assert [
            reason for reason in refused.values() if not re.search("no column has a type|row-level del", reason)
        ] == []
        count = Counter(planned_for_pyiceberg(f"{base}iceberg", name) for name in shown)
    to_duckdb = snapshots_to_duckdb(tmp_path, shown)
    for name, body in shown.items():
        assert to_duckdb[name] == {each["snapshot-id"] for each in body["metadata"].get("snapshots", ())}, name
    checked_by_java(tmp_path / "jars", shown)
    own = sum(MADE_UP not in json.dumps(body) for body in shown.values())
    print(f"{len(shown) - own} tables with metadata made up, {own} with their own, {len(refused)} refused; {count}")
    assert len(shown) - own >= 50 and own >= 15 and count["planned"] >= 60


def url_of(base: str, name: Name) -> str:
    *namespace, table = name
    return f"{base}/v1/namespaces/{quote(chr(31).join(namespace), safe='')}/tables/{quote(table, safe='')}"


def metadata_of(base: str, name: Name) -> Mapping[str, Any] | str:
    """The answer to `GET …/tables/{t}`, or the reason why there is none."""
    try:
        with urlopen(url_of(base, name)) as answer:
            body: Mapping[str, Any] = json.load(answer)
            return body
    except HTTPError as refusal:
        assert refusal.code == 406, name
        reason: str = json.load(refusal)["error"]["message"]
        return reason


def current_schema(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    schemas = metadata.get("schemas") or [metadata["schema"]]
    return next((s for s in schemas if s.get("schema-id") == metadata.get("current-schema-id")), schemas[0])


def planned_for_pyiceberg(base: str, name: Name) -> str:
    """Loads a table, and has its scan planned."""
    table = RestCatalog("door", uri=base).load_table(name)
    assert table.schema().fields
    try:
        return "planned" if len(list(table.scan().plan_files())) >= 0 else ""
    except RESTError as refusal:
        assert "is missing" in str(refusal), name
        return "a file of the lake is missing"
    except NotImplementedError as refusal:
        assert "equality deletes" in str(refusal), name
        return "equality deletes, which pyiceberg has not"


def snapshots_to_duckdb(folder: Path, bodies: Mapping[Name, Mapping[str, Any]]) -> dict[Name, set[int]]:
    """Ids of the snapshots of each table, as DuckDB reads them out of its metadata."""
    statements = []
    for number, body in enumerate(bodies.values()):
        path = folder / f"{number}.metadata.json"
        path.write_text(json.dumps(body["metadata"]))
        statements.append(f"SELECT snapshot_id FROM iceberg_snapshots('{path}')")
    answers = installed(folder / "duckdb").run(("httpfs", "avro", "iceberg"), *statements)
    return {name: {id for (id,) in rows} for name, rows in zip(bodies, answers, strict=True)}


def checked_by_java(folder: Path, bodies: Mapping[Name, Mapping[str, Any]]) -> None:
    """Parses metadata and name mappings as Iceberg's Java library does."""
    with jvm(jars(folder, ICEBERG)) as java:
        iceberg = java.org.apache.iceberg
        for name, body in bodies.items():
            text = json.dumps(body["metadata"])
            metadata = iceberg.TableMetadataParser.fromJson(body.get("metadata-location"), text)
            columns = [field["name"] for field in current_schema(body["metadata"])["fields"]]
            assert [column.name() for column in metadata.schema().columns()] == columns, name
            mapping = metadata.properties().get("schema.name-mapping.default")
            if mapping is not None and MADE_UP in text:
                found = iceberg.mapping.NameMappingParser.fromJson(mapping)
                found.find(java.java.util.List.of(columns[0]))  # by full names, which must not occur twice
            snapshots = {snapshot.snapshotId() for snapshot in metadata.snapshots()}
            assert {file.snapshotId() for file in metadata.statisticsFiles()} <= snapshots, name
