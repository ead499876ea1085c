import pytest

from capture.connectors import open_connector
from capture.connectors.options import PathRewrite, check_choice, check_options
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument


def test_unknown_options_are_refused_with_the_nearest_name():
    check_options("delta", {"aws_region": "r", "s3.endpoint": "e", "token": "t", "AWS_ALLOW_HTTP": "true"})
    with pytest.raises(InvalidArgument, match=r'"hive_partition".*hive_partitioning.*did you mean') as refused:
        check_options("parquet", {"hive_partition": "hush-value"}, ("hive_partitioning",))
    assert "hush-value" not in str(refused.value)
    with pytest.raises(InvalidArgument, match=r"auto, true, false.*'maybe'"):
        check_choice("parquet", {"hive_partitioning": "maybe"}, "hive_partitioning", ("auto", "true", "false"))


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
