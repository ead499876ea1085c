"""Bodies of capture requests: the keys of `CaptureSpec` as JSON, and the values that they may have."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from capture.spec import PARTITIONED, Budget, CaptureSpec, Engine, Partition, Sampling, value_text
from store.model.columns import KINDS
from store.model.errors import InvalidField, nearest
from store.model.structs import Struct, read
from store.model.targets import Target

MAX_PARTITIONS: Final = 10_000
_Limit = Annotated[int, Meta(gt=0, le=2**63 - 1, title="is not a limit", description="a whole number > 0")]
_Seconds = Annotated[float, Meta(gt=0, lt=2**63, title="is not a limit", description="a number of seconds > 0")]
_Words = Annotated[tuple[str, ...], Meta(title="must be a list of strings", description="a list")]
_Value = Annotated[
    str | int | float | bool | None, Meta(title="is not a value", description="a string, number, boolean or null")
]
_Partition = Annotated[
    dict[str, _Value], Meta(min_length=1, title="is not a partition", description='{"field": value, …}')
]
Partitions = Annotated[
    list[_Partition],
    Meta(
        min_length=1,
        max_length=MAX_PARTITIONS,
        title="must be a list of partitions",
        description=f'[{{"field": value, …}}, …], at most {MAX_PARTITIONS}',
    ),
]


class Limits(Struct):
    """Limits of a sample; see `Budget`."""

    max_rows: _Limit | None = None
    max_bytes: _Limit | None = None
    max_seconds: _Seconds | None = None


class LimitedSampling(Limits, kw_only=True):
    """A sampling method with limits."""

    method: Sampling


class SpecBody(Struct):
    """The keys of a request that make its `CaptureSpec`; without `target` that is the table."""

    target: Any = None
    kinds: _Words | None = None
    column_selectors: _Words | None = None
    sampling: Sampling | LimitedSampling | None = None
    partitions: Partitions | None = None
    latency_budget_ms: (
        Annotated[int, Meta(ge=0, lt=2**31, title="must be milliseconds ≥ 0", description="an integer")] | None
    ) = None

    def spec(self, where: str, engine: Engine | None = None, limits: Limits | None = None) -> CaptureSpec:
        """The capture.

        Args:
            where: Path of the object in the whole body, for errors.
            engine: Where data is read; None for the setting of the worker.
            limits: Limits of a sample that stand beside `sampling`.

        Raises:
            InvalidField: The keys contradict each other, or a kind or the target does not exist.
        """
        self._check_kinds(where)
        target = Target.table() if self.target is None else Target.parse(self.target)
        if isinstance(self.sampling, LimitedSampling):
            method, limits = self.sampling.method, self.sampling
        else:
            method = self.sampling or Sampling.NONE
        budget = None if limits is None else Budget(limits.max_rows, limits.max_bytes, limits.max_seconds)
        budget = None if budget is None or budget == Budget() else budget
        if budget and method is Sampling.NONE:
            expected = " | ".join(other for other in Sampling if other is not Sampling.NONE)
            reason = "has no budget: it reads everything"
            raise InvalidField(f"{where}.sampling.method", reason, expected=expected, actual=method)
        if self.partitions:
            _check_partitioned(where, target, method)
        return CaptureSpec(
            target,
            frozenset(self.kinds or ()),
            self.column_selectors or (),
            method,
            budget,
            _distinct(self.partitions) if self.partitions else (),
            self.latency_budget_ms,
            engine,
        )

    def _check_kinds(self, where: str) -> None:
        for kind in self.kinds or ():
            if kind not in KINDS:
                raise InvalidField(
                    f"{where}.kinds",
                    "unknown kind",
                    expected=" | ".join(KINDS),
                    actual=kind,
                    hint=nearest(kind, list(KINDS)),
                )


def _check_partitioned(where: str, target: Target, method: Sampling) -> None:
    """Raises InvalidField if a capture of partitions cannot have the target or the method of sampling."""
    if target.kind not in PARTITIONED:
        expected = " | ".join(PARTITIONED)
        raise InvalidField(f"{where}.target", "has no partitions", expected=expected, actual=target.kind)
    if method is not Sampling.NONE:
        raise InvalidField(f"{where}.sampling", "is not for partitions", expected="NONE", actual=method)


class StoredSpec(SpecBody, forbid_unknown_fields=False):
    """The keys that `CaptureSpec.json` writes, among others."""

    budget: Limits | None = None
    engine: Engine | None = None


def parse_spec(body: Any) -> CaptureSpec:
    """Parses what `CaptureSpec.json` writes; other keys are left to the caller.

    Raises:
        InvalidField: A field is invalid; names the field and valid values.
    """
    stored = read(body, StoredSpec, where="request")
    return stored.spec("request", stored.engine, stored.budget)


def parse_partitions(value: Any) -> tuple[Partition, ...]:
    """Parses the partitions of a request: the distinct ones in their order; none for None.

    Raises:
        InvalidField: A partition is malformed, or there are more than `MAX_PARTITIONS`; names the field.
    """
    return () if value is None else _distinct(read(value, Partitions, where="partitions"))


def _distinct(partitions: Any) -> tuple[Partition, ...]:
    texts = (tuple(sorted((name, value_text(item)) for name, item in each.items())) for each in partitions)
    return tuple(dict.fromkeys(texts))
