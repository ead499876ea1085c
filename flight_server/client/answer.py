"""Answers of queries by statistics alone."""

from __future__ import annotations

import base64
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Self

_READ: Final[dict[str, Callable[[str], Any]]] = {
    "BOOLEAN": lambda text: text == "true",
    "INT": int,
    "FLOAT": lambda text: struct.unpack("f", struct.pack("f", float(text)))[0],
    "DOUBLE": float,
    "DECIMAL": Decimal,
    "STRING": str,
    "UUID": uuid.UUID,
    "BINARY": base64.b64decode,
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "TIMESTAMPTZ": datetime.fromisoformat,
}


@dataclass(frozen=True)
class Answer:
    """The answer of a query, exact or none.

    Attributes:
        exact: True if statistics know every value exactly.
        values: Name in the select list, such as `min(day)` → value, None for SQL's null; None unless `exact`.
        reason: Why statistics do not tell; None if `exact`.
        snapshot_id: The snapshot; None if the table has none.
    """

    exact: bool
    values: dict[str, Any] | None
    reason: str | None
    snapshot_id: int | None

    @classmethod
    def of_result(cls, found: Mapping[str, Any]) -> Self:
        """The answer of a result of the action `answer`."""
        results = found["results"]
        values = None if results is None else {item["name"]: _value(item["type"], item["value"]) for item in results}
        return cls(found["exact"], values, found["reason"], found["snapshot_id"])


def _value(type: str, value: Any) -> Any:
    return _READ[re.split(r"[(<]", type)[0]](value) if isinstance(value, str) else value
