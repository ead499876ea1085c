"""Mutations of JSON bodies and of bytes, by a seeded generator."""

from __future__ import annotations

import json
import random
from typing import Any

SCALARS = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    0.5,
    1e308,
    "",
    " ",
    "\x00",
    "é" * 50,
    "current",
    "stats.columns",
    "c.s.t",
    "table",
    "*",
    "'; DROP TABLE tables; --",
    "\ud800",
    "9" * 5000,
    "%s{0}",
]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return rng.choice(SCALARS)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = ["table", "column", "op", "values", "and", "or", "not", "kind", "column_id", "x", "outcome", "snapshot_id"]
    return {rng.choice(names): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def mutant(seed: Any, rng: random.Random) -> Any:
    """The seed with one of its parts, at any depth, removed, changed or duplicated."""
    if isinstance(seed, dict) and seed and rng.random() < 0.85:
        key = rng.choice(list(seed))
        changed = dict(seed)
        match rng.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice([key + "x", key.upper(), "", "\x00"])] = changed.pop(key)
            case _:
                changed[key] = mutant(seed[key], rng)
        return changed
    if isinstance(seed, list) and seed and rng.random() < 0.85:
        at = rng.randrange(len(seed))
        match rng.randrange(6):
            case 0:
                return seed[:at] + seed[at + 1 :]
            case 1:
                return seed * rng.choice([2, 50])
            case _:
                return [*seed[:at], mutant(seed[at], rng), *seed[at + 1 :]]
    return value(rng)


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


def noisy(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del changed[at : at + rng.randint(1, 8)]
            case _:
                changed = changed[:at]
    return bytes(changed)
