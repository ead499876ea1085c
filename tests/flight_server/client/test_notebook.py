"""Tables in notebooks: truncated, escaped, and registered with IPython."""

import sys
from types import SimpleNamespace

import pyarrow as pa

from flight_server.client import notebook


def test_values_are_escaped_and_truncated():
    page = notebook.html(pa.table({"<b>": ["<script>", None, "x" * 1000], "n": [1, 2, 3]}))
    assert "<b>" not in page and "<script>" not in page and "&lt;script&gt;" in page
    assert "x" * 80 + "…" in page and "x" * 81 not in page and "3 rows × 2 columns" in page


def test_large_table_is_truncated():
    numbers = pa.array(range(100_000))
    page = notebook.html(pa.table({f"c{i}": numbers for i in range(60)}))
    assert len(page) < 100_000 and "100,000 rows × 60 columns" in page
    assert page.count("<tr>") == notebook.MAX_ROWS + 1 and page.count("<th ") == notebook.MAX_COLUMNS


def test_ipython_formatter_is_registered_when_ipython_runs(monkeypatch):
    registered = {}
    formatter = SimpleNamespace(for_type=registered.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    notebook.show_tables_as_html()
    assert registered == {pa.Table: notebook.html}
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    notebook.show_tables_as_html()
