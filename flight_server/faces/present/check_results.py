"""Results of checks as a table, JSON or JUnit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from xml.etree import ElementTree

from flight_server.core.views import numbers
from flight_server.faces.present import render, text
from flight_server.insight.results import Result, State


class ResultFormat(StrEnum):
    """Forms of a check's results."""

    TABLE = "table"
    JSON = "json"
    JUNIT = "junit"


def write_table(results: Sequence[Result]) -> None:
    """Writes a line for each result, misses first."""
    order = {State.FAILED: 0, State.WARNED: 1, State.LATE: 2, State.UNKNOWN: 3, State.WAITING: 4, State.PASSED: 5}
    rows = [
        [
            result.state.lower(),
            result.table,
            result.column or "",
            result.rule,
            _value(result),
            result.detail,
        ]
        for result in sorted(results, key=lambda result: order[result.state])
    ]
    headers = ["state", "table", "column", "rule", "value", "detail"]
    text.write_text(headers, rows, right=[False] * 4 + [True], whole=("state", "table"))


def _value(result: Result) -> str:
    if result.value is None:
        return "unknown"
    return result.value if isinstance(result.value, str) else numbers.number(result.value, exact=True)


def to_json(results: Sequence[Result], errors: Mapping[str, str], *, strict: bool = False) -> str:
    """One object: whether none failed, the results, and the tables that could not be checked.

    Args:
        strict: True if what is unknown fails.
    """
    passed = not errors and not any(result.fails(strict=strict) for result in results)
    report = {
        "passed": passed,
        "results": [render.plain(result.to_json()) for result in results],
        "errors": [{"table": table, "error": error} for table, error in errors.items()],
    }
    return json.dumps(report, ensure_ascii=False, indent=1, allow_nan=False)


def to_junit(results: Sequence[Result], errors: Mapping[str, str], *, strict: bool = False) -> str:
    """JUnit XML: a suite for each table, a case for each result.

    A warning is a passed case with output; what is unknown is skipped, or fails if `strict`.
    """
    root = ElementTree.Element("testsuites", name="statflight check")
    for table in dict.fromkeys([*(result.table for result in results), *errors]):
        mine = [result for result in results if result.table == table]
        failed = sum(result.fails(strict=strict) for result in mine)
        unknown = sum(result.state is State.UNKNOWN and not result.fails(strict=strict) for result in mine)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=text.harmless(table),
            tests=str(len(mine) + (table in errors)),
            failures=str(failed),
            errors=str(int(table in errors)),
            skipped=str(unknown),
        )
        for result in mine:
            _add_case(suite, result, strict)
        if table in errors:
            case = ElementTree.SubElement(suite, "testcase", classname=text.harmless(table), name="statistics")
            ElementTree.SubElement(case, "error", message=text.harmless(errors[table]))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _add_case(suite: ElementTree.Element, result: Result, strict: bool) -> None:
    name = result.rule if result.column is None else f"{result.column}: {result.rule.rpartition(':')[2].strip()}"
    case = ElementTree.SubElement(suite, "testcase", classname=text.harmless(result.table), name=text.harmless(name))
    if result.state is State.PASSED:
        return
    message = text.harmless(f"{result.measure} is {_value(result)}" + (f" ({result.detail})" if result.detail else ""))
    if result.fails(strict=strict):
        ElementTree.SubElement(case, "failure", message=message, type=result.measure)
    elif result.state is State.UNKNOWN:
        ElementTree.SubElement(case, "skipped", message=f"unknown: {message}")
    else:
        ElementTree.SubElement(case, "system-out").text = f"warning: {message}"
