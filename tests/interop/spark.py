"""Versions of Spark that are not the project's: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from capture.spark.java import java_home
from tests.interop.processes import downloaded

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
settings, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
print(json.dumps([[list(row) for row in session.sql(text).collect()] for text in statements], default=str))
session.stop()
"""


def pyspark(folder: Path, version: str) -> Path:
    """Installs a version of PySpark into a folder; the test is skipped if it cannot be downloaded."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("needs uv, which make install installs")
    command = [uv, "pip", "install", "--quiet", "--target", folder, "--no-deps", f"pyspark=={version}"]
    downloaded(f"pyspark {version}", command)
    return folder


def environment(packages: Path) -> dict[str, str]:
    """Environment of a process whose PySpark lies in a folder."""
    path = os.pathsep.join([str(packages), *sys.path])
    return os.environ | {
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": java_home() or "",
        "SPARK_HOME": str(packages / "pyspark"),
    }


def run(
    packages: Path, settings: Mapping[str, str], statements: Sequence[str], timeout_seconds: float = 900
) -> list[list[list[Any]]]:
    """The rows of each statement, as JSON has them, all in one new session."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([settings, statements]),
        text=True,
        capture_output=True,
        timeout=timeout_seconds,
        env=environment(packages),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[list[Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found
