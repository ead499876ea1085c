"""Reads versions, commits and schemas from a Delta log.

The listing of `_delta_log` shows which versions can be read at all, since log cleanup removes commits before a
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.spi import Column, Constraint, Schema
from capture.connectors.storage.places import Place, read_each
from capture.connectors.storage.requests import LIST, requested
from store.model.logical_types import Kind, LogicalType

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:(?:\.(\d{10})\.(\d{10}))?\.parquet|\.[0-9a-fA-F-]{36}\.(?:parquet|json))"
)
_ACTION = re.compile(rb'\s*\{\s*"(?:commitInfo|metaData|protocol)"')
_OBJECT = re.compile(rb'\s*(?:\{\s*"|\Z)')


# Versions.


class LogFiles:
    """The non-empty files of `_delta_log`, given in any order."""

    def __init__(self, infos: Sequence[pafs.FileInfo]):
        self._infos = infos

    @cached_property
    def digest(self) -> str:
        """Digest of the files' names, sizes and modification times: SHA-256 in hex."""
        states = sorted((info.base_name, info.size, info.mtime_ns) for info in self._infos)
        return hashlib.sha256(repr(states).encode()).hexdigest()

    @cached_property
    def commits(self) -> Mapping[int, pafs.FileInfo]:
        """Version → file of its commit."""
        matches = ((_COMMIT.fullmatch(info.base_name), info) for info in self._infos)
        return {int(match[1]): info for match, info in matches if match}

    @cached_property
    def checkpoints(self) -> Mapping[int, Sequence[pafs.FileInfo]]:
        """Version → files of its complete checkpoint, in the order of the parts."""
        found: dict[tuple[int, int], dict[int, pafs.FileInfo]] = {}  # version, number of parts → part → file
        for info in self._infos:
            if match := _CHECKPOINT.fullmatch(info.base_name):
                part, parts = int(match[2] or 1), int(match[3] or 1)
                found.setdefault((int(match[1]), parts), {})[part] = info
        whole = ((version, files) for (version, parts), files in sorted(found.items()) if len(files) == parts)
        return {version: [files[part] for part in sorted(files)] for version, files in whole}

    def live(self) -> list[int]:
        """Readable versions, ascending: those with all commits since version 0 or a checkpoint."""
        versions: list[int] = []
        for version in sorted({*self.commits, *self.checkpoints}):
            follows = version in self.commits and (version == 0 or (versions and versions[-1] == version - 1))
            if version in self.checkpoints or follows:
                versions.append(version)
        return versions

    def written_at(self, version: int) -> datetime | None:
        """The modification time of a version's commit, else of its checkpoint."""
        infos = [self.commits[version]] if version in self.commits else self.checkpoints.get(version, ())
        return next((info.mtime.astimezone(UTC) for info in infos if info.mtime is not None), None)


def list_log(table: Place) -> LogFiles:
    """Lists a table's log.

    Raises:
        OSError: The log cannot be listed.
    """
    log = table.below("_delta_log")
    if log.is_local:
        requested(LIST)
    infos = log.file_system.get_file_info(pafs.FileSelector(log.path, recursive=False))
    return LogFiles([info for info in infos if info.type == pafs.FileType.File and info.size])


# Commits.


@dataclass(frozen=True, slots=True)
class Commit:
    """Operation and time of a commit, the table's metadata if the commit changes it, and the commit's `commitInfo`."""

    operation: str | None = None
    committed_at: datetime | None = None
    metadata: Mapping[str, Any] | None = None
    info: Mapping[str, Any] | None = None
    is_malformed: bool = False


def read_commits(table: Place, versions: Sequence[int]) -> Iterator[tuple[int, Commit]]:
    """Reads the commits of some versions, in order; a missing one is an empty `Commit`."""
    return zip(versions, read_each(partial(read_commit, table), versions, is_local=table.is_local), strict=True)


def commit_file(table: Place, version: int) -> Place:
    """The file of a version's commit, which expires once a checkpoint has its content."""
    return table.below(f"_delta_log/{version:020d}.json")


def read_bytes(table: Place, version: int) -> bytes | None:
    """The bytes of a commit file; None if it cannot be read."""
    try:
        return commit_file(table, version).read()
    except (OSError, pa.ArrowException):
        return None


def read_commit(table: Place, version: int) -> Commit:
    """Reads the actions of one commit file, except adds and removes.

    Returns:
        An empty commit if the file cannot be read; one with `is_malformed` if a line is not a JSON object.
    """
    data = read_bytes(table, version)
    if data is None:
        return Commit()
    actions: dict[str, Any] = {}
    for line in data.splitlines():
        if _ACTION.match(line):  # most lines of a large commit are adds
            try:
                actions |= json.loads(line)
            except ValueError:
                return Commit(is_malformed=True)
        elif not _OBJECT.match(line):
            return Commit(is_malformed=True)
    info = actions.get("commitInfo")
    info = info if isinstance(info, Mapping) else {}
    millis = info.get("inCommitTimestamp", info.get("timestamp"))
    operation = info.get("operation")
    metadata = actions.get("metaData")
    return Commit(
        operation if isinstance(operation, str) else None,
        _instant(millis),
        metadata if isinstance(metadata, Mapping) else None,
        info or None,
    )


def _instant(millis: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


# Schemas.

_PLAIN: Final = {
    "string": Kind.STRING,
    "long": Kind.INT,
    "integer": Kind.INT,
    "short": Kind.INT,
    "byte": Kind.INT,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "boolean": Kind.BOOLEAN,
    "binary": Kind.BINARY,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMPTZ,
    "timestamp_ntz": Kind.TIMESTAMP,
    "variant": Kind.VARIANT,
    "void": Kind.STRING,
}

_INTEGER_BYTES: Final = {"byte": 1, "short": 2, "integer": 4, "long": 8}


@dataclass(frozen=True, slots=True)
class DeltaColumn:
    """A column of a Delta schema.

    Attributes:
        physical: Path in files and in the log's statistics.
        logical: Path in the table's schema.
        invariant: Expression of a column invariant.
        widened_from: Former types, which older files still have.
        width_bytes: Width of the declared integer type; None for other types.
        is_void: Whether the column has the void type, and therefore is in no file.
    """

    column: Column
    physical: tuple[str, ...]
    logical: tuple[str, ...]
    invariant: str | None = None
    widened_from: frozenset[str] = frozenset()
    width_bytes: int | None = None
    is_void: bool = False


@dataclass(frozen=True)  # no slots: the names are cached
class DeltaSchema:
    """The columns of a Delta table, containers included, with logical and physical names."""

    columns: tuple[DeltaColumn, ...]
    schema: Schema = field(compare=False)
    text: str = field(default="", compare=False)  # its `schemaString`

    def leaf(self, name: str) -> DeltaColumn | None:
        """The column with this key, else the one with this dotted name."""
        return self._named.get(name)

    @cached_property
    def _named(self) -> dict[str, DeltaColumn]:
        """By key and dotted name; a key comes before another column's name, and of equal ones the first column."""
        last_first = self.columns[::-1]
        return {c.column.name: c for c in last_first} | {c.column.key: c for c in last_first}


def parse_schema(text: Any, configuration: Any) -> DeltaSchema:
    """Parses a `schemaString`, with the table's configuration.

    Raises:
        ValueError: The text is not a schema.
    """
    if not isinstance(text, str):
        raise ValueError("its metadata has no schema")
    settings = configuration if isinstance(configuration, Mapping) else {}
    return _parsed(text, settings.get("delta.columnMapping.mode", "none") in ("name", "id"))


@lru_cache(64)  # most versions of a table have the same schema
def _parsed(text: str, mapped: bool) -> DeltaSchema:
    columns: list[DeltaColumn] = []

    def walk(fields: Any, names: tuple[str, ...], physical: tuple[str, ...], nullable: bool) -> None:
        for item in fields:
            name, type = str(item["name"]), item["type"]
            details = item.get("metadata") or {}
            physical_name = str(details.get("delta.columnMapping.physicalName", name)) if mapped else name
            number = details.get("delta.columnMapping.id") if mapped else None
            path, inner = (*names, name), (*physical, physical_name)
            optional = nullable or bool(item.get("nullable", True))
            column = Column(".".join(path), _type(type).text, optional, int(number) if number else None, path)
            width = _INTEGER_BYTES.get(type) if isinstance(type, str) else None
            history = _widened_from(details)
            columns.append(DeltaColumn(column, inner, path, _invariant(details), history, width, type == "void"))
            if isinstance(type, Mapping) and type.get("type") == "struct":
                walk(type["fields"], path, inner, optional)

    try:
        walk(json.loads(text)["fields"], (), (), False)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its schema is malformed ({error})") from None
    return DeltaSchema(tuple(columns), Schema(tuple(parsed.column for parsed in columns)), text)


def _type(type: Any) -> LogicalType:
    if isinstance(type, Mapping):
        return LogicalType(
            {"struct": Kind.STRUCT, "array": Kind.ARRAY, "map": Kind.MAP}.get(str(type.get("type")), Kind.VARIANT)
        )
    name = str(type).strip().lower()
    if match := re.fullmatch(r"decimal(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?", name):
        return LogicalType(Kind.DECIMAL, int(match[1] or 10), int(match[2] or 0))
    if name.startswith("interval"):
        return LogicalType(Kind.INTERVAL)
    if name.startswith(("char", "varchar")):
        return LogicalType(Kind.STRING)
    return LogicalType(_PLAIN.get(name, Kind.VARIANT))


def _invariant(details: Mapping[str, Any]) -> str | None:
    """The expression of a column invariant, the predecessor of CHECK constraints."""
    try:
        invariant = json.loads(details["delta.invariants"])
        return str(invariant["expression"]["expression"])
    except (KeyError, TypeError, ValueError):
        return None


def _widened_from(details: Mapping[str, Any]) -> frozenset[str]:
    """Former types of a field, before type changes."""
    changes = details.get("delta.typeChanges")
    if not isinstance(changes, list):
        return frozenset()
    # a `fieldPath` refers to an element of a list or map, not to this column
    plain = (change for change in changes if isinstance(change, Mapping) and not change.get("fieldPath"))
    return frozenset(str(change.get("fromType")) for change in plain)


def constraints(schema: DeltaSchema, configuration: Mapping[str, str]) -> tuple[Constraint, ...]:
    """NOT NULL columns, invariants and `delta.constraints.*` as CHECK constraints."""
    names = [column.column.name for column in schema.columns]
    constraints = []
    for column in schema.columns:
        name = column.column.name
        if not column.column.nullable:
            constraints.append(Constraint("CHECK", f"{name}_not_null", (name,), f"{name} IS NOT NULL"))
        if column.invariant:
            constraints.append(Constraint("CHECK", f"{name}_invariant", (name,), column.invariant))
    for key, clause in sorted(configuration.items()):
        if key.startswith("delta.constraints."):
            used = tuple(n for n in names if re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", clause, re.IGNORECASE))
            constraints.append(Constraint("CHECK", key.removeprefix("delta.constraints."), used, clause))
    return tuple(constraints)
