"""Tables of many small files, written by several writers in several formats, and what DuckDB reads from the files.

DuckDB takes a column for null where the footer says that all its values are. Polars 1.44 counts nulls of a chunk once
for each page, so that its files are read by pyarrow; DuckDB as a peer is asked about them nevertheless.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.capture.connectors.metadata.test_known_writers import (
    by_arrow,
    by_datafusion,
    by_delta_rs,
    by_duckdb,
    by_polars,
)
from tests.ledger.ledger import Source

PART: Final = "part"
ROWS: Final = 24
"""Rows of each file."""
_SECOND_US: Final = 1_000_000
Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Wide:
    """A table whose files are listed.

    Attributes:
        uri: Address for the connector.
        name: Schema and name below the catalog.
        paths: The data files, sorted.
        in_paths: The column `part` is in the paths of the files alone.
        miscounted: Footers count nulls wrong, which DuckDB believes, so that pyarrow reads the files.
        options: Of the connector.
    """

    source: Source
    uri: str
    name: str
    paths: list[str]
    in_paths: bool = False
    miscounted: bool = False
    options: dict[str, str] | None = None


def _whole(bits: int, spread: int, reach: int) -> Draw:
    most = (1 << (bits - 1)) - 1

    def draw(rng: np.random.Generator, centre: np.ndarray) -> np.ndarray:
        values = (centre * min(reach, most // 2)).astype(np.int64) + rng.integers(-spread, spread + 1, len(centre))
        return np.clip(values, -most - 1, most)

    return draw


def _decimal(precision: int, scale: int) -> Callable[[np.ndarray], pa.Array]:
    def of(values: np.ndarray) -> pa.Array:
        words = np.stack([values, values >> 63], axis=1).astype("<i8")
        return pa.Array.from_buffers(pa.decimal128(precision, scale), len(values), [None, pa.py_buffer(words)])

    return of


def _texts(form: str, encode: bool = False) -> Callable[[np.ndarray], pa.Array]:
    def of(values: np.ndarray) -> pa.Array:
        texts = [form.format(value) for value in values.tolist()]
        return pa.array([text.encode() for text in texts], pa.binary()) if encode else pa.array(texts, pa.string())

    return of


def _floats(type: pa.DataType) -> Callable[[np.ndarray], pa.Array]:
    def of(values: np.ndarray) -> pa.Array:
        numbers = values / 8
        numbers[values % 97 == 0] = -0.0
        return pa.array(np.where(values % 1013 == 0, np.nan, numbers)).cast(type)

    return of


def _cast(type: pa.DataType, through: pa.DataType | None = None) -> Callable[[np.ndarray], pa.Array]:
    return lambda values: pa.array(values).cast(through or type).cast(type)


_DAYS: Final = _whole(32, 3, 20_000)
_INSTANTS: Final = _whole(64, 90 * _SECOND_US, 10**15)
COLUMNS: Final[dict[str, tuple[Draw, Callable[[np.ndarray], pa.Array]]]] = {
    "i8": (_whole(8, 2, 60), _cast(pa.int8())),
    "i16": (_whole(16, 9, 9000), _cast(pa.int16())),
    "i32": (_whole(32, 50, 10**9), _cast(pa.int32())),
    "i64": (_whole(64, 900, 1 << 62), _cast(pa.int64())),
    "few": (_whole(32, 3, 0), _cast(pa.int32())),
    "far": (_whole(64, 10**12, 0), _cast(pa.int64())),
    "f32": (_whole(32, 60, 20_000), _floats(pa.float32())),
    "f64": (_whole(64, 600, 10**9), _floats(pa.float64())),
    "dec9": (_whole(64, 90, 9 * 10**8), _decimal(9, 2)),
    "dec18": (_whole(64, 900, 9 * 10**17), _decimal(18, 4)),
    "dec38": (_whole(64, 900, 9 * 10**17), _decimal(38, 10)),
    "day": (_DAYS, _cast(pa.date32(), pa.int32())),
    "moment": (_INSTANTS, _cast(pa.timestamp("us"))),
    "utc": (_INSTANTS, _cast(pa.timestamp("us", "UTC"), pa.int64())),
    "word": (_whole(64, 40, 10**6), _texts("w{:+09d}")),
    "long": (_whole(64, 40, 10**6), _texts("é" * 40 + "{:+09d}")),
    "bytes": (_whole(64, 40, 10**6), _texts("\x00b{:+09d}\U0001f600", encode=True)),
    "flag": (_whole(8, 0, 1), lambda values: pa.array(values > 0)),
}
"""Name of a column → whole numbers around the centre of their file, and their values."""


def rows(seed: int, files: int) -> pa.Table:
    """Random rows of files in order, each with a number `part` of its own; most columns have values near a centre of
    their file, and in each file no, some or all values of a column are null."""
    rng = np.random.default_rng(seed)
    part = np.repeat(np.arange(files), ROWS)
    columns: dict[str, Any] = {PART: pa.array(part)}
    for name, (draw, values) in COLUMNS.items():
        array = values(draw(rng, np.repeat(rng.uniform(-1, 1, files), ROWS)))
        share = np.repeat(rng.choice([0.0, 0.0, 0.3, 1.0], files, p=[0.5, 0.2, 0.2, 0.1]), ROWS)
        is_null = pa.array(rng.random(len(part)) < share)
        columns[name] = pc.if_else(is_null, pa.scalar(None, array.type), array)
    return pa.table(columns)


def _parquet(write: Callable[[pa.Table, Path, random.Random], None], writer: str) -> Callable[[int, Path, int], Wide]:
    def build(seed: int, root: Path, files: int) -> Wide:
        folder, whole, rng = root / "lake/t", rows(seed, files), random.Random(seed)
        folder.mkdir(parents=True)
        paths = []
        for number in range(files):
            path = folder / f"{number:06}.parquet"
            write(whole.slice(number * ROWS, ROWS), path, rng)
            paths.append(str(path))
        for entry in folder.iterdir():  # what the writer wrote before the file was moved
            if entry.is_dir():
                entry.rename(root / entry.name)
        source = Source("parquet", writer)
        return Wide(source, str(root / "lake"), "default.t", paths, miscounted=writer == "polars")

    return build


def delta(seed: int, root: Path, files: int) -> Wide:
    import deltalake

    folder = root / "lake/t"
    whole = rows(seed, files)
    deltalake.write_deltalake(str(folder), whole, partition_by=[PART])
    paths = sorted(uri.removeprefix("file://") for uri in deltalake.DeltaTable(str(folder)).file_uris())
    return Wide(Source("delta", "delta-rs"), str(root / "lake"), "default.t", paths, in_paths=True)


def iceberg(seed: int, root: Path, files: int) -> Wide:
    from pyiceberg.transforms import IdentityTransform

    from tests.capture.connectors.iceberg_tables import make_catalog

    root.mkdir(exist_ok=True)
    whole = rows(seed, files)
    catalog = make_catalog(root)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", whole.schema)
    with table.update_spec() as update:
        update.add_field(PART, IdentityTransform(), PART)
    table = catalog.load_table("n.t")
    table.append(whole)
    paths = sorted(path.removeprefix("file://") for path in table.inspect.files()["file_path"].to_pylist())
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}
    uri = f"sqlite:///{root / 'catalog.db'}"
    return Wide(Source("iceberg", "pyiceberg"), uri, "n.t", paths, options=options)


BUILDERS: Final[dict[str, tuple[Callable[[int, Path, int], Wide], float]]] = {
    "parquet by arrow": (_parquet(by_arrow, "parquet-cpp-arrow"), 1.0),
    "delta": (delta, 1.0),
    "iceberg": (iceberg, 0.6),
    "parquet by polars": (_parquet(by_polars, "polars"), 1.0),
    "parquet by duckdb": (_parquet(by_duckdb, "duckdb"), 0.5),
    "parquet by delta-rs": (_parquet(by_delta_rs, "delta-rs"), 0.4),
    "parquet by datafusion": (_parquet(by_datafusion, "datafusion"), 0.4),
}
"""How a table is built, and its share of the number of files: some writers are slow."""


class Read:
    """What DuckDB reads from the files of a table.

    Attributes:
        starts: First row of each file, in the order of the paths.
        columns: Name → each row's number in the order of the column's values, -1 for null.
        distinct: Name → the values in their order.
    """

    def __init__(self, wide: Wide):
        self.wide = wide
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        names = ", ".join(["filename", PART, *COLUMNS])
        if wide.miscounted:
            given = pa.concat_tables([_named(path) for path in wide.paths])
            self.connection.register("given", given)
            self.connection.execute(f"CREATE TABLE t AS SELECT {names} FROM given ORDER BY filename")
            self.connection.unregister("given")
        else:
            options = f"filename = true, hive_partitioning = {str(wide.in_paths).lower()}"
            sql = f"CREATE TABLE t AS SELECT {names} FROM read_parquet(?, {options}) ORDER BY filename"
            self.connection.execute(sql, [wide.paths])
        self.types: dict[str, str] = {
            name: type for name, type, *_ in self.connection.execute("DESCRIBE t").fetchall() if name != "filename"
        }
        counts = dict(self.connection.execute("SELECT filename, count(*) FROM t GROUP BY ALL").fetchall())
        self.rows = np.array([counts.get(path, 0) for path in wide.paths])
        assert list(wide.paths) == sorted(wide.paths) and (self.rows > 0).all()
        self.starts = np.concatenate([[0], np.cumsum(self.rows)[:-1]])
        self.distinct: dict[str, pa.ChunkedArray] = {}
        self.columns: dict[str, np.ndarray] = {}
        for name in self.types:
            self._rank(name)

    def _rank(self, name: str) -> None:
        sql = f"SELECT {name} FROM t WHERE {name} IS NOT NULL GROUP BY 1 ORDER BY 1"
        self.distinct[name] = self.connection.sql(sql).to_arrow_table()[name]
        ranked = f"SELECT rowid AS at_row, {name}, dense_rank() OVER (ORDER BY {name} NULLS LAST) AS place FROM t"
        ranks = self.connection.sql(
            f"SELECT if({name} IS NULL, -1, place - 1) AS place FROM ({ranked}) ORDER BY at_row"
        ).to_arrow_table()
        self.columns[name] = ranks["place"].to_numpy().astype(np.int32)

    def facts(self) -> Iterator[tuple[str, pa.Table]]:
        """Each column, and by file in the order of the paths: rows, nulls, NaNs, distinct values, least and greatest
        number."""
        for name, type in self.types.items():
            floating = type in ("FLOAT", "DOUBLE")
            number = f"FILTER (NOT isnan({name}))" if floating else ""
            nans = f"count(*) FILTER (isnan({name}))" if floating else "NULL::BIGINT"
            sql = (
                f"SELECT count(*) AS row_count, count(*) - count({name}) AS null_count, {nans} AS nan_count,"
                f" count(DISTINCT {name}) AS ndv, min({name}) {number} AS min, max({name}) {number} AS max"
                " FROM t GROUP BY filename ORDER BY filename"
            )
            yield name, self.connection.sql(sql).to_arrow_table()

    def any_in_file(self, rows: np.ndarray) -> np.ndarray:
        return np.logical_or.reduceat(rows, self.starts)

    def all_in_file(self, rows: np.ndarray) -> np.ndarray:
        return np.logical_and.reduceat(rows, self.starts)

    def close(self) -> None:
        self.connection.close()


def _named(path: str) -> pa.Table:
    table = pq.ParquetFile(path).read()
    return table.append_column("filename", pa.repeat(path, len(table)))
