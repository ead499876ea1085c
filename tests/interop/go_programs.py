"""Programs in Go, built with the modules of `go.mod`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.interop.clients import HERE
from tests.interop.processes import SECONDS_TO_DOWNLOAD, downloaded, require


def built(folder: Path, source: str) -> Path:
    """The program of a source, in a new folder; the test is skipped without `go`, or if it cannot download modules.

    A source that does not compile fails the test.
    """
    go, program = require("go"), folder / "program"
    folder.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / name, folder)
    downloaded("modules of Go", [go, "mod", "download"], folder)
    (folder / "main.go").write_text(source, encoding="utf-8")
    command = [go, "build", "-o", program, "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_TO_DOWNLOAD)
    assert done.returncode == 0, done.stderr[-3000:]
    return program
