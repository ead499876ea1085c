"""Home `lance`: statistics in the configuration of a Lance dataset, where lance-spark looks for them.

A commit of the configuration creates a version, and `lance.stats.computedAtVersion` must be that version. It is
predicted before the commit and checked afterwards. If another writer committed in between, it is wrong, readers ignore
the statistics, and they are written again. Statistics of an earlier version's rows, which need leave, name that
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final

from capture.connectors.lance.statistics import (
    COLUMN_VERSION,
    ENVELOPE_VERSION,
    PREFIX,
    dataset_uri,
    entries_of,
    schema_hash,
)
from capture.connectors.metadata.analyzed import count
from capture.connectors.options import patient, storage_options
from capture.connectors.storage.places import open_place, unknown_snapshot
from capture.publishers.external_values import catalog_entries, spark_bound
from capture.publishers.spi import ColumnStatistics, Draft, HomeStatistics, Labels, LostRace, Publisher
from store.model.errors import InvalidArgument, UpstreamError
from store.model.logical_types import Kind, parse

_CHANGING: Final = ("computedAtVersion", "computedAt")  # different in each commit


class LancePublisher(Publisher):
    """Statistics in the configuration of a new version, in the form of Spark's ANALYZE."""

    home: ClassVar[str] = "lance"
    formats: ClassVar[frozenset[str]] = frozenset({"lance"})
    labels: ClassVar[Labels | None] = Labels(snapshot=True)

    def prepare(self) -> Draft:
        statistics, newest = self.statistics, self._open()
        properties = entries_of(newest.config())
        tag = self._tag(newest, properties)
        hash_ = schema_hash(self._described.schema)
        if hash_ is None:
            raise InvalidArgument(
                f'lance: table "{statistics.full_name}" has a column of a type that Spark does not have, so readers '
                "cannot check the statistics against its schema"
            )
        names = frozenset(newest.schema.names)
        columns, left_out = self.storable(lambda column: _refusal(column, names))
        content = {"version": ENVELOPE_VERSION, "schemaHash": hash_}
        if statistics.row_count is not None:
            content["numRows"] = str(statistics.row_count)
        for column in columns:
            content |= _entries(column)
        same = {name: value for name, value in properties.items() if name not in _CHANGING} == content
        return Draft(
            statistics.snapshot_id,
            str(newest.uri),
            {column.name: column.distinct for column in columns},
            left_out,
            content,
            is_current=same and properties.get("computedAtVersion") == str(tag or newest.version),
            made_snapshot_id=int(newest.version) if same and tag is None else None,
        )

    def write(self, draft: Draft) -> int | None:
        dataset = self._open()
        version = int(dataset.version) + 1
        if not self.may_be_older and not _same_rows(dataset, self._described):
            raise LostRace("lance: the table changed")
        tag = self._tag(dataset, entries_of(dataset.config()))
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entries = draft.content | {"computedAtVersion": str(tag or version), "computedAt": now}
        orphans = {name: None for name in entries_of(dataset.config()) if name not in entries}
        self._update(dataset, {f"{PREFIX}{name}": value for name, value in (orphans | entries).items()})
        if int(dataset.version) != version:
            raise LostRace(f"lance: version {version} was created by another writer")
        return version if tag is None else None

    def read(self) -> HomeStatistics | None:
        dataset = self._open()
        properties = entries_of(dataset.config())
        if properties.get("version") != ENVELOPE_VERSION or not self._holds(dataset, properties):
            return None
        distinct = {}
        for name in dataset.schema.names:
            if f"column.{name}.version" in properties:
                ndv = properties.get(f"column.{name}.distinctCount")
                distinct[name] = None if ndv is None else int(ndv)
        is_ours = self.may_be_older or _same_rows(dataset, self._described)
        version = self.statistics.snapshot_id if is_ours else int(dataset.version)
        return HomeStatistics(version, str(dataset.uri), distinct)

    def withdraw(self) -> bool:
        dataset = self._open()
        properties = entries_of(dataset.config())
        if properties:
            self._update(dataset, {f"{PREFIX}{name}": None for name in properties})
        return bool(properties)

    def _tag(self, newest: Any, properties: Mapping[str, str]) -> int | None:
        """The version that the statistics must name; None for the one that their commit creates, with the same rows.

        Raises:
            Conflict: The table has other rows, and may not get statistics of these, or has younger ones.
        """
        if _same_rows(newest, self._described):
            return None
        of_version = self.statistics.snapshot_id
        if not self.may_be_older or (count(properties.get("computedAtVersion")) or 0) > of_version:
            raise self.moved_on(f"version {newest.version}")
        return of_version

    def _holds(self, dataset: Any, properties: Mapping[str, str]) -> bool:
        """True if the statistics in a version's configuration are of its rows, or of older ones that were published."""
        named = {dataset.version, *([self.statistics.snapshot_id] if self.may_be_older else [])}
        return count(properties.get("computedAtVersion")) in named

    def _open(self, version: int | None = None) -> Any:
        import lance

        statistics = self.statistics
        try:
            uri = dataset_uri(self.table_location)
            return lance.dataset(uri, version=version, storage_options=self._storage or None)
        except (ValueError, OSError):
            if version is None:
                raise UpstreamError(f'lance: table "{statistics.full_name}" cannot be opened') from None
            raise unknown_snapshot(statistics.namespace, statistics.name, version) from None

    @cached_property
    def _described(self) -> Any:
        """The version of the statistics; opened once, since the table may be created again with its number."""
        return self._open(self.statistics.snapshot_id)

    @staticmethod
    def _update(dataset: Any, values: Mapping[str, str | None]) -> None:
        try:
            dataset.update_config(dict(values))
        except OSError as error:
            words = str(error).lower()
            if "incompatible transaction" in words or "conflict" in words or "too much write contention" in words:
                raise LostRace("lance: another writer changed the configuration") from None
            if "permission denied" in words or "read-only" in words:
                raise PermissionError from None
            raise UpstreamError("lance: the commit failed") from None

    @cached_property
    def _storage(self) -> dict[str, str]:
        options = self.destination.config.options
        storage = storage_options(options)
        return storage if open_place(self.table_location, options).is_local else patient(storage, options)


def _refusal(column: ColumnStatistics, names: frozenset[str]) -> str:
    """The reason why a column's statistics are not written; empty if they are."""
    if "." in column.name or not column.name:
        return "the format has no key for a name with a dot"
    if parse(column.logical_type).kind is Kind.TIMESTAMP:
        return "Spark cannot plan a filter on a timestamp without time zone that has statistics"
    return "" if column.name in names else "is not a top-level column"


def _entries(column: ColumnStatistics) -> dict[str, str]:
    """Configuration entries of one column, in the form of Spark's `CatalogColumnStat`."""
    values = {"version": COLUMN_VERSION} | catalog_entries(column, spark_bound)
    return {f"column.{column.name}.{name}": str(value) for name, value in values.items()}


def _same_rows(one: Any, other: Any) -> bool:
    """True if two versions have equal schemas, fragments and deletions."""
    if one.schema != other.schema:
        return False
    fragments, others = ([str(fragment.metadata) for fragment in dataset.get_fragments()] for dataset in (one, other))
    return fragments == others
