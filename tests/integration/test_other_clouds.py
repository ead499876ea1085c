"""Every format in the stores of Google and Azure, from the uri to the rows.

The servers are small test servers. `STATFLIGHT_TEST_GOOGLE` or `STATFLIGHT_TEST_AZURE`, the URL of an emulator such as
fake-gcs-server or Azurite, replaces one of them.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import open_place
from store.model.errors import InvalidArgument, StatflightError, UpstreamError
from store.places import open_place as replica_place
from tests.integration import cloud_servers
from tests.integration.aws_server import process
from tests.integration.test_object_stores import ROWS, capture_and_scan, write_paimon

SERVER = Path(cloud_servers.__file__).read_text()
AZURITE = "devstoreaccount1"  # with its well-known key
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
FORMATS = {"parquet": "default", "delta": "default", "lance": "default", "paimon": "sales", "iceberg": "sales"}


@dataclass(frozen=True)
class Cloud:
    """A store that holds a lake of each format below `root`."""

    root: str
    options: dict[str, str]
    folder: Path  # of the objects, for the test server

    def config(self, format: str, **more: str) -> ConnectorConfig:
        options = self.options | more
        if format == "iceberg":
            options["path_rewrite"] = f"{self.folder}/lake={self.root}"
        return ConnectorConfig("c", format, f"{self.root}/{format}", options)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The lakes as files, in a bucket `lake`."""
    folder = tmp_path_factory.mktemp("objects")
    home = folder / "lake"
    (home / "parquet/points").mkdir(parents=True)
    pq.write_table(ROWS, home / "parquet/points/a.parquet")
    import deltalake
    import lance
    from pyiceberg.catalog.sql import SqlCatalog

    deltalake.write_deltalake(home / "delta/points", ROWS)
    lance.write_dataset(ROWS, home / "lance/points.lance")
    write_paimon(home / "paimon")
    catalog = SqlCatalog("c", uri="sqlite://", warehouse=f"file://{home}/iceberg")
    catalog.create_namespace("sales")
    catalog.create_table(("sales", "points"), ROWS.schema).append(ROWS)
    catalog.close()
    return folder


def upload(cloud: Cloud, objects: Path) -> None:
    place = open_place(cloud.root, cloud.options)
    for file in (objects / "lake").rglob("*"):
        if file.is_file():
            with place.file_system.open_output_stream(place.below(str(file.relative_to(objects / "lake"))).path) as out:
                out.write(file.read_bytes())


def google_options(endpoint: str) -> dict[str, str]:
    key = {"gcs_base_url": endpoint, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return {"google_service_account_key": json.dumps(key), "google_allow_http": "true"}


def azure_options(endpoint: str, account: str, key: str) -> dict[str, str]:
    return {
        "azure_storage_account_name": account,
        "azure_storage_account_key": key,
        "azure_allow_http": "true",
        "azure_endpoint": f"{endpoint}/{account}",
    }


@pytest.fixture(scope="module")
def google(objects):
    if endpoint := os.environ.get("STATFLIGHT_TEST_GOOGLE"):
        bucket = f"lake-{uuid.uuid4().hex[:8]}"
        body = json.dumps({"name": bucket}).encode()
        urlopen(Request(f"{endpoint}/storage/v1/b?project=p", body, {"Content-Type": "application/json"})).close()
        store = Cloud(f"gs://{bucket}/lake", google_options(endpoint), objects)
        upload(store, objects)
        yield store
        return
    with process(SERVER, "google", str(objects)) as port:
        yield Cloud("gs://lake", google_options(f"http://127.0.0.1:{port}"), objects)


@pytest.fixture(scope="module")
def azure(objects):
    def cloud(endpoint: str, root: str, account: str, key: str) -> Cloud:
        uri = f"abfss://{root}@{account}.dfs.core.windows.net"
        return Cloud(uri, azure_options(endpoint, account, key), objects)

    if endpoint := os.environ.get("STATFLIGHT_TEST_AZURE"):
        store = cloud(endpoint, f"lake{uuid.uuid4().hex[:8]}", AZURITE, AZURITE_KEY)
        place = open_place(store.root, store.options)
        place.file_system.create_dir(place.path.strip("/"))
        upload(store, objects)
        yield store
        return
    with process(SERVER, "azure", str(objects)) as port:
        yield cloud(f"http://127.0.0.1:{port}", "lake", cloud_servers.ACCOUNT, cloud_servers.KEY)


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
@pytest.mark.parametrize("store", ["google", "azure"])
@pytest.mark.parametrize("format", FORMATS)
def test_lake_is_captured_and_scanned(store, format, request):
    cloud = request.getfixturevalue(store)
    capture_and_scan(cloud.config(format), FORMATS[format], "points", bounds=format not in ("parquet", "lance"))


@pytest.mark.parametrize("store", ["google", "azure"])
def test_place_of_a_replica_is_reached_by_http_where_the_environment_allows_it(store, request, monkeypatch):
    cloud = request.getfixturevalue(store)
    for name, value in cloud.options.items():
        monkeypatch.setenv(name.upper(), value)
    assert replica_place(f"{cloud.root}/nowhere").is_empty()
    assert not replica_place(cloud.root).is_empty()
    monkeypatch.delenv(f"{store.upper()}_ALLOW_HTTP")
    with pytest.raises(UpstreamError, match=cloud.root):
        replica_place(cloud.root).is_empty()


@pytest.mark.parametrize("store", ["google", "azure"])
@pytest.mark.parametrize("format", FORMATS)
def test_error_names_a_missing_table_or_lake(store, format, request):
    cloud = request.getfixturevalue(store)
    config = cloud.config(format)
    with pytest.raises(StatflightError, match="points") as refused:
        open_connector(config).describe("nowhere", "points")
    assert refused.value.code == "UNKNOWN_TABLE"
    nowhere = ConnectorConfig("c", format, f"{cloud.root}/nowhere", cloud.options)
    with pytest.raises(StatflightError, match=r"/nowhere\" "):
        open_connector(nowhere).list_namespaces()


def test_error_of_a_wrong_azure_key_names_no_key(azure):
    if "STATFLIGHT_TEST_AZURE" in os.environ:
        pytest.skip("needs the test server")
    wrong = azure.config("parquet", azure_storage_account_key=base64.b64encode(b"another key").decode())
    with pytest.raises(StatflightError, match=r"AuthenticationFailed") as refused:
        open_connector(wrong).list_namespaces()
    assert cloud_servers.KEY not in str(refused.value)


@pytest.mark.parametrize("store", ["google", "azure"])
def test_error_without_credentials_names_the_store_and_the_token(store, request, monkeypatch, tmp_path):
    cloud = request.getfixturevalue(store)
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "GCE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    if store == "google":
        endpoint = {"google_endpoint": json.loads(cloud.options["google_service_account_key"])["gcs_base_url"]}
    else:
        endpoint = {"azure_endpoint": cloud.options["azure_endpoint"]}
    config = ConnectorConfig("c", "parquet", cloud.root, {**endpoint, "timeout": "0.5"})
    with pytest.raises(StatflightError, match=rf"{cloud.root[:5]}.* cannot be reached .*(?i:token)"):
        open_connector(config).list_namespaces()


def make_key() -> tuple[str, str]:
    """A private and a public key, PEM."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


@pytest.mark.parametrize("option", ["google_service_account_key", "google_service_account"])
def test_key_of_a_google_service_account_obtains_a_token(objects, tmp_path, option):
    """The server checks the signature of the token request, and the token of every other request."""
    private, public = make_key()
    tokens_file = objects.with_name(f"{objects.name}.tokens")
    with process(SERVER, "google", str(objects)) as port:
        key = {
            "type": "service_account",
            "client_email": "reader@project",
            "private_key": private,
            "private_key_id": "1",
            "token_uri": f"http://127.0.0.1:{port}/token",
        }
        options = {"google_endpoint": f"http://127.0.0.1:{port}", "google_allow_http": "true"}

        def config(key: dict) -> ConnectorConfig:
            text = json.dumps(key)
            if option == "google_service_account":
                (tmp_path / "key.json").write_text(text)
                text = str(tmp_path / "key.json")
            return ConnectorConfig("c", "parquet", "gs://lake/parquet", {**options, option: text})

        tokens_file.write_text(json.dumps({"key": public, "token": "a-hush-hush-token"}))
        try:
            capture_and_scan(config(key), "default", "points", bounds=False)
            with pytest.raises(InvalidArgument, match=r"no token .*\(400\)") as refused:
                open_connector(config(key | {"private_key": make_key()[0]}))
            assert "PRIVATE" not in str(refused.value)
            with pytest.raises(InvalidArgument, match="cannot sign"):
                open_connector(config(key | {"private_key": "no key"}))
            with pytest.raises(InvalidArgument, match="not the key of a Google service account"):
                open_connector(config({"type": "authorized_user"}))
            unsigned = {**options, "google_skip_signature": "true"}
            with pytest.raises(StatflightError, match=r"gs://lake/parquet"):
                open_connector(ConnectorConfig("c", "parquet", "gs://lake/parquet", unsigned)).list_namespaces()
        finally:
            tokens_file.unlink()
