"""Kernels of many columns, run side by side so that they share steps.

A kernel is a generator that returns the statistics of one column. Where it hashes or prints values it yields this step,
and is sent the result. Equal steps of all kernels run as one, over the rows of all of them, because the fixed cost of a
step exceeds that of a thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from capture.compute.partial import Partial
from store.model import bounds
from store.model.errors import StatflightError
from store.model.logical_types import LogicalType

FAILURES: Final = (pa.ArrowException, ValueError, StatflightError)
"""Errors of the values of one column, which leave the other columns as they are."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that gives each row what follows from that row alone.

    Attributes:
        apply: A function of rows, of shape (n,), to as many rows.
        rows: A NumPy or an Arrow array, of shape (n,).
        kind: What `apply` depends on besides the rows. Steps of one kind whose rows have one type are equal.
    """

    apply: Callable[[Any], Any] = field(compare=False)
    rows: Any
    kind: Hashable

    @property
    def key(self) -> Hashable:
        """Equal for steps that can be one."""
        return self.kind, str(self.rows.dtype if isinstance(self.rows, np.ndarray) else self.rows.type)


def printed(values: pa.Array, lt: LogicalType) -> Step:
    """The step that gives values their canonical texts; see `bounds.encode_array`."""
    return Step(lambda rows: bounds.encode_array(rows, lt), values, lt)


Kernel: TypeAlias = Generator[Step, Any, Partial]


def run(kernels: Sequence[Kernel]) -> list[Partial | Exception]:
    """Runs kernels to their ends; the result of each, or what it failed with (one of FAILURES)."""
    results: dict[int, Partial | Exception] = {}
    steps: dict[int, Step] = {}

    def go_on(at: int, resume: Callable[[Any], Step], outcome: Any) -> None:
        try:
            steps[at] = resume(outcome)
        except StopIteration as end:
            results[at] = end.value
        except FAILURES as error:
            results[at] = error

    for at, kernel in enumerate(kernels):
        go_on(at, kernel.send, None)
    while steps:
        equal: dict[Hashable, list[int]] = {}
        for at, step in steps.items():
            equal.setdefault(step.key, []).append(at)
        taken = [(places, [steps.pop(at) for at in places]) for places in equal.values()]
        for places, same in taken:
            for at, outcome in zip(places, _outcomes(same), strict=True):
                failed = isinstance(outcome, Exception)
                go_on(at, kernels[at].throw if failed else kernels[at].send, outcome)
    return [results[at] for at in range(len(kernels))]


def _outcomes(steps: Sequence[Step]) -> Iterator[Any]:
    """The result of each of some equal steps, or its error."""
    try:
        together = steps[0].apply(_joined([step.rows for step in steps]))
    except FAILURES as error:
        if len(steps) == 1:
            yield error
            return
        for step in steps:  # one by one, because only one may fail
            yield from _outcomes([step])
        return
    ends = accumulate((len(step.rows) for step in steps), initial=0)
    yield from (together[start:end] for start, end in pairwise(ends))


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)
