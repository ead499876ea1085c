"""Servers that the integration tests share, and how their JVMs compile."""

import os

from tests.integration.aws_server import aws, aws_port, nothing_secret_is_logged

__all__ = ["aws", "aws_port", "nothing_secret_is_logged"]

# Short sessions spend half of their processor time on the second compiler, which pays off in long ones, and a tenth of
# the rest on verifying the classes of Spark.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(variable, JAVA)
