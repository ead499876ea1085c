"""File systems of object stores: what their options and the usual variables say."""

from __future__ import annotations

from capture.connectors.storage.clouds import StorageOptions, s3


def test_s3_takes_the_usual_variables_unless_an_option_says_otherwise(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    same = s3(StorageOptions({"aws_endpoint_url": "http://127.0.0.1:9", "aws_region": "eu-west-1"}))
    assert s3(StorageOptions({})).equals(same)
    other = s3(StorageOptions({"aws_endpoint_url": "http://127.0.0.1:10"}))
    assert not other.equals(same) and other.region == "eu-west-1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:10")
    assert s3(StorageOptions({})).equals(other)
