import re
from pathlib import Path

import pytest

import flight_server
from capture.connectors import open_connector
from capture.connectors.iceberg import catalogs
from capture.connectors.options import COMMON, PathRewrite, check_choice, check_options, is_storage_option
from capture.connectors.paimon import connector as paimon
from capture.connectors.parquet import connector as parquet
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument

_OF_SQL = {"echo", "pool_pre_ping", "init_catalog_tables", "schema_version"}  # pyiceberg's, of no use here


def test_unknown_options_are_refused_with_the_nearest_name():
    check_options("delta", {"aws_region": "r", "s3.endpoint": "e", "token": "t", "AWS_ALLOW_HTTP": "true"})
    with pytest.raises(InvalidArgument, match=r'"hive_partition".*hive_partitioning.*did you mean') as refused:
        check_options("parquet", {"hive_partition": "hush-value"}, ("hive_partitioning",))
    assert "hush-value" not in str(refused.value)
    with pytest.raises(InvalidArgument, match=r'auto \| true \| false.*"maybe"'):
        check_choice({"hive_partitioning": "maybe"}, "hive_partitioning", ("auto", "true", "false"))


@pytest.mark.parametrize(
    ("format", "wrong", "right"),
    [
        ("delta", "AWS_REGON", "aws_region"),
        ("parquet", "s3.endpont", "s3.endpoint"),
        ("iceberg", "s3.acces-key-id", "s3.access-key-id"),
        ("lance", "azure_storage_acount_name", "azure_account_name"),
        ("iceberg", "adls.sas_tokn", "adls.sas-token"),
        ("delta", "google_service_acount", "google_service_account"),
    ],
)
def test_misspelt_storage_options_are_refused_with_the_right_name(format, wrong, right, tmp_path):
    with pytest.raises(InvalidArgument, match=f'"{wrong}".*did you mean "{right}"'):
        open_connector(ConnectorConfig("c", format, str(tmp_path), {wrong: "hush-value"}))


def test_storage_options_of_the_libraries_are_accepted():
    import obstore
    import pyiceberg.io

    stubs = Path(obstore.__file__).parent / "_store"
    names = [
        prefix + name.removeprefix(prefix)
        for stub, prefix in {"_aws": "aws_", "_azure": "azure_", "_gcs": "google_", "_client": "client_"}.items()
        for name in re.findall(r"^    ([a-z]\w+): ", (stubs / f"{stub}.pyi").read_text(), re.MULTILINE)
    ]
    names += [
        value
        for name, value in vars(pyiceberg.io).items()
        if name.startswith(("S3_", "ADLS_", "GCS_", "AWS_")) and "/" not in value
    ]
    names += ["client_id", "azure_storage_account_key", "aws_s3_locking_provider", "fs.s3a.endpoint", "aws_quite_new"]
    assert len(names) > 100
    check_options("delta", dict.fromkeys(names, "1s"))


def test_path_rewrite_replaces_the_prefix_of_paths():
    rewrite = PathRewrite.of({"path_rewrite": "/old/place=s3://new/place"})
    assert rewrite("/old/place/a.parquet") == "s3://new/place/a.parquet"
    assert rewrite("file:///old/place/a.parquet") == "s3://new/place/a.parquet"
    assert rewrite("/older/place/a") == "/older/place/a"
    assert not PathRewrite.of({})
    assert PathRewrite.of({})("/x") == "/x"


@pytest.mark.parametrize("wrong", ["", "nothing", "=b", "a="])
def test_a_malformed_rewrite_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="path_rewrite"):
        check_options("delta", {"path_rewrite": wrong})


@pytest.mark.parametrize("format", ["delta", "iceberg", "lance", "paimon", "parquet"])
def test_publish_options_are_accepted_by_every_format(format, tmp_path):
    options = {"publish": "hive", "publish.hive.uri": "thrift://h:1"}
    open_connector(ConnectorConfig("c", format, str(tmp_path), options)).close()


def test_guide_has_every_option_of_the_formats():
    guide = (Path(flight_server.__file__).parent / "guides/lakes.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+?)\.?(?:=\w+)?`", guide))
    own = {*COMMON, *catalogs.OWN_OPTIONS, *catalogs.PROPERTIES, *paimon.OWN_OPTIONS, *parquet.OWN_OPTIONS}
    assert own - named - _OF_SQL == set()
    assert {name for name in catalogs.PREFIXES - named if not is_storage_option(f"{name}.x")} <= {"policy", "pyarrow"}
    clouds = {name: "1s" for name in named if re.match("AWS_|GOOGLE_|AZURE_", name)}
    assert len(clouds) > 15
    check_options("delta", clouds)
