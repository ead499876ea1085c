"""The wheel: `import statflight` with pyarrow as the only dependency, beside a `store` module of the user's own."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import serving
from tests.integration.installed_wheel import environment_with_wheel, packages_of

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
    python = environment_with_wheel(tmp_path_factory.mktemp("wheel"))
    site_packages = Path(sysconfig.get_path("purelib"))
    for name in ("pyarrow", "numpy", *(each.name for each in site_packages.glob("numpy.libs"))):
        (packages_of(python) / name).symlink_to(site_packages / name)
    return python


def test_client_reads_beside_another_module_named_store(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/__init__.py").write_text("MINE = True\n")
    (tmp_path / "main.py").write_text(READS)
    with serving(tmp_path) as server:
        done = subprocess.run(
            [installed, "main.py", server.uri], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
        )
    assert (done.stdout, done.returncode) == ("read\n", 0), done.stderr


def test_wheel_takes_one_name_and_has_typed_packages(installed: Path) -> None:
    packages = packages_of(installed)
    assert not [name for name in ("flight_server", "capture", "store", "tests") if (packages / name).exists()]
    for name in (".", "flight_server", "capture", "store"):
        assert (packages / "statflight" / name / "py.typed").is_file(), name
    assert not (packages / "statflight/flight_server/public").exists()
    assert not (packages / "statflight/_checkout.py").exists()


def test_server_and_worker_run_beside_modules_named_as_our_packages(installed: Path, tmp_path: Path) -> None:
    """The wheel's server and worker capture a table in a directory with a `store` and a `capture` of the user's."""
    for name in ("store", "capture", "flight_server"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('not for us')\n")
    (tmp_path / "lake/t").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2, 2, None]}), tmp_path / "lake/t/a.parquet")
    packages = packages_of(installed)
    environment = dict(os.environ, PYTHONPATH=f"{packages}:{sysconfig.get_path('purelib')}")

    def statflight(*arguments: str) -> str:
        command = [installed, "-m", "statflight", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with serving(tmp_path, "--workers", "1", program=[installed, "-m", "statflight"], env=environment) as server:
        environment["STATFLIGHT_SERVER"] = server.uri
        statflight("connect", "lake", "parquet", str(tmp_path / "lake"))
        statflight("capture", "lake.default.t")
        assert "1.66667" in statflight("show", "lake.default.t")
