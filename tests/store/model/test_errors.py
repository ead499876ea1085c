"""Errors as JSON, and whether they are retryable."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from store.model.errors import InvalidArgument, ShuttingDown, UpstreamError, first_line, from_json, may_pass, to_json


@pytest.mark.parametrize("retryable", [True, False])
def test_retryable_flag_survives_the_json_round_trip(retryable):
    error = UpstreamError("the module is not installed", hint="install it")
    error.retryable = retryable
    arrived = from_json(json.loads(json.dumps(to_json(error))))
    assert isinstance(arrived, UpstreamError) and arrived.retryable is retryable
    assert UpstreamError("another").retryable is True


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ModuleNotFoundError("psycopg2"), False),
        (pa.ArrowInvalid("malformed"), False),
        (pa.ArrowNotImplementedError("type"), False),
        (KeyError("column"), False),
        (json.JSONDecodeError("x", "{", 0), False),
        (InvalidArgument("x"), False),
        (OSError("reset"), True),
        (TimeoutError(), True),
        (MemoryError(), True),
        (ShuttingDown("x"), True),
        (UpstreamError("x"), True),
    ],
    ids=repr,
)
def test_may_pass_is_true_for_transient_errors_only(error, transient):
    assert may_pass(error) is transient


def test_first_line_of_an_error_is_short_and_never_empty():
    assert first_line(ValueError("\n a \n b")) == "a"
    assert len(first_line(ValueError("x" * 1000))) < 310
    assert first_line(ValueError()) == "ValueError"
