"""The names of an installation in a checkout: `statflight.store` and the others, and the contract suites."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["store", "store.model.errors", "capture.connectors", "flight_server.core.part"])
def test_a_module_has_one_copy_under_both_names(name):
    own = import_module(name)
    assert import_module(f"statflight.{name}") is own
    assert own.__name__ == name and own.__spec__.name == name


def test_names_are_one_in_whichever_order_they_are_imported():
    code = "import statflight.store.model.errors as ours, store.model.errors as theirs; assert ours is theirs"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("suite", ["connectors", "engines", "publishers", "reference_store", "stores"])
def test_contract_suites_are_there(suite):
    assert import_module(f"statflight.testing.{suite}").__name__ == f"statflight.testing.{suite}"


@pytest.mark.parametrize("name", ["nothing", "store.nothing", "testing.nothing", "store.model.errors.nothing"])
def test_other_names_are_not(name):
    with pytest.raises(ModuleNotFoundError):
        import_module(f"statflight.{name}")
