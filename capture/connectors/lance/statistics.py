"""Native statistics of a Lance dataset: zone maps per fragment, and results of Spark's ANALYZE in the config.

Zone maps are exact for fragments without deleted rows; with deletes their bounds are still valid but inexact. Results
of ANALYZE (`lance.stats.*` in the dataset's config) apply only to the version and schema they were computed at.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.file_columns import column_rows, live_counts
from capture.connectors.metadata.analyzed import COUNTS_OF_ENTRY, analyzed_row, count
from capture.connectors.spi import COLUMN_SCHEMA, FILE_COLUMN_SCHEMA, Column, ColumnIds, delete_file
from store.model.logical_types import FLOATING, Kind, LogicalType, parse, to_arrow

PREFIX = "lance.stats."
ENVELOPE_VERSION = "1"
COLUMN_VERSION = 2  # version of Spark's CatalogColumnStat

_ZONE_MAP = "ZoneMapIndexDetails"


def dataset_uri(location: str) -> str:
    """The URI by which Lance opens a dataset; in object stores it decodes what is percent-encoded."""
    return re.sub("[%?#]", lambda found: quote(found[0]), location) if "://" in location else location


# Zone maps.


def field_names(dataset: Any) -> dict[int, str]:
    """Field id → dotted path of its name in the dataset's version."""
    found: dict[int, str] = {}

    def note(fields: Sequence[Any], above: str) -> None:
        for field in fields:
            found[int(field.id())] = name = f"{above}{field.name()}"
            note(field.children(), f"{name}.")

    note(dataset.lance_schema.fields(), "")
    return found


class Fragment:
    """A fragment: absolute paths of its files, live rows, deletes, and a fingerprint.

    The fingerprint changes with the names of the columns too, since a column has no other identity in statistics.

    Args:
        names: The names of the dataset's fields, as `field_names` returns them.
    """

    def __init__(self, dataset: Any, fragment: Any, names: Mapping[int, str]):
        self.id = int(fragment.fragment_id)
        self.live = int(fragment.count_rows())
        self.deleted = int(fragment.num_deletions)
        files = fragment.data_files()
        home = str(dataset.uri).rstrip("/")
        home = unquote(home) if "://" in home else home  # see `dataset_uri`
        paths = dataset.base_paths() if hasattr(dataset, "base_paths") else {}  # of a shallow clone
        bases = {base.id: base.path.rstrip("/") for base in paths.values()}
        self.paths = [f"{bases.get(getattr(f, 'base_id', None), home)}/data/{f.path}" for f in files]
        self.sizes = [int(f.file_size_bytes or 0) for f in files]
        deletion = fragment.deletion_file()
        self.delete_files = [delete_file(f"{home}/{deletion}")] if deletion else []
        parts = [str(deletion or ""), str(self.live)]
        named = ([names.get(int(field)) for field in f.fields] for f in files)
        parts += [f"{path}\0{f.fields}\0{of}" for path, f, of in zip(self.paths, files, named, strict=True)]
        self.fingerprint = hashlib.sha256("\0\0".join(parts).encode()).hexdigest()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Its files as rows of FILE_SCHEMA. Each has columns of the same rows, which are counted once: further files
        have no row count."""
        for at, (path, size) in enumerate(zip(self.paths, self.sizes, strict=True)):
            yield {
                "file_path": path,
                "file_format": "LANCE",
                "file_content": "DATA",
                "row_count": None if at else self.live,
                "size_bytes": size,
                "delete_files": self.delete_files,
            }


_ZONE = ("fragment_id", "min", "max", "null_count", "nan_count", "zone_length")


def zone_map_rows(
    dataset: Any, fragments: Sequence[Fragment], leaves: Sequence[Column], ids: ColumnIds
) -> Iterator[pa.Table]:
    """Yields rows of FILE_COLUMN_SCHEMA, one table per column of the opened dataset with a zone map."""
    by_name = {column.name: column for column in leaves if column.id_in(ids) is not None}
    describe = getattr(dataset, "describe_indices", list)  # missing in older releases
    for index in describe():
        column = by_name.get(index.field_names[0]) if len(index.field_names) == 1 else None
        if column is None or not index.type_url.endswith(_ZONE_MAP) or not parse(column.logical_type).orderable:
            continue
        del by_name[column.name]  # ignore further zone maps of the column
        for segment in index.segments:
            covered = {fragment.id: fragment for fragment in fragments if fragment.id in segment.fragment_ids}
            if segment.base_id is None and (zones := _read_zones(dataset, segment.uuid)) is not None:
                yield _rows(zones, covered, column, ids)


def _read_zones(dataset: Any, uuid: str) -> pa.Table | None:
    """The zones of an index file, sorted by fragment; None if it cannot be read."""
    from lance.file import LanceFileReader

    uri = f"{str(dataset.uri).rstrip('/')}/_indices/{uuid}/zonemap.lance"
    try:
        table = LanceFileReader(uri, storage_options=dataset.latest_storage_options() or None).read_all().to_table()
    except (OSError, ValueError):
        return None
    if not set(_ZONE) <= set(table.column_names):
        return None
    return table.select(_ZONE).take(pc.sort_indices(table["fragment_id"]))


def _rows(zones: pa.Table, fragments: Mapping[int, Fragment], column: Column, ids: ColumnIds) -> pa.Table:
    """Merges zones by fragment."""
    zones = zones.filter(pc.is_in(zones["fragment_id"], pa.array(list(fragments), zones["fragment_id"].type)))
    if not zones.num_rows:  # of a table without rows, or of fragments that are gone
        return FILE_COLUMN_SCHEMA.empty_table()
    kind = parse(column.logical_type)
    fragment_ids = zones["fragment_id"].to_numpy()
    starts = np.flatnonzero(np.diff(fragment_ids, prepend=-1)).tolist()
    groups = list(zip(starts, [*starts[1:], len(fragment_ids)], strict=True))
    fragments_of = [fragments[int(fragment_ids[start])] for start, _ in groups]
    has_nan = kind.kind in FLOATING
    nulls, nans, lengths = (zones[name].to_numpy() for name in ("null_count", "nan_count", "zone_length"))
    filled = pa.array(nulls + nans < lengths)
    sides = {}
    for side, upper in (("min", False), ("max", True)):
        bound = outermost(zones[side].combine_chunks(), groups, filled, upper=upper)
        sides[side] = enclosing(bound, kind, upper=upper)
    intact = pa.array([not f.deleted for f in fragments_of], pa.bool_())
    live = pa.array([f.live for f in fragments_of], pa.int64())

    def counts(of_zones: npt.NDArray[Any]) -> pa.Array:
        totals = pa.array([int(of_zones[start:end].sum()) for start, end in groups], pa.int64())
        return live_counts(totals, live, None, intact)

    return column_rows(
        pa.array([f.paths[0] for f in fragments_of], pa.string()),
        [column],
        ids,
        live,
        null_count=counts(nulls),
        nan_count=counts(nans) if has_nan else None,
        lower=sides["min"][0],
        upper=sides["max"][0],
        lower_exact=pc.and_(sides["min"][1], intact),
        upper_exact=pc.and_(sides["max"][1], intact),
    )


# ANALYZE of lance-spark.


def analyzed(dataset: Any, leaves: Sequence[Column], ids: ColumnIds, remarks: list[str]) -> tuple[Any, pa.Table] | None:
    """The statistics of Spark's ANALYZE in a version's config, which later versions inherit.

    Args:
        remarks: Receives the reasons for which they, or those of a column, are refused.

    Returns:
        The dataset at the version at which they were computed, and rows of COLUMN_SCHEMA; None if there are none.
    """
    entries = entries_of(dataset.config())
    if not entries:
        return None
    refused, then = _refusal(entries, int(dataset.version)), None
    if not refused:
        version = count(entries["computedAtVersion"])
        try:
            then = dataset if version == dataset.version else dataset.checkout_version(version)
        except (ValueError, OSError):
            refused = f"{PREFIX}computedAtVersion names version {version}, which was cleaned up"
    if then is not None:
        refused = _contradiction(entries, then)
    if then is None or refused:
        remarks.append(f"the statistics in the config are refused: {refused}")
        return None
    rows = int(then.count_rows())
    found = []
    for column in leaves:
        prefix, column_id = f"column.{column.name}.", column.id_in(ids)
        entry = {name.removeprefix(prefix): value for name, value in entries.items() if name.startswith(prefix)}
        if column_id is None or not entry:
            continue
        form = count(entry.get("version"))
        if form is None or form > COLUMN_VERSION:
            given = (entry.get("version") or "missing")[:20]
            remarks.append(f"{PREFIX}{prefix}* is refused: {prefix}version is {given}, up to {COLUMN_VERSION} is known")
            continue
        remarks += [
            f"{PREFIX}{prefix}{name} is refused: {entry[name][:20]} is no integer of at least 0"
            for name in COUNTS_OF_ENTRY
            if name in entry and count(entry[name]) is None
        ]
        found.append(analyzed_row(entry, column, column_id, rows, in_utc=True))
    return (then, pa.Table.from_pylist(found, COLUMN_SCHEMA)) if found else None


def _refusal(entries: Mapping[str, str], newest: int) -> str:
    """The reason why statistics in a config are refused whatever their version has; empty if there is none."""
    for name in ("version", "computedAtVersion", "schemaHash"):
        if not entries.get(name):
            return f"{PREFIX}{name} is missing"
    if entries["version"] != ENVELOPE_VERSION:
        return f"{PREFIX}version is {entries['version'][:20]}, and only {ENVELOPE_VERSION} is known"
    if entries.get("complete", "true").lower() != "true":
        return f"{PREFIX}complete is {entries['complete'][:20]}"
    version = count(entries["computedAtVersion"])
    if version is None or version > newest:
        return f"{PREFIX}computedAtVersion is {entries['computedAtVersion'][:20]}, the newest version is {newest}"
    return ""


def _contradiction(entries: Mapping[str, str], then: Any) -> str:
    """The reason why statistics are not those of the version that they name; empty if they may be."""
    rows = int(then.count_rows())
    if entries.get("numRows", str(rows)) != str(rows):
        return f"{PREFIX}numRows is {entries['numRows'][:20]}, the version has {rows} rows"
    if entries["schemaHash"] != schema_hash(then.schema):
        return f"{PREFIX}schemaHash is not that of the version's schema"
    return ""


def entries_of(config: Mapping[str, str]) -> dict[str, str]:
    """The statistics in a config, without their prefix."""
    return {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}


def schema_hash(schema: pa.Schema) -> str | None:
    """lance-spark's schema hash: SHA-256 of names, Spark types and nullability; None if Spark lacks a type."""
    digest = hashlib.sha256()
    for field in schema:
        type = spark_type(field.type)
        if type is None:
            return None
        digest.update(field.name.encode() + b"\0" + type.encode() + b"\0" + bytes([field.nullable]) + b"\0")
    return digest.hexdigest()


_SPARK: Mapping[str, str] = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "halffloat": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
}


def spark_type(type: pa.DataType) -> str | None:
    """Spark's `catalogString` of an Arrow type; None if there is no equivalent type."""
    if pa.types.is_timestamp(type) and type.tz:
        return "timestamp"
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        inner = spark_type(type.value_type)
        return inner and f"array<{inner}>"
    if pa.types.is_struct(type):
        parts = [(f.name, spark_type(f.type)) for f in type]
        return None if any(t is None for _, t in parts) else f"struct<{','.join(f'{n}:{t}' for n, t in parts)}>"
    return _SPARK.get(str(type))


# Bounds.

# Kinds whose values are never truncated in a zone map.
_WHOLE = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.DATE,
        Kind.TIME,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)


def outermost(values: pa.Array, groups: Sequence[tuple[int, int]], filled: pa.Array, *, upper: bool) -> pa.Array:
    """The least or greatest bound of each group of zones.

    Args:
        values: One bound per zone, from the index.
        groups: Start and end index of each group's zones.
        filled: True for zones with a value that is neither null nor NaN; other zones have no bound.

    Returns:
        One value per group; null if the bound of a zone is unknown, for example a maximum that is NaN, since the zone
        map does not have the greatest number.
    """
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    bounds = []
    for start, end in groups:
        group = values.slice(start, end - start).filter(filled.slice(start, end - start))
        unsure = (
            not len(group)
            or group.null_count
            or (pa.types.is_floating(group.type) and pc.any(pc.is_nan(group)).as_py())
        )
        bounds.append(pa.scalar(None, values.type) if unsure else pc.min_max(group)["max" if upper else "min"])
    return pa.array(bounds, values.type) if bounds else values.slice(0, 0)


def enclosing(values: pa.Array, kind: LogicalType, *, upper: bool) -> tuple[pa.Array, pa.Array]:
    """Converts bounds to the Arrow type of a logical type, with a mask of exact ones.

    Nanoseconds are rounded outwards to microseconds. Values that do not fit the type become null, which means unknown.
    """
    type = to_arrow(kind)
    exact = pa.repeat(kind.kind in _WHOLE, len(values))
    if pa.types.is_uint64(values.type):
        values = pc.if_else(
            pc.less_equal(values, pa.scalar(2**63 - 1, pa.uint64())), values, pa.scalar(None, pa.uint64())
        )
    if getattr(values.type, "unit", "") == "ns":
        ticks = values.cast(pa.int64())
        is_known = ticks.is_valid().to_numpy(zero_copy_only=False)
        whole, rest = np.divmod(ticks.fill_null(0).to_numpy(), 1000)
        values = pa.array(whole + (rest > 0) if upper else whole, mask=~is_known)
        exact = pc.and_(exact, pa.array(rest == 0))
    try:
        return values.cast(type), exact
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), type), exact
