"""The README's blocks do what they say: commands and Python run in order against one server."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]
NOT_EMPTY = """
for name, value in dict(globals()).items():
    assert getattr(value, "num_rows", 1), f"{name} is empty"
"""
STATFLIGHT = Path(sys.executable).with_name("statflight")


def blocks(language: str) -> list[str]:
    return [text for word, text in BLOCKS if word == language]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An empty directory: the blocks make what they need."""
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def environment(place):
    """A running server in that directory, and the variables that lead to it."""
    path = os.pathsep.join([str(STATFLIGHT.parent), os.environ["PATH"]])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
    variables |= {"PATH": path}
    command = [STATFLIGHT, "serve", "--db", "stats.duckdb", "--port", "0"]
    with (
        (place / "server.log").open("wb") as log,
        subprocess.Popen(command, cwd=place, env=variables, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            line = server.stdout.readline()
            uri = re.search(r"listening on (grpc\S+)", line)
            assert uri, (line, (place / "server.log").read_text())
            yield variables | {"STATFLIGHT_SERVER": uri[1]}
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    assert server.returncode == 0


def alike(text: str) -> list[str]:
    """Lines of output, however far apart their words are."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.spark
def test_the_blocks_do_what_they_say(place, environment):
    # In one test, because each builds on the one before.
    run, shown, output = 0, 0, ""
    for language, text in BLOCKS:
        if language == "bash":
            for line in text.splitlines():
                done = subprocess.run(line, shell=True, cwd=place, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                output = done.stdout
                run += 1
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text + NOT_EMPTY], cwd=place, env=environment,
                                  capture_output=True, text=True)  # fmt: skip
            assert done.returncode == 0, (text, done.stderr)
            run += 1
        elif language == "text":  # what the command before it writes
            assert alike(output) == alike(text)
            shown += 1
        elif language == "toml" and "[[rule]]" in text:
            (place / "rules.toml").write_text(text)
    assert run >= 25 and shown >= 3
    assert (place / "orders.html").exists() and (place / "report" / "index.html").exists()


def test_every_setting_is_explained():
    from dataclasses import fields

    from flight_server.config import Settings

    table = README[README.index("| key | default |") :]
    told = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|")))
    )
    assert {field.name for field in fields(Settings)} - told == set()


def test_the_commands_of_the_first_block_are_targets_of_make():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    first = re.findall(r"\$ make (\w+)", BLOCKS[0][1])
    assert first == ["demo", "test"]
    assert set(first) <= targets


def test_the_options_it_names_are_there():
    from typer.testing import CliRunner

    from flight_server.cli import COMMANDS, app

    lines = [line for word in ("console", "bash") for text in blocks(word) for line in text.splitlines()]
    lines += re.findall(r"`(statflight [^`]+)`", README)
    checked = 0
    for line in lines:
        words = shlex.split(line.replace("[", "").replace("]", ""), comments=True)
        for place, word in enumerate(words):
            if word.endswith("statflight") and place + 1 < len(words) and words[place + 1] in COMMANDS:
                told = CliRunner().invoke(app, [words[place + 1], "--help"], env={"COLUMNS": "200"}).output
                given = [option for option in words[place + 2 :] if option.startswith("--")]
                assert "&&" in words or all(option in told for option in given), line
                checked += 1
    assert checked >= 20


def test_the_files_it_names_are_there():
    missing = [name for name in re.findall(r"\]\(([^):]+)\)", README) if not (ROOT / name).exists()]
    assert not missing


def test_the_toml_is_toml():
    _, settings, tokens = map(tomllib.loads, blocks("toml"))
    assert {"db", "host", "port", "workers"} <= settings.keys()
    assert {"name", "sha256", "scopes"} <= tokens["token"][0].keys()
