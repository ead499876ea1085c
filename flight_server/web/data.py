"""The data of each page as plain values, for the templates and the JSON twins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.present import column_labels
from flight_server.table_names import full_name
from flight_server.views import catalog_summary, history, shapes, table_summary
from flight_server.views.reader import Leaf, Reader, equal, optional, read_table
from flight_server.views.table_summary import Row
from store.model.names import join_name, split_name

TABLES_A_PAGE: Final = 100
COLUMNS_A_PAGE: Final = 50
FOUND_COLUMNS: Final = 50  # column matches listed for a search
BINS: Final = 30
MOST_COMMON: Final = 10
NEWEST: Final = 20  # snapshots and jobs listed
POINTS: Final = 200  # snapshots in a line chart
MOST_FILES: Final = 200_000  # most files whose sizes a page adds up
PARTITIONS: Final = 50
TABLE_ORDERS: Final = ("name", "rows", "size", "age", "files")
COLUMN_ORDERS: Final = ("id", "name", "type", "nulls", "distinct")
_TABLE_KEYS: Final = {"rows": "row_count", "size": "total_size_bytes", "age": "captured_at", "files": "data_file_count"}
_SHARE: Final = 0.5  # share of nulls above which a column counts as mostly missing


@dataclass(frozen=True)
class Asked:
    """The parameters of a list: search, order, page (from 1; 0 means all), and a catalog or schema to list."""

    search: str = ""
    order: str = ""
    descending: bool = False
    page: int = 1
    within: str = ""


def _page(count: int, size: int, number: int) -> tuple[int, int, slice]:
    pages = max(1, -(-count // size))
    page = min(max(number, 1), pages)
    return page, pages, slice((page - 1) * size, page * size)


# The first page.


def catalog(reader: Reader, asked: Asked, only: Collection[tuple[str, str, str]] | None = None) -> dict[str, Any]:
    """Catalogs, schemas, and a page of tables.

    Args:
        reader: Reads the server's flights.
        asked: Search, order and page; page 0 means all.
        only: Name parts of the tables to list; None means all.
    """
    tables = catalog_summary.tables(reader)
    if only is not None:
        keys = zip(*(tables[name].to_pylist() for name in catalog_summary.KEY), strict=True)
        tables = tables.filter(pa.array([key in only for key in keys], pa.bool_()))
    groups = _groups(tables)
    total = tables.num_rows
    tables = _within(tables, asked.within)
    columns: list[dict[str, Any]] = []
    if asked.search:
        names = pc.binary_join_element_wise(*(tables[name] for name in catalog_summary.KEY), ".")
        tables = tables.filter(pc.match_substring(names, asked.search, ignore_case=True))
        columns = _columns_like(reader, asked.search)
    if key := _TABLE_KEYS.get(asked.order):
        tables = tables.sort_by([(key, "descending" if asked.descending else "ascending")])
        is_known = pc.is_valid(tables[key])  # unknown values come last in both directions
        tables = pa.concat_tables([tables.filter(is_known), tables.filter(pc.invert(is_known))])
    elif asked.descending:
        tables = tables.sort_by([(name, "descending") for name in catalog_summary.KEY])
    page, pages, part = _page(tables.num_rows, TABLES_A_PAGE, asked.page)
    rows = (tables.slice(part.start, TABLES_A_PAGE) if asked.page else tables).to_pylist()
    return {
        "catalogs": groups, "tables": [{"name": full_name(row), **row} for row in rows], "matching": tables.num_rows,
        "total": total, "page": page, "pages": pages, "columns": columns,
    }  # fmt: skip


def _groups(tables: pa.Table) -> list[dict[str, Any]]:
    counted = tables.group_by(["table_catalog", "table_schema"]).aggregate([([], "count_all")])
    groups: dict[str, dict[str, Any]] = {}
    for row in sorted(counted.to_pylist(), key=lambda row: (row["table_catalog"], row["table_schema"])):
        one = groups.setdefault(row["table_catalog"], {"catalog": row["table_catalog"], "tables": 0, "schemas": []})
        one["tables"] += row["count_all"]
        one["schemas"].append({"schema": row["table_schema"], "tables": row["count_all"]})
    return list(groups.values())


def within(catalog: str, schema: str | None = None) -> str:
    """The text that limits a list to a catalog or schema."""
    parts = split_name(join_name(catalog, schema or "s", "t"))
    return join_name(*parts).removesuffix(".t" if schema is not None else ".s.t")


def _within(tables: pa.Table, text: str) -> pa.Table:
    if not text:
        return tables
    catalogs = {row: within(row) for row in pc.unique(tables["table_catalog"]).to_pylist()}
    for catalog, written in catalogs.items():
        if text == written:
            return tables.filter(pc.equal(tables["table_catalog"], catalog))
        if text.startswith(written + "."):
            mine = tables.filter(pc.equal(tables["table_catalog"], catalog))
            for schema in pc.unique(mine["table_schema"]).to_pylist():
                if within(catalog, schema) == text:
                    return mine.filter(pc.equal(mine["table_schema"], schema))
    return tables.slice(0, 0)


def _columns_like(reader: Reader, search: str) -> list[dict[str, Any]]:
    columns = reader.read("information_schema.columns", [*catalog_summary.KEY, "column_id", "column_name", "data_type"])
    matching = columns.filter(pc.match_substring(columns["column_name"], search, ignore_case=True))
    shown = matching.slice(0, FOUND_COLUMNS)
    alike = matching.filter(pc.is_in(matching["column_name"], pc.unique(shown["column_name"])))
    of_table: dict[str, list[Row]] = {}
    for row in alike.to_pylist():
        of_table.setdefault(full_name(row), []).append(row)
    names = {table: column_labels.references(rows) for table, rows in of_table.items()}
    return [
        {"table": full_name(row), "column": row["column_name"], "reference": names[full_name(row)][row["column_id"]],
         "type": row["data_type"]}
        for row in shown.to_pylist()
    ]  # fmt: skip


# The page of a table.


def table(reader: Reader, name: str, asked: Asked, snapshot: str | int = "current") -> dict[str, Any]:
    """A table: its statistics, a page of its columns with their shapes, its snapshots, files and jobs.

    Raises:
        pa.ArrowKeyError: The table, or its snapshot, does not exist.
    """
    summary = table_summary.gather(reader, name, snapshot, allow_stale=snapshot == "current")
    rows = _ordered(summary.rows, asked)
    page, pages, part = _page(len(rows), COLUMNS_A_PAGE, asked.page)
    shown = rows[part] if asked.page else rows
    names, known_as = column_labels.references(summary.rows), column_labels.labels(summary.rows)
    shapes_of = _with_shapes(reader, name, shown, snapshot) if shown else summary
    snapshots = history.snapshots(reader, name)
    counts = {row["snapshot_id"]: row for row in read_table(reader, "stats.tables", name).to_pylist()}
    if not summary.known and not snapshots:
        table_summary.require(reader, name, snapshot)
    about = next(iter(optional(reader, "sys.tables", name)), dict.fromkeys(catalog_summary.ABOUT))
    jobs = read_table(reader, "sys.capture_jobs", name).sort_by([("queued_at", "descending")]).slice(0, NEWEST)
    return {
        "table": name, "snapshot": snapshot, "statistics": summary.table, "about": about,
        "column_count": len(summary.rows), "matching": len(rows), "page": page, "pages": pages,
        "columns": [
            _column(row, shapes_of) | {"reference": names[row["column_id"]], "label": known_as[row["column_id"]]}
            for row in shown
        ],
        "uncaptured": _uncaptured(reader, name, summary.rows) if snapshot == "current" else [],
        "snapshots": _snapshots(snapshots, counts), "files": _files(reader, name, summary.table, snapshot),
        "checks": _checks(reader, name),
        "publications": optional(reader, "sys.publications", name), "jobs": jobs.to_pylist(),
    }  # fmt: skip


def _uncaptured(reader: Reader, name: str, captured: Sequence[Row]) -> list[dict[str, Any]]:
    """Columns of the current schema without statistics, at most one page of them."""
    known = {row["column_id"] for row in captured}
    columns = read_table(reader, "information_schema.columns", name, ["column_id", "column_name", "data_type"])
    missing = (row for row in columns.to_pylist() if row["column_id"] not in known)
    return [
        {"column": row["column_name"], "type": row["data_type"]} for row in islice(missing, COLUMNS_A_PAGE)
    ]  # fmt: skip


def _ordered(rows: list[Row], asked: Asked) -> list[Row]:
    matching = [row for row in rows if asked.search.casefold() in (row["column_name"] or "").casefold()]
    keys: dict[str, Any] = {
        "name": lambda row: (row["column_name"] or "").casefold(),
        "type": lambda row: row["logical_type"] or "",
        "nulls": lambda row: null_share(row) if null_share(row) is not None else -1.0,
        "distinct": lambda row: -1.0 if row["ndv"] is None else row["ndv"],
    }
    if key := keys.get(asked.order):
        return sorted(matching, key=key, reverse=asked.descending)
    return matching[::-1] if asked.descending else matching


def _with_shapes(reader: Reader, name: str, rows: Sequence[Row], snapshot: str | int) -> table_summary.TableSummary:
    ids: Leaf = equal("column_id", *(row["column_id"] for row in rows))
    return table_summary.gather(reader, name, snapshot, ids, allow_stale=snapshot == "current", shapes=True)


def null_share(row: Mapping[str, Any]) -> float | None:
    """The share of nulls from 0 to 1; None if unknown."""
    if row["null_count"] is None or row["row_count"] is None:
        return None
    return row["null_count"] / row["row_count"] if row["row_count"] else 0.0


def _column(row: Row, summary: table_summary.TableSummary) -> dict[str, Any]:
    column = row["column_id"]
    return {
        **row, "null_share": null_share(row), "notes": notes(row),
        "quantiles": summary.quantiles.get(column, {}),
        "histogram": bars_of(summary, row), "most_common": _most_common(summary.common_values.get(column, [])),
    }  # fmt: skip


def bars_of(summary: table_summary.TableSummary, row: Row, bins: int = BINS) -> list[dict[str, Any]]:
    """The bars of a column's histogram as JSON."""
    return [
        {"low": bar.low, "high": bar.high, "rows": bar.rows, "is_value": bar.is_value}
        for bar in summary.bars(row, bins)
    ]


def to_bars(bars: Iterable[Mapping[str, Any]]) -> list[shapes.Bar]:
    """Bars for a chart from their JSON."""
    return [shapes.Bar(**bar) for bar in bars]


def _most_common(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The most common values, without those whose count may be more than half error."""
    names = ("value", "count", "count_lower", "count_upper")
    telling = [row for row in rows if row["count_lower"] is None or 2 * row["count_lower"] >= row["count"]]
    return [{name: row[name] for name in names} for row in telling[:MOST_COMMON]]


def notes(row: Mapping[str, Any]) -> list[str]:
    """Remarks on an unusual column: constant, unique, mostly missing."""
    texts = []
    rows, nulls, ndv = row["row_count"], row["null_count"], row["ndv"]
    if rows and nulls is not None:
        if nulls == rows:
            return ["all null"]
        if nulls / rows >= _SHARE:
            texts.append("mostly null")
        if ndv is not None and row["ndv_exact"] and rows - nulls > 1:
            if ndv == 1:
                texts.append("constant")
            elif ndv == rows - nulls:
                texts.append("unique")
    return texts


def _snapshots(snapshots: Sequence[Row], counts: Mapping[int, Row]) -> list[dict[str, Any]]:
    newest = list(snapshots)[-NEWEST:][::-1]
    names = ("snapshot_id", "committed_at", "operation", "is_current", "captured")
    return [
        {name: row[name] for name in names} | {"row_count": counts.get(row["snapshot_id"], {}).get("row_count")}
        for row in newest
    ]


def _checks(reader: Reader, name: str) -> list[Row]:
    """The newest result of each rule of the server, misses first."""
    newest: dict[tuple[str, str | None], Row] = {}
    for row in sorted(optional(reader, "sys.checks", name), key=lambda row: row["checked_at"]):
        newest[row["rule"], row["column_name"]] = row
    return sorted(newest.values(), key=lambda row: row["state"] == "PASSED")


def _files(reader: Reader, name: str, table: Row | None, snapshot: str | int) -> dict[str, Any]:
    """Counts and sizes of a table's files and of its largest partitions; empty if there are more than MOST_FILES."""
    if table is None or (table["data_file_count"] or 0) > MOST_FILES:
        return {}
    columns = ["file_content", "size_bytes", "row_count", "partition_data_json"]
    files = read_table(reader, "stats.files", name, columns, snapshot=snapshot, allow_stale=snapshot == "current")
    if not files.num_rows:
        return {}
    contents = files.group_by("file_content").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
    sizes = pc.drop_null(files["size_bytes"])
    smallest, median, largest = (
        (pc.min(sizes).as_py(), pc.quantile(sizes, 0.5)[0].as_py(), pc.max(sizes).as_py())
        if len(sizes)
        else (None, None, None)
    )
    data = files.filter(pc.equal(files["file_content"], "DATA"))
    parts = data.group_by("partition_data_json").aggregate(
        [("size_bytes", "sum"), ("size_bytes", "count"), ("row_count", "sum")]
    )
    parts = parts.sort_by([("size_bytes_sum", "descending")])
    partitioned = parts.num_rows > 1 or parts["partition_data_json"].null_count == 0
    return {
        "contents": [
            {"content": row["file_content"], "files": row["size_bytes_count"], "size_bytes": row["size_bytes_sum"]}
            for row in contents.to_pylist()
        ],
        "smallest_bytes": smallest, "median_bytes": median, "largest_bytes": largest,
        "partition_count": parts.num_rows if partitioned else 0,
        "partitions": [
            {"partition": row["partition_data_json"], "files": row["size_bytes_count"],
             "size_bytes": row["size_bytes_sum"], "row_count": row["row_count_sum"]}
            for row in parts.slice(0, PARTITIONS).to_pylist()
        ] if partitioned else [],
    }  # fmt: skip


# The page of a column.


def column(reader: Reader, name: str, column_name: str, then: int | None = None) -> dict[str, Any]:
    """A column: its current statistics, its history, and its histogram at two snapshots.

    Args:
        reader: Reads the server's flights.
        name: Full name of the table.
        column_name: Its current name, or `#<column_id>`.
        then: The snapshot of the second histogram; None means the captured one before the current.

    Raises:
        pa.ArrowKeyError: The table or the column does not exist.
    """
    rows = history.column_rows(reader, name, column_name)
    if not rows:
        return {"table": name, "column": column_name, "reference": column_name, "statistics": None, "history": [],
                "then": None}  # fmt: skip
    ids = equal("column_id", rows[-1]["column_id"])
    summary = table_summary.gather(reader, name, "current", ids, allow_stale=True, shapes=True)
    now = summary.rows[0] if summary.rows else rows[-1]
    older = [row["snapshot_id"] for row in rows if row["snapshot_id"] != now["snapshot_id"]]
    at = then if then in older else older[-1] if older else None
    before = None
    if at is not None:
        earlier = table_summary.gather(reader, name, at, ids, shapes=True)
        if earlier.rows:
            before = {"snapshot_id": at, "histogram": bars_of(earlier, earlier.rows[0], 40)}
    names = ("snapshot_id", "committed_at", *history.STATISTICS)
    return {
        "table": name, "column": now["column_name"] or column_name, "reference": column_name,
        "statistics": _column(now, summary) | {"histogram": bars_of(summary, now, 40)},
        "history": [
            {key: row.get(key) for key in names} | {"null_share": null_share(row)} for row in rows[-POINTS:]
        ],
        "then": before,
    }  # fmt: skip
