"""Connectors by format."""

import sys

import pytest

from capture.connectors import FORMATS, open_connector
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument


def test_built_in_formats_are_known_and_others_are_refused():
    assert set(FORMATS.built_in) <= set(FORMATS.known)
    with pytest.raises(InvalidArgument, match=r'"detla" is not a format; .*delta.*did you mean "delta"'):
        open_connector(ConnectorConfig("c", "detla", "/"))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    for module in ("delta.connector", "delta.snapshot_view", "delta.deletion_vectors", "rows.roaring"):
        monkeypatch.delitem(sys.modules, f"capture.connectors.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "pyroaring", None)
    with pytest.raises(InvalidArgument, match=r"pyroaring.*pip install 'statflight\[all\]'"):
        FORMATS.load("delta")
