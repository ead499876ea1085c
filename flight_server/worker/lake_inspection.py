"""A worker's inspection of a lake: the answer to `control` and `watch` leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from capture.compute.uniqueness import is_unique
from capture.connectors.directories.found import hint_of_other_format
from capture.connectors.options import TableFilter
from capture.connectors.progress import one_at_a_time
from capture.connectors.spi import Connector, ConnectorConfig
from capture.connectors.storage.places import NoLake
from capture.connectors.storage.requests import carried
from capture.inspection import look_at_table
from store.model.errors import Cancelled, NotFound, StatflightError, first_line

Progress = Callable[[float | None, str], None]
"""Called with the share that is done, 0 to 1 (None: not known), and a few words; raises Cancelled to stop."""


def inspect(connector: Connector, payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Runs the operation that a lease's payload names, and returns its findings.

    Args:
        payload: `operation` (`validate`, `names`, `discover`, `metadata`, `row_deletes` or `unique`) and its arguments.

    Returns:
        The findings, as JSON: `seconds` that the look took, `namespaces`, `tables`, `unchanged` (namespace and name),
        `errors`, `lake_mark`, and
        `unmatched`, the patterns of `include` and `exclude` that match no table, if there are any; `names` of the
        tables and `lake_mark`, or nothing if they are as they were; `document` of `metadata`; the row-level deletes of
        a snapshot as `Connector.row_deletes` returns them; `unique`, true if no live value of a column occurs twice.

    Raises:
        StatflightError: The lake cannot be reached, or the inspection was cancelled.
    """
    try:
        return _inspect(connector, payload, progress)
    except NoLake as error:
        if not error.hint and not payload.get("known") and "connector" in payload:  # it never had a table
            error.hint = hint_of_other_format(_config_of(payload["connector"]))
        raise


def _config_of(lake: Mapping[str, Any]) -> ConnectorConfig:
    return ConnectorConfig(lake["catalog"], lake["format"], lake["uri"], lake.get("options", {}))


def _inspect(connector: Connector, payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    namespace, name = payload.get("table", ("", ""))
    match payload["operation"]:
        case "validate":
            return {"namespaces": connector.list_namespaces()}
        case "names":
            return _names(connector, payload, TableFilter.of(payload["connector"]["options"]))
        case "metadata":
            return {"document": connector.metadata_document(namespace, name, payload["location"])}
        case "unique":
            return {"unique": _is_unique(connector, payload, progress)}
        case "row_deletes":
            return connector.row_deletes(namespace, name, payload["snapshot_id"])
        case _:
            return _discover(
                connector, payload, progress, TableFilter.of(payload.get("connector", {}).get("options", {}))
            )


def _is_unique(connector: Connector, payload: Mapping[str, Any], progress: Progress) -> bool:
    (namespace, name), column_id, ids = payload["table"], payload["column_id"], payload["column_ids"]
    names = frozenset(column for column, id in ids.items() if id == column_id)
    tasks = connector.plan_files(namespace, name, payload["snapshot_id"], ids, names)
    return is_unique(tasks, column_id, lambda words: progress(None, words))


def _names(connector: Connector, payload: Mapping[str, Any], part: TableFilter) -> dict[str, Any]:
    """The names of a lake's tables, and its mark; nothing if it is as at the mark of the payload."""
    before = payload.get("lake_mark")
    if before is not None and connector.lake_mark(before) == before:
        return {}
    namespaces, names, errors = _listed(connector)
    return {
        "names": [name for name in names if part.has(*name)],
        "namespaces": list(filter(part.has_namespace, namespaces)),
        "errors": errors,
        "lake_mark": None if errors else connector.lake_mark(),
    }


def _listed(connector: Connector) -> tuple[list[str], list[tuple[str, str]], list[dict[str, Any]]]:
    """The namespaces of a lake, namespace and name of its tables, and the errors of namespaces."""
    names: list[tuple[str, str]] = []
    errors: list[dict[str, Any]] = []
    namespaces = connector.list_namespaces()
    for namespace in namespaces:
        with _troubles_of(namespace, None, errors):
            names += [(namespace, name) for name in connector.list_tables(namespace)]
    return namespaces, names, errors


def _discover(
    connector: Connector, payload: Mapping[str, Any], progress: Progress, part: TableFilter
) -> dict[str, Any]:
    """Finds tables of a part of the lake and their new snapshots: those of `only` (pairs of namespace and name), or
    all. Tables that are as at their mark are not described.

    A table that cannot be read becomes an entry of `errors`; when it is the only one that a caller asked for, the
    error is raised.
    """
    only, started = payload["only"], time.monotonic()
    is_alone = only is not None and len(only) == 1 and not payload.get("batch")
    seen: dict[str, Any] = {"tables": [], "unchanged": [], "errors": []}
    if only is None:
        namespaces, every, seen["errors"] = _listed(connector)
        names = [name for name in every if part.has(*name)]
        seen["namespaces"] = list(filter(part.has_namespace, namespaces))
        seen["lake_mark"] = None if seen["errors"] else connector.lake_mark()
        if unmatched := part.unmatched(every):
            seen["unmatched"] = unmatched
    else:
        names = [(namespace, name) for namespace, name in only]
        seen["namespaces"] = []

    def inspect_table(of: tuple[str, str]) -> dict[str, Any] | None:
        if not part.has(*of):
            raise NotFound(
                f'table "{".".join(of)}" is not among those that the connector includes',
                code="UNKNOWN_TABLE",
                hint="see its options include and exclude",
            )
        return _inspected(connector, payload, *of)

    for done, (of, found) in enumerate(zip(names, _inspections(connector, inspect_table, names), strict=True)):
        progress(done / len(names), f"{done} of {len(names)} tables")
        with nullcontext() if is_alone else _troubles_of(*of, seen["errors"]):
            table = found()
            if table is None:
                seen["unchanged"].append(of)
            else:
                seen["tables"].append(table)
    seen["seconds"] = time.monotonic() - started
    return seen


def _inspected(connector: Connector, payload: Mapping[str, Any], namespace: str, name: str) -> dict[str, Any] | None:
    """A table as `look_at_table` describes it, with its mark; None if it is as at the mark of the payload."""
    key = f"{namespace}\0{name}"
    before = payload.get("marks", {}).get(key)
    mark = connector.mark(namespace, name, before)  # first, so that a later change is seen by the next look
    if before is not None and mark == before:
        return None
    known = frozenset(payload["known"].get(key, ()))
    identity, current = (payload.get(of, {}).get(key) for of in ("identities", "current"))
    only_ids = None if payload.get("snapshots") is None else frozenset(payload["snapshots"])
    table = look_at_table(
        connector,
        namespace,
        name,
        known,
        payload["full_rescan"],
        identity and tuple(identity),
        only_ids,
        current and tuple(current),
    )
    return table | {"mark": mark}


def _inspections(
    connector: Connector,
    inspect_table: Callable[[tuple[str, str]], dict[str, Any] | None],
    names: Sequence[tuple[str, str]],
) -> Iterator[Callable[[], dict[str, Any] | None]]:
    """A function per table that returns its findings or raises; tables of a remote lake are inspected concurrently."""
    at_once = 1 if one_at_a_time() else connector.tables_at_once
    if at_once == 1 or len(names) < 2:
        yield from (partial(inspect_table, name) for name in names)
        return
    with ThreadPoolExecutor(at_once, "tables") as pool:
        for start in range(0, len(names), at_once * 4):  # in slices, so that a cancelled inspection ends soon
            yield from [pool.submit(carried(inspect_table), name).result for name in names[start : start + at_once * 4]]


@contextmanager
def _troubles_of(namespace: str, name: str | None, errors: list[dict[str, Any]]) -> Iterator[None]:
    """Turns any error of a table, or of listing a namespace (name None), into an entry of `errors`."""
    try:
        yield
    except (Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a library's panic fails its table only
        known = isinstance(error, StatflightError)
        reason = str(error) if known else f"{type(error).__name__}: {first_line(error)}"
        errors.append({"schema": namespace, "name": name, "reason": reason})
