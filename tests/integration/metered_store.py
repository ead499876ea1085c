"""An S3 store on loopback, in this process, that counts what it is asked."""

from __future__ import annotations

import io
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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

    @property
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


def parquet_bytes(rows: pa.Table) -> bytes:
    data = io.BytesIO()
    pq.write_table(rows, data)
    return data.getvalue()
