"""The state of a call of Flight."""

from __future__ import annotations

from flight_server.flight_service import _Answering


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
