"""Statuses of errors: what will not pass is not UNAVAILABLE, which tells clients to try again."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from capture.connectors.storage.places import Unreadable
from flight_server.core.wire.status import to_flight
from store.model.errors import InvalidArgument, InvalidField, NotFound, UpstreamError, Words, from_json, to_json


def test_trouble_upstream_that_may_pass_is_unavailable():
    refusal = to_flight(UpstreamError("the catalog cannot be reached"), "id")
    assert isinstance(refusal, flight.FlightUnavailableError) and "[UPSTREAM] the catalog" in str(refusal)


def test_permanent_trouble_upstream_is_not_unavailable():
    error = Unreadable("file a.parquet is damaged")
    for same in (error, from_json(to_json(error))):  # as the worker tells the server
        refusal = to_flight(same, "id")
        assert isinstance(refusal, pa.ArrowInvalid)
        assert str(refusal) == "[UPSTREAM_PERMANENT] file a.parquet is damaged"


@pytest.mark.parametrize(
    ("actual", "shown"), [("5", '"5"'), (5, "5"), ("", '""'), (None, "None"), (Words("3 bytes"), "3 bytes")]
)
def test_wrong_text_is_shown_with_quotes(actual, shown):
    error = InvalidField("limit", "must be an integer", expected="an integer", actual=actual)
    assert str(error).endswith(f"expected an integer, got {shown}")


@pytest.mark.parametrize("kind", [InvalidArgument, NotFound, UpstreamError])
def test_message_is_cut_where_clients_would_refuse_its_status(kind):
    refusal = to_flight(kind("é" * 50_000, params={"table": "é" * 50_000}), "id")
    text = refusal.args[0]
    assert text.startswith(f"[{kind.code}] éé") and text.endswith("é…") and len(text.encode()) < 4100
    if isinstance(refusal, flight.FlightError):
        extra = json.loads(refusal.extra_info)
        assert extra["correlation_id"] == "id" and extra["retryable"] and len(refusal.extra_info) < 4000


def test_what_arrow_calls_invalid_is_the_callers_fault_only_where_he_sends_a_stream():
    sent = to_flight(pa.ArrowInvalid("no footer"), "id")
    assert str(sent) == "[INVALID_ARGUMENT] the Arrow stream is malformed: no footer"
    for own in (pa.ArrowInvalid("out of range"), OverflowError("too large"), ValueError("x")):
        assert str(to_flight(own, "id", has_stream=False)).startswith("[INTERNAL] internal error, correlation id id")
