"""Bucket transforms of Iceberg: the bucket of a literal, and conditions on the bucket in a file's partition.

A bucket is `murmur3_32(bytes) mod count` of a value's bytes, which are those of the Iceberg specification: an INT of
any width, days of a DATE and microseconds of times are a long.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from uuid import UUID

import mmh3
import numpy as np

from store.model.logical_types import Kind, LogicalType
from store.model.predicates import bounds as keys
from store.model.predicates.literals import Scalar, exact_number, literal_text

_MAX_DIGITS: Final = 76  # of a decimal


@dataclass(frozen=True)
class Bucket:
    """A partition field with a bucket transform.

    Attributes:
        spec_id: The partition spec that has it.
        count: Number of buckets.
    """

    spec_id: int
    name: str
    count: int


def condition(fields: Sequence[Bucket], values: Sequence[Scalar], type: LogicalType) -> str:
    """SQL over a row `f` of `stats.files` that is false if its partition has none of the values, and never null; empty
    if the fields do not tell.

    Args:
        fields: The fields whose source is the column.
        values: Literals.
    """
    hashed = [hash_of(value, type) for value in values]
    hashes = [each for each in hashed if each is not None]
    if not fields or len(hashes) < len(hashed):
        return ""
    parts = []
    for field in fields:
        buckets = sorted({each % field.count for each in hashes})
        parts.append(f"coalesce({bucket_sql(field, 'f')} IN ({', '.join(map(str, buckets)) or 'NULL'}), TRUE)")
    return f"({' AND '.join(parts)})"


def bucket_sql(field: Bucket, row: str) -> str:
    """SQL of the bucket in the partition of a row of `stats.files`; null if it has none of the field.

    Args:
        row: The row's alias.
    """
    path = "/" + field.name.replace("~", "~0").replace("/", "~1").replace("'", "''")
    bucket = f"TRY_CAST(json_extract_string({row}.partition_data_json, '{path}') AS BIGINT)"
    return f"CASE WHEN {row}.partition_spec_id = {int(field.spec_id)} THEN {bucket} END"


def hash_of(value: Scalar, type: LogicalType) -> int | None:
    """The non-negative hash of a literal, as a value of a type; None if it is not one value of a type with buckets."""
    data = bytes_of(value, type)
    return None if data is None else mmh3.hash(data) & 0x7FFF_FFFF


def bytes_of(value: Scalar, type: LogicalType) -> bytes | None:
    """The bytes of a literal that are hashed; None as of `hash_of`."""
    text, known = literal_text(value), keys.read(value, type.kind)
    if text is None or known is None or len(keys.readings(value, type)) > 1:
        return None
    match type.kind:
        case Kind.INT | Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            number = _whole(str(known), 0)
            return None if number is None or not -(1 << 63) <= number < 1 << 63 else _long(number)
        case Kind.DATE:
            return _long(int(np.datetime64(str(known), "D").astype(np.int64)))
        case Kind.DECIMAL:
            unscaled = _whole(text, type.scale or 0)
            return None if unscaled is None else _unscaled(unscaled)
        case Kind.STRING:
            return str(known).encode()
        case Kind.BINARY:
            return base64.b64decode(str(known))
        case Kind.UUID:
            return UUID(str(known)).bytes
    return None


def _whole(text: str, scale: int) -> int | None:
    """The number in a text times 10 to the power of `scale`; None if that is no integer of a usual size."""
    read = exact_number(text)
    if read is None or not (number := Decimal(read)).is_finite() or number.adjusted() > _MAX_DIGITS:
        return None
    sign, digits, exponent = number.as_tuple()
    whole, power = int("".join(map(str, digits))), int(exponent) + scale
    if power < -len(digits):
        return None if whole else 0
    if power < 0 and whole % 10**-power:
        return None
    return (-1 if sign else 1) * (whole * 10**power if power >= 0 else whole // 10**-power)


def _long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def _unscaled(number: int) -> bytes:
    """The fewest bytes of two's complement, the most significant one first."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)
