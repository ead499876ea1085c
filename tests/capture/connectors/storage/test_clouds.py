"""File systems of object stores: what their options and the usual variables say."""

from __future__ import annotations

import base64

import pytest

from capture.connectors.directories.found import tables_at
from capture.connectors.storage.clouds import StorageOptions, azure, s3
from capture.connectors.storage.lake_directories import Lake
from capture.connectors.storage.places import open_place
from store.model.errors import InvalidArgument, UpstreamError

KEY = base64.b64encode(b"0123456789abcdef").decode()
NOBODY = {"account_name": "nobody", "endpoint": "https://127.0.0.1:9"}


def test_s3_takes_the_usual_variables_unless_an_option_says_otherwise(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    same = s3(StorageOptions({"aws_endpoint_url": "http://127.0.0.1:9", "aws_region": "eu-west-1"}))
    assert s3(StorageOptions({})).equals(same)
    other = s3(StorageOptions({"aws_endpoint_url": "http://127.0.0.1:10"}))
    assert not other.equals(same) and other.region == "eu-west-1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:10")
    assert s3(StorageOptions({})).equals(other)


def test_azure_takes_the_usual_variables_unless_an_option_says_otherwise(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "one")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    same = azure(StorageOptions({"account_name": "one", "account_key": KEY}), "")
    assert azure(StorageOptions({}), "").equals(same)
    assert not azure(StorageOptions({}), "two").equals(same)
    given = azure(StorageOptions({"sas_token": "a=b"}), "one")  # a key of another account must not come beside it
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    assert azure(StorageOptions({"sas_token": "a=b"}), "one").equals(given)


def test_azure_without_an_account_or_credentials_says_what_to_set(monkeypatch):
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "prod")
    with pytest.raises(InvalidArgument, match=r"no storage account: name it .* AZURE_STORAGE_ACCOUNT_NAME"):
        open_place("az://container/lake", {})
    with pytest.raises(
        UpstreamError,
        match=r"az://container/lake: cannot be reached \(there are no credentials for Azure: give the option .*"
        r"account_key or sas_token, or set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ):
        tables_at("az://container/lake", NOBODY)
    lake = Lake("delta", "az://container/lake", NOBODY, lambda _: False)
    with pytest.raises(UpstreamError, match=r'uri "az://container/lake" cannot be reached \(there are no credentials'):
        lake.namespaces()
