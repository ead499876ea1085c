"""Metadata of the Iceberg REST catalog, of every table of the corpora, as the libraries of its clients validate it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import RESTError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable

from flight_server.faces.iceberg_rest.manifests import WITHOUT
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


@pytest.mark.parametrize("manifests", [False, True], ids=["plain", "manifests"])
def test_metadata_of_all_corpora_is_valid_to_all_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifests: bool
) -> None:
    place = ["-o", f"iceberg-manifests={tmp_path / 'manifests'}"] if manifests else []
    monkeypatch.chdir(corpora.WITHIN)
    (tmp_path / "data").symlink_to(corpora.WITHIN / "data")
    (tmp_path / "made").mkdir()
    with (
        serving(tmp_path, "--http-port", 0, "--workers", 1, *place) as server,
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
        if manifests:
            told = Counter(told_by_manifests(f"{base}iceberg", tmp_path, name, body) for name, body in shown.items())
            print(told)
            assert told["as planned"] >= 50 and told[""] == 0
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


def told_by_manifests(base: str, folder: Path, name: Name, body: Mapping[str, Any]) -> str:
    """Compares files, rows and bounds of a table's manifests with its plan and with what the files have."""
    metadata = body["metadata"]
    if MADE_UP not in json.dumps(body):
        return "of its own"
    if WITHOUT in metadata["properties"]:
        assert "is not known" in metadata["properties"][WITHOUT], (name, metadata["properties"][WITHOUT])
        return metadata["properties"][WITHOUT].rpartition("/")[0]
    path = folder / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    alone = StaticTable.from_metadata(str(path))
    files = {task.file.file_path: task.file for task in alone.scan().plan_files()}
    planned = [task.file for task in RestCatalog("door", uri=base).load_table(name).scan().plan_files()]
    assert {path: file.record_count for path, file in files.items()} == {
        file.file_path: file.record_count for file in planned if file.record_count
    }, name
    assert sum(file.record_count for file in files.values()) == int(
        metadata["snapshots"][0]["summary"]["total-records"]
    )
    for file in files.values():
        bounds_enclose(alone, file)
    return "as planned"


def bounds_enclose(table: StaticTable, file: DataFile) -> None:
    """Checks bounds and counts of a file with the values of its columns, of those that have the name of their field."""
    try:
        path = file.file_path.removeprefix("file://")
        rows = pq.read_table(path, partitioning=None, coerce_int96_timestamp_unit="us")
    except (OSError, ValueError, NotImplementedError):
        return  # damaged on purpose
    for field in table.schema().fields:
        if field.name not in rows.column_names or field.field_id not in (file.null_value_counts or {}):
            continue
        values = rows[field.name]
        assert file.null_value_counts[field.field_id] == values.null_count, (file.file_path, field.name)
        if field.field_id not in (file.lower_bounds or {}):
            continue
        type = schema_to_pyarrow(field.field_type)
        type = pa.string() if pa.types.is_large_string(type) else type
        low, high = pc.min_max(values.cast(type, safe=False)).as_py().values()
        lower, upper = (
            from_bytes(field.field_type, of[field.field_id]) for of in (file.lower_bounds, file.upper_bounds)
        )
        if low is not None:
            assert lower <= plain(low) and plain(high) <= upper, (file.file_path, field.name, lower, low, high, upper)


def plain(value: Any) -> Any:
    """A value as it is in bounds: days, and microseconds since 1970."""
    match value:
        case datetime():
            zone = None if value.tzinfo is None else UTC
            return (value - datetime(1970, 1, 1, tzinfo=zone)) // timedelta(microseconds=1)
        case date():
            return (value - date(1970, 1, 1)).days
        case time():
            at = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
            return at // timedelta(microseconds=1)
    return value


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
