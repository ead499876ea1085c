"""Paths of pypaimon on our file systems."""

from __future__ import annotations

import pytest

pytest.importorskip("pypaimon")

import pyarrow.fs as pafs

from capture.connectors.paimon.library import _FileIO


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("s3://box/wh/sales.db/t", "box/wh/sales.db/t"),
        ("s3://box/q?x=1/h#y/a b%20é//t/", "box/q?x=1/h#y/a b%20é/t"),
        ("abfss://box@account.dfs.core.windows.net/a?/b", "box/a?/b"),
        ("box/a?/b", "box/a?/b"),
    ],
)
def test_addresses_are_paths_of_the_file_system(address, path):
    file_io = _FileIO.__new__(_FileIO)
    file_io.filesystem = pafs.LocalFileSystem()
    assert file_io.to_filesystem_path(address) == path
