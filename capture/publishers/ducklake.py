"""Home `ducklake`: the files of a table with their statistics, registered as a table of a DuckLake catalog.

DuckLake's own way to register files reads every footer; here counts and bounds come from the store. A publication is
one snapshot of the catalog, in which the table is created anew; the registration before it is deleted instead of ended.
So DuckLake never deletes files of the source as ended ones of its own. The catalog is a DuckDB or SQLite file. DuckLake
has no place for distinct counts.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from capture.publishers.ducklake_types import Column, bound_text, columns_of, name_mapping
from capture.publishers.spi import Draft, HomeStatistics, Labels, LostRace, Publisher
from store.model.errors import Conflict, InvalidArgument, InvalidField, UpstreamError
from store.model.freshness import PRUNING
from store.model.names import quote
from store.model.statistics import SIDES

VERSIONS: Final = ("1.0",)
"""Versions of the catalog's format whose tables are known here."""

TAG: Final = "statflight"
"""Key of the tag of a registered table, an object in JSON: source, snapshot, digest, columns."""

LOCKED_SECONDS: Final = 5.0
_OF_TABLE: Final = {
    "ducklake_name_mapping": "mapping_id IN (SELECT mapping_id FROM ducklake_column_mapping WHERE table_id = ?)",
    "ducklake_tag": "object_id = ?",
    "ducklake_metadata": "scope = 'table' AND scope_id = ?",
} | dict.fromkeys(
    [
        f"ducklake_{name}"
        for name in (
            "column_mapping",
            "file_column_stats",
            "table_stats",
            "table_column_stats",
            "column",
            "data_file",
            "delete_file",
            "schema_versions",
            "inlined_data_tables",
            "table",
        )
    ],
    "table_id = ?",
)
"""Table of the catalog → condition on the rows about a registered table, in the order of deletion."""


class DuckLakePublisher(Publisher):
    """The files of a table, in a DuckLake catalog."""

    home: ClassVar[str] = "ducklake"
    formats: ClassVar[frozenset[str]] = frozenset({"delta", "iceberg", "parquet"})
    labels: ClassVar[Labels | None] = None
    options: ClassVar[frozenset[str]] = frozenset({"catalog", "schema", "table", "overwrite"})
    takes_files: ClassVar[bool] = True

    def prepare(self) -> Draft:
        self.check_current()
        statistics = self.statistics
        files = self._files()
        left_out = dict(statistics.left_out)
        config = self.destination.config
        described = self.destination.connector.describe(statistics.namespace, statistics.name)
        columns = columns_of(described, config.format, statistics, left_out)
        if not columns:
            raise InvalidArgument(f'ducklake can store none of the columns of "{statistics.full_name}"')
        by_id = config.format == "iceberg"
        content: dict[str, Any] = {
            "columns": columns,
            "files": files,
            "statistics": self._file_columns(columns, files),
            "mapping": None if by_id else name_mapping(columns, described, files["path"].to_pylist()),
        }
        told: dict[str, Any] = {
            "source": self._source,
            "snapshot": statistics.snapshot_id,
            "digest": _digest(content),
            "columns": [column.name for column in columns if column.id in self._published],
        }
        with self._catalog() as catalog:
            current = self._registered(catalog)
        return Draft(
            statistics.snapshot_id,
            self.location,
            dict.fromkeys(told["columns"], None),
            left_out,
            content | {"tag": told},
            is_current=bool(current) and current[-1][1] == told,
        )

    def write(self, draft: Draft) -> int | None:
        content = draft.content
        columns: Sequence[Column] = content["columns"]
        with self._catalog(writes=True) as catalog:
            self._forget(catalog)
            ((snapshot, version, table, number),) = catalog.execute(
                "SELECT snapshot_id + 1, schema_version + 1, next_catalog_id, next_file_id FROM ducklake_snapshot"
                " ORDER BY snapshot_id DESC LIMIT 1"
            ).fetchall()
            changes = [f"created_table:{quote(self.place[0])}.{quote(self.place[1])}"]
            schema = self._schema_id(catalog)
            if schema is None:
                schema, table = table, table + 1
                changes.insert(0, f"created_schema:{quote(self.place[0])}")
                _insert(
                    catalog,
                    "ducklake_schema",
                    [
                        {
                            "schema_id": schema,
                            "schema_uuid": str(uuid.uuid4()),
                            "begin_snapshot": snapshot,
                            "schema_name": self.place[0],
                            "path": f"{self.place[0]}/",
                            "path_is_relative": True,
                        }
                    ],
                )
            mapping, first = (number, number + 1) if content["mapping"] is not None else (None, number)
            of_table = {"begin_snapshot": snapshot, "table_id": table}
            count = pc.sum(content["files"]["record_count"]).as_py()
            rows: dict[str, list[dict[str, Any]] | pa.Table] = {
                "ducklake_snapshot": [
                    {
                        "snapshot_id": snapshot,
                        "snapshot_time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00"),
                        "schema_version": version,
                        "next_catalog_id": table + 1,
                        "next_file_id": first + len(content["files"]),
                    }
                ],
                "ducklake_snapshot_changes": [
                    {
                        "snapshot_id": snapshot,
                        "changes_made": ",".join(changes),
                        "author": TAG,
                        "commit_message": f"{self._source} at snapshot {draft.snapshot_id}",
                    }
                ],
                "ducklake_schema_versions": [of_table | {"schema_version": version}],
                "ducklake_table": [
                    of_table
                    | {
                        "table_uuid": str(uuid.uuid4()),
                        "schema_id": schema,
                        "table_name": self.place[1],
                        "path": f"{self.place[1]}/",
                        "path_is_relative": True,
                    }
                ],
                "ducklake_tag": [
                    {"object_id": table, "begin_snapshot": snapshot, "key": TAG, "value": json.dumps(content["tag"])}
                ],
                # what compacts all tables must not rewrite, and then delete, files of the source
                "ducklake_metadata": [{"key": "auto_compact", "value": "false", "scope": "table", "scope_id": table}],
                "ducklake_column": [
                    of_table
                    | {
                        "column_id": column.id,
                        "column_order": order,
                        "column_name": column.name,
                        "column_type": column.type,
                        "default_value": "NULL",
                        "nulls_allowed": column.nullable,
                        "default_value_type": "literal",
                        "default_value_dialect": "duckdb",
                    }
                    for order, column in enumerate(columns, 1)
                ],
                "ducklake_table_column_stats": [self._of_column(column) | {"table_id": table} for column in columns],
                "ducklake_table_stats": [
                    {
                        "table_id": table,
                        "record_count": count,
                        "next_row_id": count,
                        "file_size_bytes": pc.sum(content["files"]["file_size_bytes"]).as_py(),
                    }
                ],
                "ducklake_data_file": _numbered(content["files"], first, of_table | {"mapping_id": mapping}),
                "ducklake_file_column_stats": _numbered(content["statistics"], first, {"table_id": table}),
            }
            if mapping is not None:
                rows["ducklake_column_mapping"] = [{"mapping_id": mapping, "table_id": table, "type": "map_by_name"}]
                rows["ducklake_name_mapping"] = [row | {"mapping_id": mapping} for row in content["mapping"]]
            for name, added in rows.items():
                _insert(catalog, name, added)
        return None

    def read(self) -> HomeStatistics | None:
        with self._catalog() as catalog:
            found = self._registered(catalog)
        if not found:
            return None
        told = found[-1][1]
        return HomeStatistics(told["snapshot"], self.location, dict.fromkeys(told["columns"], None))

    def withdraw(self) -> bool:
        with self._catalog(writes=True) as catalog:
            found = bool(self._registered(catalog))
            self._forget(catalog)
        return found

    @property
    def place(self) -> tuple[str, str]:
        """Schema and table in the catalog."""
        options, statistics = self.destination.options, self.statistics
        schema = "main" if statistics.namespace == "default" else statistics.namespace
        return options.get("schema", schema), options.get("table", statistics.name)

    @property
    def location(self) -> str:
        """Catalog and table."""
        return f"{self._path}:{'.'.join(self.place)}"

    @property
    def _source(self) -> str:
        return f"{self.destination.config.catalog}.{self.statistics.full_name}"

    @cached_property
    def _published(self) -> dict[int, Any]:
        return {column.column_id: column for column in self.statistics.columns}

    def _of_column(self, column: Column) -> dict[str, Any]:
        """A row of `ducklake_table_column_stats`, by which DuckDB answers and leaves out conditions."""
        row = dict.fromkeys(("min_value", "max_value", "contains_null", "contains_nan")) | {"column_id": column.id}
        known = self._published.get(column.id)
        if known is None or known.usable_for != PRUNING:
            return row
        has_bounds = column.has_bounds and not (column.is_float and known.nan_count is None)
        low, high = (
            bound_text(pa.array([text], pa.string()), column)[0].as_py() if has_bounds else None
            for text in (getattr(known, side) for side in SIDES)
        )
        return row | {
            "min_value": low,
            "max_value": high,
            "contains_null": None if known.null_count is None else known.null_count > 0,
            "contains_nan": None if known.nan_count is None else known.nan_count > 0,
        }

    def _files(self) -> pa.Table:
        """Path, rows and bytes of the table's data files."""
        statistics = self.statistics
        files = statistics.files
        if files is None or not files.num_rows:
            raise InvalidArgument(
                f'ducklake: the files of "{statistics.full_name}" at snapshot {statistics.snapshot_id} are not stored',
                code="NOT_CAPTURED",
                hint="capture it first",
            )
        named = f'"{statistics.full_name}"'
        if pc.any(pc.is_in(files["file_content"], pa.array(["POSITION_DELETES", "EQUALITY_DELETES"]))).as_py() or any(
            files["delete_files"].to_pylist()
        ):
            raise InvalidArgument(
                f"ducklake: {named} has row-level deletes, which DuckLake would not apply to its files",
                code="HAS_DELETES",
                hint="rewrite its files without deletes first",
            )
        if others := set(files["file_format"].to_pylist()) - {"PARQUET"}:
            shown = ", ".join(sorted(str(other) for other in others))
            raise InvalidArgument(f"ducklake: {named} has files of format {shown}, and DuckLake reads Parquet only")
        if files["row_count"].null_count or files["size_bytes"].null_count:
            raise InvalidArgument(f"ducklake: rows or bytes of some files of {named} are not known")
        files = files.sort_by("file_path")
        paths = [re.sub(r"^s3[an]://", "s3://", path) for path in files["file_path"].to_pylist()]
        return pa.table(
            {
                "path": [unquote(path[7:]) if path.startswith("file:///") else path for path in paths],
                "source_path": files["file_path"],
                "record_count": files["row_count"],
                "file_size_bytes": files["size_bytes"],
            }
        )

    def _file_columns(self, columns: Sequence[Column], files: pa.Table) -> pa.Table:
        """Rows of `ducklake_file_column_stats` with `position`, that of the file in `files`."""
        rows, parts = self.statistics.file_columns, []
        for column in columns:
            if rows is None or column.id not in self._published:
                continue
            of_column = rows.filter(pc.equal(rows["column_id"], column.id))
            is_nan = pc.greater(of_column["nan_count"], 0)
            low, high = (bound_text(of_column[side], column) for side in SIDES)
            if column.is_float:  # a file that may have NaN is skipped by a bound unless it says so
                low, high = (pc.if_else(pc.is_valid(is_nan), side, None) for side in (low, high))
            parts.append(
                pa.table(
                    {
                        "position": pc.index_in(of_column["file_path"], files["source_path"].combine_chunks()),
                        "column_id": of_column["column_id"],
                        "value_count": pc.subtract(of_column["row_count"], of_column["null_count"]),
                        "null_count": of_column["null_count"],
                        "min_value": low,
                        "max_value": high,
                        "contains_nan": is_nan,
                    }
                )
            )
        merged = pa.concat_tables(parts) if parts else pa.table({"position": pa.array([], pa.int32())})
        return merged.filter(pc.is_valid(merged["position"]))

    # The catalog.

    @cached_property
    def _path(self) -> Path:
        given = self.destination.options.get("catalog", "").removeprefix("ducklake:").removeprefix("sqlite:")
        path = Path(given)
        if not given or not path.is_file():
            raise InvalidField(
                "options.catalog",
                "must be the path of a DuckLake catalog, a DuckDB or SQLite file; create it with "
                "ATTACH 'ducklake:PATH' (DATA_PATH '…')",
                expected="the path of a file",
                actual=given or None,
            )
        return path.absolute()

    @contextmanager
    def _catalog(self, writes: bool = False) -> Iterator[Any]:
        """A connection to the catalog, in a transaction that is committed at the end."""
        with self._path.open("rb") as file:
            is_sqlite = file.read(16).startswith(b"SQLite format 3")
        catalog: Any = None
        try:
            if is_sqlite:
                catalog = sqlite3.connect(self._path, timeout=LOCKED_SECONDS, isolation_level=None)
            else:
                catalog = duckdb.connect(str(self._path), read_only=not writes)
            catalog.execute("BEGIN IMMEDIATE" if is_sqlite and writes else "BEGIN").fetchall()
            found = catalog.execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchall()
            if not found or found[0][0] not in VERSIONS:
                raise InvalidArgument(
                    f"options.catalog: {self._path} has DuckLake's format {found[0][0] if found else 'unknown'}; "
                    f"expected {', '.join(VERSIONS)}",
                )
            yield catalog
            catalog.execute("COMMIT").fetchall()
        except (sqlite3.OperationalError, duckdb.IOException, duckdb.TransactionException) as error:
            if "lock" in str(error) or isinstance(error, duckdb.TransactionException):
                raise LostRace(f"ducklake: {self._path} is being changed by another process") from None
            raise self._failed(error) from None
        except (sqlite3.Error, duckdb.Error) as error:
            raise self._failed(error) from None
        finally:
            if catalog is not None:
                catalog.close()

    def _failed(self, error: Exception) -> Exception:
        if "readonly" in str(error) or "Permission denied" in str(error):
            return PermissionError()
        first = str(error).partition("\n")[0][:200]
        return UpstreamError(f"ducklake: {self._path} cannot be used as a DuckLake catalog ({first})")

    def _schema_id(self, catalog: Any) -> int | None:
        sql = "SELECT schema_id FROM ducklake_schema WHERE lower(schema_name) = lower(?) AND end_snapshot IS NULL"
        found = catalog.execute(sql, [self.place[0]]).fetchall()
        return int(found[0][0]) if found else None

    def _registered(self, catalog: Any) -> list[tuple[int, dict[str, Any]]]:
        """Id and tag of tables of this name, in any case, that publications created, those that DuckLake dropped since
        included.

        Raises:
            Conflict: A table of this name is somebody else's.
        """
        schema, name = self.place
        rows = catalog.execute(
            "SELECT t.table_id, t.end_snapshot IS NULL, g.value FROM ducklake_table t LEFT JOIN ducklake_tag g ON"
            f" g.object_id = t.table_id AND g.key = '{TAG}' JOIN ducklake_schema s ON s.schema_id = t.schema_id"
            " WHERE lower(s.schema_name) = lower(?) AND lower(t.table_name) = lower(?) ORDER BY t.table_id",
            [schema, name],
        ).fetchall()
        found = [(int(id), bool(is_live), json.loads(value)) for id, is_live, value in rows if value is not None]
        ours = [(id, is_live, told) for id, is_live, told in found if told["source"] == self._source]
        if others := [value for _, is_live, value in rows if is_live and value is None]:
            raise self._taken("was not registered by publish")
        if others := [told["source"] for _, is_live, told in found if is_live and told["source"] != self._source]:
            raise self._taken(f"has the files of {others[0]}")
        return [(id, told) for id, _, told in ours]

    def _taken(self, why: str) -> Conflict:
        return Conflict(
            f"ducklake: the table {'.'.join(self.place)} of {self._path} {why}",
            code="TAKEN",
            hint="choose another name with the options schema and table",
        )

    def _forget(self, catalog: Any) -> None:
        """Deletes all registrations of this table.

        Raises:
            Conflict: DuckLake changed the table's rows since.
        """
        for id, _ in self._registered(catalog):
            changed = catalog.execute(
                "SELECT changes_made FROM ducklake_snapshot_changes WHERE changes_made LIKE ?", [f"%:{id}%"]
            ).fetchall()
            if self.destination.options.get("overwrite") != "true":
                for (text,) in changed:
                    if re.search(rf"(insert|delete|compact|merge|rewrite|flush)\w*:{id}(,|$)", text):
                        raise Conflict(
                            f"ducklake: the rows of {'.'.join(self.place)} were changed by DuckLake ({text})",
                            code="CHANGED_THERE",
                            hint="save them, then repeat this with the option overwrite=true",
                        )
            for name, condition in _OF_TABLE.items():
                catalog.execute(f"DELETE FROM {name} WHERE {condition}", [id]).fetchall()


def _insert(catalog: Any, name: str, rows: Sequence[Mapping[str, Any]] | pa.Table) -> None:
    """Inserts rows into a table of the catalog; columns that they lack are null."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    columns = ", ".join(f'"{column}"' for column in table.column_names)
    if not table.num_rows:
        return
    if isinstance(catalog, sqlite3.Connection):
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        catalog.executemany(f"INSERT INTO {name} ({columns}) VALUES ({', '.join('?' * table.num_columns)})", values)
    else:
        catalog.register("added_rows", table)
        catalog.execute(f"INSERT INTO {name} ({columns}) FROM added_rows").fetchall()
        catalog.unregister("added_rows")


def _numbered(rows: pa.Table, first: int, same: Mapping[str, Any]) -> pa.Table:
    """Rows of files or of their columns, with the ids of the files, and with values that are the same in all rows."""
    if "position" in rows.column_names:
        ids = pc.add(pc.cast(rows["position"], pa.int64()), first)
        rows = rows.drop_columns(["position"])
    else:
        counts = rows["record_count"].to_pylist()
        ids = pa.array(range(first, first + len(rows)), pa.int64())
        starts = pa.array([0, *accumulate(counts)][:-1], pa.int64())
        rows = rows.drop_columns(["source_path"]).append_column("row_id_start", starts)
        same = {"path_is_relative": False, "file_format": "parquet"} | dict(same)
    for name, value in same.items():
        rows = rows.append_column(name, pa.array([value] * len(rows)))
    return rows.append_column("data_file_id", ids)


def _digest(content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(repr((content["columns"], content["mapping"])).encode())
    for name in ("files", "statistics"):
        digest.update(json.dumps(content[name].to_pydict()).encode())
    return digest.hexdigest()
