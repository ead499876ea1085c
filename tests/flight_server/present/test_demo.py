"""The demo's effect on a user's directory, and its findings about Java. `make demo` runs all of it."""

from __future__ import annotations

import sys

import pytest

from flight_server.present import demo, doctor


def test_a_directory_that_is_not_the_demos_is_left_alone(tmp_path):
    mine = tmp_path / "thesis.txt"
    mine.write_text("years of work")
    said = []
    assert demo.run(tmp_path, keep=False, say=said.append) == 1
    assert mine.read_text() == "years of work"
    assert str(tmp_path) in said[0]


def test_a_failure_leaves_nothing_behind_unless_asked(tmp_path, monkeypatch):
    def fails(directory, say):
        (directory / "lake").mkdir()
        raise OSError("no server")

    monkeypatch.setattr(demo, "_run", fails)
    for keep in (True, False):
        with pytest.raises(OSError, match="no server"):
            demo.run(tmp_path / "d", keep=keep, say=lambda _: None)
        assert (tmp_path / "d").exists() == keep


def test_the_demos_lake_has_versions_and_partitions(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    name, format, place = demo.make_delta(tmp_path)
    assert (name, format) == ("delta", "delta")
    assert deltalake.DeltaTable(f"{place}/events").version() == 3


def program(path, output):
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
def test_java_has_a_least_version(tmp_path, monkeypatch, output, good):
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "java", output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.java()
    assert found.good is good
    assert good or "17" in found.remedy


def test_no_java_is_told_kindly(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.java()
    assert (found.good, found.detail) == (False, "not found")
    assert "everything but expressions" in found.remedy
