"""Templates: their filters, and the rendering of a page. Every value is escaped by the environment."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from flight_server.core.views import numbers, relationships, shapes, table_summary
from flight_server.faces.present import charts
from flight_server.faces.present.render import plain, text_of
from flight_server.faces.present.text import harmless
from flight_server.faces.web import data, engines, sql_page
from store.model.figures import interval_of_ndv, null_share
from store.model.names import split_name
from store.model.statistics import SIDES, exactness

Row = Mapping[str, Any]
MEANING = {
    "EXACT": "of the current snapshot, or of the one that the page is about",
    "INHERITED": "of an earlier snapshot of the same columns, or of a table at which a look is overdue",
    "STALE": "of a snapshot with other columns, or of a table that cannot be read",
    "PRUNING": "readers may skip data by it",
    "PLANNING": "good for estimates; no reader may skip data by it",
}
"""Label of statistics → its meaning."""
_LEAST, _GREATEST = SIDES
_TWO_DAYS = 2 * 86_400  # seconds
LONGEST = 300  # characters of a value on a page
CELL = 14  # the same of a value in a list; the title has all of it


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The environment of all templates."""
    jinja = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.filters |= {
        "value": _value,
        "label": label,
        "count": numbers.count,
        "size": numbers.size,
        "number": partial(numbers.number, exact=True),
        "moment": table_summary.moment,
        "age": table_summary.age,
        "freshness": _freshness,
        "distinct": table_summary.distinct,
        "interval": _interval,
        "rounded": numbers.known,
        "nulls": _nulls,
        "nans": _nans,
        "null_bar": _null_bar,
        "least": _lower,
        "greatest": _upper,
        "quantile": _quantile,
        "spark": _spark,
        "histogram": _histogram,
        "line": _line,
        "load_line": _load_line,
        "commit_line": _commit_line,
        "null_line": _null_line,
        "cell": _cell,
        "lines": _lines,
        "recipes": engines.recipes,
        "breakable": _breakable,
        "partition": _partition,
        "attribute": _attribute,
        "mean": _mean,
        "contained": relationships.contained,
        "shown": _shown,
        "share_bar": _share_bar,
    }
    version = hashlib.sha256(style().encode()).hexdigest()[:12]  # makes browsers load it again after an upgrade
    jinja.globals |= {
        "within": data.within,
        "longest_value": LONGEST,
        "style_version": version,
        "split_name": split_name,
        "meaning": MEANING,
    }
    return jinja


def page(template: str, **values: Any) -> str:
    """A page as HTML.

    Args:
        values: `url` (see `urls`), `asked`, and the data of the page.
    """
    defaults = {
        "inline_style": "",
        "json_url": "",
        "logout": False,
        "caller": "",
        "made_at": "",
        "asked": data.Asked(),
        "trouble": "",
        "longest": sql_page.STATEMENT,
        "examples": sql_page.EXAMPLES,
        "flights": sql_page.FLIGHT_NAMES,
        "answered_a_page": sql_page.ANSWERED_A_PAGE,
        "drawn": data.DRAWN,
        "page": 1,
    }
    return environment().get_template(template).render(**(defaults | values))


def to_json(values: Mapping[str, Any]) -> str:
    """The data of a page as JSON."""
    return json.dumps(plain(values), ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=1)
def style() -> str:
    """The style sheet of all pages."""
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def keys() -> str:
    """The script of the page for SQL."""
    return resources.files(__package__).joinpath("keys.js").read_text(encoding="utf-8")


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#2f6ea5" d="M1 9h3v6H1zM6 4h3v11H6z'
    'M11 1h3v14h-3z"/></svg>'
)


# Filters: each returns text, which the template escapes, or the markup of a chart, with its texts escaped.


def _value(value: Any) -> str:
    text = harmless(value if isinstance(value, str) else text_of(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _lines(text: str) -> str:
    return "\n".join(map(harmless, text.splitlines()))


def label(row: Row) -> str:
    """The name of a column, followed by its id if the name is ambiguous or missing."""
    return _value(row.get("label") or row["column_name"] or f"#{row['column_id']}")


def _freshness(row: Row) -> str:
    if not row["freshness"]:
        return "not captured"
    return table_summary.freshness(dict(row), sampled=row.get("sampled", False))


def _nulls(row: Row) -> str:
    words = table_summary.percent_null(dict(row))
    return f"{words} %" if words else ""


def _interval(row: Row) -> str:
    """The 95 % interval of the distinct values; empty where there is none."""
    interval = interval_of_ndv(row)
    return "" if interval is None else " – ".join(map(numbers.count, interval))


def _nans(row: Row) -> str:
    """The number of NaN and their share of the rows."""
    if row["nan_count"] is None:
        return ""
    share = numbers.percent(row["nan_count"], row["row_count"])
    return numbers.count(row["nan_count"]) + (f" ({share} %)" if row["nan_count"] and share else "")


def _null_bar(row: Row) -> Markup:
    share = null_share(row)
    return Markup(charts.share(share, f"{_nulls(row)} null"))  # noqa: S704  charts escape their words


def _share_bar(count: int | None, rows: int) -> Markup:
    """A bar for the share of the rows, with its per cent."""
    if count is None:
        return Markup("")
    words = f"{numbers.percent(min(count, rows), rows)} %"
    return Markup(charts.share(min(count / rows, 1.0), words)) + f" {words}"  # noqa: S704  as above


def _lower(row: Row, short: bool = False, longest: int = CELL) -> str:
    return _edge(row, row[_LEAST], row[exactness(_LEAST)], "≥", short, longest)


def _upper(row: Row, short: bool = False, longest: int = CELL) -> str:
    return _edge(row, row[_GREATEST], row[exactness(_GREATEST)], "≤", short, longest)


def _quantile(row: Row, rank: float) -> str:
    return _edge(row, row["quantiles"].get(rank), None, "", True)


def _edge(row: Row, value: str | None, exact: bool | None, sign: str, short: bool, longest: int = CELL) -> str:
    """A value with its sign; `short` cuts it to a few digits or `longest` characters, with all of it as title."""
    whole = harmless(table_summary.bound(value, exact, sign))
    if not short or value is None:
        return whole
    longest = max(longest, 2 * CELL) if (row["logical_type"] or "").startswith("TIME") else longest
    return _titled(harmless(table_summary.bound(_brief(row, value), exact, sign, longest)), whole, value)


def _titled(brief: str, whole: str, value: str) -> Markup:
    if brief == whole:
        return escape(brief)
    return Markup('<span title="{}">{}</span>').format(harmless(value[:LONGEST]), brief)


def _brief(row: Row, value: str) -> str:
    """A number with few digits; a timestamp to the day, or to the second if all are within two days."""
    kind = (row["logical_type"] or "").partition("(")[0]
    if kind in ("INT", "FLOAT", "DOUBLE", "DECIMAL"):
        point = shapes.position(value, kind)
        return value if point is None else numbers.brief(point)
    if not kind.startswith("TIME"):
        return value
    low, high = (shapes.position(row.get(side), kind) for side in SIDES)
    if kind != "TIME" and low is not None and high is not None and high - low > _TWO_DAYS:
        return value[: value.index("T")] if "T" in value else value
    return re.sub(r"(:\d\d)\.\d+", r"\1", value).replace("T", " ").removesuffix("Z")


def _mean(number: float | None) -> str:
    """A mean or deviation, all of it as title."""
    if number is None:
        return ""
    return _titled(numbers.brief(number), numbers.number(number), repr(number))


def _shown(value: Any) -> str:
    """A cell of an answer: numbers with few digits, long texts cut, all of it as title."""
    if isinstance(value, float):
        return _titled(numbers.brief(value), numbers.number(value, exact=True), str(value))
    if isinstance(value, datetime):
        return _titled(f"{value:%Y-%m-%d %H:%M:%S}", str(value), str(value))
    whole = _value(value)
    return _titled(whole if len(whole) <= 2 * CELL else whole[: 2 * CELL - 1] + "…", whole, whole)


def _breakable(name: str) -> Markup:
    """A name with line breaks allowed after dots and underscores."""
    return Markup("<wbr>").join(re.split(r"(?<=[._/])(?=.)", _value(name)))


def _attribute(text: str) -> Markup:
    """The exact text for an attribute that is sent back: control characters as numeric references."""
    return Markup("").join(
        char if char.isprintable() else Markup(f"&#{ord(char)};")  # noqa: S704  a number
        for char in text
    )


def _partition(text: str | None) -> str:
    """`day=2026-03-01` of a partition in JSON."""
    try:
        fields = json.loads(text or "")
    except ValueError:
        return _value(text)
    if not isinstance(fields, dict):
        return _value(text)
    return _value(", ".join(f"{name}={'null' if value is None else text_of(value)}" for name, value in fields.items()))


def _spark(row: Row) -> Markup:
    return Markup(charts.spark([bar["rows"] for bar in row["histogram"]], f"Shape of {label(row)}"))  # noqa: S704  as above


def _histogram(row: Row, width: int = 420, height: int = 130, bars: Sequence[Row] | None = None) -> Markup:
    shown = data.to_bars(row["histogram"] if bars is None else bars)
    words = f"Histogram of {label(row)}, {len(shown)} bars from {_lower(row) or '?'} to {_upper(row) or '?'}"
    return Markup(charts.histogram(shown, row["logical_type"] or "", words, width, height))  # noqa: S704  as above


def _when(row: Row) -> str:
    """The day of a snapshot's commit, else its id, for an axis."""
    return str(row["snapshot_id"]) if row["committed_at"] is None else f"{row['committed_at']:%Y-%m-%d}"


def _line(rows: Sequence[Row], key: str, name: str) -> Markup:
    """A value of a column over snapshots; what was expected lies behind it, unless that is about each load."""
    bands = [None if key in row["load"] else row["expected"].get(key) for row in rows]
    return _drawn([(_when(row), row[key]) for row in rows], name, bands)


def _load_line(rows: Sequence[Row], key: str, name: str) -> Markup:
    """A value of the rows that each load added, with what was expected behind it; empty where it is not known."""
    if not any(key in row["load"] for row in rows):
        return Markup("")
    bands = [row["expected"].get(key) for row in rows]
    return _drawn([(_when(row), row["load"].get(key)) for row in rows], name, bands)


def _commit_line(rows: Sequence[Row], key: str, name: str, links: Sequence[str] = ()) -> Markup:
    """A value of a table over commits, each point with a link to its snapshot."""
    return _drawn([(_when(row), row[key]) for row in rows], name, (), links)


def _drawn(points: Sequence[tuple[str, Any]], name: str, bands: Sequence[Any], links: Sequence[str] = ()) -> Markup:
    if all(value is None for _, value in points):
        return Markup("")
    words = f"{name} over {len(points)} snapshots"
    return Markup(charts.line(points, words, 380, 140, bands=bands, links=links))  # noqa: S704  as above


def _null_line(row: Row) -> Markup:
    return Markup(charts.spark_line(row["null_shares"], f"Nulls of {label(row)} over snapshots"))  # noqa: S704  as above


def _cell(value: Any) -> Markup | str:
    """A cell of a list."""
    return "" if value is None else _shown(value)
