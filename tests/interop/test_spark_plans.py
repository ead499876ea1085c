"""Plans of Spark on tables of other formats, read by a jar of the format: published statistics reach its estimates.

Jars exist for older versions of Spark only: each test runs in a process with the newest PySpark that its jar supports.
Lance has no jar, and that of Paimon writes manifests that pypaimon does not read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.java import jars
from tests.interop.spark import environment, pyspark

pytestmark = pytest.mark.interop

FORMATS = {
    "delta": ("4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0", ("delta-", "unitycatalog-")),
    "iceberg": ("4.1.4", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", ("iceberg-",)),
}


@pytest.fixture(scope="module")
def tpch(tmp_path_factory):
    lake = tmp_path_factory.mktemp("tpch")
    for table in ("customer", "lineitem", "nation", "orders"):
        command = [Path(sys.executable).with_name("tpchgen-cli"), "parquet", "-s", "0.01", "--tables", table]
        subprocess.run([*command, "--parts", "1", "--output-dir", lake], check=True, capture_output=True)
    return lake


@pytest.fixture(params=FORMATS)
def estimates(request, tpch, tmp_path):
    """The format, and the output of `spark_with_jars` for it."""
    version, coordinates, needed = FORMATS[request.param]
    class_path = [jar for jar in jars(tmp_path / "jars", [coordinates]) if jar.name.startswith(needed)]
    packages = pyspark(tmp_path / "packages", version)
    command = [sys.executable, "-m", "tests.interop.spark_with_jars", request.param, tpch, tmp_path, *class_path]
    done = subprocess.run(command, env=environment(packages), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, json.loads(done.stdout.splitlines()[-1])


def q_error(estimated: int, true: int) -> float:
    return max(estimated, 1) / true if estimated > true else true / max(estimated, 1)


def test_published_statistics_improve_the_estimates(estimates):
    format, rows = estimates
    true = rows["true"]
    errors = {side: {name: q_error(rows[side][name], true[name]) for name in true} for side in ("without", "published")}
    print(format, errors)
    assert errors["published"]["text"] < 1.5 < 2 < errors["without"]["text"]
    if format == "iceberg":
        return  # its jar passes no null counts and bounds, which Spark needs to estimate joins by distinct values
    assert errors["without"]["number"] > 100 and errors["published"]["number"] < 3
    assert errors["published"]["distinct"] < 1.05 < errors["without"]["distinct"]
    for joins in ("joins of 3", "joins of 10"):
        assert errors["published"][joins] < 3 < 1000 < errors["without"][joins]
