"""Commands that check rules: check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from flight_server.checks import rules as grammar
from flight_server.checks import suggest as suggestions
from flight_server.checks.evaluate import check as evaluate
from flight_server.checks.results import Result, State
from flight_server.commands.common import (
    CONNECTION,
    ConnectionOptions,
    TableNames,
    check_targets,
    connect,
    expand,
    for_each,
    snapshot_of,
)
from flight_server.commands.output import misuse, say, tell, tell_json, until_the_reader_leaves
from flight_server.commands.parameters import option
from flight_server.present import check_results
from flight_server.present.check_results import ResultFormat
from flight_server.views.expectations import LEAST
from flight_server.views.reader import Reader
from store.model.errors import InvalidArgument


def check(
    tables: TableNames,
    rule: Annotated[
        list[str] | None,
        option(metavar="RULE", help="[COLUMN:] MEASURE CONDITION, COLUMN in TABLE.COLUMN, (SELECT …) CONDITION."),
    ] = None,
    rules: Annotated[list[Path] | None, option(metavar="FILE.toml", help="[[rule]] tables. Repeatable.")] = None,
    against: Annotated[
        str | None, option(metavar="SNAPSHOT", help="Snapshot to compare with: an id, or 'previous'.")
    ] = None,
    suggest: Annotated[bool, option("--suggest", help="Print rules that hold for the captured statistics.")] = False,
    expected: Annotated[
        tuple[str, str] | None,
        option(
            metavar="MEASURE SNAPSHOT",
            help="Take a value that a learned rule calls strange, 'amount: mean', for expected.",
        ),
    ] = None,
    format: Annotated[ResultFormat, option("--format", "-f", help="How results are written.")] = ResultFormat.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Check rules on each table that the targets match."""
    targets = check_targets(tables)
    at = None if against is None else snapshot_of(against, grammar.PREVIOUS)
    rules_given = _rules(rule or [], rules or [])
    if expected is not None:
        column, _, measure = expected[0].rpartition(":")
        about = {"measure": measure.strip(), "snapshot": snapshot_of(expected[1], "current")}
        about |= {"column": column.strip()} if column else {}
        with connect(connection) as client:
            failed = for_each(
                client, targets, lambda _, name: tell_json(client.act("expect", {"table": name, **about}))
            )
        sys.exit(1 if failed else 0)
    if suggest:
        with connect(connection) as client:
            failed = for_each(client, targets, lambda reader, name: tell(suggestions.to_toml(reader, name)))
        sys.exit(1 if failed else 0)
    if not rules_given:
        with connect(connection) as client:
            failed = for_each(client, targets, lambda _, name: client.require_table(name))
        if failed:  # an unknown table is reported first
            sys.exit(1)
        misuse("no rule given; say --rule 'null_fraction <= 0.01', --rules FILE.toml, or --suggest")
    if at is None and (comparing := [one for one in rules_given if one.needs_snapshot]):
        misuse(f"the rule {comparing[0].text!r} compares snapshots; say --against previous, or --against ID")
    results: list[Result] = []
    errors: dict[str, str] = {}
    with connect(connection) as client:
        names, failed = expand(client, targets)

        def work(reader: Reader, name: str) -> None:
            mine = evaluate(reader, name, rules_given, at)
            results.extend(mine)
            judged = {result.rule for result in mine}
            if any(one.measure == grammar.LEARNED for one in rules_given) and not any(
                result.rule.startswith(grammar.LEARNED) for result in mine
            ):
                say(f"{name}: learned: nothing is expected until {LEAST} captured snapshots are known")
            for one in rules_given:
                if one.compares and one.is_about(name) and one.text not in judged:
                    say(f"{name}: {one.text}: not checked, for there is nothing to compare")

        failed += for_each(client, names, work, errors)
    with until_the_reader_leaves():  # who reads less is told the status all the same
        if format is ResultFormat.JSON:
            tell(check_results.to_json(results, errors))
        elif format is ResultFormat.JUNIT:
            tell(check_results.to_junit(results, errors))
        elif results:
            check_results.write_table(results)
    if names and not results and not errors:
        say("no rule applies to these tables")
    if failed or any(result.state is State.FAILED for result in results):
        sys.exit(1)


def _rules(texts: list[str], files: list[Path]) -> list[grammar.Rule]:
    try:
        return [*map(grammar.parse, texts), *(one for file in files for one in grammar.load(file).rules)]
    except InvalidArgument as wrong:
        misuse(str(wrong))
