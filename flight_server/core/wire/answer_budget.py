"""Budgets of `resolve`: which kinds of which records fit into an answer of limited size.

A record is divided into what it is about and where it comes from, and one part for each kind of statistic, with the
kind's sketches. Parts are taken by priority: first what all records are about, then the most wanted kind of all of
them, then the next one. Requests have the order in which they were asked, kinds the order of their request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from flight_server.core.wire.status import to_json
from store.model import statistics
from store.model.columns import KINDS

_Part: TypeAlias = tuple[str, dict[str, Any], list[dict[str, Any]]]
"""Kind, fields and sketches; that without a kind is what a record is about."""

OMITTED: Final = "OMITTED_BY_BUDGET"

FIELDS_OF: Final[Mapping[str, tuple[str, ...]]] = {kind: statistics.of_kind(kind) for kind in statistics.KINDS}
ROLES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "NDV": ("NDV", "TUPLE_NDV"),
    "HISTOGRAM": ("QUANTILES",),
    "MCV": ("MCV",),
}


def limit(answers: Sequence[dict[str, Any]], kinds: Sequence[Sequence[str]], max_bytes: int) -> list[dict[str, Any]]:
    """Answers that fit into a budget.

    Args:
        answers: Answers of `resolve`; only those with a `record` count, by that, `sketches` and `constraints`.
        kinds: The kinds of each request, the most wanted first; the other kinds come after them.
        max_bytes: Greatest size of all these as JSON in UTF-8, in bytes.

    Returns:
        The answers in order: unchanged; or without some kinds, which `omitted` lists; or OMITTED_BY_BUDGET.
    """
    parts: list[tuple[int, int, str, dict[str, Any], list[dict[str, Any]]]] = []
    for at, (answer, wanted) in enumerate(zip(answers, kinds, strict=True)):
        if answer["record"] is not None:
            parts += [(rank, at, *part) for rank, part in enumerate(_parts(answer, wanted))]
    left, taken = max_bytes, set[tuple[int, str]]()
    for _, at, kind, fields, sketches in sorted(parts, key=lambda part: part[:2]):
        size = _size(fields) + sum(map(_size, sketches)) + (_size(answers[at].get("constraints")) if not kind else 0)
        if size <= left and (not kind or (at, "") in taken):
            left -= size
            taken.add((at, kind))
    return [_limited(answer, at, parts, taken) for at, answer in enumerate(answers)]


def _parts(answer: Mapping[str, Any], wanted: Sequence[str]) -> list[_Part]:
    """The parts of an answer by priority."""
    record, sketches = answer["record"], answer.get("sketches") or []
    of_kinds = {name for names in FIELDS_OF.values() for name in names}
    parts: list[_Part] = [("", {name: value for name, value in record.items() if name not in of_kinds}, [])]
    for kind in dict.fromkeys([*wanted, *KINDS]):
        fields = {name: record[name] for name in FIELDS_OF.get(kind, ()) if name in record}
        of_kind = [sketch for sketch in sketches if sketch["role"] in ROLES_OF.get(kind, ())]
        if fields or of_kind:
            parts.append((kind, fields, of_kind))
    return parts


def _limited(
    answer: dict[str, Any],
    at: int,
    parts: Sequence[tuple[int, int, str, dict[str, Any], list[dict[str, Any]]]],
    taken: set[tuple[int, str]],
) -> dict[str, Any]:
    if answer["record"] is None:
        return answer
    if (at, "") not in taken:
        return omitted("max_bytes")
    mine = [(kind, fields, sketches) for _, owner, kind, fields, sketches in parts if owner == at]
    left_out = [kind for kind, _, _ in mine if (at, kind) not in taken]
    if not left_out:
        return answer
    return answer | _reduced(answer, [part for part in mine if part[0] not in left_out]) | {"omitted": left_out}


def _reduced(answer: Mapping[str, Any], kept: Sequence[_Part]) -> dict[str, Any]:
    """The record of an answer and its sketches, if it has any, with these parts alone."""
    names = {name for _, fields, _ in kept for name in fields}
    reduced: dict[str, Any] = {"record": {name: value for name, value in answer["record"].items() if name in names}}
    if "sketches" in answer:
        reduced["sketches"] = [sketch for _, _, sketches in kept for sketch in sketches]
    return reduced


def omitted(budget: str) -> dict[str, Any]:
    """The answer to a request that a budget leaves out."""
    return {"outcome": OMITTED, "detail": budget, "record": None}


def _size(value: Any) -> int:
    return 0 if value is None else len(to_json(value).encode())
