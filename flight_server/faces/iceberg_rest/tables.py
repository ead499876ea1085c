"""Tables as the door serves them: metadata of their own or made up, and how it names partitions, columns, snapshots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from flight_server.core.app import App
from flight_server.faces.iceberg_rest import distinct_counts, made_up
from flight_server.faces.iceberg_rest.distinct_counts import Countable, Place
from flight_server.faces.iceberg_rest.partitions import result_type
from flight_server.planning.scan_columns import Columns
from store.catalog.capture_facts import format_facts, snapshot_columns
from store.duckdb.lru import LruCache
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import InvalidArgument, NotCaptured, Unimplemented, UpstreamError
from store.model.format_facts import UNKNOWN, FormatFacts
from store.model.names import column_key
from store.model.predicates.plain_conditions import Column

CACHED_BYTES: Final = 64 << 20  # of metadata documents and of row-level deletes, each
CONFIG: Final = {"scan-planning-mode": "server"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OWN_IDS: Final = "parquet.field-ids"  # property of Parquet tables whose files have field ids
_AMBIGUOUS: Final = Column(2**31 - 1, "", None)  # an id that no table has


@dataclass(frozen=True)
class Served:
    """A table as the door serves it.

    Attributes:
        metadata_location: URL of its metadata file; of none if the metadata is made up.
        document: JSON of its metadata without the property `statistics`.
        specs: Spec id → partition: names in `partition_data_json` and Iceberg types. Of made-up metadata one, by which
            `made_up.spec_id` tells the spec of a file.
        columns: Name of a column in the current schema → its id; None for the names of the snapshot.
        sources: Spec id → for each field of the partition the id of the column whose value it has; None of a transform.
        is_mapped: The table has a name mapping, so that there may be files which Iceberg did not write. Iceberg's
            writers put all columns into a file, those of the partition too.
        countable: What of the metadata may get distinct counts.
        manifest_list: URL of the list of manifests that were written for made-up metadata.
    """

    metadata_location: str
    document: str
    specs: Mapping[int, made_up.Partition]
    is_made_up: bool = False
    columns: Mapping[str, int] | None = field(default=None, repr=False)
    sources: Mapping[int, Sequence[int | None]] = field(default_factory=dict)
    is_mapped: bool = False
    countable: Countable = field(default_factory=Countable, repr=False)
    manifest_list: str | None = None

    def metadata(self, entries: Sequence[distinct_counts.Entry]) -> str:
        """JSON of the metadata, with entries of distinct counts beside its own."""
        return f"{self.document[:-1]}{self.countable.statistics(entries)}}}"

    def shown(self, snapshot_id: int) -> int:
        """The id of a snapshot in the metadata. Made-up ids are one higher: Delta's begin with 0, Iceberg's do not."""
        return snapshot_id + 1 if self.is_made_up else snapshot_id

    def stored(self, shown: int) -> int:
        """The inverse of `shown`."""
        return shown - 1 if self.is_made_up else shown

    def finder(self, columns: Columns, *, by_snapshot: bool, exact: bool) -> Callable[[str], Column]:
        """Finds columns by the names of a filter; those that a snapshot lacks have no type, so nothing is decided.

        Args:
            by_snapshot: Names are those of the snapshot's schema, not of the current one.
        """
        ids = self.columns or {}
        folded: dict[str, set[int]] = {}
        for name, id in ids.items():
            folded.setdefault(name if exact else name.lower(), set()).add(id)

        def find(name: str) -> Column:
            if ids and not by_snapshot:
                found = folded.get(name if exact else name.lower())
                if not found:
                    raise InvalidArgument(f'no column "{name[:100]}" in the current schema', code="UNKNOWN_COLUMN")
                if len(found) > 1:
                    return _AMBIGUOUS
                (id,) = found
                return columns.of_id(id) or Column(id, f"#{id}", None)
            try:
                return columns.find(name)
            except InvalidArgument as error:
                if error.code == "AMBIGUOUS_COLUMN":
                    return _AMBIGUOUS
                raise

        return find


class ManifestWriter(Protocol):
    """Writes manifests of made-up metadata; see `manifests.Manifests`."""

    def period(self) -> tuple[int, int]:
        """Numbers that change when lists must be looked for again."""

    def add_to(
        self, document: dict[str, Any], table: TableEntry, snapshot_id: int, fields: Mapping[int, int]
    ) -> tuple[dict[str, Any], str | None]:
        """Made-up metadata with the list of its manifests, and the list's URL; None without."""


class Tables:
    """Loads what is served of tables. A worker reads files of the lake, once for each metadata file and snapshot.

    Args:
        capture: Captures the files of a table at a snapshot, without its caller's scope `capture.run`.
        manifests: Writes manifests of made-up metadata; None if it has none.
    """

    def __init__(
        self,
        app: App,
        capture: Callable[[TableEntry, str | int], None],
        manifests: ManifestWriter | None = None,
    ):
        self._app, self._capture, self._manifests = app, capture, manifests
        self._documents: LruCache[tuple[int, str], Served] = LruCache(CACHED_BYTES)
        self._made_up: LruCache[tuple[Any, ...], Served] = LruCache(CACHED_BYTES)
        self._deletes: LruCache[tuple[int, int], Mapping[str, Any]] = LruCache(CACHED_BYTES)
        self._bodies: LruCache[tuple[int, int, str, str | None, bool], Body] = LruCache(CACHED_BYTES)

    def load(self, table: TableEntry, *, with_manifests: bool = False) -> Served:
        """A table as it is served, of the time when its catalog was last discovered.

        Args:
            with_manifests: Whether metadata that is made up gets manifests, if they are written at all.

        Raises:
            Unimplemented: It cannot be served safely; the message has the reason.
            UpstreamError: Its metadata cannot be read, or no worker is connected.
            NotCaptured: It has no snapshot.
        """
        facts = format_facts(self._app.database, table)
        if facts == UNKNOWN:
            raise UpstreamError(f'the format of "{table.full_name}" is not known', hint="discover its catalog again")
        if facts.iceberg_metadata:
            return self._of_iceberg(table)
        if table.format == EXTERNAL or not facts.plain_parquet or facts.merges_rows:
            what = "known from puts only" if table.format == EXTERNAL else f"of format {table.format}"
            raise Unimplemented(f'"{table.full_name}" is {what}, which readers of Iceberg cannot read')
        table = self.captured(table, "current")
        manifests = self._manifests if with_manifests else None
        period = None if manifests is None else manifests.period()
        key = (table.table_key, table.current_snapshot_id or 0, self._app.versions.generation(table.table_key), period)
        if (served := self._made_up.get(key)) is None:
            served = self._make_up(table, facts, manifests)
            self._made_up.put(key, served, len(served.document))
        return served

    def body(self, table: TableEntry, *, with_counts: bool, with_manifests: bool) -> Body:
        """The answer to a client that loads a table.

        Args:
            with_counts: Whether distinct counts are added to the metadata.
            with_manifests: As in `load`.

        Raises:
            StatflightError: As `load` does.
        """
        generation = self._app.versions.generation(table.table_key)
        served = self.load(table, with_manifests=with_manifests)
        key = (table.table_key, generation, served.metadata_location, served.manifest_list, with_counts)
        if (body := self._bodies.get(key)) is None:
            entries = distinct_counts.entries(self._app.database, table, served.countable) if with_counts else ()
            body = Body.of(served.metadata_location, served.metadata(entries))
            self._bodies.put(key, body, body.size)
        return body

    def captured(self, table: TableEntry, snapshot: str | int) -> TableEntry:
        """The table, its files at a snapshot captured first if they are not known."""
        if self._app.parts["planning"].planner.is_captured(table, snapshot):
            return table
        self._capture(table, snapshot)
        return self._app.catalog.by_key(table.table_key)

    def row_deletes(self, table: TableEntry, snapshot_id: int) -> Mapping[str, Any]:
        """Row-level deletes of an Iceberg snapshot, see `SnapshotView.row_deletes` of `capture.connectors.iceberg`."""
        key = (table.table_key, snapshot_id)
        if (found := self._deletes.get(key)) is None:
            found = self._ask(table, "row_deletes", snapshot_id=snapshot_id)
            self._deletes.put(key, found, 300 * (1 + len(found["delete_files"]) + len(found["data_files"])))
        return found

    def _ask(self, table: TableEntry, operation: str, **arguments: Any) -> Mapping[str, Any]:
        config = self._app.lakes.config(table.table_catalog)
        place = [table.table_schema, table.table_name]
        return self._app.lakes.inspect(operation, config, lambda: self._app.queue.closing, table=place, **arguments)

    def _details(self, table: TableEntry) -> tuple[Any, ...]:
        (row,) = self._app.database.rows(
            "SELECT metadata_location, format_schema, coalesce(partition_keys, []), coalesce(properties, '{}')"
            " FROM tables WHERE table_key = ?",
            table.table_key,
        )
        return tuple(row)

    def _of_iceberg(self, table: TableEntry) -> Served:
        location, schema, _, _ = self._details(table)
        if location is None or schema is None:
            raise UpstreamError(f'the metadata of "{table.full_name}" is not known', hint="discover its catalog again")
        key = (table.table_key, f"{location}\0{schema}")
        if (served := self._documents.get(key)) is None:
            document = self._ask(table, "metadata", location=location)["document"]
            served = _of_document(document, url(location))
            self._documents.put(key, served, len(served.document))
        return replace(served, columns={name: id for name, id, _ in _fields(json.loads(schema))})

    def _make_up(self, table: TableEntry, facts: FormatFacts, manifests: ManifestWriter | None) -> Served:
        _, schema, partition_keys, properties = self._details(table)
        snapshot_id = table.current_snapshot_id
        if snapshot_id is None:
            raise NotCaptured(f'"{table.full_name}" has no snapshot', hint="discover its catalog")
        if json.loads(properties).get(_OWN_IDS) == "true":
            raise Unimplemented(
                f'files of "{table.full_name}" have field ids of another table, which readers would use'
            )
        files = self._app.parts["planning"].planner.totals(table, snapshot_id)
        stored = snapshot_columns(self._app.database, [(table.table_key, snapshot_id)])
        of_snapshot = stored.get((table.table_key, snapshot_id), [])
        if files.has_deletes:
            raise Unimplemented(
                f'"{table.full_name}" has row-level deletes (deletion vectors, delete files) of format'
                f" {table.format}, which readers of Iceberg ignore"
            )
        written = json.loads(schema or "null")
        if made_up.is_of_spark(written):
            columns = made_up.Columns(written, made_up.delta_type)
        elif facts.reads_by_id:
            raise Unimplemented(
                f'columns of "{table.full_name}" have ids of format {table.format}, unknown to readers of Iceberg'
            )
        else:
            columns = made_up.Columns(made_up.struct_of(of_snapshot), made_up.iceberg_type)
        partition = columns.partition(partition_keys)
        partitions = files.partitions if partition else ()
        patterns = {tuple(value is None for value in values_of(text, partition)) for text in partitions}
        ((committed_at,),) = self._app.database.rows(
            "SELECT coalesce(s.committed_at, t.discovered_at) FROM tables t LEFT JOIN snapshots s"
            " ON s.table_key = t.table_key AND s.snapshot_id = ? WHERE t.table_key = ?",
            snapshot_id,
            table.table_key,
        )
        location = url(table.location or "")
        served = Served(f"{location}/metadata/made-up-{snapshot_id}.metadata.json", "", {0: partition}, True)
        document = made_up.document(
            columns,
            partition,
            sorted(patterns),
            table_id=table.table_id,
            location=location,
            snapshot_id=served.shown(snapshot_id),
            committed_at=committed_at or _EPOCH,
            totals=made_up.totals(files),
        )
        place = Place(snapshot_id, served.shown(snapshot_id), made_up.SEQUENCE_NUMBER, is_free_of_deletes=True)
        countable = Countable([], [place], self._fields_by_id(table, of_snapshot, columns))
        manifest_list = None
        if manifests is not None:
            document, manifest_list = manifests.add_to(document, table, snapshot_id, countable.fields)
        return replace(served, document=json.dumps(document), countable=countable, manifest_list=manifest_list)

    def _fields_by_id(
        self, table: TableEntry, of_snapshot: Sequence[Sequence[Any]], columns: made_up.Columns
    ) -> dict[int, int]:
        """Id of a column in the store → id of its field in metadata that is made up.

        Args:
            of_snapshot: The columns of the snapshot, see `capture_facts.snapshot_columns`.
        """
        ids = self._app.catalog.column_ids(table)
        fields = dict(distinct_counts.leaves({"fields": columns.fields}))
        found = {}
        for name, _, _, field_id, *path in of_snapshot:
            parts = tuple(path[0]) if path and path[0] else (name,)
            column_id = ids.get(column_key(parts)) if field_id is None else field_id
            if column_id is not None and parts in fields:
                found[column_id] = fields[parts]
        return found


@dataclass(frozen=True)
class Body:
    """The answer to a client that loads a table.

    Attributes:
        tag: Digest of the text, the opaque part of its entity tag.
    """

    text: bytes
    tag: str

    @classmethod
    def of(cls, metadata_location: str, metadata: str) -> Body:
        """The answer with a table's metadata as JSON."""
        location, config = json.dumps(metadata_location), json.dumps(CONFIG)
        text = f'{{"metadata-location": {location}, "config": {config}, "metadata": {metadata}}}'.encode()
        return cls(text, hashlib.blake2b(text, digest_size=16).hexdigest())

    @property
    def size(self) -> int:
        """Bytes that the answer takes in memory."""
        return len(self.text) + 200


def url(location: str) -> str:
    """A location as a URL: paths of this machine get a scheme, without which Java takes them for paths of its own."""
    return f"file://{location}" if location.startswith("/") else location


def values_of(text: str | None, partition: made_up.Partition) -> list[Any]:
    """The values of a partition in `partition_data_json`, None for those that it lacks."""
    values = json.loads(text) if text else {}
    return [values.get(name) for name, _ in partition]


def _of_document(document: Mapping[str, Any], location: str) -> Served:
    """An Iceberg table by its metadata, of any format version."""
    schemas: Sequence[Any] = document.get("schemas") or [document["schema"]]
    types = {id: type for schema in schemas for _, id, type in _fields(schema)}
    specs = document.get("partition-specs") or [{"spec-id": 0, "fields": document.get("partition-spec") or []}]
    return Served(
        location,
        json.dumps({name: value for name, value in document.items() if name != "statistics"}),
        {
            spec.get("spec-id", 0): [
                (part["name"], result_type(part["transform"], types.get(part["source-id"]))) for part in spec["fields"]
            ]
            for spec in specs
        },
        sources={
            spec.get("spec-id", 0): [
                part["source-id"] if part["transform"] == "identity" else None for part in spec["fields"]
            ]
            for spec in specs
        },
        is_mapped="schema.name-mapping.default" in (document.get("properties") or {}),
        countable=distinct_counts.of_metadata(document),
    )


def _fields(type: Any, prefix: str = "") -> Iterator[tuple[str, int, Any]]:
    """Dotted name, id and type of the fields within a schema or type, at any depth."""
    parts: list[tuple[str, int, Any]] = []
    match type:
        case {"fields": fields}:
            parts = [(column["name"], column["id"], column["type"]) for column in fields]
        case {"element-id": id, "element": element}:
            parts = [("element", id, element)]
        case {"key-id": _}:
            parts = [(part, type[f"{part}-id"], type[part]) for part in ("key", "value")]
    for name, id, inner in parts:
        yield f"{prefix}{name}", id, inner
        yield from _fields(inner, f"{prefix}{name}.")
