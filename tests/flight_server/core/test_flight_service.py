"""The state of a call of Flight."""

from __future__ import annotations

import pytest

from flight_server.core.flight_service import _Answering
from flight_server.core.wire import lag
from store.model.errors import InvalidField
from store.role import Role


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
    with _Answering(None, context, {}, "DoGet", "", Role()) as call:
        assert not call.is_cancelled()
    context.is_freed = True
    assert call.is_cancelled()


def test_context_is_used_until_the_end_of_the_stream():
    context = Context()

    def stream():
        with call:
            yield call.is_cancelled()
            yield call.is_cancelled()

    with _Answering(None, context, {}, "DoGet", "", Role()) as call:
        batches = stream()
        assert next(batches) is False
    assert next(batches) is False
    batches.close()
    context.is_freed = True
    assert call.is_cancelled()


class Recording(Role):
    """Takes the place of a server among others: notes what a read is to wait for."""

    def check_read(self, max_lag_ms, min_generation):
        self.asked = max_lag_ms, min_generation


@pytest.mark.parametrize(("given", "expected"), [([], None), (["0"], 0), ([b"1500"], 1500)])
def test_headers_say_how_old_a_read_may_be(given, expected):
    role = Recording()
    lag.check(role, _Answering(None, Context(), {lag.MAX_LAG: given}, "DoGet", "", role).get)
    assert role.asked == (expected, None)
    lag.check(role, _Answering(None, Context(), {lag.MIN_GENERATION: given}, "DoGet", "", role).get)
    assert role.asked == (None, expected)


@pytest.mark.parametrize("header", [lag.MAX_LAG, lag.MIN_GENERATION])
@pytest.mark.parametrize("given", ["", "-1", "1.5", "soon", "²", str(2**63), "9" * 5000])
def test_headers_of_reads_are_numbers(header, given):
    with pytest.raises(InvalidField, match=header):
        lag.check(Role(), _Answering(None, Context(), {header: [given]}, "DoGet", "", Role()).get)
