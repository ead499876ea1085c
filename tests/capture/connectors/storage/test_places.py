import pytest

from capture.connectors.storage.places import open_place, plain_path, reason
from store.model.errors import InvalidArgument


def test_percent_encoding_is_decoded_only_in_file_uris(tmp_path):
    assert open_place(f"file://{tmp_path}/a%20b", {}).path == str(tmp_path / "a b")
    assert open_place(f"{tmp_path}/a%20b", {}).path == f"{tmp_path}/a%20b"
    assert plain_path("file:///a%20b/k=%2525") == "/a b/k=%25"
    assert plain_path("s3://b/k%20") == "s3://b/k "


@pytest.mark.parametrize("uri", ["s3://bucket/a/b?c#d/", "s3a://bucket/a/b?c#d", "S3://bucket/a/b?c#d"])
def test_s3_uris_open_an_s3_file_system(uri):
    options = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_endpoint_url": "http://127.0.0.1:9"}
    place = open_place(uri, options)
    assert place.file_system.type_name.endswith("s3")
    assert place.path == "bucket/a/b?c#d"
    assert place.name == uri.rstrip("/")
    assert not place.is_local
    assert place.below("x").name == f"{uri.rstrip('/')}/x"


def test_gcs_and_azure_uris_have_the_path_in_their_store():
    assert open_place("gs://bucket/a", {"google_skip_signature": "true"}).path == "bucket/a"
    azure = open_place("abfss://box@account.dfs.core.windows.net/a/b", {"azure_storage_account_key": "a2V5"})
    assert azure.path == "box/a/b"


@pytest.mark.parametrize("uri", ["", "  ", "ftp://host/x", "s3://", "gopher:x"])
def test_invalid_uris_are_refused(uri):
    with pytest.raises(InvalidArgument, match="uri"):
        open_place(uri, {})


def test_reasons_are_short_and_plain():
    assert (
        reason(OSError("no /srv/lake/t/f.parquet, file:///srv/lake/t"), {}, "/srv/lake/t") == "no f.parquet, the table"
    )
