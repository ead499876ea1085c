"""An S3 store on loopback, in this process, that counts what it is asked."""

from __future__ import annotations

import io
import logging
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BUCKET = "lakes"
_KEYS = {"aws_access_key_id": "some-key", "aws_secret_access_key": "some-secret"}


@dataclass
class MeteredStore:
    """The store.

    Attributes:
        calls: Operation and path of each request, in order; POST counts as PUT, as in the price lists of stores.
    """

    endpoint: str
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return _KEYS | {"aws_region": "us-east-1", "aws_endpoint": self.endpoint, "aws_allow_http": "true"}

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The number of requests of the block, by operation."""
        start, found = len(self.calls), Counter[str]()
        yield found
        found.update(operation for operation, _ in self.calls[start:])

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    @cached_property
    def client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **_KEYS)


@contextmanager
def metered_store() -> Iterator[MeteredStore]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    found = MeteredStore("")

    def counted(environ: dict[str, Any], start_response: Any) -> Any:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        operation = "LIST" if method == "GET" and "list-type" in query else {"POST": "PUT"}.get(method, method)
        found.calls.append((operation, environ["PATH_INFO"]))
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, counted, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found.endpoint = f"http://127.0.0.1:{server.server_port}"
        found.client.create_bucket(Bucket=BUCKET)
        yield found
    finally:
        server.shutdown()
        server.server_close()


def iceberg_catalog(store: MeteredStore) -> Any:
    """A catalog in memory, with a namespace `default`, whose tables are in the store."""
    from pyiceberg.catalog import load_catalog

    options = {
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": _KEYS["aws_access_key_id"],
        "s3.secret-access-key": _KEYS["aws_secret_access_key"],
        "s3.region": "us-east-1",
    }
    catalog = load_catalog("c", type="sql", uri="sqlite://", warehouse=f"s3://{BUCKET}", **options)
    catalog.create_namespace("default")
    return catalog


def put_paimon_table(store: MeteredStore, key: str, rows: pa.Table, commits: int) -> None:
    """Puts a Paimon table of some commits, written anew on this machine, where another may be."""
    import pypaimon

    with tempfile.TemporaryDirectory() as warehouse:
        catalog = pypaimon.CatalogFactory.create({"warehouse": warehouse})
        catalog.create_database("default", True)
        options = {"metadata.stats-mode": "full"}
        catalog.create_table("default.t", pypaimon.Schema.from_pyarrow_schema(rows.schema, options=options), False)
        for _ in range(commits):
            builder = catalog.get_table("default.t").new_batch_write_builder()
            write, commit = builder.new_write(), builder.new_commit()
            write.write_arrow(rows)
            commit.commit(write.prepare_commit())
            write.close()
            commit.close()
        root = Path(warehouse, "default.db", "t")
        for file in root.rglob("*"):
            if file.is_file():
                store.put(f"{key}/{file.relative_to(root)}", file.read_bytes())


def parquet_bytes(rows: pa.Table) -> bytes:
    data = io.BytesIO()
    pq.write_table(rows, data)
    return data.getvalue()
