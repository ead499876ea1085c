"""The wheel, installed in an environment of its own, without the project on its path."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(project: Path, directory: Path) -> Path:
    """Builds the wheel of a project in a directory."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, python: Path) -> None:
    """Installs a wheel, without what it depends on."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages_of(python))


def environment_with_wheel(directory: Path) -> Path:
    """The Python of a new environment with the wheel and nothing else."""
    wheel = build(ROOT, directory)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    python = directory / "venv/bin/python"
    install(wheel, python)
    return python


def packages_of(python: Path) -> Path:
    """The directory of an environment's packages."""
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return packages
