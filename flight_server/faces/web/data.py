"""The data of each page as plain values, for the templates and the JSON twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from flight_server.client.table_names import COLUMNS, full_name
from flight_server.core.views import catalog_summary, history, numbers, relationships, shapes, table_summary
from flight_server.core.views.reader import Leaf, Reader, equal, read_table, rows_of
from flight_server.core.views.table_lists import ORDERS, STATES, TableFilter, TableOrder, Tally
from flight_server.core.views.table_summary import Row
from flight_server.faces.present import column_labels
from flight_server.faces.web import overview
from store.model.figures import interval_of_ndv, is_unique, null_share
from store.model.freshness import STALE
from store.model.names import join_name, split_name

if TYPE_CHECKING:
    from flight_server.core.reads.local_reader import LocalReader

TABLES_A_PAGE: Final = 100
COLUMNS_A_PAGE: Final = 200
DRAWN: Final = 20  # columns of a page whose distributions are drawn in full
FOUND_COLUMNS: Final = 50  # column matches listed for a search
BINS: Final = 30
MOST_COMMON: Final = 10
NEWEST: Final = 20  # snapshots and jobs listed
SPARKED: Final = 30  # snapshots in the small line of a column's nulls
POINTS: Final = 200  # snapshots in a line chart
MOST_FILES: Final = 200_000  # most files whose sizes a page adds up
PARTITIONS: Final = 50
TABLE_ORDERS: Final = ORDERS
COLUMN_ORDERS: Final = ("id", "name", "type", "nulls", "distinct")
_SAID: Final = ("location", "partition_keys", "description", "tags", "notes")  # of `sys.tables`, besides ABOUT
FLOATS: Final = ("FLOAT", "DOUBLE")  # which are measured, so that distinct ones are no key
_SHARE: Final = 0.5  # share of nulls above which a column counts as mostly missing


@dataclass(frozen=True)
class Asked:
    """The parameters of a list: search, order, page (from 1; 0 means all), a catalog or schema to list, and facets of
    the first page: a state of `STATES`, a format, an owner."""

    search: str = ""
    order: str = ""
    descending: bool = False
    page: int = 1
    within: str = ""
    state: str = ""
    format: str = ""
    owner: str = ""


def _page(count: int, size: int, number: int) -> tuple[int, int, slice]:
    pages = max(1, -(-count // size))
    page = min(max(number, 1), pages)
    return page, pages, slice((page - 1) * size, page * size)


# The first page.


def catalog(reader: LocalReader, asked: Asked) -> dict[str, Any]:
    """Catalogs, schemas, and a page of tables."""
    listing = reader.tables(catalog_summary.ABOUT, catalog_summary.STATS)
    tallies = listing.tallies()
    found = overview.Found(
        results=overview.missed(reader),
        unreadable=overview.unreadable(listing, tallies),
        changed=listing.changed_since(overview.a_day_before()),
    )
    wanted = _filter(asked, tallies)
    if wanted is None:  # no such catalog or schema
        page, pages, rows, matching = 1, 1, [], 0
    else:
        matching = listing.count(wanted)
        page, pages, part = _page(matching, TABLES_A_PAGE, asked.page)
        rows = listing.rows(wanted, TableOrder(asked.order, asked.descending), part.start, TABLES_A_PAGE)
    among = [one for one in tallies if wanted is not None and _is_in(one, wanted)]
    columns = _columns_like(reader, asked.search) if asked.search else []
    place = {"matching": matching, "page": page, "pages": pages, "columns": columns}
    return _first_page(rows, tallies, among, found) | place


def chosen(reader: Reader, only: Collection[tuple[str, str, str]]) -> dict[str, Any]:
    """The same of some tables, by their names, all on one page."""
    rows = [row for row in catalog_summary.rows(reader) if tuple(map(row.get, COLUMNS)) in only]
    tallies = [_tally(row) for row in rows]
    found = overview.Found(
        results=[row for row in overview.missed(reader) if tuple(map(row.get, COLUMNS)) in only],
        unreadable=[row for row in rows if row["last_error"] is not None],
        changed=overview.changed(reader, only),
    )
    return _first_page(rows, tallies, tallies, found)


def _first_page(
    rows: Sequence[Row], tallies: Sequence[Tally], among: Iterable[Tally], found: overview.Found
) -> dict[str, Any]:
    """The values of the page, for a list with nothing but these rows.

    Args:
        tallies: Counts of all visible tables.
        among: Those of the catalog and schema that are listed.
    """
    return {
        "catalogs": _groups(tallies),
        "tables": [{"name": full_name(row), **row} for row in rows],
        "matching": len(rows),
        "total": sum(one.tables for one in tallies),
        "page": 1,
        "pages": 1,
        "columns": [],
        "facets": _facets(among),
        "figures": overview.figures(tallies, found),
    }


def _tally(row: Row) -> Tally:
    """A table as a count of one."""
    return Tally(
        row["table_catalog"],
        row["table_schema"],
        row["format"],
        row["owner"],
        row["last_error"] is not None,
        row["freshness"] == STALE,
        row["freshness"] is not None,
        1,
    )


def _filter(asked: Asked, tallies: Iterable[Tally]) -> TableFilter | None:
    """The tables that are asked for; None if there is no such catalog or schema."""
    wanted = TableFilter(
        search=asked.search,
        state=asked.state if asked.state in STATES else None,
        format=asked.format or None,
        owner=asked.owner or None,
    )
    if not asked.within:
        return wanted
    for one in tallies:
        if within(one.catalog) == asked.within:
            return replace(wanted, catalog=one.catalog)
        if within(one.catalog, one.schema) == asked.within:
            return replace(wanted, catalog=one.catalog, schema=one.schema)
    return None


def _is_in(one: Tally, wanted: TableFilter) -> bool:
    return wanted.catalog in (None, one.catalog) and wanted.schema in (None, one.schema)


def _facets(tallies: Iterable[Tally]) -> dict[str, dict[str, int]]:
    """Numbers of tables by state, format and owner, without zeros; formats and owners with most tables first."""
    states: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    for one in tallies:
        states["stale"] += one.tables * one.is_stale
        states["failing"] += one.tables * one.is_unreadable
        states["not captured"] += one.tables * (not one.is_captured)
        formats[one.format or ""] += one.tables
        owners[one.owner or ""] += one.tables
    return {
        "state": {state: count for state, count in states.items() if count},
        "format": {value: count for value, count in formats.most_common() if value},
        "owner": {value: count for value, count in owners.most_common() if value},
    }


def _groups(tallies: Iterable[Tally]) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str]] = Counter()
    for one in tallies:
        counts[one.catalog, one.schema] += one.tables
    groups: dict[str, dict[str, Any]] = {}
    for (catalog, schema), tables in sorted(counts.items()):
        group = groups.setdefault(catalog, {"catalog": catalog, "tables": 0, "schemas": []})
        group["tables"] += tables
        group["schemas"].append({"schema": schema, "tables": tables})
    return list(groups.values())


def within(catalog: str, schema: str | None = None) -> str:
    """The text that limits a list to a catalog or schema."""
    parts = split_name(join_name(catalog, schema or "s", "t"))
    return join_name(*parts).removesuffix(".t" if schema is not None else ".s.t")


def _columns_like(reader: Reader, search: str) -> list[dict[str, Any]]:
    columns = reader.read("information_schema.columns", [*COLUMNS, "column_id", "column_name", "data_type"])
    matching = columns.filter(pc.match_substring(columns["column_name"], search, ignore_case=True))
    shown = matching.slice(0, FOUND_COLUMNS)
    alike = matching.filter(pc.is_in(matching["column_name"], pc.unique(shown["column_name"])))
    of_table: dict[str, list[Row]] = {}
    for row in alike.to_pylist():
        of_table.setdefault(full_name(row), []).append(row)
    names = {table: column_labels.references(rows) for table, rows in of_table.items()}
    return [
        {
            "table": full_name(row),
            "column": row["column_name"],
            "reference": names[full_name(row)][row["column_id"]],
            "type": row["data_type"],
        }
        for row in shown.to_pylist()
    ]


# The page of a table.


def table(reader: Reader, name: str, asked: Asked, snapshot: str | int = "current") -> dict[str, Any]:
    """A table: its statistics, a page of its columns with their shapes, its snapshots, files and jobs.

    Raises:
        pa.ArrowKeyError: The table, or its snapshot, does not exist.
    """
    summary = table_summary.gather(reader, name, snapshot, allow_stale=snapshot == "current")
    rows = _ordered(summary.rows, asked)
    page, pages, part = _page(len(rows), COLUMNS_A_PAGE, asked.page)
    shown = rows[part] if asked.page else rows[:COLUMNS_A_PAGE]
    names, known_as = column_labels.references(summary.rows), column_labels.labels(summary.rows)
    related = relationships.among(reader, lambda other: other == name) if snapshot == "current" else []
    shapes_of = _with_shapes(reader, name, shown, snapshot) if shown else summary
    snapshots = history.snapshots(reader, name)
    counts = {row["snapshot_id"]: row for row in read_table(reader, "stats.tables", name).to_pylist()}
    nulls = _null_shares(reader, name, shown, snapshots)
    if not summary.known and not snapshots:
        table_summary.require(reader, name, snapshot)
    about = dict.fromkeys((*catalog_summary.ABOUT, *_SAID)) | next(iter(rows_of(reader, "sys.tables", name)), {})
    comments = {row["column_id"]: row["comment"] for row in rows_of(reader, "sys.columns", name)}
    jobs = read_table(reader, "sys.capture_jobs", name).sort_by([("queued_at", "descending")]).slice(0, NEWEST)
    return {
        "table": name,
        "snapshot": snapshot,
        "statistics": summary.table,
        "about": about,
        "updated_at": next((row["committed_at"] for row in snapshots if row["is_current"]), None),
        "column_count": len(summary.rows),
        "matching": len(rows),
        "page": page,
        "pages": pages,
        "columns": [
            column_values(row, shapes_of)
            | {
                "reference": names[row["column_id"]],
                "label": known_as[row["column_id"]],
                "comment": comments.get(row["column_id"]),
                "null_shares": nulls.get(row["column_id"], []),
            }
            for row in shown
        ],
        "keys": _keys(reader, name, summary.rows, snapshot, related),
        "relationships": related,
        "uncaptured": [
            {"column": row["column_name"], "type": row["data_type"]}
            for row in table_summary.uncaptured(reader, summary)[:COLUMNS_A_PAGE]
        ]
        if snapshot == "current"
        else [],
        "snapshots": _snapshots(snapshots, counts),
        "commits": _commits(snapshots, counts),
        "files": _files(reader, name, summary.table, snapshot),
        "checks": _checks(reader, name),
        "publications": rows_of(reader, "sys.publications", name),
        "jobs": jobs.to_pylist(),
    }


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


def _null_shares(
    reader: Reader, name: str, rows: Sequence[Row], snapshots: Sequence[Row]
) -> dict[int, list[float | None]]:
    """Column id → the shares of nulls at its newest captured snapshots, oldest first."""
    if not rows:
        return {}
    names = ["column_id", "snapshot_id", "row_count", "null_count"]
    ids = equal("column_id", *(row["column_id"] for row in rows))
    found: dict[int, list[float | None]] = {}
    for row in history.placed_in(snapshots, read_table(reader, "stats.columns", name, names, ids).to_pylist()):
        found.setdefault(row["column_id"], []).append(null_share(row))
    return {column: shares[-SPARKED:] for column, shares in found.items()}


def _commits(snapshots: Sequence[Row], counts: Mapping[int, Row]) -> list[dict[str, Any]]:
    """Rows and bytes of the newest captured snapshots, oldest first."""
    captured = [row for row in snapshots if row["snapshot_id"] in counts][-POINTS:]
    return [
        {name: row[name] for name in ("snapshot_id", "committed_at")}
        | {name: counts[row["snapshot_id"]][name] for name in ("row_count", "total_size_bytes")}
        for row in captured
    ]


def column_values(row: Row, summary: table_summary.TableSummary) -> dict[str, Any]:
    """The values that pages and their twins show of a column: its row, and its distribution in words and bars."""
    column = row["column_id"]
    return {
        **row,
        "null_share": null_share(row),
        "notes": notes(row),
        "quantiles": summary.quantiles.get(column, {}),
        "sampled": column in summary.sampled,
        "histogram": bars_of(summary, row),
        "infinite": shapes.infinite(summary.histograms.get(column, ())),
        "most_common": _most_common(summary.common_values.get(column, []), row["nan_count"]),
    }


def bars_of(summary: table_summary.TableSummary, row: Row, bins: int = BINS) -> list[dict[str, Any]]:
    """The bars of a column's histogram as JSON, with long tails cut."""
    return [bar._asdict() for bar in summary.bars(row, bins, cut_tails=True)]


def to_bars(bars: Iterable[Mapping[str, Any]]) -> list[shapes.Bar]:
    """Bars for a chart from their JSON."""
    return [shapes.Bar(**bar) for bar in bars]


def _most_common(rows: Sequence[Row], nans: int | None = None) -> list[dict[str, Any]]:
    """The most common values, without those whose count may be more than half error; NaN with its own count."""
    names = ("value", "count", "count_lower", "count_upper")
    if nans is not None:
        exact = dict.fromkeys(names[1:], nans)
        rows = [{**row, **exact} if row["value"] == "NaN" else row for row in rows]
    telling = [row for row in rows if row["count_lower"] is None or 2 * row["count_lower"] >= row["count"]]
    return [{name: row[name] for name in names} for row in telling[:MOST_COMMON]]


def _keys(
    reader: Reader, name: str, rows: Sequence[Row], snapshot: str | int, related: Sequence[Row]
) -> list[list[str]]:
    """Names of the columns, and of the captured groups of columns, that are keys: all of their values are distinct, or
    other tables refer to them."""
    groups = read_table(reader, "stats.column_groups", name, snapshot=snapshot).to_pylist()
    named = [([row["column_name"]], row) for row in rows] + [(row["column_names"], row) for row in groups]
    referred = [row["to_columns"] for row in related if row["to"] == name]
    return [
        names
        for names, row in named
        if names in referred or (is_unique(row) and not (row["logical_type"] or "").startswith(FLOATS))
    ]


def notes(row: Mapping[str, Any]) -> list[str]:
    """Remarks on an unusual column: constant, unique, mostly missing, with NaN."""
    texts = [f"{numbers.percent(row['nan_count'], row['row_count'])} % NaN"] if row["nan_count"] else []
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
        elif _may_be_unique(row, rows - nulls):
            texts.append("unique?")
    return texts


def _may_be_unique(row: Mapping[str, Any], values: int) -> bool:
    """True if the interval of an estimate reaches the number of values, and is of these."""
    interval = interval_of_ndv(row)
    return interval is not None and values > 1 and interval[0] <= values <= interval[1]


def _snapshots(snapshots: Sequence[Row], counts: Mapping[int, Row]) -> list[dict[str, Any]]:
    newest = list(snapshots)[-NEWEST:][::-1]
    names = ("snapshot_id", "committed_at", "operation", "is_current", "captured")
    return [
        {name: row[name] for name in names}
        | history.changed_by(row["summary"])
        | {"row_count": counts.get(row["snapshot_id"], {}).get("row_count")}
        for row in newest
    ]


def _checks(reader: Reader, name: str) -> list[Row]:
    """The newest result of each rule of the server, misses first."""
    return overview.newest(rows_of(reader, "sys.checks", name))


def _files(reader: Reader, name: str, table: Row | None, snapshot: str | int) -> dict[str, Any]:
    """Counts and sizes of a table's files and of its largest partitions; empty if there are more than MOST_FILES."""
    if table is None or (table["data_file_count"] or 0) > MOST_FILES:
        return {}
    columns = ["file_content", "size_bytes", "row_count", "partition_data_json"]
    files = read_table(reader, "stats.files", name, columns, snapshot=snapshot, allow_stale=snapshot == "current")
    if not files.num_rows:
        return {}
    contents = files.group_by("file_content").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
    ends, median = pc.min_max(files["size_bytes"]).as_py(), pc.quantile(files["size_bytes"], 0.5)[0].as_py()
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
        "smallest_bytes": ends["min"],
        "median_bytes": median,
        "largest_bytes": ends["max"],
        "partition_count": parts.num_rows if partitioned else 0,
        "partitions": [
            {
                "partition": row["partition_data_json"],
                "files": row["size_bytes_count"],
                "size_bytes": row["size_bytes_sum"],
                "row_count": row["row_count_sum"],
            }
            for row in parts.slice(0, PARTITIONS).to_pylist()
        ]
        if partitioned
        else [],
    }
