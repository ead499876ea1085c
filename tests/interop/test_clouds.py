"""Every format in emulators of Azure's and Google's stores: Azurite from npm, fake-gcs-server built from Go modules.

The tests are those of `tests/integration/test_other_clouds.py`, which otherwise run against small servers of ours, and
of both the contract of lakes in an object store, which S3 passes in `tests/integration/test_store_contract.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from capture.connectors.storage.places import open_place
from tests.integration.fault_proxy import fault_proxy, fault_proxy_process
from tests.integration.test_other_clouds import AZURITE, AZURITE_KEY, azure_options, google_options
from tests.integration.test_store_contract import FILES, Store, StoreContract
from tests.interop.processes import downloaded, free_port, require, running

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests/integration/test_other_clouds.py"


def run_tests(cloud: str, port: int) -> str:
    """The last line of a run of one cloud's tests against a server."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", TESTS, "-k", cloud],
        cwd=ROOT,
        env=os.environ | {f"STATFLIGHT_TEST_{cloud.upper()}": f"http://127.0.0.1:{port}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return next(line for line in reversed(done.stdout.splitlines()) if "passed" in line)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of Azure's emulator."""
    folder = tmp_path_factory.mktemp("azurite")
    downloaded("azurite", [require("npm"), "install", "--no-audit", "--no-fund", "--prefix", folder, "azurite@3.37.0"])
    port = free_port()
    command = [
        folder / "node_modules/.bin/azurite-blob",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
    ]
    with running(command, folder, port):
        yield port


@pytest.fixture(scope="module")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of fake-gcs-server."""
    folder = tmp_path_factory.mktemp("gcs")
    source = "github.com/fsouza/fake-gcs-server@v1.56.1"
    downloaded(source, [require("go"), "install", source], GOBIN=str(folder))
    port = free_port()
    command = [
        folder / "fake-gcs-server",
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "memory",
        "-public-host",
        f"127.0.0.1:{port}",
        "-external-url",
        f"http://127.0.0.1:{port}",
    ]
    with running(command, folder, port):
        yield port


def test_lakes_in_azurite(azurite):
    assert int(run_tests("azure", azurite).split()[0]) >= 10


def test_lakes_in_fake_gcs_server(fake_gcs):
    assert int(run_tests("google", fake_gcs).split()[0]) >= 8


class TestAzure(StoreContract):
    @pytest.fixture
    def store(self, azurite: int) -> Iterator[Store]:
        root = f"lake{uuid.uuid4().hex[:8]}"
        target = f"http://127.0.0.1:{azurite}"
        with fault_proxy(target) as proxy:
            direct, options = (azure_options(url, AZURITE, AZURITE_KEY) for url in (target, proxy.url))
            place = open_place(f"abfss://{root}@{AZURITE}.dfs.core.windows.net", direct)
            place.file_system.create_dir(place.path.strip("/"))
            busy, expired = (503, azure_error("ServerBusy")), (403, azure_error("AuthenticationFailed"))
            yield Store(
                f"abfss://{root}@{AZURITE}.dfs.core.windows.net", direct, options, proxy, busy, expired, (AZURITE_KEY,)
            )


def azure_error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told by the proxy</Message></Error>".encode()


class TestGoogle(StoreContract):
    @pytest.fixture
    def store(self, fake_gcs: int) -> Iterator[Store]:
        bucket, target = f"lake{uuid.uuid4().hex[:8]}", f"http://127.0.0.1:{fake_gcs}"
        urlopen(Request(f"{target}/storage/v1/b?project=p", json.dumps({"name": bucket}).encode())).close()
        with fault_proxy_process(target) as proxy:
            busy, expired = (503, google_error(503, "backendError")), (401, google_error(401, "authError"))
            # before it reads a range of a file, pyarrow asks for its metadata, and for all of it, which it drops
            yield Store(
                f"gs://{bucket}",
                google_options(target),
                google_options(proxy.url),
                proxy,
                busy,
                expired,
                (),
                most=20 + 4 * FILES,
            )


def google_error(status: int, reason: str) -> bytes:
    errors = [{"reason": reason, "message": "told by the proxy"}]
    return json.dumps({"error": {"code": status, "message": "told by the proxy", "errors": errors}}).encode()
