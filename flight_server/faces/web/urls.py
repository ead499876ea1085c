"""Addresses of pages: query parameters when served, file names when written."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlencode

from flight_server.faces.web.data import Asked


class LiveUrls:
    """Addresses on the server. Names are parameters, because a path cannot hold every name.

    Attributes:
        catalog: The whole address of the Iceberg catalog of the same server; empty if it has none.

    Args:
        fixed: Parameters of `path` that other orders and pages keep.
    """

    is_live = has_index = True

    def __init__(self, path: str = "/", fixed: Mapping[str, str] | None = None):
        self._path, self._fixed = path, dict(fixed or {})
        self.catalog = ""

    def style(self) -> str:
        """The style sheet."""
        return "/style.css"

    def icon(self) -> str:
        """The icon."""
        return "/icon.svg"

    def home(self, within: str = "") -> str:
        """The list of tables, limited to the catalog or schema `within` if given."""
        return _with("/", {"in": within})

    def table(self, name: str, snapshot: int | None = None) -> str:
        """The page of a table, by its full name, at a snapshot or the current one."""
        return _with("/table", {"name": name, "snapshot": "" if snapshot is None else str(snapshot)})

    def listing(self, title: str) -> str:
        """The page of the list of this title."""
        return f"/{title.lower()}"

    def answer(self, statement: str, page: int) -> str:
        """A page of the answer of a statement."""
        return _with("/sql", {"q": statement, "page": "" if page == 1 else str(page)})

    def csv(self, statement: str) -> str:
        """The answer of a statement as CSV."""
        return _with("/sql.csv", {"q": statement})

    def column(self, table: str, name: str | None, then: int | None = None) -> str:
        """The page of a column, compared with the snapshot `then`; empty if there is none."""
        if name is None:
            return ""
        return _with("/column", {"table": table, "name": name, "then": "" if then is None else str(then)})

    def sorted(self, asked: Asked, order: str) -> str:
        """The page in another order; its present order is reversed."""
        turned = not asked.descending if asked.order == order else order not in ("name", "type")
        return self._listed(asked, order, turned, 1)

    def paged(self, asked: Asked, page: int) -> str:
        """Another page of a list in the same order."""
        return self._listed(asked, asked.order, asked.descending, page)

    def _listed(self, asked: Asked, order: str, descending: bool, page: int) -> str:
        given = {
            "in": asked.within,
            "q": asked.search,
            "state": asked.state,
            "format": asked.format,
            "owner": asked.owner,
            "sort": order,
            "desc": "1" if descending else "",
            "page": "" if page == 1 else str(page),
        }
        return _with(self._path, self._fixed | given)

    def faceted(self, asked: Asked, facet: str, value: str) -> str:
        """The list limited to a value of a facet, or without that limit if it is there already."""
        value = "" if getattr(asked, facet) == value else value
        narrowed = replace(asked, **{facet: value})  # type: ignore[arg-type]  # facets are texts
        return self._listed(narrowed, asked.order, asked.descending, 1)

    def sql(self, statement: str = "") -> str:
        """The page that runs a statement."""
        return _with("/sql", {"q": statement})


class FileUrls:
    """Addresses within a directory of files."""

    is_live, has_index = False, True
    catalog = ""

    def style(self) -> str:
        """The style sheet."""
        return "style.css"

    def icon(self) -> str:
        """Empty: the pages have none."""
        return ""

    def home(self, _within: str = "") -> str:
        """The list of tables."""
        return "index.html"

    def table(self, name: str, _snapshot: int | None = None) -> str:
        """The page of a table, by its full name."""
        return f"{file_name(name)}.html"

    def column(self, table: str, name: str | None, _then: int | None = None) -> str:
        """The page of a column; empty if there is none."""
        return "" if name is None else f"{file_name(table, name)}.html"


class AloneUrls(FileUrls):
    """A self-contained page, which has nothing to link to."""

    has_index = False

    def column(self, _table: str, _name: str | None, _then: int | None = None) -> str:
        return ""


def file_name(*names: str) -> str:
    """A portable file name: partly readable, and unique through a hash."""
    readable = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")[:60]
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{readable or 'page'}-{digest}"


def _with(path: str, parameters: Mapping[str, str]) -> str:
    given = {key: value for key, value in parameters.items() if value}
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path
