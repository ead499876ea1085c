"""Templates: their filters, and the rendering of a page. Every value is escaped by the environment."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flight_server.present import charts
from flight_server.present.render import plain, text_of
from flight_server.present.text import harmless
from flight_server.views import table_summary
from flight_server.web import data

Row = Mapping[str, Any]
LONGEST = 300  # characters of a value on a page


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The environment of all templates."""
    jinja = Environment(
        loader=PackageLoader("flight_server.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )  # fmt: skip
    jinja.filters |= {
        "value": _value, "label": label, "count": table_summary.count, "size": table_summary.size,
        "moment": table_summary.moment, "age": table_summary.age, "freshness": _freshness,
        "distinct": table_summary.distinct, "rounded": table_summary.rounded,
        "nulls": _nulls, "null_bar": _null_bar, "least": _lower, "greatest": _upper,
        "bound": lambda text: harmless(table_summary.bound(text, None, "")), "quantile": _quantile, "spark": _spark,
        "histogram": _histogram, "line": _line, "breakable": _breakable, "partition": _partition,
        "attribute": _attribute,
    }  # fmt: skip
    version = hashlib.sha256(style().encode()).hexdigest()[:12]  # makes browsers load it again after an upgrade
    jinja.globals |= {"within": data.within, "style_version": version}
    return jinja


def page(template: str, **values: Any) -> str:
    """A page as HTML.

    Args:
        template: Its file among the templates.
        values: `url` (see `urls`), `asked`, and the data of the page.
    """
    defaults = {"inline_style": "", "json_url": "", "logout": False, "caller": "", "made_at": "", "asked": data.Asked()}
    return environment().get_template(template).render(**(defaults | values))


def to_json(values: Mapping[str, Any]) -> str:
    """The data of a page as JSON."""
    return json.dumps(plain(values), ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=1)
def style() -> str:
    """The style sheet of all pages."""
    return resources.files("flight_server.web").joinpath("style.css").read_text(encoding="utf-8")


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#2f6ea5" d="M1 9h3v6H1zM6 4h3v11H6z'
    'M11 1h3v14h-3z"/></svg>'
)


# Filters: each returns text, which the template escapes, or the markup of a chart, with its texts escaped.


def _value(value: Any) -> str:
    text = harmless(value if isinstance(value, str) else text_of(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def label(row: Row) -> str:
    """The name of a column, followed by its id if the name is ambiguous or missing."""
    return _value(row.get("label") or row["column_name"] or f"#{row['column_id']}")


def _freshness(row: Row) -> str:
    return table_summary.freshness(dict(row)) if row["freshness"] else "not captured"


def _nulls(row: Row) -> str:
    words = table_summary.percent_null(dict(row))
    return f"{words} %" if words else ""


def _null_bar(row: Row) -> Markup:
    share = data.null_share(row)
    return Markup(charts.share(share, f"{_nulls(row)} null"))  # noqa: S704  charts escape their words


def _lower(row: Row, short: bool = False) -> str:
    return _edge(row, row["min"], row["min_is_exact"], "≥", short)


def _upper(row: Row, short: bool = False) -> str:
    return _edge(row, row["max"], row["max_is_exact"], "≤", short)


def _quantile(row: Row, rank: float, short: bool = False) -> str:
    return _edge(row, row["quantiles"].get(rank), None, "", short)


def _edge(row: Row, value: str | None, exact: bool | None, sign: str, short: bool) -> str:
    """A value with its sign; `short` leaves out the fraction and zone of a timestamp, which the title attribute has."""
    if not short or value is None or not (row["logical_type"] or "").startswith("TIME"):
        return harmless(table_summary.bound(value, exact, sign))
    seconds = re.sub(r"(:\d\d)\.\d+", r"\1", value).replace("T", " ").removesuffix("Z")
    shown = harmless(table_summary.bound(seconds, exact, sign))
    return Markup('<span title="{}">{}</span>').format(harmless(value[:LONGEST]), shown)


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
    return Markup(charts.spark(data.to_bars(row["histogram"]), f"Shape of {label(row)}"))  # noqa: S704  as above


def _histogram(row: Row, width: int = 420, height: int = 130, bars: Sequence[Row] | None = None) -> Markup:
    shown = data.to_bars(row["histogram"] if bars is None else bars)
    words = f"Histogram of {label(row)}, {len(shown)} bars from {_lower(row) or '?'} to {_upper(row) or '?'}"
    return Markup(charts.histogram(shown, row["logical_type"] or "", words, width, height))  # noqa: S704  as above


def _line(rows: Sequence[Row], key: str, name: str) -> Markup:
    points = [(str(row["snapshot_id"]), row[key]) for row in rows]
    if len({value for _, value in points if value is not None}) == 0:
        return Markup("")
    return Markup(charts.line(points, f"{name} over {len(points)} snapshots", 380, 140))  # noqa: S704  as above
