"""Makes the pair of files of a layout; see the package."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from store.duckdb.backup import wal
from store.duckdb.layout import VERSION
from store.duckdb.segment_location import beside
from tests.layouts import HOME, readings, serving


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stats.duckdb"
        for file, name in ((source, copy), (wal(source), wal(copy))):
            if file.exists():
                shutil.copy(file, name)
        if beside(source).exists():
            shutil.copytree(beside(source), beside(copy))
        with tarfile.open(HOME / f"layout{VERSION}.tar.xz", "x:xz", preset=9) as archive:
            for name in filter(Path.exists, (copy, wal(copy), beside(copy))):
                archive.add(name, name.name, filter=_nameless)
        with serving(copy) as app:
            text = json.dumps(readings(app), separators=(",", ":"))
    (HOME / f"layout{VERSION}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def _nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
