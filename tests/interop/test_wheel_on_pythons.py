"""The wheel in fresh environments of each Python that is here: each extra installs, and the tutorial runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.flight_server.live_server import serving
from tests.interop.processes import downloaded

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TUTORIAL = (ROOT / "flight_server/guides/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def installed(wheel: Path, extras: str, version: str, folder: Path) -> Path:
    """The Python of a fresh environment with the wheel and extras; skips the test where this Python is not here.

    `uv` looks for it, in the directories of STATFLIGHT_PYTHONS, separated by colons, too.
    """
    here = ":".join([os.environ.get("STATFLIGHT_PYTHONS", ""), os.environ["PATH"]])
    found = subprocess.run(
        [UV, "python", "find", "--no-python-downloads", "--system", version],
        env=os.environ | {"PATH": here},
        capture_output=True,
        text=True,
    )
    if found.returncode:
        pytest.skip(f"Python {version} is not installed")
    environment = folder / "environment"
    subprocess.run([UV, "venv", "-q", "--python", found.stdout.strip(), environment], check=True)
    python = environment / "bin/python"
    command: list[str | Path] = [UV, "pip", "install", "-q", "--python", python, f"{wheel}[{extras}]"]
    downloaded(f"the extras {extras} for Python {version}", command, folder)
    return python


@pytest.mark.parametrize("version", PYTHONS)
def test_tutorial_runs_from_the_wheel(wheel: Path, version: str, tmp_path: Path) -> None:
    python = installed(wheel, "server,delta", version, tmp_path)
    program = python.with_name("statflight")
    # the paths of the checkout must not reach the commands
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    with serving(tmp_path, "--workers", "1", program=[program], env=environment) as server:
        environment["STATFLIGHT_SERVER"] = server.uri
        for language, text in BLOCKS:
            commands = (
                [[python, "-c", text]] if language == "python" else [["bash", "-c", x] for x in text.splitlines()]
            )
            for command in commands:
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
                )
                assert done.returncode == 0, (command[-1], done.stdout, done.stderr)


@pytest.mark.skipif("STATFLIGHT_EXTRAS" not in os.environ, reason="takes minutes: set STATFLIGHT_EXTRAS to run it")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("version", PYTHONS)
def test_extra_installs(wheel: Path, version: str, extra: str, tmp_path: Path) -> None:
    python = installed(wheel, extra, version, tmp_path)
    subprocess.run([python, "-W", "error", "-c", "import statflight"], check=True, cwd=tmp_path)
