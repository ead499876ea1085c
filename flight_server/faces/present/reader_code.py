"""Code to paste into an engine, which reads the files that a scan kept.

Files of plain Parquet whose columns are found by name are read as they are listed, with the values of their partition
beside them. Tables of other kinds are read by the engine's own reader of the format, at the snapshot of the plan; it
skips files by what the format itself knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlglot

from flight_server.client.scan import Scan


class Reader(StrEnum):
    """Engines that code is written for."""

    DUCKDB = "duckdb"
    POLARS = "polars"
    SPARK = "spark"


class NoReader(ValueError):
    """The engine cannot read the table by pasted code; the message says why and what can."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read.

    Attributes:
        where: Condition in SQL; None for all rows.
        columns: Names of the columns; None for all.
        location: Directory of the table, if it is known.
        metadata_location: Its metadata file, of formats that have one.
    """

    where: str | None = None
    columns: Sequence[str] | None = None
    location: str | None = None
    metadata_location: str | None = None


@dataclass(frozen=True)
class FileGroup:
    """Files with the same values of the partition's columns.

    Attributes:
        values: Name of a column → its logical type and its value.
    """

    paths: list[str]
    values: Mapping[str, tuple[str, Any]]


_BY_METADATA: Final = frozenset({"iceberg"})  # formats whose readers are given the metadata file, not the directory


@dataclass(frozen=True)
class Table:
    """A table for an engine's reader of its format.

    Attributes:
        place: Its directory, or its metadata file.
        deletes: The kinds of the delete files that apply to files of the plan.
    """

    place: str
    snapshot_id: int
    deletes: frozenset[str] = frozenset()


def code(scan: Scan, reader: Reader, wanted: Wanted) -> str:
    """The code, several lines.

    Raises:
        NoReader: The engine has no reader for the table's format.
    """
    counts, engine = scan.summary["files"], _ENGINES[reader]
    title = f"{engine.comment} {scan.table}: {counts['kept']} of {counts['all']} files"
    refused = scan.refusal()
    if refused is None:
        groups = _groups(scan)
        body = engine.of_files(groups, wanted) if groups else f"{engine.comment} no file can have such a row"
        return f"{title}\n{body}"
    read = engine.of_format.get(scan.format)
    place = wanted.metadata_location if scan.format in _BY_METADATA else wanted.location
    if place is None or read is None:
        raise NoReader(f"{refused}; {reader.value} has no reader for {scan.format} tables")
    deletes = frozenset(
        each["file_content"] for deletes in scan.files["delete_files"].to_pylist() for each in deletes or ()
    )
    try:
        body = read(Table(place, scan.snapshot_id, deletes), wanted)
    except NoReader as error:
        raise NoReader(f"{refused}; {error}") from None
    return f"{title} by statistics; this reader finds its own\n{body}"


def _groups(scan: Scan) -> list[FileGroup]:
    groups: dict[str, list[str]] = {}
    paths, partitions = (scan.files[name].to_pylist() for name in ("file_path", "partition_data_json"))
    for path, values in zip(paths, partitions, strict=True):
        groups.setdefault(values or "{}", []).append(path)
    types = {column["path"][0]: column["type"] for column in scan.columns if len(column["path"]) == 1}
    return [
        FileGroup(paths, {name: (types[name], value) for name, value in json.loads(text).items() if name in types})
        for text, paths in groups.items()
    ]


# SQL.


def _condition(where: str, dialect: str) -> str:
    return sqlglot.parse_one(where, read="duckdb").sql(dialect)


def _type(logical: str, dialect: str) -> str:
    """The SQL type of the values of a logical type, in which partitions' values are written as text."""
    base = re.split(r"[(<]", logical)[0]
    names = {"INT": "BIGINT", "STRING": "VARCHAR", "BINARY": "VARCHAR", "TIMESTAMPTZ": "TIMESTAMPTZ"}
    wanted = logical if base == "DECIMAL" else names.get(base, base)
    return sqlglot.exp.DataType.build(wanted, dialect="duckdb").sql(dialect)


def _cast(value: Any, logical: str, dialect: str) -> str:
    """The SQL of a partition's value, which JSON has as text, number, boolean or null."""
    text = "NULL" if value is None else _string(value if isinstance(value, str) else json.dumps(value), dialect)
    return f"CAST({text} AS {_type(logical, dialect)})"


def _string(value: str, dialect: str = "duckdb") -> str:
    return sqlglot.exp.Literal.string(value).sql(dialect)


def _name(name: str, dialect: str = "duckdb") -> str:
    return sqlglot.exp.to_identifier(name, quoted=True).sql(dialect)


def _duckdb_select(source: str, wanted: Wanted) -> str:
    names = "*" if wanted.columns is None else ", ".join(map(_name, wanted.columns))
    condition = "" if wanted.where is None else f"\nWHERE {_condition(wanted.where, 'duckdb')}"
    return f"SELECT {names}\nFROM {source}{condition};"


def _duckdb_files(groups: Sequence[FileGroup], wanted: Wanted) -> str:
    parts = []
    for group in groups:
        paths = ",\n    ".join(map(_string, group.paths))
        values = "".join(
            f", {_cast(value, type, 'duckdb')} AS {_name(name)}" for name, (type, value) in group.values.items()
        )
        files = f"read_parquet([\n    {paths}\n], union_by_name = true, hive_partitioning = false)"
        parts.append(f"SELECT *{values} FROM {files}")
    return _duckdb_select("(\n" + "\nUNION ALL BY NAME\n".join(parts) + "\n)", wanted)


def _duckdb_iceberg(table: Table, wanted: Wanted) -> str:
    return _duckdb_select(f"iceberg_scan({_string(table.place)}, snapshot_from_id = {table.snapshot_id})", wanted)


def _duckdb_delta(table: Table, wanted: Wanted) -> str:
    return _duckdb_select(f"delta_scan({_string(table.place)}, version = {table.snapshot_id})", wanted)


# Python. Texts are written by `repr`, which Python reads as they were.


def _polars_end(wanted: Wanted) -> str:
    if wanted.where is None and wanted.columns is None:
        return ""
    names = "*" if wanted.columns is None else ", ".join(map(_name, wanted.columns))
    condition = "" if wanted.where is None else f" WHERE {_condition(wanted.where, 'duckdb')}"
    return f".sql({f'SELECT {names} FROM self{condition}'!r})"


def _polars_files(groups: Sequence[FileGroup], wanted: Wanted) -> str:
    parts = []
    for group in groups:
        values = "".join(
            f"\n        {_polars_value(value, type)}.alias({name!r})," for name, (type, value) in group.values.items()
        )
        more = f".with_columns({values}\n    )" if values else ""
        parts += [f"\n    pl.scan_parquet({path!r}, hive_partitioning=False){more}," for path in group.paths]
    frames = f"pl.concat([{''.join(parts)}\n], how='diagonal_relaxed')"
    return f"import polars as pl\n\nrows = {frames}{_polars_end(wanted)}"


def _polars_value(value: Any, logical: str) -> str:
    """The expression of a partition's value."""
    base = re.split(r"[(<]", logical)[0]
    type = logical.replace("DECIMAL", "pl.Decimal") if base == "DECIMAL" else _POLARS_TYPES.get(base, "pl.String")
    if value is None:
        return f"pl.lit(None, {type})"
    if base in _POLARS_TEXTS:
        return f"pl.lit({value!r}){_POLARS_TEXTS[base]}"
    return f"pl.lit({value!r}).cast({type})"


_POLARS_TYPES: Final = {
    "INT": "pl.Int64",
    "FLOAT": "pl.Float32",
    "DOUBLE": "pl.Float64",
    "BOOLEAN": "pl.Boolean",
    "DATE": "pl.Date",
    "TIMESTAMP": "pl.Datetime('us')",
    "TIMESTAMPTZ": "pl.Datetime('us', 'UTC')",
}
_POLARS_TEXTS: Final = {
    "DATE": ".str.to_date()",
    "TIMESTAMP": ".str.to_datetime(time_unit='us')",
    "TIMESTAMPTZ": ".str.to_datetime(time_unit='us', time_zone='UTC')",
}
"""How polars reads values that a partition has as text."""


def _polars_iceberg(table: Table, wanted: Wanted) -> str:
    """Code by polars' own reader where nothing is deleted: it stops at files of deletes that name several data files,
    which pyiceberg, as its other reader, applies."""
    if "EQUALITY_DELETES" in table.deletes:
        raise NoReader("neither polars nor pyiceberg applies equality deletes")
    other = ", reader_override='pyiceberg'" if table.deletes else ""
    scan = f"pl.scan_iceberg({table.place!r}, snapshot_id={table.snapshot_id}{other})"
    return f"import polars as pl\n\nrows = {scan}{_polars_end(wanted)}"


def _polars_delta(table: Table, wanted: Wanted) -> str:
    scan = f"pl.scan_delta({table.place!r}, version={table.snapshot_id})"
    return f"import polars as pl\n\nrows = {scan}{_polars_end(wanted)}"


def _spark_end(wanted: Wanted) -> str:
    condition = "" if wanted.where is None else f".where({_condition(wanted.where, 'spark')!r})"
    if wanted.columns is None:
        return condition
    return f"{condition}.select({[_name(name, 'spark') for name in wanted.columns]!r})"


def _spark_files(groups: Sequence[FileGroup], wanted: Wanted) -> str:
    frames = []
    for group in groups:
        values = "".join(
            f".withColumn({name!r}, F.expr({_cast(value, type, 'spark')!r}))"
            for name, (type, value) in group.values.items()
        )
        paths = "".join(f"\n        {path!r}," for path in group.paths)
        reading = "spark.read.option('mergeSchema', 'true').option('recursiveFileLookup', 'true')"
        frames.append(f"\n    {reading}.parquet({paths}\n    ){values},")
    union = "reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)"
    head = "from functools import reduce\n\nfrom pyspark.sql import functions as F\n"
    return f"{head}\nframes = [{''.join(frames)}\n]\nrows = {union}{_spark_end(wanted)}"


def _spark_iceberg(table: Table, wanted: Wanted) -> str:
    reading = f"spark.read.format('iceberg').option('snapshot-id', {table.snapshot_id})"
    return f"rows = {reading}.load({table.place!r}){_spark_end(wanted)}"


def _spark_delta(table: Table, wanted: Wanted) -> str:
    reading = f"spark.read.format('delta').option('versionAsOf', {table.snapshot_id})"
    return f"rows = {reading}.load({table.place!r}){_spark_end(wanted)}"


@dataclass(frozen=True)
class _Engine:
    """How code for an engine is written.

    Attributes:
        of_files: Code that reads groups of Parquet files.
        of_format: Name of a format → code that reads a table of it, at its snapshot.
    """

    comment: str
    of_files: Callable[[Sequence[FileGroup], Wanted], str]
    of_format: Mapping[str, Callable[[Table, Wanted], str]]


_ENGINES: Final[Mapping[Reader, _Engine]] = {
    Reader.DUCKDB: _Engine("--", _duckdb_files, {"iceberg": _duckdb_iceberg, "delta": _duckdb_delta}),
    Reader.POLARS: _Engine("#", _polars_files, {"iceberg": _polars_iceberg, "delta": _polars_delta}),
    Reader.SPARK: _Engine("#", _spark_files, {"iceberg": _spark_iceberg, "delta": _spark_delta}),
}
