"""Pages as files: a single self-contained page, or a directory with an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from flight_server.core.views.reader import Reader
from flight_server.faces.web import column_page, data, render
from flight_server.faces.web.data import Asked
from flight_server.faces.web.urls import AloneUrls, FileUrls
from store.model.names import split_name

_ALL = Asked(page=0)  # everything on one page
IN_TURN = ("column_id", "column_name")  # what pages of columns are asked for by


def alone(reader: Reader, name: str, snapshot: str | int) -> str:
    """A self-contained page about a table: style included, no links to other pages.

    Raises:
        pa.ArrowKeyError: The table or its snapshot does not exist.
    """
    values = data.table(reader, name, _ALL, snapshot)
    return render.page("table.html", url=AloneUrls(), inline_style=render.style(), made_at=_now(), **values)


def pages_of(reader: Reader, name: str, snapshot: str | int) -> Iterator[tuple[str, str]]:
    """File names and contents of the pages of a table and its columns, each with its JSON twin.

    Raises:
        pa.ArrowKeyError: The table or its snapshot does not exist.
    """
    urls = FileUrls()
    values = data.table(reader, name, _ALL, snapshot)
    yield from _both(urls.table(name), "table.html", values)
    for row in values["columns"]:
        yield from _both(
            urls.column(name, row["reference"]), "column.html", column_page.column(reader, name, row["reference"])
        )


def index(reader: Reader, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The page that lists some tables, with its JSON twin, and the style sheet."""
    values = data.chosen(reader, {split_name(name) for name in names})
    yield from _both("index.html", "catalog.html", values)
    yield "style.css", render.style()


def _both(file: str, template: str, values: dict[str, object]) -> Iterator[tuple[str, str]]:
    twin = Path(file).with_suffix(".json").name
    yield file, render.page(template, url=FileUrls(), json_url=twin, made_at=_now(), asked=Asked(), **values)
    yield twin, render.to_json(values)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
