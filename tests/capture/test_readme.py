"""Example and file names of capture/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

README = Path(__file__).resolve().parents[2] / "capture/README.md"


def test_library_example_captures_a_table(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "lake/events").mkdir(parents=True)
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "lake/events/0.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, pa.Table] = {}
    exec(block, names)
    assert names["columns"]["ndv"].to_pylist() == [10.0]


def test_files_named_in_the_readme_exist():
    named = re.findall(r"[`(]([\w/]+\.(?:py|md))[`)]", README.read_text(encoding="utf-8"))
    assert named and [name for name in named if not (README.parent / name).exists()] == []
