"""S3 and Glue on loopback: one process with moto's server for the whole run, a bucket for each test."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

KEY, SECRET = "an-access-key", "hush-hush-secret-key"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class Aws:
    """A running server, and the bucket of one test."""

    port: int
    bucket: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Storage options under the names of Delta and Lance, which every connector accepts."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    @property
    def iceberg(self) -> dict[str, str]:
        """The same under the names of pyiceberg."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        }

    @property
    def glue(self) -> dict[str, str]:
        return {
            "glue.endpoint": self.endpoint,
            "glue.region": "us-east-1",
            "glue.access-key-id": KEY,
            "glue.secret-access-key": SECRET,
        }

    def file_system(self):
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator[str]:
    """Runs a Python program that prints a line when it is ready and ends with its input; yields that line."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = server.stdout.readline().strip()
        assert line, "the server did not start"
        yield line
    finally:
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


@pytest.fixture(scope="session")
def aws_port() -> Iterator[int]:
    pytest.importorskip("moto")
    with process(_SERVER) as line:
        yield int(line)


@pytest.fixture
def aws(aws_port) -> Aws:
    server = Aws(aws_port, f"lake-{uuid.uuid4().hex[:12]}")
    server.file_system().create_dir(server.bucket)
    return server


@pytest.fixture
def nothing_secret_is_logged(caplog, capfd):
    caplog.set_level(logging.DEBUG, "capture")
    yield
    out, err = capfd.readouterr()
    assert SECRET not in caplog.text + out + err
