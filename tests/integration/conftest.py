"""Servers that the integration tests share."""

from tests.integration.aws_server import aws, aws_port, nothing_secret_is_logged

__all__ = ["aws", "aws_port", "nothing_secret_is_logged"]
