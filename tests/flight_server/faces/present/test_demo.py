"""Directories of the demo, and Java checks of the doctor. `make demo` runs the whole demo."""

from __future__ import annotations

import sys

import pytest

from flight_server.faces.present import demo, doctor


def test_demo_leaves_a_foreign_directory_unchanged(tmp_path):
    foreign_file = tmp_path / "thesis.txt"
    foreign_file.write_text("years of work")
    messages = []
    assert demo.run(tmp_path, keep=False, say=messages.append) == 1
    assert foreign_file.read_text() == "years of work"
    assert str(tmp_path) in messages[0]


def test_failed_demo_removes_its_directory_unless_kept(tmp_path, monkeypatch):
    def fails(directory, say):
        (directory / "lake").mkdir()
        raise OSError("no server")

    monkeypatch.setattr(demo, "_run", fails)
    for keep in (True, False):
        with pytest.raises(OSError, match="no server"):
            demo.run(tmp_path / "d", keep=keep, say=lambda _: None)
        assert (tmp_path / "d").exists() == keep


def test_demo_lake_has_several_versions(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    name, format, place = demo.make_delta(tmp_path)
    assert (name, format) == ("delta", "delta")
    assert deltalake.DeltaTable(f"{place}/events").version() == 3


def write_script(path, output):
    path.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for java")
@pytest.mark.parametrize(
    ("output", "good"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_202"', False),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ("what?", False),
    ],
)
def test_doctor_requires_java_17(tmp_path, monkeypatch, output, good):
    (tmp_path / "bin").mkdir()
    write_script(tmp_path / "bin" / "java", output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java()
    assert found.good is good
    assert good or "17" in found.remedy


def test_doctor_names_what_works_without_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.java()
    assert (found.good, found.detail) == (False, "not found")
    assert "everything but expressions" in found.remedy
