"""The state of a call of Flight."""

from __future__ import annotations

import pytest

from flight_server.core.flight_service import _Answering
from flight_server.core.wire.lag import MAX_LAG
from store.model.errors import InvalidField


class Context:
    """Flight's context of a call, which must not be used after the end of the call: pyarrow would follow a pointer to
    memory that Flight has freed."""

    def __init__(self) -> None:
        self.is_freed = False

    def add_header(self, name: str, value: str) -> None:
        assert not self.is_freed

    def is_cancelled(self) -> bool:
        assert not self.is_freed
        return False


def test_context_is_not_used_after_the_call():
    context = Context()
    with _Answering(None, context, {}, "DoGet", "") as call:
        assert not call.is_cancelled()
    context.is_freed = True
    assert call.is_cancelled()


def test_context_is_used_until_the_end_of_the_stream():
    context = Context()

    def stream():
        with call:
            yield call.is_cancelled()
            yield call.is_cancelled()

    with _Answering(None, context, {}, "DoGet", "") as call:
        batches = stream()
        assert next(batches) is False
    assert next(batches) is False
    batches.close()
    context.is_freed = True
    assert call.is_cancelled()


@pytest.mark.parametrize(("given", "expected"), [([], None), (["0"], 0), ([b"1500"], 1500)])
def test_greatest_age_is_a_header(given, expected):
    assert _Answering(None, Context(), {MAX_LAG: given}, "DoGet", "").max_lag_ms() == expected


@pytest.mark.parametrize("given", ["", "-1", "1.5", "soon", "²"])
def test_greatest_age_is_milliseconds(given):
    with pytest.raises(InvalidField, match=MAX_LAG):
        _Answering(None, Context(), {MAX_LAG: [given]}, "DoGet", "").max_lag_ms()
