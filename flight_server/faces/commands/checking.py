"""Commands that check rules: check."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from flight_server.core.views.reader import Reader, read_table
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.core.views.table_summary import require
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions
from flight_server.faces.commands.output import misuse, say, tell, tell_json, until_the_reader_leaves
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.reach import Keep, reach
from flight_server.faces.commands.targets import TableNames, check_targets, expand, for_each, snapshot_of
from flight_server.faces.present import check_results
from flight_server.faces.present.check_results import ResultFormat
from flight_server.insight import rules as grammar
from flight_server.insight import suggest as suggestions
from flight_server.insight.evaluate import NO_COLUMN
from flight_server.insight.evaluate import check as evaluate
from flight_server.insight.expectations import LEAST
from flight_server.insight.results import Result
from store.model.errors import InvalidArgument, nearest

if TYPE_CHECKING:
    from flight_server.client import StatsClient

MOST_NAMED: Final = 10  # columns that the message about an unknown one lists


class OfRows(StrEnum):
    """Rows that rules may be about, besides all."""

    ADDED = grammar.ADDED


def check(
    tables: TableNames,
    rule: Annotated[
        list[str] | None,
        option(metavar="RULE", help="[COLUMN:] MEASURE CONDITION, COLUMN in TABLE.COLUMN, (SELECT …) CONDITION."),
    ] = None,
    rules: Annotated[list[Path] | None, option(metavar="FILE.toml", help="[[rule]] tables. Repeatable.")] = None,
    against: Annotated[
        str | None, option(metavar="SNAPSHOT", help="Snapshot to compare with: an id, 'previous' or 'first'.")
    ] = None,
    of: Annotated[
        OfRows | None,
        option("--of", help="Judge only the rows that came since the snapshot before, or since --against."),
    ] = None,
    strict: Annotated[
        bool, option("--strict", help="Exit with 1 for unknown results too, but for rules of level warn.")
    ] = False,
    allow_inherited: Annotated[
        bool, option("--allow-inherited", help="Let distributions of earlier snapshots decide.")
    ] = False,
    suggest: Annotated[bool, option("--suggest", help="Print rules that hold for the captured statistics.")] = False,
    expected: Annotated[
        tuple[str, str] | None,
        option(
            metavar="MEASURE SNAPSHOT",
            help="Take a value that a learned rule calls strange, 'amount: mean', for expected.",
        ),
    ] = None,
    db: Keep = None,
    format: Annotated[ResultFormat, option("--format", "-f", help="How results are written.")] = ResultFormat.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Check rules on each table that the targets match."""
    targets = check_targets(tables, paths=True)
    at = None if against is None else snapshot_of(against)
    rules_given = _rules(rule or [], rules or [], of)
    about = None if expected is None else _expected(*expected)
    if about is None and not suggest and at is None:
        _check_none_compares(rules_given)
    wanted = ["newest"] if suggest else _wanted(rules_given, at)
    with reach(connection, targets, wanted, db) as (client, targets, unread):
        if about is not None:
            failed = for_each(
                client, targets, lambda reader, name: tell_json(client.act("expect", _about(reader, name, about)))
            )
        elif suggest:
            failed = for_each(client, targets, _suggest)
        elif not rules_given:
            failed = for_each(client, targets, lambda _, name: client.require_table(name))
            if not failed:  # an unknown table is reported first
                misuse("no rule given; say --rule 'null_fraction <= 0.01', --rules FILE.toml, or --suggest")
        else:
            failed = _check(client, targets, _Asked(rules_given, len(rule or []), at, allow_inherited, strict), format)
    if failed or unread:
        sys.exit(1)


def _wanted(rules: Sequence[grammar.Rule], at: int | str | None) -> list[str | int]:
    """The snapshots that rules need: what tables by their paths are captured at."""
    if any(rule.measure == grammar.LEARNED for rule in rules):
        return ["newest"]
    first: int | str = "current" if at is None else at
    if at is None and any(rule.of_added or rule.compares for rule in rules):
        first = grammar.PREVIOUS
    return [first, "current", *(rule.against for rule in rules if rule.against is not None)]


def _check_none_compares(rules: Sequence[grammar.Rule]) -> None:
    """Ends the command if a rule needs a snapshot to compare with."""
    for rule in rules:
        if rule.needs_snapshot:
            misuse(f"the rule {rule.text!r} compares snapshots; say --against previous, or --against ID")


def _suggest(reader: Reader, name: str) -> None:
    require(reader, name)
    tell(suggestions.to_toml(reader, name))


def _expected(measured: str, snapshot: str) -> dict[str, Any]:
    """The value that `--expected` names, as the action `expect` takes it."""
    column, _, measure = measured.rpartition(":")
    about = {"measure": measure.strip(), "snapshot": snapshot_of(snapshot)}
    return about | ({"column": column.strip()} if column else {})


def _about(reader: Reader, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """The body of the action `expect` about a table."""
    return {"table": name, **about, "snapshot": snapshot_at(reader, name, about["snapshot"])}


class _Asked(NamedTuple):
    """A check as it was asked for.

    Attributes:
        typed: The number of rules, the first ones, that the command line has; others are of files.
        at: The snapshot to compare with; None for none.
    """

    rules: Sequence[grammar.Rule]
    typed: int
    at: str | int | None
    allow_inherited: bool
    strict: bool


def _check(client: StatsClient, targets: Sequence[str], asked: _Asked, format: ResultFormat) -> bool:
    """Checks rules on tables, and writes the results; True if one failed, or a table could not be checked."""
    results: list[Result] = []
    errors: dict[str, str] = {}
    names, failed = expand(client, targets, errors)

    def work(reader: Reader, name: str) -> None:
        against = asked.at if asked.at in (None, grammar.PREVIOUS) else snapshot_at(reader, name, asked.at)
        mine = evaluate(reader, name, asked.rules, against, allow_inherited=asked.allow_inherited)
        results.extend(mine)
        _say_unchecked(name, asked.rules, {result.rule for result in mine})

    failed += for_each(client, names, work, errors)
    _refuse_misspelt(client, results, {rule.text for rule in asked.rules[: asked.typed]})
    with until_the_reader_leaves():  # who reads less is told the status all the same
        if format is ResultFormat.JSON:
            tell(check_results.to_json(results, errors, strict=asked.strict))
        elif format is ResultFormat.JUNIT:
            tell(check_results.to_junit(results, errors, strict=asked.strict))
        elif results:
            check_results.write_table(results)
    if names and not results and not errors:
        say("no rule applies to these tables")
    return failed > 0 or any(result.fails(strict=asked.strict) for result in results)


def _refuse_misspelt(client: StatsClient, results: Sequence[Result], typed: Collection[str]) -> None:
    """Ends the command if none of the tables has the column that a rule of the command line names."""
    for text in sorted(typed):
        mine = [result for result in results if result.rule == text]
        if not mine or any(result.detail != NO_COLUMN for result in mine):
            continue
        table, column = mine[0].table, str(mine[0].column)
        known = read_table(client, "information_schema.columns", table, ["column_name"])["column_name"].to_pylist()
        hint = nearest(column, known) or f"it has {', '.join(known[:MOST_NAMED])}{', …' * (len(known) > MOST_NAMED)}"
        misuse(f"--rule {text!r}: {table} has no column {column}; {hint}")


def _say_unchecked(name: str, rules: Sequence[grammar.Rule], judged: Collection[str]) -> None:
    """Says which rules about a table had nothing to judge by."""
    is_learned = any(rule.startswith(grammar.LEARNED) for rule in judged)
    if not is_learned and any(rule.measure == grammar.LEARNED and rule.is_about(name) for rule in rules):
        say(f"{name}: learned: nothing is expected until {LEAST} captured snapshots are known")
    for rule in rules:
        compares = rule.compares or any(limit.window for limit in rule.condition.limits)
        if compares and rule.is_about(name) and rule.text not in judged:
            say(f"{name}: {rule.text}: not checked, for there is nothing to compare")


def _rules(texts: list[str], files: list[Path], of: OfRows | None) -> list[grammar.Rule]:
    """The rules of a command; with `of` all of them are about these rows."""
    try:
        given = [*map(grammar.parse, texts), *(one for file in files for one in grammar.load(file).rules)]
        return given if of is None else [one if one.of_added else one.about_added(one.text) for one in given]
    except InvalidArgument as wrong:
        misuse(str(wrong))
