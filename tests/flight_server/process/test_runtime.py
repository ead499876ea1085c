"""Process-wide changes that need no process of their own to be seen."""

from __future__ import annotations

import os

import pytest

from flight_server.process.runtime import VARIABLE, leave_azure_cli_out

AZURE = "AZURE_TOKEN_CREDENTIALS"


@pytest.fixture(autouse=True)
def _unset(monkeypatch, tmp_path):
    monkeypatch.setenv(AZURE, "")  # it is restored afterwards
    monkeypatch.delenv(AZURE)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_azure_is_not_asked_by_a_command_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "azure-cli")
    leave_azure_cli_out()
    assert AZURE not in os.environ
    monkeypatch.delenv(VARIABLE)
    leave_azure_cli_out()
    assert os.environ[AZURE] == "prod"
    monkeypatch.setenv(AZURE, "dev")
    leave_azure_cli_out()
    assert os.environ[AZURE] == "dev"


def test_azure_is_asked_by_a_command_that_is_there(tmp_path):
    command = tmp_path / "az"
    command.touch(0o755)
    leave_azure_cli_out()
    assert AZURE not in os.environ
