"""A table's statistics as one HTML page: no script, nothing from outside, every value escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from flight_server.client import StatsClient
from flight_server.present import charts, table_facts
from flight_server.present.render import text_of
from flight_server.present.table_facts import Facts, Row
from flight_server.present.text import harmless

BINS = 40  # bars of a histogram
MOST_COMMON = 10
HISTORY = 20

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #4477aa; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; min-width: 3rem; } .dim { opacity: .65; }
section { border-top: 1px solid var(--line); margin-top: 1.2rem; } svg .bar { fill: var(--bar); }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
svg .axis { fill: none; stroke: var(--line); }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-end; }
"""


def page(client: StatsClient, name: str, snapshot: str | int) -> str:
    """The whole page about a table at a snapshot."""
    known = table_facts.gather(client, name, snapshot, allow_stale=snapshot == "current", shapes=True)
    snapshots = client.read_table("sys.snapshots", name).to_pylist()
    tables = {row["snapshot_id"]: row for row in client.read_table("stats.tables", name).to_pylist()}
    body = "".join([
        f"<h1>{_text(name)}</h1>",
        f'<p class="dim">statistics at snapshot {_text(snapshot)}, written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC</p>',
        _table_part(known),
        _columns_part(known),
        _history_part(snapshots, tables),
        "".join(_column_part(row, known) for row in known.rows),
    ])  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _text(value: Any) -> str:
    """A value as safe HTML text; it also fits between the quotes of an attribute."""
    return escape(harmless(value if isinstance(value, str) else text_of(value)))


def _grid(headers: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """A table; cells are values, escaped here. `numbers` are the columns set to the right."""

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{_text(value)}</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", headers)}</tr></thead><tbody>{body}</tbody></table></div>'


def _table_part(known: Facts) -> str:
    row = known.table
    if row is None:
        return "<p>Nothing captured about the table as a whole.</p>"
    size = f"{table_facts.size(row['total_size_bytes'])} ({table_facts.count(row['total_size_bytes'])} bytes)"
    lines = [
        ("rows", table_facts.count(row["row_count"])),
        ("data files", table_facts.count(row["data_file_count"])),
        ("size", size if row["total_size_bytes"] is not None else ""),
        ("freshness", table_facts.freshness(row)),
        ("usable for", row["usable_for"]),
        ("captured", row["captured_at"]),
        ("by", " ".join(filter(None, (row["engine_id"], row["producer"], row["completeness"])))),
    ]
    return "<h2>Table</h2>" + _grid(("fact", "value"), [line for line in lines if line[1] not in (None, "")])


_HEADERS = ("column", "type", "null %", "distinct", "min", "max", "avg bytes", "max bytes", "freshness", "usable for")


def _columns_part(known: Facts) -> str:
    rows = [
        (
            _label(row), row["logical_type"], table_facts.percent_null(row), table_facts.distinct(row),
            table_facts.bound(row["min"], row["min_is_exact"], "≥"),
            table_facts.bound(row["max"], row["max_is_exact"], "≤"),
            "" if row["avg_width_bytes"] is None else f"{row['avg_width_bytes']:.1f}",
            table_facts.count(row["max_width_bytes"]), table_facts.freshness(row), row["usable_for"],
        )
        for row in known.rows
    ]  # fmt: skip
    if not rows:
        return "<h2>Columns</h2><p>Nothing captured about its columns.</p>"
    return "<h2>Columns</h2>" + _grid(_HEADERS, rows, numbers=(2, 3, 6, 7))


def _history_part(snapshots: list[Row], tables: dict[int, Row]) -> str:
    if not snapshots:
        return ""
    rows = [
        (
            row["snapshot_id"], row["committed_at"], row["operation"], "current" if row["is_current"] else "",
            table_facts.count(tables.get(row["snapshot_id"], {}).get("row_count")),
        )
        for row in snapshots[-HISTORY:]
    ]  # fmt: skip
    older = len(snapshots) - len(rows)
    note = f'<p class="dim">and {older} older ones</p>' if older > 0 else ""
    return "<h2>Snapshots</h2>" + _grid(("snapshot", "committed", "operation", "", "rows"), rows, (4,)) + note


def _column_part(row: Row, known: Facts) -> str:
    """A column's histogram and most common values; nothing for a column that has neither."""
    column, kind = row["column_id"], row["logical_type"] or ""
    bars = known.bars(row, BINS)
    common = known.common_values.get(column, [])[:MOST_COMMON]
    if not bars and not common:
        return ""
    parts = []
    if bars:
        parts.append(f"<div>{charts.histogram(bars, kind, f'Histogram of {_label(row)}')}</div>")
    if common:
        lines = [(value["value"], table_facts.count(value["count"])) for value in common]
        parts.append(_grid(("most common", "rows"), lines, (1,)))
    label = f"{_text(_label(row))} <span class=dim>{_text(kind)}</span>"
    return f'<section><h2>{label}</h2><div class="beside">{"".join(parts)}</div></section>'


def _label(row: Row) -> str:
    return row["column_name"] or f"#{row['column_id']}"
