"""Settings: sources, precedence, and validation."""

from dataclasses import fields
from pathlib import Path

import pytest

from flight_server.core.config import _READERS, Settings, effective, load
from store.model.errors import InvalidArgument


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(toml=None, env=None, **flags):
    if toml is not None:
        Path("given.toml").write_text(toml)
    return load(None if toml is None else "given.toml", flags, env or {})


def test_defaults():
    settings = read()
    assert settings == Settings()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8815, 1)
    assert settings.server == "grpc://127.0.0.1:8815"
    assert not settings.zone_policy.convert


def test_each_field_has_a_reader():
    assert [field.name for field in fields(Settings)] == [*_READERS, "of_parts"]


def test_flags_override_environment_and_environment_overrides_file():
    toml = 'port = 1\nhost = "a"\ndb = "f.duckdb"'
    env = {"STATFLIGHT_PORT": "2", "STATFLIGHT_HOST": "b", "STATFLIGHT_AUTH": "", "STATFLIGHT_OTHER": "x"}
    settings = read(toml, env, port=3, workers=None)
    assert (settings.port, settings.host, settings.db) == (3, "b", Path("f.duckdb"))
    assert (settings.auth, settings.workers) == (None, 1)


def test_file_in_the_working_directory_is_read_by_default():
    Path("statflight.toml").write_text("workers = 0")
    assert read().workers == 0
    assert read("port = 1").workers == 1


def test_file_keys_are_spelled_like_flags_or_fields():
    toml = 'tls-cert = "c"\ntls_key = "k"\ntimestamp-no-tz-policy = "CONVERT_TO_SESSION_ZONE"\nlease-seconds = 2'
    settings = read(toml + '\nsession-timezone = "Europe/Paris"')
    assert (settings.tls_cert, settings.tls_key, settings.lease_seconds) == (Path("c"), Path("k"), 2.0)
    assert (settings.zone_policy.convert, settings.zone_policy.session_timezone) == (True, "Europe/Paris")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"toml": "hot_bytes = 0"}, ["hot_bytes in the configuration file", "set cache_bytes"]),
        ({"toml": "hot-bytes = 0"}, ["hot-bytes in the configuration file", "set cache_bytes"]),
        ({"env": {"STATFLIGHT_HOT_BYTES": "0"}}, ["STATFLIGHT_HOT_BYTES in the env", "set STATFLIGHT_CACHE_BYTES"]),
    ],
)
def test_removed_setting_names_its_replacement(given, named):
    with pytest.raises(InvalidArgument) as raised:
        read(**given)
    assert all(part in f"{raised.value} {raised.value.hint}" for part in named)


def test_environment_values_are_parsed_from_text():
    env = {
        "STATFLIGHT_SYNC_ENABLED": "no",
        "STATFLIGHT_REQUIRE_REGISTERED_TABLES": "TRUE",
        "STATFLIGHT_LEASE_SECONDS": "0.5",
        "STATFLIGHT_TIMESTAMP_NO_TZ_POLICY": "refuse",
        "STATFLIGHT_MAX_STREAMS": "10",
    }
    settings = read(env=env)
    assert (settings.sync_enabled, settings.require_registered_tables, settings.lease_seconds) == (False, True, 0.5)
    assert (settings.timestamp_no_tz_policy, settings.max_streams) == ("REFUSE", 10)


def test_process_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("STATFLIGHT_PORT", "7")
    assert load().port == 7


WRONG = [
    ({"toml": "prot = 1"}, ["prot", '"port"']),
    ({"toml": "tls_crt = 1"}, ["tls_crt", '"tls-cert"']),
    ({"toml": "port = 70000"}, ["port", "70000", "65535", "file"]),
    ({"toml": "port = true"}, ["port", "True"]),
    ({"toml": "port = 1.5"}, ["port", "1.5"]),
    ({"toml": "host = 1"}, ["host", "a text"]),
    ({"toml": 'host = " "'}, ["host"]),
    ({"toml": "[server]\nport = 1"}, ["server"]),
    ({"toml": "port ="}, ["TOML", "given.toml"]),
    ({"env": {"STATFLIGHT_PORT": "x"}}, ["STATFLIGHT_PORT", '"x"']),
    ({"env": {"STATFLIGHT_WORKERS": "-1"}}, ["STATFLIGHT_WORKERS", "-1"]),
    ({"env": {"STATFLIGHT_SYNC_ENABLED": "maybe"}}, ["STATFLIGHT_SYNC_ENABLED", "true or false"]),
    ({"env": {"STATFLIGHT_LEASE_SECONDS": "0"}}, ["STATFLIGHT_LEASE_SECONDS"]),
    ({"env": {"STATFLIGHT_LEASE_SECONDS": "nan"}}, ["STATFLIGHT_LEASE_SECONDS"]),
    ({"env": {"STATFLIGHT_TIMESTAMP_NO_TZ_POLICY": "GUESS"}}, ["GUESS", "CONVERT_TO_SESSION_ZONE"]),
    ({"env": {"STATFLIGHT_SESSION_TIMEZONE": "Mars/Base"}}, ["Mars/Base", "time zone"]),
    ({"env": {"STATFLIGHT_SESSION_TIMEZONE": "../../etc/passwd"}}, ["time zone"]),
    ({"env": {"STATFLIGHT_FOLLOWERS": "grpc://b:8815,c:8815"}}, ["STATFLIGHT_FOLLOWERS", "c:8815", "grpc+tls://"]),
    ({"port": -1}, ["--port", "-1"]),
    ({"prot": 1}, ["prot", "port"]),
]


@pytest.mark.parametrize(("given", "mentions"), WRONG, ids=lambda part: str(part)[:60])
def test_invalid_setting_is_rejected_by_name(given, mentions):
    with pytest.raises(InvalidArgument) as raised:
        read(**given)
    assert all(word in str(raised.value) for word in mentions), str(raised.value)


def test_missing_or_unreadable_file_is_rejected(empty_directory):
    for path in ("nowhere.toml", empty_directory):
        with pytest.raises(InvalidArgument, match="configuration file"):
            load(path, {}, {})
    Path("latin.toml").write_bytes(b'host = "\xff"')
    with pytest.raises(InvalidArgument, match="UTF-8"):
        load("latin.toml", {}, {})


def test_token_is_hidden_in_repr_and_errors():
    assert "sesame" not in repr(read(token="sesame"))
    with pytest.raises(InvalidArgument) as raised:
        read("token = ['sesame']")
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "valid"),
    [
        (Settings(), True),
        (Settings(host="localhost"), True),
        (Settings(host="::1"), True),
        (Settings(host="127.8.8.8"), True),
        (Settings(host="0.0.0.0"), False),
        (Settings(host="::"), False),
        (Settings(host="example.org"), False),
        (Settings(host="0.0.0.0", insecure=True), True),
        (Settings(host="0.0.0.0", auth=Path("t")), True),
        (Settings(tls_cert=Path("c")), False),
        (Settings(tls_key=Path("k")), False),
        (Settings(tls_client_ca=Path("a")), False),
        (Settings(tls_cert=Path("c"), tls_key=Path("k"), tls_client_ca=Path("a"), host="::"), True),
        (Settings(store="other", store_uri="s"), True),
        (Settings(store="other"), False),
        (Settings(store_uri="s"), False),
        (Settings(store="other", store_uri="s", replicate_to="r"), False),
        (Settings(store="other", store_uri="s", follow="r"), False),
    ],
)
def test_insecure_or_inconsistent_settings_are_rejected(settings, valid):
    if valid:
        settings.check()
    else:
        with pytest.raises(InvalidArgument):
            settings.check()


def test_spark_settings_from_file_flags_and_environment(tmp_path):
    file = tmp_path / "statflight.toml"
    file.write_text('[spark]\nspark.sql.cbo.enabled = true\n"spark.sql.shuffle.partitions" = 4\n')
    found = load(file, environ={}).spark
    assert found == {"spark.sql.cbo.enabled": "true", "spark.sql.shuffle.partitions": "4"}
    assert load(flags={"spark": ["a=b=c", "d="]}, environ={}).spark == {"a": "b=c", "d": ""}
    assert load(environ={"STATFLIGHT_SPARK": "a=1, b=2"}).spark == {"a": "1", "b": "2"}
    with pytest.raises(InvalidArgument, match="KEY=VALUE"):
        load(flags={"spark": ["nonsense"]}, environ={})


@pytest.mark.parametrize(
    ("master", "engine", "scan_engine"),
    [
        (None, None, "auto"),
        ("local", None, "auto"),
        ("local[*]", None, "auto"),
        ("local[2,4]", None, "auto"),
        ("spark://there:7077", None, "spark"),
        ("sc://there", None, "spark"),
        ("yarn", None, "spark"),
        ("local-cluster[2,1,1024]", None, "spark"),
        ("spark://there:7077", "auto", "auto"),
        (None, "spark", "spark"),
        ("spark://there:7077", "local", "local"),
    ],
)
def test_master_of_a_cluster_means_spark_unless_the_engine_says_otherwise(master, engine, scan_engine):
    assert Settings(spark_master=master, engine=engine).scan_engine == scan_engine


def test_engine_is_one_of_three():
    assert read(env={"STATFLIGHT_ENGINE": "Local"}).engine == "local"
    with pytest.raises(InvalidArgument, match=r"engine: is not valid .*auto or spark or local.*duck"):
        read(env={"STATFLIGHT_ENGINE": "duck"})


def test_wrong_value_is_quoted_once_and_a_secret_not_shown():
    with pytest.raises(InvalidArgument, match=r'from 1 to 3600000, got "abc"$'):
        read(env={"STATFLIGHT_SYNC_BUDGET_MS": "abc"})
    with pytest.raises(InvalidArgument, match=r"expected a text, got another value$"):
        read("token = 5")


def test_secrets_among_the_settings_are_not_shown(tmp_path):
    file = tmp_path / "statflight.toml"
    file.write_text('spark_master = "sc://there/;token=secret"\nwebhook_secret = "secret"\nport = 1\n')
    shown = {name: value for name, value, _ in effective(file, environ={"STATFLIGHT_TOKEN": "secret"})}
    assert shown["spark_master"] == "sc://there/;token=***"
    assert (shown["webhook_secret"], shown["port"]) == ("***", 1)
    assert "secret" not in repr(list(shown.values()))
