"""The blocks of the README and of the guides: commands and Python run in order against one server."""

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

from flight_server.core.config import load
from flight_server.insight import rules
from flight_server.process.settings import declared

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = ROOT / "flight_server/guides"
INDEX = re.findall(r"^- \[\w+\.md\]\((\w+\.md)\)", (GUIDES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
PAGES = {"README.md": README} | {f"flight_server/guides/{name}": (GUIDES / name).read_text("utf-8") for name in INDEX}
TEXT = "\n".join(PAGES.values())
BLOCKS = [(language, text) for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]
NOT_EMPTY = """
for name, value in dict(globals()).items():
    assert getattr(value, "num_rows", 1), f"{name} is empty"
"""
STATFLIGHT = Path(sys.executable).with_name("statflight")


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An empty directory: the blocks create all files that they need."""
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def environment(directory):
    """Environment variables for a server running in that directory."""
    path = os.pathsep.join([str(STATFLIGHT.parent), os.environ["PATH"]])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STATFLIGHT_")}
    variables |= {"PATH": path}
    command = [STATFLIGHT, "serve", "--db", "stats.duckdb", "--port", "0"]
    with (
        (directory / "server.log").open("wb") as log,
        subprocess.Popen(
            command, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        try:
            line = server.stdout.readline()
            uri = re.search(r"listening on (grpc\S+)", line)
            assert uri, (line, (directory / "server.log").read_text())
            yield variables | {"STATFLIGHT_SERVER": uri[1]}
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    assert server.returncode == 0


def normalized(text: str) -> list[str]:
    """Lines of output with runs of blanks collapsed."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_blocks_run_in_order_with_the_output_shown(directory, environment):
    # In one test, because each block builds on the one before.
    run, shown, output = 0, 0, ""
    for language, text in BLOCKS:
        if language == "bash":
            for line in text.splitlines():
                done = subprocess.run(line, shell=True, cwd=directory, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                output = done.stdout
                run += 1
        elif language == "python":
            done = subprocess.run(
                [sys.executable, "-c", text + NOT_EMPTY], cwd=directory, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (text, done.stderr)
            run += 1
        elif language == "text":  # the output of the command before it
            assert normalized(output) == normalized(text)
            shown += 1
        elif language == "toml" and "[[rule]]" in text:
            (directory / "rules.toml").write_text(text)
    assert run >= 25 and shown >= 3
    assert (directory / "orders.html").exists() and (directory / "report" / "index.html").exists()


def test_table_of_settings_has_every_setting():
    from dataclasses import fields

    from flight_server.core.config import Settings

    table = TEXT[TEXT.index("| key | default |") :]
    documented = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|")))
    )
    assert {field.name for field in fields(Settings)} - {"of_parts"} | set(declared()) <= documented


def test_first_block_names_targets_of_make():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    first = re.findall(r"\$ make (\w+)", BLOCKS[0][1])
    assert first == ["demo", "test"]
    assert set(first) <= targets


def test_named_options_of_commands_exist():
    from click.testing import CliRunner

    from flight_server.cli import COMMANDS, app

    lines = [line for word in ("console", "bash") for text in blocks(word) for line in text.splitlines()]
    lines += re.findall(r"`(statflight [^`]+)`", TEXT)
    checked = 0
    for line in lines:
        words = shlex.split(line.replace("[", "").replace("]", ""), comments=True)
        for index, word in enumerate(words):
            if word.endswith("statflight") and index + 1 < len(words) and words[index + 1] in COMMANDS:
                help_text = (
                    CliRunner()
                    .invoke(
                        app, [words[index + 1], "--help"], env={"COLUMNS": "200", "STATFLIGHT_KEEP": "pandas,numpy"}
                    )
                    .output
                )
                given = [option for option in words[index + 2 :] if option.startswith("--")]
                assert "&&" in words or all(option in help_text for option in given), line
                checked += 1
    assert checked >= 20


@pytest.mark.parametrize("page", [*PAGES, "flight_server/guides/README.md"])
def test_linked_files_exist(page):
    links = re.findall(r"\]\(([^):#]+)(?:#[\w-]+)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in links if not ((ROOT / page).parent / name).exists()] == []


def test_every_guide_is_in_the_index():
    assert sorted([*INDEX, "README.md"]) == sorted(path.name for path in GUIDES.glob("*.md"))


def test_readme_is_short():
    assert len(README.split()) <= 1500


def test_toml_blocks_parse(tmp_path):
    path = tmp_path / "read.toml"
    of_rules, of_tokens, of_settings = [], [], []
    for text in blocks("toml"):
        (of_rules if "[[rule]]" in text else of_tokens if "[[token]]" in text else of_settings).append(text)
    for text in of_rules:
        path.write_text(text)
        assert rules.load(path).rules
    assert rules.load(path).silences
    (tokens,) = map(tomllib.loads, of_tokens)
    assert {"name", "sha256", "scopes"} <= tokens["token"][0].keys()
    masters = []
    for text in of_settings:
        path.write_text(text)
        found = load(path, environ={}, declared=declared())
        masters += [found.spark_master] * bool(found.spark_master)
        assert all(name.startswith("spark.") for name in found.spark)
    assert len(masters) == 4 and {"db", "host", "port", "workers"} <= tomllib.loads(of_settings[0]).keys()
