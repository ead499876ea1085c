import json

import pytest

from capture.connectors.storage import secrets
from capture.connectors.storage.secrets import MASK, mask, redact, redact_all, resolve
from store.model.errors import InvalidArgument


@pytest.mark.parametrize(
    "name",
    [
        "aws_secret_access_key",
        "AWS_ACCESS_KEY_ID",
        "token",
        "s3.session-token",
        "password",
        "azure_storage_account_key",
        "sas_token",
        "credential",
        "google_service_account",
        "private_key",
        "connection_string",
        "header.x-custom",
        "header.Authorization",
        "auth",
        "auth.basic.password",
        "auth.oauth2.client_secret",
    ],
)
def test_secret_options_are_masked(name):
    assert mask({name: "hush"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    [
        "aws_region",
        "warehouse",
        "s3.endpoint",
        "hive_partitioning",
        "secret",
        "authority_host",
        "auth.type",
        "header.User-Agent",
    ],
)
def test_other_options_are_shown(name):
    assert mask({name: "shown"}) == {name: "shown"}


def test_a_password_in_a_uri_is_masked():
    assert mask({"uri": "postgresql://me:pw@host/db"}) == {"uri": f"postgresql://me:{MASK}@host/db"}
    assert secrets.mask_uri("https://host/x?sig=abc&a=b") == f"https://host/x?sig={MASK}&a=b"


def test_messages_are_redacted():
    assert redact("denied for hunter22", {"password": "hunter22", "region": "denied"}) == f"denied for {MASK}"


def test_secrets_within_an_object_are_redacted():
    auth = json.dumps({"type": "basic", "basic": {"username": "ann", "password": "pass-w0rd"}})
    assert redact("no: ann pass-w0rd basic", {"auth": auth}) == f"no: ann {MASK} basic"


def test_nested_messages_are_redacted():
    key = json.dumps({"private_key": "-----BEGIN hush hush", "type": "service_account"})
    options = {"google_service_account_key": key, "password": 'quo"ted'}
    error = {"error": {"message": 'no: quo"ted', "params": ["-----BEGIN hush hush", 7, None]}}
    assert redact_all(error, options) == {"error": {"message": f"no: {MASK}", "params": [MASK, 7, None]}}


# Named secrets.


@pytest.mark.parametrize("text", ['{"token": "t", "allow_http": true}', "token=t\n\n allow_http = true "])
def test_secret_is_read_from_the_environment(monkeypatch, text):
    monkeypatch.setenv("STATFLIGHT_SECRET_MY_LAKE", text)
    assert resolve({"secret": "my-lake", "region": "r"}) == {"token": "t", "allow_http": "true", "region": "r"}
    assert resolve({"secret": "my-lake", "token": "mine"})["token"] == "mine"
    assert resolve({"region": "r"}) == {"region": "r"}


def test_secret_is_read_from_the_secrets_file(monkeypatch, tmp_path):
    file = tmp_path / "secrets.toml"
    file.write_text('[lake]\ntoken = "t"\ntimeout = 3\n')
    monkeypatch.setenv("STATFLIGHT_SECRETS_FILE", str(file))
    assert resolve({"secret": "lake"}) == {"token": "t", "timeout": "3"}
    with pytest.raises(InvalidArgument, match=r'no secret "sea".*STATFLIGHT_SECRET_SEA'):
        resolve({"secret": "sea"})


def test_value_of_a_secret_may_be_a_file_that_is_read_at_each_use(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv("STATFLIGHT_SECRET_LAKE", json.dumps({"token": {"file": str(token)}}))
    assert resolve({"secret": "lake"}) == {"token": "first"}
    token.write_text("second\n")
    assert resolve({"secret": "lake"}) == {"token": "second"}
    token.unlink()
    with pytest.raises(InvalidArgument, match=r'"token" of secret "lake" cannot be read') as refused:
        resolve({"secret": "lake"})
    assert str(tmp_path) not in str(refused.value)


def test_secret_that_names_another_secret_is_refused(monkeypatch):
    monkeypatch.setenv("STATFLIGHT_SECRET_A", "secret=b")
    monkeypatch.setenv("STATFLIGHT_SECRET_B", "secret=a")
    with pytest.raises(InvalidArgument, match="names another secret"):
        resolve({"secret": "a"})


@pytest.mark.parametrize("text", ["{hush", json.dumps({"a": ["hush"]}), "hush"])
def test_a_malformed_secret_is_refused_without_its_text(monkeypatch, text):
    monkeypatch.setenv("STATFLIGHT_SECRET_X", text)
    with pytest.raises(InvalidArgument, match="malformed") as refused:
        resolve({"secret": "x"})
    assert "hush" not in str(refused.value)
    monkeypatch.setenv("STATFLIGHT_SECRETS_FILE", "/nowhere/secrets.toml")
    with pytest.raises(InvalidArgument, match="cannot be read") as refused:
        resolve({"secret": "y"})
    assert "/nowhere" not in str(refused.value)
