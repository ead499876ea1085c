"""Random tables as lakes of every format, with evolving schemas and deletes, and their rows at each version."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.spi import TableHandle
from tests.integration.random_tables import Type, table, types

_PLAIN = ("bool", "int32", "int64", "float32", "float64", "decimal5_2", "decimal18_4", "decimal38_10", "string",
          "binary", "date", "timestamp_us")  # fmt: skip


@dataclass
class Lake:
    """A lake with one table; `versions` are its live rows after each change, oldest first.

    Attributes:
        key: Name of the table's column by which it is partitioned.
        counts_deleted: The source's statistics count rows that are deleted, and so do sketches of its files.
        append: Appends random rows; gives all live ones afterwards. Called once.
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
        """The table at each of the versions, which are the newest of its snapshots."""
        connector = open_connector(ConnectorConfig("lake", self.format, self.uri, self.options))
        listing = connector.enumerate_snapshots(*self.name, full_rescan=True)
        newest = sorted(listing.snapshots, key=lambda s: s.ordinal)[-len(self.versions) :]
        ids: dict[str, int] = {}
        for snapshot in newest:
            for column in snapshot.schema.columns:
                ids.setdefault(column.key, column.field_id or len(ids) + 1)
        return [TableHandle("lake", *self.name, "id", s.snapshot_id, s.schema, ids, connector) for s in newest]


def parquet(rng: random.Random, root: Path, rows: int) -> Lake:
    """Files that differ: one lacks columns, one has narrower ones; row groups of a few rows."""
    of = types()
    place = root / "t"
    whole = table(rng, of, rows)
    partitioned = rng.random() < 0.5
    narrow = {"int64": pa.int16(), "float64": pa.float32(), "uint32": pa.uint8()}
    parts = []
    count = rng.randint(1, 5)
    for number in range(count):
        part = _rows(whole, rows * number // count, rows * (number + 1) // count)
        if number and rng.random() < 0.5:
            gone = rng.sample([name for name in of if name not in narrow], 3)
            part = part.drop_columns(gone)
        if number and rng.random() < 0.5:
            for name, type in narrow.items():
                at = part.schema.get_field_index(name)
                narrower = Type(type, of[name].value if pa.types.is_floating(type) else _small(type))
                part = part.set_column(at, name, narrower.column(rng, len(part)))
        file = place / (f"side=s{number % 2}" if partitioned else "") / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, file, row_group_size=rng.choice([1, 7, 1000]) if len(part) else None,
                       use_dictionary=rng.random() < 0.5, write_statistics=rng.random() < 0.9)  # fmt: skip
        if partitioned:
            part = part.append_column("side", pa.repeat(f"s{number % 2}", len(part)))
        parts.append(part)
    return Lake("parquet", str(root), ("default", "t"), [_united(parts)], key="side" if partitioned else None)


def delta(rng: random.Random, root: Path, rows: int) -> Lake:
    import deltalake

    of = {
        name: type for name, type in types(far=False).items() if name in (*_PLAIN, "int8", "int16", "timestamp_us_utc")
    }
    partitioned = rng.random() < 0.5
    whole = table(rng, of, rows).append_column("side", pa.array([rng.choice("ab") for _ in range(rows)]))
    place = str(root / "t")
    versions, held = [], None
    count = rng.randint(1, 4)
    for number in range(count):
        part = _rows(whole, rows * number // count, rows * (number + 1) // count)
        if number == count - 1 and number:
            part = part.append_column("later", Type(pa.int64(), lambda r: r.randint(-9, 9)).column(rng, len(part)))
        deltalake.write_deltalake(place, part, mode="append", schema_mode="merge",
                                  partition_by=["side"] if partitioned else None)  # fmt: skip
        held = part if held is None else _united([held, part])
        versions.append(held)
    key = "side" if partitioned else None
    if rng.random() < 0.6:
        limit = rng.randint(0, 5000)
        deltalake.DeltaTable(place).delete(f"id < {limit}")
        if (gone := pa.compute.sum(pa.compute.less(versions[-1]["id"], limit)).as_py()) and gone < rows:
            versions.append(versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit)))
        else:
            versions, key = [versions[-1].slice(0, 0) if gone else versions[-1]], None

    def append() -> pa.Table:
        more = table(rng, of, 30).append_column("side", pa.array([rng.choice("ab") for _ in range(30)]))
        deltalake.write_deltalake(place, more, mode="append", schema_mode="merge",
                                  partition_by=["side"] if partitioned else None)  # fmt: skip
        return _united([versions[-1], more])

    return Lake("delta", str(root), ("default", "t"), versions, key=key, append=append)


def iceberg(rng: random.Random, root: Path, rows: int) -> Lake:
    from pyiceberg.types import DoubleType, LongType

    from tests.capture.connectors.iceberg_tables import make_catalog

    of = {
        name: type
        for name, type in types(far=False).items()
        if name in (*_PLAIN, "timestamp_us_utc", "time_us", "fixed")
    }
    catalog = make_catalog(root)
    catalog.create_namespace("n")
    whole = table(rng, of, rows)
    whole = whole.rename_columns([name.replace("st.x", "do.t") for name in whole.column_names])  # it takes no doubles
    half = rows // 2
    held = catalog.create_table("n.t", whole.schema)
    held.append(first := _rows(whole, 0, half))
    versions = [first]
    evolves = rng.random() < 0.7
    second = _rows(whole, half, rows)
    if evolves:
        with held.update_schema() as update:
            update.add_column("later", LongType())
            update.update_column("int32", LongType())
            update.update_column("float32", DoubleType())
        second = second.append_column("later", Type(pa.int64(), lambda r: r.randint(-9, 9)).column(rng, len(second)))
        for name, type in (("int32", pa.int64()), ("float32", pa.float64())):
            wide = Type(type, of[name.replace("32", "64")].value).column(rng, len(second))
            second = second.set_column(second.schema.get_field_index(name), name, wide)
    held = catalog.load_table("n.t")
    held.append(second)
    versions.append(_united([first, second], second.schema))
    if rng.random() < 0.6:
        limit = rng.randint(0, 5000)
        gone = pa.compute.sum(pa.compute.less(versions[-1]["id"], limit)).as_py() or 0
        if 0 < gone < rows:
            held.delete(f"id < {limit}")
            versions.append(versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit)))
            newest = sorted(catalog.load_table("n.t").snapshots(), key=lambda s: s.sequence_number)
            if len(newest) != len(versions):  # a delete may take more than one snapshot
                versions = [versions[-1]]
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}

    def append() -> pa.Table:
        more = table(rng, of, 30)
        more = _united([more.rename_columns([name.replace("st.x", "do.t") for name in more.column_names])],
                       versions[-1].schema)  # fmt: skip
        catalog.load_table("n.t").append(more)
        return pa.concat_tables([versions[-1], more])

    return Lake("iceberg", f"sqlite:///{root / 'catalog.db'}", ("n", "t"), versions, options, append=append)


def lance(rng: random.Random, root: Path, rows: int, *, of_spark: bool = False) -> Lake:
    """`of_spark`: of types alone that Spark has, too."""
    import lance as library

    of = {name: type for name, type in types().items() if name in _PLAIN or not (of_spark or name == "decimal60_7")}
    whole = table(rng, of, rows, nested=False)
    half = max(rows // 2, 1)
    place = str(root / "t.lance")
    library.write_dataset(_rows(whole, 0, half), place, max_rows_per_file=max(rows // 5, 1))
    versions = [_rows(whole, 0, half)]
    if half < rows:
        library.write_dataset(_rows(whole, half, rows), place, mode="append", max_rows_per_file=max(rows // 5, 1))
        versions.append(whole)
    limit = rng.randint(0, 5000)
    live = versions[-1].filter(pa.compute.greater_equal(versions[-1]["id"], limit))
    if 0 < len(live) < rows:
        library.dataset(place).delete(f"id < {limit}")
        versions.append(live)
    mapped = [name for name in whole.column_names if rng.random() < 0.5]
    for name in mapped:  # each is a version of its own, with the same rows
        library.dataset(place).create_scalar_index(name, index_type="ZONEMAP")
        versions.append(versions[-1])

    def append() -> pa.Table:
        more = table(rng, of, 30, nested=False)
        library.write_dataset(more, place, mode="append")
        return pa.concat_tables([versions[-1], more])

    return Lake("lance", str(root), ("default", "t"), versions[-3:], append=append)


def paimon(rng: random.Random, root: Path, rows: int) -> Lake:
    import pypaimon

    of = {name: type for name, type in types(far=False).items() if name in (*_PLAIN, "int8", "int16")}
    keyed = rng.random() < 0.5
    whole = table(rng, of, rows).drop_columns("st.x")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=not keyed), *list(whole.schema)[1:]])
    whole = whole.cast(schema)
    catalog = pypaimon.CatalogFactory.create({"warehouse": str(root)})
    catalog.create_database("sales", True)
    keys: dict[str, Any] = {"primary_keys": ["id"]} if keyed else {}
    options = {"metadata.stats-mode": rng.choice(["full", "none"])} | ({"bucket": "1"} if keyed else {})
    catalog.create_table("sales.t", pypaimon.Schema.from_pyarrow_schema(schema, options=options, **keys), False)
    versions: list[pa.Table] = []

    def written(part: pa.Table) -> pa.Table:
        held = catalog.get_table("sales.t")
        builder = held.new_batch_write_builder()
        writer = builder.new_write()
        writer.write_arrow(part)
        builder.new_commit().commit(writer.prepare_commit())
        writer.close()
        every = pa.concat_tables([*versions[-1:], part])
        if keyed:  # the last row of a key is the row
            last = {key: at for at, key in enumerate(every["id"].to_pylist())}
            every = every.take(pa.array(sorted(last.values())))
        return every

    half = max(rows // 2, 1)
    for part in filter(len, (_rows(whole, 0, half), _rows(whole, half, rows))):
        versions.append(written(part))
    return Lake("paimon", str(root), ("sales", "t"), versions, counts_deleted=keyed,
                append=lambda: written(table(rng, of, 30).drop_columns("st.x").cast(schema)))  # fmt: skip


def iceberg_deletes(rng: random.Random, root: Path, rows: int) -> Lake:
    """Rows that position deletes, deletion vectors and equality deletes take away, one commit after another."""
    from tests.capture.connectors import iceberg_tables as built

    of = {name: type for name, type in types(far=False).items() if name in _PLAIN}
    whole = table(rng, of, rows)
    whole = whole.rename_columns([name.replace("st.x", "do.t") for name in whole.column_names])
    catalog = built.make_catalog(root)
    catalog.create_namespace("n")
    held = catalog.create_table("n.t", whole.schema)
    cut = sorted(rng.sample(range(rows + 1), 2))
    parts = {}
    for part in (_rows(whole, 0, cut[0]), _rows(whole, *cut), _rows(whole, cut[1], rows)):
        if len(part):
            before = {path for path, _ in built.data_paths(held)} if parts else set()
            held.append(part)
            (path,) = {path for path, _ in built.data_paths(held)} - before
            parts[path] = part
    live = {path: pa.array(range(len(part)), pa.int64()) for path, part in parts.items()}
    vectors: dict[str, set[int]] = {}
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["position", "vector", "equality"])
        gone = {path: set(rng.sample(range(len(part)), rng.randint(0, len(part) // 4))) for path, part in parts.items()}
        if kind == "equality":
            name = rng.choice(["id", "id", "int32", "string", "date", "decimal5_2"])
            keys = rng.sample(whole[name].unique().to_pylist(), 1)
            files = [built.equality_deletes(held, {name: keys})]
            gone = {
                path: {i for i, v in enumerate(part[name].to_pylist()) if v in keys} for path, part in parts.items()
            }
        elif kind == "position" and not vectors:
            rows_of = [(path, i) for path, some in gone.items() for i in sorted(some)]
            files = [built.position_deletes(held, rows_of)]
        else:  # a vector replaces what came before it
            for path, some in gone.items():
                vectors[path] = vectors.get(path, set()) | some | set(range(len(parts[path]))).difference(
                    live[path].to_pylist()
                )  # fmt: skip
                gone[path] = vectors[path]
            files = built.deletion_vectors(held, {path: sorted(some) for path, some in vectors.items() if some})
        if files:
            built.commit_deletes(held, *files, format_version=3)
            live = {
                path: pa.array([i for i in at.to_pylist() if i not in gone[path]], pa.int64())
                for path, at in live.items()
            }
    place = held.metadata.location.removeprefix("file://")
    left = pa.concat_tables([part.take(live[path]) for path, part in parts.items()])
    return Lake("iceberg", place, ("default", "t"), [left])


def delta_deletes(rng: random.Random, root: Path, rows: int) -> Lake:
    """Files that lose rows by deletion vectors, beside the log and within it, one commit after another."""
    import deltalake

    from tests.capture.connectors.iceberg_tables import vector_blob

    of = {name: type for name, type in types(far=False).items() if name in _PLAIN}
    place = root / "t"
    whole = table(rng, of, rows)
    cut = sorted(rng.sample(range(rows + 1), 2))
    for part in (_rows(whole, 0, cut[0]), _rows(whole, *cut), _rows(whole, cut[1], rows)):
        if len(part):
            deltalake.write_deltalake(place, part, mode="append")
    log = place / "_delta_log"
    actions = [json.loads(line) for commit in sorted(log.glob("*.json")) for line in commit.read_text().splitlines()]
    adds = {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    parts = {path: pq.read_table(place / path) for path in adds}
    known = next(action["protocol"] for action in actions if "protocol" in action)
    features = {
        name: sorted({*known.get(name, old), "deletionVectors"})
        for name, old in (("readerFeatures", ()), ("writerFeatures", ("appendOnly", "invariants")))
    }
    gone: dict[str, set[int]] = {path: set() for path in parts}
    versions = [pa.concat_tables(parts.values())]
    for number in range(rng.randint(1, 3)):
        commit: list[dict[str, Any]] = [{"commitInfo": {"operation": "DELETE", "timestamp": 1}}]
        if not number:
            commit.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})
        for path, part in parts.items():
            more = set(rng.sample(range(len(part)), rng.randint(0, len(part) // 3))) - gone[path]
            if not more:
                continue
            gone[path] |= more
            blob = vector_blob(sorted(gone[path]))
            vector = {"cardinality": len(gone[path]), "sizeInBytes": len(blob) - 8}
            if rng.random() < 0.5:
                file = place / f"vector-{number}-{len(commit)}.bin"
                file.write_bytes(b"\1" + blob)
                vector |= {"storageType": "p", "pathOrInlineDv": file.as_uri(), "offset": 1}
            else:
                vector |= {"storageType": "i", "pathOrInlineDv": _z85(blob[4:-4])}
            commit.append({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}})
            if old := adds[path].get("deletionVector"):
                commit[-1]["remove"]["deletionVector"] = old
            told = json.loads(adds[path]["stats"]) | {"tightBounds": False}
            adds[path] = {**adds[path], "deletionVector": vector, "stats": json.dumps(told)}
            commit.append({"add": adds[path]})
        name = f"{len(list(log.glob('*.json'))):020}.json"
        (log / name).write_text("\n".join(map(json.dumps, commit)))
        versions.append(pa.concat_tables(
            [part.take(pa.array(sorted(set(range(len(part))) - gone[path]), pa.int64()))
             for path, part in parts.items()]
        ))  # fmt: skip
    return Lake("delta", str(root), ("default", "t"), versions)


def _z85(data: bytes) -> str:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = (int.from_bytes(data[i : i + 4].ljust(4, b"\0"), "big") for i in range(0, len(data), 4))
    return "".join(letters[word // 85**power % 85] for word in words for power in range(4, -1, -1))


FORMATS: dict[str, Callable[[random.Random, Path, int], Lake]] = {
    "parquet": parquet, "delta": delta, "delta deletes": delta_deletes, "iceberg": iceberg,
    "iceberg deletes": iceberg_deletes, "lance": lance, "paimon": paimon,
}  # fmt: skip


def _rows(whole: pa.Table, start: int, stop: int) -> pa.Table:
    """A copy of some rows: some libraries abort at structs that are slices."""
    return whole.take(pa.array(range(start, stop), pa.int64()))


def _small(type: pa.DataType) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(0 if "uint" in str(type) else -99, 99)


def _united(parts: list[pa.Table], schema: pa.Schema | None = None) -> pa.Table:
    """The rows of parts, in the types of `schema` or the first part with a column; null where a part lacks it."""
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
