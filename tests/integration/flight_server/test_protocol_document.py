"""PROTOCOL.md: its blocks run in order against a real server, and its flights are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

import flight_server
from flight_server.core.writes.ingest import parse_put
from flight_server.process.parts import actions
from store.model import errors
from store.model.schemas import FLIGHTS
from tests.flight_server.live_server import serving

DOCUMENT = Path(flight_server.__file__).with_name("PROTOCOL.md").read_text(encoding="utf-8")
BLOCKS = [
    (DOCUMENT[: found.start()].count("\n") + 2, found[1].split(), found[2])
    for found in re.finditer(r"^```(\S[^\n]*)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
]
ANYTHING = "…"


def matches(expected, actual) -> bool:
    if expected == ANYTHING:
        return actual is not None
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(matches(v, actual[k]) for k, v in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(matches, expected, actual))
    return bool(expected == actual)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("protocol")
    (root / "lake" / "orders").mkdir(parents=True)
    pq.write_table(
        pa.table({"id": [1, 2, 3], "region": ["eu", "us", None]}), root / "lake" / "orders" / "part-0.parquet"
    )
    return root


def test_blocks_run_in_order_with_the_documented_results(directory, monkeypatch):
    # In one test, because each block builds on the one before.
    names: dict[str, object] = {"__name__": "protocol"}
    results: list[object] = []
    run = set()
    with serving(directory) as server, server.connect() as client:
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        for line, (language, *words), text in BLOCKS:
            text = text.replace("file:///data/lake", str(directory / "lake"))
            run.add((language, *words[:1]))
            match [language, *words]:
                case ["python"]:
                    exec(compile("\n" * (line - 1) + text, "PROTOCOL.md", "exec"), names)
                case ["json", "command"]:
                    assert client.info(text.encode()).schema == client.read(text.encode()).schema, line
                case ["json", "put"]:
                    assert parse_put(flight.FlightDescriptor.for_command(text.encode())), line
                case ["json", "action", name]:
                    results = client.act(name, text.encode())
                case ["json", "answer"]:
                    assert matches(json.loads(text), results), (line, results)
                case ["json", "refused", code, *action]:
                    with pytest.raises(pa.ArrowException, match=rf"^'?\[{code}\] "):
                        client.act(action[0], text.encode()) if action else client.info(text.encode())
                case other:
                    pytest.fail(f"line {line}: a block of unknown kind: {other}")
        names["client"].close()
        assert "Traceback" not in server.log.read_text()
    assert len(run) == 6 and len(BLOCKS) > 35


def columns_of(text: str, groups: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    columns: list[tuple[str, str]] = []
    for part in text.split(", "):
        name, _, type = part.strip("*").partition(" ")
        columns += groups[name] if part.startswith("*") else [(name.strip("`"), type or "utf8")]
    return columns


def test_documented_flights_equal_those_of_the_code():
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, text in re.findall(r"^- \*(\w+)\*: (.*)$", DOCUMENT, re.MULTILINE):
        groups[name] = columns_of(text, {})
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (yes|) \| (.*) \|$", DOCUMENT, re.MULTILINE)
    documented = {name: (writable == "yes", columns_of(text, groups)) for name, writable, text in rows}
    types = {"string": "utf8", "double": "float64", "timestamp[us, tz=UTC]": "timestamp"}

    def type_name(type: pa.DataType) -> str:
        if pa.types.is_union(type):
            return f"dense_union<{','.join(field.name for field in type)}>"
        if pa.types.is_struct(type):
            return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in type)}>"
        return f"list<{type_name(type.value_type)}>" if pa.types.is_list(type) else types.get(str(type), str(type))

    assert documented == {
        f.name: (f.writable, [(c.name, type_name(c.type)) for c in f.schema]) for f in FLIGHTS.values()
    }


def test_every_action_is_documented():
    missing = [name for name in actions() if f"`{name}`" not in DOCUMENT]
    assert not missing


def test_every_error_code_is_documented():
    root = Path(flight_server.__file__).parents[1]
    sources = [*(root / "flight_server").rglob("*.py"), *(root / "store").rglob("*.py")]
    codes = {code for source in sources for code in re.findall(r'code="([A-Z_]+)"', source.read_text())}
    codes |= {leaf.code for leaf in errors.StatflightError.__subclasses__()}
    startup = {"ADDRESS", "DATABASE", "STORE"}  # never on the wire
    assert not {code for code in codes - startup if f"`{code}`" not in DOCUMENT}
    assert Path(__file__).name in DOCUMENT
