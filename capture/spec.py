"""`CaptureSpec`: the content of a capture request, in one shape from the wire to the engine.

Its JSON form is part of the bodies of `capture` and `resolve`, of job rows, and of the jobs that workers lease. A new
field is added here, with its reader and writer, and in the engines that use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeVar

from store.model.errors import InvalidArgument, InvalidField, nearest
from store.model.schemas import KINDS
from store.model.targets import Target, TargetKind

E = TypeVar("E", bound=StrEnum)

MAX_PARTITIONS: Final = 10_000
PARTITIONED: Final = (TargetKind.TABLE, TargetKind.COLUMN)  # targets that can be limited to partitions

Partition = tuple[tuple[str, str | None], ...]
"""Pairs of partition field and value as text (None for null), sorted by field. See `capture.partitions`."""


class Sampling(StrEnum):
    """Sampling methods; NONE reads everything."""

    NONE = "NONE"
    RANDOM_ROW_GROUP = "RANDOM_ROW_GROUP"
    METADATA_GUIDED = "METADATA_GUIDED"


class Engine(StrEnum):
    """The place in which data is read; AUTO takes the one that is measured to finish sooner."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a sample; the first limit reached ends it. None: no limit.

    Attributes:
        max_rows: Rows in the row groups that are read.
        max_bytes: Bytes of the requested columns as stored in the files.
        max_seconds: Seconds since the start of the pass over the table.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None


_LIMITS: Final = tuple(limit.name for limit in fields(Budget))


@dataclass(frozen=True)
class CaptureSpec:
    """A capture of one table at one snapshot: targets, kinds and limits.

    Attributes:
        target: The table, a column, a file, an expression or a group of columns.
        kinds: Kinds of statistics from `store.model.schemas.KINDS`; empty for all.
        column_selectors: Columns included in the capture of a table or file; empty for all.
        sampling: Sampling method; NONE reads everything.
        budget: Limits of a sample.
        partitions: Partitions whose files are captured; empty for all.
        latency_budget_ms: Time the caller waits at most; None for the default.
        engine: Where data is read; None for the setting of the worker.
    """

    target: Target
    kinds: frozenset[str] = frozenset()
    column_selectors: tuple[str, ...] = ()
    sampling: Sampling = Sampling.NONE
    budget: Budget | None = None
    partitions: tuple[Partition, ...] = ()
    latency_budget_ms: int | None = field(default=None, compare=False)  # specs of equal captures are equal
    engine: Engine | None = None

    @cached_property
    def json(self) -> Mapping[str, Any]:
        """JSON object that `from_json` reads; `partitions`, `budget` and `engine` are left out when empty."""
        body: dict[str, Any] = {
            "target": self.target.to_json(), "kinds": sorted(self.kinds), "sampling": str(self.sampling),
            "column_selectors": sorted(self.column_selectors), "latency_budget_ms": self.latency_budget_ms,
        }  # fmt: skip
        if self.partitions:
            body["partitions"] = [dict(partition) for partition in self.partitions]
        if self.budget is not None:
            limits = {name: getattr(self.budget, name) for name in _LIMITS}
            body["budget"] = {name: limit for name, limit in limits.items() if limit is not None}
        if self.engine is not None:
            body["engine"] = str(self.engine)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any], where: str = "request") -> CaptureSpec:
        """Parses and checks a JSON object. Other keys (`table`, `snapshot`, …) are left to the caller.

        Args:
            body: The object; without `target` the target is the table. Limits of a sample are part of `sampling`, as
                clients send them, or in a separate `budget`, as `json` writes them.
            where: Path of the object in the whole body, for errors.

        Raises:
            InvalidField: A field is invalid; names the field and valid values.
        """
        method = body.get("sampling")
        if body.get("budget") is not None:
            method = {"method": method, **body["budget"]}
        sampling, budget = _sampling(method, f"{where}.sampling")
        spec = cls(
            Target.parse(body.get("target", {"kind": "TABLE"})),
            _kinds(body.get("kinds"), f"{where}.kinds"),
            _words(body.get("column_selectors"), f"{where}.column_selectors"),
            sampling,
            budget,
            parse_partitions(body.get("partitions"), f"{where}.partitions"),
            _milliseconds(body.get("latency_budget_ms"), f"{where}.latency_budget_ms"),
            parse_engine(body.get("engine"), f"{where}.engine"),
        )
        if spec.partitions and spec.target.kind not in PARTITIONED:
            expected = " | ".join(PARTITIONED)
            raise InvalidField(f"{where}.target", "has no partitions", expected=expected, actual=spec.target.kind)
        if spec.partitions and spec.sampling is not Sampling.NONE:
            raise InvalidField(f"{where}.sampling", "is not for partitions", expected="NONE", actual=spec.sampling)
        return spec


KEYS: Final = tuple(name.name for name in fields(CaptureSpec) if name.name not in ("budget", "engine"))
"""Keys of a request of a client in JSON; its `engine` is beside the requests."""


def parse_engine(value: Any, where: str = "engine") -> Engine | None:
    """Parses the engine of a request.

    Args:
        value: `auto`, `spark` or `local`; None for no choice.
        where: Path of the value in the whole body, for errors.

    Raises:
        InvalidField: The value is none of these.
    """
    return None if value is None else enum_of(Engine, value, where)


def parse_partitions(value: Any, where: str = "partitions") -> tuple[Partition, ...]:
    """Parses the partitions of a request.

    Args:
        value: Non-empty list of objects, field → string, number, boolean or null; None for no restriction.
        where: Path of the list in the whole body, for errors.

    Returns:
        The distinct partitions in their order; empty for None.

    Raises:
        InvalidField: A partition is malformed, or there are more than `MAX_PARTITIONS`; names the field.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        expected = '[{"field": value, …}, …]'
        raise InvalidField(where, "must be a list of partitions", expected=expected, actual=value)
    if len(value) > MAX_PARTITIONS:
        raise InvalidField(where, "are too many", expected=f"at most {MAX_PARTITIONS}", actual=len(value))
    partitions = []
    for at, partition in enumerate(value):
        if not isinstance(partition, dict) or not partition:
            expected = '{"field": value, …}'
            raise InvalidField(f"{where}[{at}]", "is not a partition", expected=expected, actual=partition)
        for name, item in partition.items():
            if not (item is None or isinstance(item, str | int | float)):
                expected = "a string, number, boolean or null"
                raise InvalidField(f"{where}[{at}].{name}", "is not a value", expected=expected, actual=item)
        partitions.append(tuple(sorted((name, value_text(item)) for name, item in partition.items())))
    return tuple(dict.fromkeys(partitions))


def value_text(value: Any) -> str | None:
    """A partition value as text; numbers and booleans as in JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _sampling(value: Any, where: str) -> tuple[Sampling, Budget | None]:
    """Parses a method name, or `{"method", "max_rows"?, "max_bytes"?, "max_seconds"?}`."""
    if not isinstance(value, dict):
        return enum_of(Sampling, value or "NONE", where), None
    for key in value:
        if key not in ("method", *_LIMITS):
            hint = nearest(key, ["method", *_LIMITS]) or f"it takes method, {', '.join(_LIMITS)}"
            raise InvalidArgument(f'the {where} has no key "{key[:100]}"', hint=hint, params={"key": key[:100]})
    method = enum_of(Sampling, value.get("method"), f"{where}.method")
    limits = {name: value[name] for name in _LIMITS if value.get(name) is not None}
    for name, limit in limits.items():
        whole = name != "max_seconds"
        number = isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < 2**63
        if not number or (whole and not isinstance(limit, int)):
            expected = "a whole number > 0" if whole else "a number of seconds > 0"
            raise InvalidField(f"{where}.{name}", "is not a limit", expected=expected, actual=limit)
    if limits and method is Sampling.NONE:
        expected = " | ".join(other for other in Sampling if other is not Sampling.NONE)
        raise InvalidField(f"{where}.method", "has no budget: it reads everything", expected=expected, actual=method)
    return method, Budget(**limits) if limits else None


def _kinds(value: Any, where: str) -> frozenset[str]:
    kinds = _words(value, where)
    for kind in kinds:
        if kind not in KINDS:
            reason = f"unknown kind {nearest(kind, list(KINDS))}".strip()
            raise InvalidField(where, reason, expected=" | ".join(KINDS), actual=kind)
    return frozenset(kinds)


def _words(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise InvalidField(where, "must be a list of strings", expected="a list", actual=value)
    return tuple(value)


def _milliseconds(value: Any, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
        raise InvalidField(where, "must be milliseconds ≥ 0", expected="an integer", actual=value)
    return value


def enum_of(enum: type[E], value: Any, where: str) -> E:
    """The member of an enumeration that has a value.

    Args:
        enum: The enumeration.
        value: The value, as the caller sent it.
        where: Path of the value in the whole body, for errors.

    Raises:
        InvalidField: No member has the value; lists the members.
    """
    try:
        return enum(value)
    except ValueError:
        raise InvalidField(where, "is unknown", expected=" | ".join(map(str, enum)), actual=value) from None
