"""pyiceberg as the client of the Iceberg REST catalog: rows of tables that no one captured before."""

from __future__ import annotations

import gzip
import html
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from tests.capture.connectors import iceberg_tables as built
from tests.flight_server.live_server import Client, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
DAYS = [date(2026, 1, 1), date(2026, 1, 2), None]


def rows(part: int) -> pa.Table:
    """Ten rows of a partition."""
    ids = range(10 * part, 10 * part + 10)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "price": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(9, 2)),
            "tags": pa.array([[f"t{i}"] for i in ids]),
            "at": pa.StructArray.from_arrays([pa.array(map(float, ids))], ["x"]),
        }
    )


class Site:
    def __init__(self, base: str, client: Client, root: Path):
        self.base, self.client, self.root = base, client, root

    def connect(self, catalog: str, format: str, uri: Path) -> None:
        self.client.act("register_connector", {"catalog": catalog, "format": format, "uri": str(uri)})
        self.client.act("discover", {"catalog": catalog})

    def table(self, *name: str) -> Table:
        return RestCatalog("door", uri=f"{self.base}iceberg").load_table(name)

    def ask(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.base}iceberg/v1/{path}", data, headers)
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("door")
    with serving(root, "--http-port", 0, "--workers", 1) as server, server.connect() as client:
        (base,) = re.findall(r"pages on (http://[^/]+/)", server.log.read_text())
        yield Site(base, client, root)


def ids(scan: Any) -> list[int]:
    return sorted(scan.to_arrow()["id"].to_pylist())


def check_days(table: Table) -> None:
    """Each partition by its value, and by its bounds."""
    for part, day in enumerate(DAYS):
        scan = table.scan(row_filter=f"day = '{day}'" if day else "day IS NULL")
        assert ids(scan) == list(range(10 * part, 10 * part + 10)) and len(list(scan.plan_files())) == 1
        assert set(scan.to_arrow()["day"].to_pylist()) == {day}
    assert ids(table.scan(row_filter="day >= '2026-01-02' AND id < 15")) == list(range(10, 15))
    assert ids(table.scan(row_filter="price = 5.25 OR day = '2026-01-01'")) == [*range(10), 21]
    assert len(list(table.scan(row_filter="id = 21").plan_files())) == 1
    found = table.scan().to_arrow().sort_by("id")
    whole = pa.concat_tables(map(rows, range(3)))
    assert (
        found["price"].to_pylist() == whole["price"].to_pylist() and found["at"].to_pylist() == whole["at"].to_pylist()
    )


def test_parquet_files_in_directories_of_days(site):
    for part, day in enumerate(DAYS):
        folder = site.root / f"parquet/events/day={day or '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir(parents=True)
        pq.write_table(rows(part), folder / "part 0.parquet")
    site.connect("files", "parquet", site.root / "parquet")
    table = site.table("files", "default", "events")
    check_days(table)
    assert json.loads(table.properties["statflight.columns-left-out"]) == ["tags"]


def test_lines_of_a_tables_page_read_the_table(site):
    (site.root / "pasted/t").mkdir(parents=True)
    pq.write_table(rows(0).drop_columns(["tags", "at"]), site.root / "pasted/t/0.parquet")
    site.connect("pasted", "parquet", site.root / "pasted")
    with urllib.request.urlopen(f"{site.base}table?name=pasted.default.t") as answer:
        page = html.unescape(answer.read().decode())
    pasted = dict(re.findall(r"<p>(pyiceberg|Polars)</p><pre><code>(.*?)</code>", page))
    names = {"RestCatalog": RestCatalog, "pl": polars}
    assert eval(pasted["pyiceberg"].replace("…", "id = 7"), names)["id"].to_pylist() == [7]  # our page
    assert eval(pasted["Polars"], names).filter(polars.col("id") > 6).collect().height == 3


def test_a_delta_table_of_days(site):
    from deltalake import write_deltalake

    parts = [rows(part).append_column("day", pa.array([day] * 10, pa.date32())) for part, day in enumerate(DAYS)]
    write_deltalake(site.root / "delta/events", pa.concat_tables(parts), partition_by=["day"])
    site.connect("logs", "delta", site.root / "delta")
    table = site.table("logs", "default", "events")
    check_days(table)
    assert sorted(table.scan().to_arrow()["tags"].to_pylist()) == sorted([f"t{i}"] for i in range(30))


def test_fractions_as_partition_values_are_refused_to_pyiceberg_only(site):
    from deltalake import write_deltalake

    write_deltalake(site.root / "prices/t", pa.concat_tables(map(rows, range(2))), partition_by=["price"])
    site.connect("prices", "delta", site.root / "prices")
    table = site.table("prices", "default", "t")
    assert ids(table.scan(row_filter="id >= 8 AND price = 2")) == [8], "pyiceberg takes whole numbers"
    with pytest.raises(RESTError, match=r'"prices\.default\.t" has decimals as partition values'):
        table.scan().to_arrow()
    _, plan = site.ask("namespaces/prices%1Fdefault/tables/t/plan", {})
    partitions = {task["data-file"]["partition"][0] for task in plan["file-scan-tasks"]}
    assert {"0.25", "4.75"} < partitions


def test_partitions_that_are_not_selected(site):
    """pyiceberg takes their columns for null: it finds the right rows, or is told that it would not."""
    from deltalake import write_deltalake

    parts = [rows(part).append_column("day", pa.array([day] * 10, pa.date32())) for part, day in enumerate(DAYS)]
    write_deltalake(site.root / "unselected/t", pa.concat_tables(parts), partition_by=["day"])
    site.connect("unselected", "delta", site.root / "unselected")
    table = site.table("unselected", "default", "t")
    right = {
        "day <> '2026-01-01'": range(10, 20),
        "day is null and id > 25": range(26, 30),
        "day = '2027-01-01' or id < 5": range(5),
        "day = '2027-01-01'": [],
    }
    for filter, expected in right.items():
        for fields in (("*",), ("id",), ("id", "day")):
            assert ids(table.scan(row_filter=filter, selected_fields=fields)) == list(expected), (filter, fields)
    for filter, expected in {"day = '2026-01-02'": range(10, 20), "day is not null and id > 15": range(16, 20)}.items():
        assert ids(table.scan(row_filter=filter, selected_fields=("id", "day"))) == list(expected)
        assert table.scan(row_filter=filter).count() == len(expected)
        with pytest.raises(RESTError, match="select day too"):
            table.scan(row_filter=filter, selected_fields=("id",)).to_arrow()
    with pytest.raises(RESTError, match="without OR beside"):
        table.scan(row_filter="day <> '2026-01-01' or id = 25").to_arrow()


def test_files_without_a_column_that_came_later(site):
    """A null that no file has satisfies <> to pyiceberg; one in a file does not."""
    folder = _folder(site.root / "later/t")
    for number, more in enumerate(({}, {"note": ["a", "b", None]}, {"note": pa.array([None] * 3, pa.string())})):
        pq.write_table(pa.table({"id": range(3 * number, 3 * number + 3), **more}), folder / f"{number}.parquet")
    site.connect("later", "parquet", site.root / "later")
    table = site.table("later", "default", "t")
    assert ids(table.scan(row_filter="note <> 'a'")) == [4]
    assert ids(table.scan(row_filter="note <> 'a' or id = 7")) == [4, 7]
    with pytest.raises(RESTError, match="lack note"):
        table.scan(row_filter="note <> 'a' or id = 1").to_arrow()
    assert ids(table.scan(row_filter="(note <> 'a' and note is not null) or id = 1")) == [1, 4]


def test_infinities_in_filters(site):
    from deltalake import write_deltalake

    write_deltalake(site.root / "infinite/t", pa.table({"id": [0, 1, 2], "n": [1.0, float("inf"), None]}))
    site.connect("infinite", "delta", site.root / "infinite")
    table = site.table("infinite", "default", "t")
    scan = table.scan(row_filter=EqualTo("n", float("inf")))
    assert ids(scan) == [1] and scan.count() == 1
    filter = {"type": "lt", "term": "n", "value": "Infinity"}
    _, told = site.ask("namespaces/infinite%1Fdefault/tables/t/plan", {"filter": filter})
    assert [task["residual-filter"]["type"] for task in told["file-scan-tasks"]] == ["lt-eq"]


def test_a_long_filter_makes_pages_short(site):
    for number in range(40):
        folder = site.root / "long/t"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), folder / f"{number}.parquet")
    site.connect("long", "parquet", site.root / "long")
    place = "namespaces/long%1Fdefault/tables/t"
    filter = {"type": "in", "term": "id", "values": [*range(40), *range(10**12, 10**12 + 60_000)]}
    _, told = site.ask(f"{place}/plan", {"filter": filter})
    pages = [told, *(site.ask(f"{place}/tasks", {"plan-task": token})[1] for token in told["plan-tasks"])]
    assert len(pages) > 1 and max(len(json.dumps(page)) for page in pages) < 10 << 20
    files = [task["data-file"]["file-path"] for page in pages for task in page["file-scan-tasks"]]
    assert len(files) == len(set(files)) == 40
    assert all(task["residual-filter"] == filter for page in pages for task in page["file-scan-tasks"])


def test_writers_are_refused_and_leave_nothing(site):
    pq.write_table(pa.table({"id": [1]}), _folder(site.root / "written/t") / "0.parquet")
    site.connect("written", "parquet", site.root / "written")
    with pytest.raises(ValueError, match="read-only"):
        site.table("written", "default", "t").append(pa.table({"id": [2]}))
    assert [path.name for path in (site.root / "written").rglob("*") if path.is_file()] == ["0.parquet"]
    _, told = site.ask("config")
    _, to_libraries = site.ask("config", **{"X-Client-Version": "Apache Iceberg 1.12.0"})
    commit = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    assert commit in to_libraries["endpoints"] and commit not in told["endpoints"]
    status, refusal = site.ask("namespaces/written%1Fdefault/tables/t", {"requirements": [], "updates": []})
    assert status == 403 and refusal["error"]["type"] == "ForbiddenException" and refusal["error"]["code"] == 403


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_files_with_ids_of_another_table_are_refused(site):
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "2"})])
    (site.root / "ids/t").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}, schema), site.root / "ids/t/0.parquet")
    site.connect("ids", "parquet", site.root / "ids")
    status, told = site.ask("namespaces/ids%1Fdefault/tables/t")
    assert status == 406 and "field ids" in told["error"]["message"]


def test_names_are_those_of_the_current_schema(site):
    """Two columns that swapped their names: a filter on an older snapshot means the ids of today."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "b", LongType()), NestedField(3, "c", StringType())
    )
    parts = [pa.table({"id": [i], "b": [100 + i], "c": [f"v{i}"]}) for i in range(3)]
    table = built.simple_table(site.root / "renamed", schema, *parts)
    old = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.rename_column("id", "tmp")
    with table.update_schema() as update:
        update.rename_column("b", "id")
    with table.update_schema() as update:
        update.rename_column("tmp", "b")
    site.connect("renamed", "iceberg", site.root / "renamed/warehouse")
    found = site.table("renamed", *_namespace(site, "renamed"), "t")
    for snapshot in (None, old):
        for filter, files in (("id = 101", 1), ("b = 2", 1), ("id = 1", 0), ("c = 'v0'", 1)):
            scan = found.scan(row_filter=filter, snapshot_id=snapshot)
            assert len(list(scan.plan_files())) == files, (snapshot, filter)
    assert found.scan(row_filter="id = 101").to_arrow()["b"].to_pylist() == [1]


def migrated(root: Path, values: list[tuple[str | None, int | None]]) -> None:
    """A table of files that Iceberg did not write: without ids, and without the columns of their partition."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "p", StringType()), NestedField(3, "q", LongType())
    )
    parts = [PartitionField(id, 998 + id, IdentityTransform(), name) for id, name in ((2, "p"), (3, "q"))]
    mapping = [{"field-id": id, "names": [name]} for id, name in enumerate(("id", "p", "q"), 1)]
    table = built.simple_table(
        root,
        schema,
        partition_spec=PartitionSpec(*parts),
        properties={"schema.name-mapping.default": json.dumps(mapping)},
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for at, partition in enumerate(values):
            path = root / f"{at}.parquet"
            pq.write_table(pa.table({"id": [at]}), path)
            file = DataFile.from_args(
                file_path=f"file://{path}",
                file_format=FileFormat.PARQUET,
                partition=Record(*partition),
                record_count=1,
                file_size_in_bytes=path.stat().st_size,
                column_sizes={1: 40},
                value_counts={1: 1},
                null_value_counts={1: 0},
            )
            file.spec_id = 0
            append.append_data_file(file)


def test_a_migrated_table_with_nulls_among_its_partition_values(site):
    migrated(site.root / "migrated", [("a", 1), (None, None), ("b", 2)])
    site.connect("migrated", "iceberg", site.root / "migrated/warehouse")
    table = site.table("migrated", *_namespace(site, "migrated"), "t")
    found = table.scan().to_arrow().sort_by("id").to_pydict()
    assert found == {"id": [0, 1, 2], "p": ["a", None, "b"], "q": [1, None, 2]}
    for filter, expected in {
        "p = 'b'": [2],
        "p <> 'b'": [0],
        "q is null": [1],
        "q is not null or id = 1": [0, 1, 2],
    }.items():
        assert ids(table.scan(row_filter=filter)) == expected, filter
    assert ids(table.scan(row_filter="id > 0", selected_fields=("id",))) == [1, 2]
    with pytest.raises(RESTError, match="lack p"):
        table.scan(row_filter="p = 'b'", selected_fields=("id",)).to_arrow()


def test_a_migrated_table_with_a_null_beside_another_partition_value(site):
    migrated(site.root / "beside", [("a", 1), ("b", None)])
    site.connect("beside", "iceberg", site.root / "beside/warehouse")
    table = site.table("beside", *_namespace(site, "beside"), "t")
    with pytest.raises(RESTError, match="for the null among them"):
        table.scan().to_arrow()
    assert ids(table.scan(row_filter="q = 1")) == [0]
    assert table.scan(selected_fields=("id", "q")).to_arrow().sort_by("id").to_pydict() == {
        "id": [0, 1],
        "q": [1, None],
    }


def test_a_table_that_nothing_was_written_to_has_no_rows(site):
    table = built.simple_table(site.root / "empty", Schema(NestedField(1, "id", LongType())))
    site.connect("empty", "iceberg", site.root / "empty/warehouse")
    name = ("empty", *_namespace(site, "empty"), "t")
    assert ids(site.table(*name).scan()) == ids(site.table(*name).scan(row_filter="id = 1")) == []
    place = "%1F".join(name[:-1])
    assert site.ask(f"namespaces/{place}/tables/t/plan", {}) == (200, {"status": "completed", "plan-tasks": []})
    table.append(pa.table({"id": [1, 2]}))
    site.client.act("discover", {"catalog": "empty"})
    assert ids(site.table(*name).scan(row_filter="id = 1")) == [1]


def test_vectors_of_one_file_have_counts_of_their_own(site):
    schema = Schema(NestedField(1, "id", LongType()))
    table = built.simple_table(
        site.root / "vectors", schema, *(pa.table({"id": range(10 * i, 10 * i + 10)}) for i in (0, 1))
    )
    paths = sorted(path for path, _ in built.data_paths(table))
    built.commit_deletes(table, *built.deletion_vectors(table, {paths[0]: [1], paths[1]: [2, 3, 4]}), format_version=3)
    site.connect("vectors", "iceberg", site.root / "vectors/warehouse")
    place = "%1F".join(("vectors", *_namespace(site, "vectors")))
    status, told = site.ask(f"namespaces/{place}/tables/t/plan", {})
    assert status == 200
    for task in told["file-scan-tasks"]:
        (reference,) = task["delete-file-references"]
        vector = told["delete-files"][reference]
        assert vector["content"] == "position-deletes" and vector["file-format"] == "puffin"
        assert task["data-file"]["file-path"] == vector["referenced-data-file"] == paths[vector["record-count"] == 3]
        assert task["data-file"]["record-count"] == 10 and vector["content-size-in-bytes"] > 0


def test_rows_that_are_deleted_in_files_of_paths_without_scheme_stay_deleted(site):
    """Readers compare the path of a data file as text with the one in its delete file."""
    root, schema = site.root / "plain", Schema(NestedField(1, "id", LongType()))
    parts = (pa.table({"id": range(10 * i, 10 * i + 10)}) for i in (0, 1))
    table = built.simple_table(root, schema, *parts, location=str(root / "warehouse/db/t"))
    first, second = sorted(
        (path for path, _ in built.data_paths(table)), key=lambda path: pq.read_table(path)["id"][0].as_py()
    )
    vectors = built.deletion_vectors(table, {second: [1]})
    built.commit_deletes(table, built.position_deletes(table, [(first, 3)]), *vectors, format_version=3)
    site.connect("plain", "iceberg", root / "warehouse")
    found = site.table("plain", *_namespace(site, "plain"), "t")
    assert ids(found.scan(row_filter="id < 10")) == [0, 1, 2, *range(4, 10)]
    place = "%1F".join(("plain", *_namespace(site, "plain")))
    _, told = site.ask(f"namespaces/{place}/tables/t/plan", {})
    assert {task["data-file"]["file-path"] for task in told["file-scan-tasks"]} == {first, second}


def _namespace(site: Site, catalog: str) -> tuple[str, ...]:
    _, told = site.ask(f"namespaces?parent={catalog}")
    level = told["namespaces"][0]
    _, deeper = site.ask(f"namespaces?parent={'%1F'.join(level)}")
    return tuple((deeper["namespaces"] or [level])[0][1:])


def test_metadata_is_sent_once_and_compressed(site):
    """By a client that takes gzip and says what it has; the header of distinct counts has two values."""
    columns = {f"a_long_name_of_a_column_{i}": [i] for i in range(300)}
    pq.write_table(pa.table(columns), _folder(site.root / "wide/t") / "0.parquet")
    site.connect("wide", "parquet", site.root / "wide")
    address = f"{site.base}iceberg/v1/namespaces/wide%1Fdefault/tables/t"

    def ask(**headers: str) -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(address, headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as other:
            return other.code, dict(other.headers), other.read()

    _, plain, text = ask()
    _, told, packed = ask(Accept_Encoding="gzip, deflate")
    assert told["content-encoding"] == "gzip" and gzip.decompress(packed) == text and len(packed) < len(text) / 3
    assert told["etag"] == plain["etag"] and "content-encoding" not in plain
    assert "Accept-Encoding" in plain["vary"]
    for known in (told["etag"], told["etag"].removeprefix("W/"), "*"):
        status, again, body = ask(If_None_Match=known)
        assert (status, again["etag"], body) == (304, told["etag"], b"")
    status, _, refusal = ask(x_statflight_statistics="none")
    assert status == 400 and b"on | off" in refusal
