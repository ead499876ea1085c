"""The wheel: `import statflight` with pyarrow as the only dependency, beside a `store` module of the user's own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.flight_server.live_server import serving

ROOT = Path(__file__).resolve().parents[2]

READS = """
import statflight, sys
import pyarrow.compute as pc
with statflight.connect(sys.argv[1]) as client:
    flights = client.read("sys.flights", where=pc.field("name") == "stats.columns")
    assert flights["name"].to_pylist() == ["stats.columns"], flights
    assert client.dataset("sys.flights").count_rows() > 20
    try:
        client.read("sys.flights", where="name = 'stats.columns'")
    except ImportError as missing:
        assert "statflight[client]" in str(missing)
    else:
        raise AssertionError("sqlglot is not here")
try:
    statflight.connect(sys.argv[1], attempts=3)
except ImportError as missing:
    assert "statflight[client]" in str(missing)
else:
    raise AssertionError("stamina is not here")
import store
assert store.MINE
servers = {name for name in sys.modules if name.partition(".")[0] in ("store", "capture")}
assert servers == {"store"}, servers
print("read")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with only the wheel and pyarrow, without the project on its path."""
    directory = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    (packages,) = (directory / "venv/lib").glob("python*/site-packages")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    site_packages = Path(sysconfig.get_path("purelib"))
    for name in ("pyarrow", "numpy", *(each.name for each in site_packages.glob("numpy.libs"))):
        (packages / name).symlink_to(site_packages / name)
    return directory / "venv/bin/python"


def test_client_reads_beside_another_module_named_store(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/__init__.py").write_text("MINE = True\n")
    (tmp_path / "main.py").write_text(READS)
    with serving(tmp_path) as server:
        done = subprocess.run(
            [installed, "main.py", server.uri], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
        )
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr


def test_wheel_has_typed_packages_and_no_file_twice(installed: Path) -> None:
    (packages,) = (installed.parents[1] / "lib").glob("python*/site-packages")
    for name in ("statflight", "flight_server", "capture", "store"):
        assert (packages / name / "py.typed").is_file(), name
    assert (packages / "statflight/__init__.py").is_file() and not (packages / "flight_server/public").exists()
