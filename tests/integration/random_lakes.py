"""Random tables as lakes of every format, with schema evolution and deletes, and their rows at each version."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.spi import TableHandle
from tests.integration.random_tables import Type, table, types

_PLAIN = (
    "bool",
    "int32",
    "int64",
    "float32",
    "float64",
    "decimal5_2",
    "decimal18_4",
    "decimal38_10",
    "string",
    "binary",
    "date",
    "timestamp_us",
)


@dataclass
class Lake:
    """A lake with one table; `versions` are its live rows after each change, oldest first.

    Attributes:
        key: Name of the table's column by which it is partitioned.
        counts_deleted: The source's statistics, and sketches of its files, count deleted rows.
        append: Appends random rows and returns all live ones. May be called once.
    """

    format: str
    uri: str
    name: tuple[str, str]
    versions: list[pa.Table] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    counts_deleted: bool = False
    append: Callable[[], pa.Table] | None = None

    def handles(self) -> list[TableHandle]:
        """The table at each version; the versions are its newest snapshots."""
        connector = open_connector(ConnectorConfig("lake", self.format, self.uri, self.options))
        listing = connector.enumerate_snapshots(*self.name, full_rescan=True)
        newest = sorted(listing.snapshots, key=lambda s: s.ordinal)[-len(self.versions) :]
        ids: dict[str, int] = {}
        for snapshot in newest:
            for column in snapshot.schema.columns:
                ids.setdefault(column.key, column.field_id or len(ids) + 1)
        return [TableHandle("lake", *self.name, "id", s.snapshot_id, s.schema, ids, connector) for s in newest]


def parquet(rng: random.Random, root: Path, rows: int) -> Lake:
    """Files of different schemas: some lack columns or have narrower ones; row groups of a few rows."""
    column_types = types()
    directory = root / "t"
    whole = table(rng, column_types, rows)
    partitioned = rng.random() < 0.5
    narrow = {"int64": pa.int16(), "float64": pa.float32(), "uint32": pa.uint8()}
    parts = []
    count = rng.randint(1, 5)
    for number in range(count):
        part = _rows(whole, rows * number // count, rows * (number + 1) // count)
        if number and rng.random() < 0.5:
            dropped = rng.sample([name for name in column_types if name not in narrow], 3)
            part = part.drop_columns(dropped)
        if number and rng.random() < 0.5:
            for name, type in narrow.items():
                at = part.schema.get_field_index(name)
                narrower = Type(type, column_types[name].value if pa.types.is_floating(type) else _small(type))
                part = part.set_column(at, name, narrower.column(rng, len(part)))
        file = directory / (f"side=s{number % 2}" if partitioned else "") / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            part,
            file,
            row_group_size=rng.choice([1, 7, 1000]) if len(part) else None,
            use_dictionary=rng.random() < 0.5,
            write_statistics=rng.random() < 0.9,
        )
        if partitioned:
            part = part.append_column("side", pa.repeat(f"s{number % 2}", len(part)))
        parts.append(part)
    return Lake("parquet", str(root), ("default", "t"), [_united(parts)], key="side" if partitioned else None)


def int96(rng: random.Random, root: Path, rows: int) -> Lake:
    """Parquet files of old writers, with timestamps as INT96; not among FORMATS."""
    column_types = {name: type for name, type in types(far=False).items() if name.startswith("timestamp_")}
    column_types = {name: type for name, type in column_types.items() if not name.endswith("_utc")}
    whole = table(rng, column_types, rows)
    (root / "t").mkdir(parents=True)
    for number in range(3):
        part = _rows(whole, rows * number // 3, rows * (number + 1) // 3)
        pq.write_table(part, root / "t" / f"{number}.parquet", use_deprecated_int96_timestamps=True)
    return Lake("parquet", str(root), ("default", "t"), [whole])


def delta(rng: random.Random, root: Path, rows: int) -> Lake:
    import deltalake

    column_types = {
        name: type for name, type in types(far=False).items() if name in (*_PLAIN, "int8", "int16", "timestamp_us_utc")
    }
    partitioned = rng.random() < 0.5
    whole = table(rng, column_types, rows).append_column("side", pa.array([rng.choice("ab") for _ in range(rows)]))
    path = str(root / "t")
    versions, so_far = [], None
    count = rng.randint(1, 4)
    for number in range(count):
        part = _rows(whole, rows * number // count, rows * (number + 1) // count)
        if number == count - 1 and number:
            part = part.append_column("later", Type(pa.int64(), lambda r: r.randint(-9, 9)).column(rng, len(part)))
        deltalake.write_deltalake(
            path, part, mode="append", schema_mode="merge", partition_by=["side"] if partitioned else None
        )
        so_far = part if so_far is None else _united([so_far, part])
        versions.append(so_far)
    key = "side" if partitioned else None
    if rng.random() < 0.6:
        limit = rng.randint(0, 5000)
        deltalake.DeltaTable(path).delete(f"id < {limit}")
        if (deleted := pa.compute.sum(pa.compute.less(versions[-1]["id"], limit)).as_py()) and deleted < rows:
            versions.append(versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit)))
        else:
            versions, key = [versions[-1].slice(0, 0) if deleted else versions[-1]], None

    def append() -> pa.Table:
        more = table(rng, column_types, 30).append_column("side", pa.array([rng.choice("ab") for _ in range(30)]))
        deltalake.write_deltalake(
            path, more, mode="append", schema_mode="merge", partition_by=["side"] if partitioned else None
        )
        return _united([versions[-1], more])

    return Lake("delta", str(root), ("default", "t"), versions, key=key, append=append)


def iceberg(rng: random.Random, root: Path, rows: int) -> Lake:
    from pyiceberg.types import DoubleType, LongType

    from tests.capture.connectors.iceberg_tables import make_catalog

    column_types = {
        name: type
        for name, type in types(far=False).items()
        if name in (*_PLAIN, "timestamp_us_utc", "time_us", "fixed")
    }
    catalog = make_catalog(root)
    catalog.create_namespace("n")
    whole = table(rng, column_types, rows)
    whole = whole.rename_columns([name.replace("st.x", "do.t") for name in whole.column_names])  # names must be unique
    half = rows // 2
    target = catalog.create_table("n.t", whole.schema)
    target.append(first := _rows(whole, 0, half))
    versions = [first]
    evolves = rng.random() < 0.7
    second = _rows(whole, half, rows)
    if evolves:
        with target.update_schema() as update:
            update.add_column("later", LongType())
            update.update_column("int32", LongType())
            update.update_column("float32", DoubleType())
        second = second.append_column("later", Type(pa.int64(), lambda r: r.randint(-9, 9)).column(rng, len(second)))
        for name, type in (("int32", pa.int64()), ("float32", pa.float64())):
            wide = Type(type, column_types[name.replace("32", "64")].value).column(rng, len(second))
            second = second.set_column(second.schema.get_field_index(name), name, wide)
    target = catalog.load_table("n.t")
    target.append(second)
    versions.append(_united([first, second], second.schema))
    if rng.random() < 0.6:
        limit = rng.randint(0, 5000)
        deleted = pa.compute.sum(pa.compute.less(versions[-1]["id"], limit)).as_py() or 0
        if 0 < deleted < rows:
            target.delete(f"id < {limit}")
            versions.append(versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit)))
            newest = sorted(catalog.load_table("n.t").snapshots(), key=lambda s: s.sequence_number)
            if len(newest) != len(versions):  # a delete may create more than one snapshot
                versions = [versions[-1]]
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}

    def append() -> pa.Table:
        more = table(rng, column_types, 30)
        more = _united(
            [more.rename_columns([name.replace("st.x", "do.t") for name in more.column_names])], versions[-1].schema
        )
        catalog.load_table("n.t").append(more)
        return pa.concat_tables([versions[-1], more])

    return Lake("iceberg", f"sqlite:///{root / 'catalog.db'}", ("n", "t"), versions, options, append=append)


def lance(rng: random.Random, root: Path, rows: int, *, spark_types_only: bool = False) -> Lake:
    """`spark_types_only` leaves out types that Spark does not have."""
    import lance as library

    column_types = {
        name: type
        for name, type in types().items()
        if name in _PLAIN or not (spark_types_only or name == "decimal60_7")
    }
    whole = table(rng, column_types, rows, nested=False)
    half = max(rows // 2, 1)
    path = str(root / "t.lance")
    library.write_dataset(_rows(whole, 0, half), path, max_rows_per_file=max(rows // 5, 1))
    versions = [_rows(whole, 0, half)]
    if half < rows:
        library.write_dataset(_rows(whole, half, rows), path, mode="append", max_rows_per_file=max(rows // 5, 1))
        versions.append(whole)
    limit = rng.randint(0, 5000)
    live = versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit))
    if 0 < len(live) < rows:
        library.dataset(path).delete(f"id < {limit}")
        versions.append(live)
    indexed = [name for name in whole.column_names if rng.random() < 0.5]
    for name in indexed:  # each creates a version with the same rows
        library.dataset(path).create_scalar_index(name, index_type="ZONEMAP")
        versions.append(versions[-1])

    def append() -> pa.Table:
        more = table(rng, column_types, 30, nested=False)
        library.write_dataset(more, path, mode="append")
        return pa.concat_tables([versions[-1], more])

    return Lake("lance", str(root), ("default", "t"), versions[-3:], append=append)


def lance_names(rng: random.Random, root: Path, rows: int) -> Lake:
    """Columns that are renamed, dropped, added and named again; the rows are those that Lance reads."""
    import lance as library

    path, types = str(root / "t.lance"), {name: Type(pa.int64(), lambda r: r.randint(-99, 99)) for name in "abc"}
    library.write_dataset(table(rng, types, rows, nested=False), path, max_rows_per_file=max(rows // 3, 1))
    library.dataset(path).create_scalar_index("id", index_type="ZONEMAP")
    for _ in range(rng.randint(2, 6)):
        dataset = library.dataset(path)
        names = [name for name in dataset.schema.names if name != "id"]
        free = sorted({*"abcd"} - {*names})
        change = rng.choice(["rename", "rename", "drop", "add", "append", "delete", "index"])
        if change == "rename" and free and names:
            dataset.alter_columns({"path": rng.choice(names), "name": rng.choice(free)})
        elif change == "drop" and len(names) > 1:
            dataset.drop_columns([rng.choice(names)])
        elif change == "add" and free:
            dataset.add_columns({rng.choice(free): f"id * {rng.randint(2, 9)}"})
        elif change == "append":
            more = table(rng, dict.fromkeys(names, types["a"]), 10, nested=False).select(dataset.schema.names)
            library.write_dataset(more, path, mode="append")
        elif change == "delete":
            dataset.delete(f"id < {rng.randint(0, 3000)} AND id > 5")
        elif change == "index" and names:
            dataset.create_scalar_index(rng.choice(names), index_type="ZONEMAP")
    listed = [version["version"] for version in library.dataset(path).versions()][-4:]
    versions = [library.dataset(path, version).to_table() for version in listed]
    return Lake("lance", str(root), ("default", "t"), versions)


def paimon(rng: random.Random, root: Path, rows: int) -> Lake:
    import pypaimon

    column_types = {name: type for name, type in types(far=False).items() if name in (*_PLAIN, "int8", "int16")}
    keyed = rng.random() < 0.5
    whole = table(rng, column_types, rows).drop_columns("st.x")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=not keyed), *list(whole.schema)[1:]])
    whole = whole.cast(schema)
    catalog = pypaimon.CatalogFactory.create({"warehouse": str(root)})
    catalog.create_database("sales", True)
    keys: dict[str, Any] = {"primary_keys": ["id"]} if keyed else {}
    options = {"metadata.stats-mode": rng.choice(["full", "none"])} | ({"bucket": "1"} if keyed else {})
    catalog.create_table("sales.t", pypaimon.Schema.from_pyarrow_schema(schema, options=options, **keys), False)
    versions: list[pa.Table] = []

    def write(part: pa.Table) -> pa.Table:
        target = catalog.get_table("sales.t")
        builder = target.new_batch_write_builder()
        writer = builder.new_write()
        writer.write_arrow(part)
        builder.new_commit().commit(writer.prepare_commit())
        writer.close()
        live = pa.concat_tables([*versions[-1:], part])
        if keyed:  # the last row of a key wins
            last = {key: at for at, key in enumerate(live["id"].to_pylist())}
            live = live.take(pa.array(sorted(last.values())))
        return live

    half = max(rows // 2, 1)
    for part in filter(len, (_rows(whole, 0, half), _rows(whole, half, rows))):
        versions.append(write(part))
    return Lake(
        "paimon",
        str(root),
        ("sales", "t"),
        versions,
        counts_deleted=keyed,
        append=lambda: write(table(rng, column_types, 30).drop_columns("st.x").cast(schema)),
    )


def iceberg_deletes(
    rng: random.Random, root: Path, rows: int, kinds: Sequence[str] = ("position", "vector", "equality")
) -> Lake:
    """Rows deleted by position deletes, deletion vectors and equality deletes, in successive commits."""
    from tests.capture.connectors import iceberg_tables as built

    column_types = {name: type for name, type in types(far=False).items() if name in _PLAIN}
    whole = table(rng, column_types, rows)
    whole = whole.rename_columns([name.replace("st.x", "do.t") for name in whole.column_names])
    catalog = built.make_catalog(root)
    catalog.create_namespace("n")
    target = catalog.create_table("n.t", whole.schema)
    cut = sorted(rng.sample(range(rows + 1), 2))
    parts = {}
    for part in (_rows(whole, 0, cut[0]), _rows(whole, *cut), _rows(whole, cut[1], rows)):
        if len(part):
            before = {path for path, _ in built.data_paths(target)} if parts else set()
            target.append(part)
            (path,) = {path for path, _ in built.data_paths(target)} - before
            parts[path] = part
    live = {path: pa.array(range(len(part)), pa.int64()) for path, part in parts.items()}
    vectors: dict[str, set[int]] = {}
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(kinds)
        deleted = {
            path: set(rng.sample(range(len(part)), rng.randint(0, len(part) // 4))) for path, part in parts.items()
        }
        if kind == "equality":
            name = rng.choice(["id", "id", "int32", "string", "date", "decimal5_2"])
            keys = rng.sample(whole[name].unique().to_pylist(), 1)
            files = [built.equality_deletes(target, {name: keys})]
            deleted = {
                path: {i for i, v in enumerate(part[name].to_pylist()) if v in keys} for path, part in parts.items()
            }
        elif kind == "position" and not vectors:
            rows_of = [(path, i) for path, some in deleted.items() for i in sorted(some)]
            files = [built.position_deletes(target, rows_of)]
        else:  # a vector replaces all earlier ones of its file
            for path, some in deleted.items():
                vectors[path] = (
                    vectors.get(path, set()) | some | set(range(len(parts[path]))).difference(live[path].to_pylist())
                )
                deleted[path] = vectors[path]
            files = built.deletion_vectors(target, {path: sorted(some) for path, some in vectors.items() if some})
        if files:
            built.commit_deletes(target, *files, format_version=3)
            live = {
                path: pa.array([i for i in at.to_pylist() if i not in deleted[path]], pa.int64())
                for path, at in live.items()
            }
    place = target.metadata.location.removeprefix("file://")
    remaining = pa.concat_tables([part.take(live[path]) for path, part in parts.items()])
    return Lake("iceberg", place, ("default", "t"), [remaining])


def iceberg_names(rng: random.Random, root: Path, rows: int) -> Lake:
    """Columns that are renamed, dropped, added and named again between snapshots and after the last one, in files with
    field ids and without. The rows are those that pyiceberg reads."""
    lake, target = named_table(root)
    by_name = rng.random() < 0.6
    for number in range(rng.randint(1, 4)):
        if number:
            rename_columns(rng, target)
        write_columns(rng, target, max(rows // 4, 1), root / f"without_ids_{number}.parquet", by_name=by_name)
    if rng.random() < 0.7:
        rename_columns(rng, target)
    lake.versions = list(read_versions(target).values())
    return lake


def named_table(root: Path) -> tuple[Lake, Any]:
    """A lake with an empty table whose columns can be renamed, and the table."""
    from tests.capture.connectors.iceberg_tables import make_catalog

    catalog = make_catalog(root)
    catalog.create_namespace("n")
    first = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("s", pa.struct({"x": pa.int64()}))])
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}
    lake = Lake("iceberg", f"sqlite:///{root / 'catalog.db'}", ("n", "t"), options=options)
    return lake, catalog.create_table("n.t", first)


def write_columns(rng: random.Random, target: Any, rows: int, path: Path, *, by_name: bool) -> None:
    """Appends random rows; with `by_name` maybe as a file without field ids, at a path."""
    schema = target.schema().as_arrow()
    part = pa.table(dict(zip(schema.names, [_values(rng, item, rows) for item in schema], strict=True)))
    if by_name and rng.random() < 0.6:
        pq.write_table(part, path)
        target.add_files([path.as_uri()])
    else:
        target.append(part)


def read_versions(target: Any) -> dict[int, pa.Table]:
    """Snapshot id → the rows that pyiceberg reads, oldest first: the current snapshot by the table's schema, others
    by their own."""
    ordered = sorted(target.snapshots(), key=lambda s: s.sequence_number)
    versions = {snapshot.snapshot_id: target.scan(snapshot_id=snapshot.snapshot_id) for snapshot in ordered}
    if current := target.current_snapshot():
        versions[current.snapshot_id] = target.scan()
    return {snapshot_id: scan.to_arrow() for snapshot_id, scan in versions.items()}


def rename_columns(rng: random.Random, target: Any) -> list[str]:
    """Renames, drops and adds columns of a table of pyiceberg but for `id`; returns the names of all. A name always has
    the same type, since pyiceberg cannot read a file whose column of the name has another."""
    from pyiceberg.types import LongType, StringType

    alike = {"a": "c", "c": "a", "b": "d", "d": "b"}
    for _ in range(rng.randint(1, 3)):
        names = target.schema().as_arrow().names
        free, used = sorted({*"abcd"} - {*names}), [name for name in names if name not in ("id", "s")]
        change = rng.choice(["rename", "drop", "add", "nested"])
        with target.update_schema() as update:
            if change == "rename" and (free_to := [name for name in used if alike[name] in free]):
                update.rename_column(name := rng.choice(free_to), alike[name])
            elif change == "drop" and used:
                update.delete_column(rng.choice(used))
            elif change == "add" and free:
                update.add_column(name := rng.choice(free), LongType() if name in "ac" else StringType())
            elif change == "nested":
                (field,) = target.schema().find_field("s").field_type.fields
                update.rename_column(f"s.{field.name}", "y" if field.name == "x" else "x")
    names: list[str] = target.schema().as_arrow().names
    return names


def _values(rng: random.Random, item: pa.Field, rows: int) -> pa.Array:
    if pa.types.is_struct(item.type):
        (name,) = (inner.name for inner in item.type)
        values = [rng.choice([None, {name: rng.randint(-99, 99)}]) for _ in range(rows)]
        return pa.array(values, pa.struct({name: pa.int64()}))  # without field ids
    texts = pa.types.is_string(item.type) or pa.types.is_large_string(item.type)
    start = rng.randint(-10_000, 10_000)  # so that most files differ
    numbers = [rng.choice([None, start + rng.randint(0, 99)]) for _ in range(rows)]
    return pa.array([str(n) if texts and n is not None else n for n in numbers], pa.string() if texts else pa.int64())


def delta_deletes(rng: random.Random, root: Path, rows: int) -> Lake:
    """Rows deleted by deletion vectors, in files of their own and inline, in successive commits."""
    import deltalake

    from tests.capture.connectors.iceberg_tables import vector_blob

    column_types = {name: type for name, type in types(far=False).items() if name in _PLAIN}
    directory = root / "t"
    whole = table(rng, column_types, rows)
    cut = sorted(rng.sample(range(rows + 1), 2))
    for part in (_rows(whole, 0, cut[0]), _rows(whole, *cut), _rows(whole, cut[1], rows)):
        if len(part):
            deltalake.write_deltalake(directory, part, mode="append")
    log = directory / "_delta_log"
    actions = [json.loads(line) for commit in sorted(log.glob("*.json")) for line in commit.read_text().splitlines()]
    adds = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    parts = {path: pq.read_table(directory / path) for path in adds}
    protocol = next(action["protocol"] for action in actions if "protocol" in action)
    features = {
        name: sorted({*protocol.get(name, old), "deletionVectors"})
        for name, old in (("readerFeatures", ()), ("writerFeatures", ("appendOnly", "invariants")))
    }
    deleted: dict[str, set[int]] = {path: set() for path in parts}
    versions = [pa.concat_tables(parts.values())]
    for number in range(rng.randint(1, 3)):
        commit: list[dict[str, Any]] = [{"commitInfo": {"operation": "DELETE", "timestamp": 1}}]
        if not number:
            commit.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})
        for path, part in parts.items():
            more = set(rng.sample(range(len(part)), rng.randint(0, len(part) // 3))) - deleted[path]
            if not more:
                continue
            deleted[path] |= more
            blob = vector_blob(sorted(deleted[path]))
            vector = {"cardinality": len(deleted[path]), "sizeInBytes": len(blob) - 8}
            if rng.random() < 0.5:
                file = directory / f"vector-{number}-{len(commit)}.bin"
                file.write_bytes(b"\1" + blob)
                vector |= {"storageType": "p", "pathOrInlineDv": file.as_uri(), "offset": 1}
            else:
                vector |= {"storageType": "i", "pathOrInlineDv": _z85(blob[4:-4])}
            commit.append({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}})
            if old := adds[path].get("deletionVector"):
                commit[-1]["remove"]["deletionVector"] = old
            stats = json.loads(adds[path]["stats"]) | {"tightBounds": False}
            adds[path] = {**adds[path], "deletionVector": vector, "stats": json.dumps(stats)}
            commit.append({"add": adds[path]})
        name = f"{len(list(log.glob('*.json'))):020}.json"
        (log / name).write_text("\n".join(map(json.dumps, commit)))
        versions.append(
            pa.concat_tables(
                [
                    part.take(pa.array(sorted(set(range(len(part))) - deleted[path]), pa.int64()))
                    for path, part in parts.items()
                ]
            )
        )
    return Lake("delta", str(root), ("default", "t"), versions)


def _z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = (int.from_bytes(data[i : i + 4].ljust(4, b"\0"), "big") for i in range(0, len(data), 4))
    return "".join(letters[word // 85**power % 85] for word in words for power in range(4, -1, -1))


FORMATS: dict[str, Callable[[random.Random, Path, int], Lake]] = {
    "parquet": parquet,
    "delta": delta,
    "delta deletes": delta_deletes,
    "iceberg": iceberg,
    "iceberg deletes": iceberg_deletes,
    "iceberg names": iceberg_names,
    "lance": lance,
    "lance names": lance_names,
    "paimon": paimon,
}


def _rows(whole: pa.Table, start: int, stop: int) -> pa.Table:
    """A copy of some rows: some libraries abort at structs that are slices."""
    return whole.take(pa.array(range(start, stop), pa.int64()))


def _small(type: pa.DataType) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(0 if "uint" in str(type) else -99, 99)


def _united(parts: list[pa.Table], schema: pa.Schema | None = None) -> pa.Table:
    """All rows, with the types of `schema` or of the first part with a column; null where a part lacks it."""
    if schema is None:
        fields: dict[str, pa.Field] = {}
        for part in parts:
            for item in part.schema:
                fields.setdefault(item.name, item)
        schema = pa.schema(list(fields.values()))
    columns = []
    for item in schema:
        chunks: list[pa.Array] = []
        for part in parts:
            if item.name in part.column_names:
                chunks += part[item.name].cast(item.type).chunks
            else:
                chunks.append(pa.nulls(len(part), item.type))
        columns.append(pa.chunked_array(chunks, item.type))
    return pa.table(columns, schema)
