"""Answers in the client: the types of their values."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from flight_server.client.answer import Answer


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("INT", "-5", -5),
        ("INT", 7, 7),
        ("BOOLEAN", "false", False),
        ("FLOAT", "0.1", pa.scalar(0.1, pa.float32()).as_py()),
        ("DOUBLE", "1.0E7", 1e7),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DECIMAL(10,2)", "-12.5", Decimal("-12.5")),
        ("STRING", "", ""),
        ("UUID", "00000000-0000-0000-0000-00000000000a", UUID(int=10)),
        ("BINARY", "AP8=", b"\x00\xff"),
        ("DATE", "0001-01-01", date(1, 1, 1)),
        ("TIME", "12:34:56.5", time(12, 34, 56, 500_000)),
        ("TIMESTAMP", "2026-01-31T12:00:00.000001", datetime(2026, 1, 31, 12, 0, 0, 1)),
        ("TIMESTAMPTZ(3)", "2026-01-31T12:00:00.123Z", datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC)),
        ("ARRAY", None, None),
    ],
)
def test_values_have_their_types(type, text, value):
    result = {"exact": True, "results": [{"name": "x", "type": type, "value": text}], "reason": None, "snapshot_id": 1}
    found = Answer.of_result(result)
    assert found.values == {"x": value} and repr(found.values["x"]) == repr(value)


def test_no_answer_has_no_values():
    found = Answer.of_result({"exact": False, "results": None, "reason": "not known", "snapshot_id": None})
    assert not found.exact and found.values is None and found.reason == "not known"


def test_the_command_prints_the_row_or_the_reason(server, run):
    row = [{"name": "n", "type": "INT", "value": 7}, {"name": "max(day)", "type": "DATE", "value": None}]
    result = {"snapshot_id": 4, "exact": True, "reason": None, "results": row}
    server.answers["answer"] = lambda body: [result]
    assert run("answer", "SELECT 1", "--format", "csv")[:2] == (0, "n,max(day)\n7,\n")
    assert server.actions[-1] == ("answer", {"sql": "SELECT 1", "snapshot": "current"})
    server.answers["answer"] = lambda body: [result | {"exact": False, "results": None, "reason": "too old"}]
    status, out, err = run("answer", "SELECT 1", "--snapshot", 4)
    assert (status, out) == (1, "") and "not known exactly: too old" in err
    assert server.actions[-1][1]["snapshot"] == 4
