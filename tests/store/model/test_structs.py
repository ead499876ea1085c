"""Structs: what does not fit is refused with its place, and what would be right."""

import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from store.model.errors import InvalidArgument, InvalidField
from store.model.structs import (
    AnySnapshot,
    Count,
    Number,
    Options,
    Snapshot,
    Struct,
    Table,
    Text,
    Truth,
    describe,
    read,
)


class Method(StrEnum):
    ROWS = "ROWS"
    FILES = "FILES"


class Part(Struct):
    name: Text
    share: Annotated[float, Meta(gt=0, description="a share > 0")] | None = None


class Body(Struct):
    table: Table
    snapshot: Snapshot = "current"
    of_any: AnySnapshot | None = None
    is_dry: Truth | None = None
    limit: Count | None = None
    seconds: Number | None = None
    options: Options | None = None
    parts: tuple[Part, ...] = ()
    method: Method | Part | None = None
    version: Literal[1] = 1
    other: Any = field(default=None, name="with")


def test_values_that_fit_are_converted():
    body = {
        "table": 'lake."a.b".t',
        "snapshot": 3,
        "of_any": "all",
        "is_dry": None,
        "limit": 2**63 - 1,
        "seconds": 1,
        "options": {"a": "b"},
        "parts": [{"name": "x"}],
        "method": "ROWS",
        "with": [1],
    }
    read_body = read(body, Body)
    assert (read_body.table, read_body.snapshot, read_body.of_any) == ('lake."a.b".t', 3, "all")
    assert (read_body.parts[0].name, read_body.method, read_body.seconds) == ("x", Method.ROWS, 1.0)
    assert read_body.other == [1] and read({"table": "a.b.c"}, Body) == Body(table="a.b.c")


@pytest.mark.parametrize("text", ["0", "9007199254740993", str(2**63 - 1)])
def test_ids_of_snapshots_may_be_texts(text):
    assert read({"table": "a.b.c", "snapshot": text}, Body).snapshot == int(text)


@pytest.mark.parametrize("text", [str(2**63), "-1", "1.0", "previous", "", "0x1"])
def test_other_texts_are_no_snapshots(text):
    with pytest.raises(InvalidField, match="is not a snapshot"):
        read({"table": "a.b.c", "snapshot": text}, Body)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tabel": 1}, 'the body has no key "tabel"; did you mean "table"?'),
        ({"parts": [{"name": "x", "nam": 1}]}, 'the parts[0] has no key "nam"; did you mean "name"?'),
        ({"parts": [{"share": 1}]}, "parts[0].name: is missing: expected text, got None"),
        ({"parts": [{"name": ""}]}, 'parts[0].name: is empty: expected text, got ""'),
        ({"parts": [{"name": "x"}, {"name": "y", "share": 0}]}, "parts[1].share: has the wrong type: expected a share"),
        ({"parts": [7]}, "parts[0]: has the wrong type: expected an object, got 7"),
        ({"parts": "x"}, 'parts: has the wrong type: expected a list, got "x"'),
        ({"table": "t"}, 'table: is not a full table name: expected catalog.schema.table, got "t"'),
        ({"table": 5}, "table: is not a full table name: expected catalog.schema.table, got 5"),
        ({"snapshot": "all"}, 'snapshot: is not a snapshot: expected "current" or an id, got "all"'),
        ({"snapshot": True}, "snapshot: is not a snapshot"),
        ({"snapshot": 2**63}, "snapshot: is not a snapshot"),
        ({"of_any": "some"}, 'of_any: is not a snapshot: expected "current", "all" or an id'),
        ({"is_dry": 1}, "is_dry: must be true or false: expected true | false, got 1"),
        ({"limit": -1}, "limit: must be an integer ≥ 0"),
        ({"limit": 1.5}, "limit: must be an integer ≥ 0"),
        ({"seconds": float("nan")}, "seconds: has the wrong type: expected a number, got nan"),
        ({"seconds": 10**400}, "seconds: has the wrong type: expected a number"),
        ({"options": {"a": "b", "c": 1}}, "options.c: has the wrong type: expected text, got 1"),
        ({"method": "ROW"}, 'method: is unknown: expected ROWS | FILES, got "ROW"; did you mean "ROWS"?'),
        ({"method": {}}, "method.name: is missing"),
        ({"version": 2}, "version: is unknown: expected 1, got 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(keys, message):
    with pytest.raises(InvalidArgument) as refusal:
        read({"table": "a.b.c"} | keys, Body)
    assert str(refusal.value).startswith(message)


def test_text_for_a_number_is_not_its_own_suggestion():
    with pytest.raises(InvalidArgument) as refusal:
        read({"table": "a.b.c", "version": "1"}, Body)
    assert str(refusal.value) == 'version: is unknown: expected 1, got "1"'


@pytest.mark.parametrize("value", [[], "x", 5, None])
def test_another_value_than_an_object_is_refused_with_the_keys(value):
    with pytest.raises(InvalidArgument, match="the command must be a JSON object; it takes name, share"):
        read(value, Part, "command")


def test_path_of_a_part_stands_before_its_field():
    with pytest.raises(InvalidField) as refusal:
        read({"name": 1}, Part, where="requests[3]")
    assert refusal.value.params == {
        "field": "requests[3].name",
        "reason": "has the wrong type",
        "expected": "text",
        "actual": "1",
    }


def test_description_lists_the_keys():
    keys = '"snapshot"?, "of_any"?, "is_dry"?, "limit"?, "seconds"?, "options"?, "parts"?: [{"name", "share"?}]'
    assert describe(Body) == f'{{"table", {keys}, "method"?: {{"name", "share"?}}, "version"?, "with"?}}'


THREADS = """
import sys, threading
import subprocess
import sys
from enum import StrEnum
from typing import Literal
from store.model.structs import Struct, Truth, read
sys.setswitchinterval(1e-6)
for _ in range(60):
    word = StrEnum("word", [f"A{at}" for at in range(40)])
    part = type("Part", (Struct,), {"__annotations__": {"a": word, "b": Literal["x", "y"]}, "__module__": "m"})
    parts = {f"p{at}": part | None for at in range(30)}
    whole = type("Whole", (Struct,), {"__annotations__": parts, "__module__": "m"})
    start = threading.Barrier(4)
    def work():
        start.wait()
        read({name: {"a": "a0", "b": "x"} for name in parts}, whole)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


def test_threads_may_read_a_struct_for_the_first_time_at_once():
    subprocess.run([sys.executable, "-c", THREADS], check=True)
