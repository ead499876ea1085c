"""A Hive metastore: the one among PySpark's jars, in Derby, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
import pytest
from pymetastore.hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from capture.spark.java import java_home
from tests.interop import processes

SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=db;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "hive.metastore.event.db.notification.api.auth": "false",
    "hive.metastore.thrift.bind.host": "127.0.0.1",
    "hive.async.log.enabled": "false",
}


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a metastore, with its database in a folder; skips the test without Java."""
    home = java_home()
    if not home:
        pytest.skip("needs Java")
    folder.mkdir(parents=True, exist_ok=True)
    given = SETTINGS | {"hive.metastore.warehouse.dir": (folder / "warehouse").as_uri()}
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in given.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    port = processes.free_port()
    command = [
        Path(home) / "bin/java",
        "-cp",
        f"{folder}:{Path(pyspark.__file__).parent / 'jars'}/*",
        "org.apache.hadoop.hive.metastore.HiveMetaStore",
        "-p",
        str(port),
    ]
    with processes.running(command, folder, port, lambda: answers(port)):
        yield f"thrift://127.0.0.1:{port}"


def answers(port: int) -> bool:
    try:
        with opened(f"thrift://127.0.0.1:{port}") as client:
            return "default" in client.get_all_databases()
    except Exception:
        return False


@contextmanager
def opened(uri: str) -> Iterator[Any]:
    """A client of the metastore."""
    address = urlsplit(uri)
    transport = TBufferedTransport(TSocket(address.hostname, address.port))
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()
