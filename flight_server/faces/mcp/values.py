"""What agents are told of the data's values: nothing, unless the setting `mcp_values` lets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from flight_server.insight.results import Result
from flight_server.insight.rules import Rule
from store.model.statistics import Merge, names

WITHHELD: Final = "values of the data are not told here; the setting mcp_values = true tells them"
_HOLDS: Final = (Merge.LEAST, Merge.GREATEST, Merge.MOMENTS)
OF_VALUES: Final = frozenset(names(lambda each: each.merge in _HOLDS and not pa.types.is_boolean(each.type)))
"""Statistics that are values of a column, or in its unit."""

_COUNTS: Final = frozenset(names(lambda each: each.name not in OF_VALUES)) | {
    *("size_bytes", "file_count", "age_seconds", "schema_changes"),
    *("null_fraction", "distinct_fraction", "unique"),
}
"""Measures of rules that tell no value: numbers of rows, files, bytes, seconds, or shares of them."""


def without_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of statistics without values of the data."""
    return {name: value for name, value in row.items() if name not in OF_VALUES}


def told(result: Result, rules: Mapping[str, Rule], *, values: bool) -> dict[str, Any]:
    """The result of a rule, as an agent reads it.

    Args:
        rules: The rules that were asked about, by their text.
        values: True if values of the data are told.
    """
    found = {
        "rule": result.rule,
        "column": result.column,
        "state": str(result.state),
        "snapshot_id": result.snapshot_id,
    }
    if values or _counts(result, rules.get(result.rule)):
        return found | {"value": result.value, "detail": result.detail or None}
    return found | {"withheld": WITHHELD}


def _counts(result: Result, rule: Rule | None) -> bool:
    """True if neither the value of a result nor its limits are values of the data."""
    limits: Sequence[Any] = () if rule is None else rule.condition.limits
    return result.measure in _COUNTS and all(limit.other is None or limit.other[0] in _COUNTS for limit in limits)
