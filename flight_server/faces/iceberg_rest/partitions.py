"""Values of partitions in the two forms that readers of plans expect."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from store.model.errors import Unimplemented

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def result_type(transform: str, source: Any) -> str:
    """The type of the values of a partition field, by its source column's Iceberg type, None if that was dropped."""
    if transform.startswith("bucket") or transform in ("year", "month", "hour"):
        return "int"
    return "date" if transform == "day" else source if isinstance(source, str) else "string"


def single_value(value: Any, type: str, *, internal: bool) -> Any:
    """A value of a partition, as JSON.

    Args:
        value: The value in `partition_data_json`: a number, canonical text, or None.
        internal: True for pyiceberg, which takes values as they are: days and microseconds since 1970. Other readers
            follow the specification, in which they are texts.

    Raises:
        Unimplemented: JSON has no such value.
    """
    if value is None:
        return None
    try:
        return _converted(value, type, internal=internal)
    except (ValueError, ArithmeticError):
        raise Unimplemented(f'the partition value "{value}" cannot be sent as {type}') from None


def _converted(value: Any, type: str, *, internal: bool) -> Any:
    match type:
        case "int" | "long":
            return int(value)
        case "float" | "double":
            number = float(value)
            if number - number != 0.0:
                raise ValueError("not finite")
            return number
        case "boolean":
            return str(value).lower() == "true"
        case "date" if internal:
            return (date.fromisoformat(value) - _EPOCH.date()).days
        case "time" if internal:
            return (datetime.combine(_EPOCH, time.fromisoformat(value), UTC) - _EPOCH) // _MICROSECOND
        case "timestamp" | "timestamptz":
            return _instant(datetime.fromisoformat(value), type, internal=internal)
        case "binary":
            return base64.b64decode(value).hex().upper()
    if type.startswith("fixed"):
        return base64.b64decode(value).hex().upper()
    if type.startswith("decimal") and internal and (exact := Decimal(str(value))) == int(exact):
        return int(exact)
    return str(value)


def _instant(at: datetime, type: str, *, internal: bool) -> int | str:
    """Microseconds since 1970, or the text of a timestamp, with its zone if the type has one."""
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    if internal:
        return (at - _EPOCH) // _MICROSECOND
    return at.isoformat() if type == "timestamptz" else at.replace(tzinfo=None).isoformat()
