"""The packages that the guides ADDING_… write, installed beside the wheel, pass their contract suites."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.integration.installed_wheel import ROOT, build, environment_with_wheel, install

GUIDES = (
    "capture/ADDING_A_CONNECTOR.md",
    "capture/ADDING_AN_ENGINE.md",
    "capture/ADDING_A_PUBLISHER.md",
    "store/ADDING_A_STORE.md",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel; other packages are those of this environment."""
    return environment_with_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("guide", GUIDES)
def test_package_of_a_guide_passes_its_suite(guide: str, python: Path, tmp_path: Path) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    *code, tests = (block for language, block in blocks if language == "python")
    (project,) = (block for language, block in blocks if language == "toml")
    assert not re.search(r"^\s*(?:from|import) (?:store|capture|flight_server|tests)\b", text, re.MULTILINE)
    module = tomllib.loads(project)["project"]["name"].replace("-", "_")
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    (tmp_path / f"{module}.py").write_text("".join(code), encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / f"tests/test_{module}.py").write_text(tests, encoding="utf-8")
    install(build(tmp_path, tmp_path / "dist"), python)
    environment = dict(os.environ, PYTHONPATH=sysconfig.get_path("purelib"))
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "tests"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]
    assert str(ROOT) not in done.stdout
