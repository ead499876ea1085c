"""Pages in headless Chromium: axe-core finds no violation, and nothing lies beyond the edge, in light and dark, at 1280
and 390 px.

axe-core comes from npm into the user's cache; without Chromium, npm or a network the tests are skipped.
"""

from __future__ import annotations

import html
import http.server
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from store.model.sketches import kll
from store.model.target_ids import of_column
from tests.flight_server.faces.web.serving import pages_of
from tests.flight_server.serving import app_in, put

AXE = "axe-core-4.10.3.tgz"
CACHE = Path.home() / ".cache" / "statflight-tests"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEY = {"table_catalog": "lake", "table_schema": "sales", "table_name": 'orders <&">'}
NAME = 'lake.sales."orders <&"">"'
PAGES = {
    "catalogs": "/",
    "search": "/?q=a",
    "nothing found": "/?q=zzz",
    "table": f"/table?name={quote(NAME)}",
    "column": f"/column?table={quote(NAME)}&name=amount",
    "sql": "/sql",
    "answer": f"/sql?q={quote('SELECT table_name, column_name, min, ndv, captured_at FROM stats.columns')}",
    "refusal": "/sql?q=DROP",
    "missing": "/table?name=lake.s.nosuch",
    "login": "/login",
}
DARK = "--blink-settings=preferredColorScheme=0"
SCREENS = {
    "desktop": (1280, []),
    "phone": (390, []),
    "dark": (1280, [DARK]),
    "dark phone": (390, [DARK]),
}
"""Width of the page in pixels, and flags of Chromium, whose windows are not narrower than 500: hence the frame."""
_FRAME = """<!DOCTYPE html><html lang=en><title>frame</title>
<iframe src="{path}" width={width} height=900 style=border:0></iframe>"""
_RESULTS = """
<script>
const wait = setInterval(() => {
  const found = [...document.querySelectorAll("iframe")].map(
    frame => frame.contentDocument.getElementById("axe-results")?.textContent);
  if (found.every(Boolean)) {
    clearInterval(wait);
    const results = document.createElement("pre"); results.id = "axe-results";
    results.textContent = `[${found}]`;
    document.body.append(results);
  }
}, 50);</script>
"""
_RUN = """
<script>window.addEventListener("load", () => setTimeout(async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const results = document.createElement("pre"); results.id = "axe-results";
  results.textContent = JSON.stringify({
    violations: found.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html + n.failureSummary).slice(0, 3)]),
    width: document.documentElement.scrollWidth, window: window.innerWidth,
    beyond: [...document.querySelectorAll(".wide")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel),
    dark: getComputedStyle(document.body).backgroundColor});
  document.body.append(results);
}, 0));</script>
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    if not CHROMIUM:
        pytest.skip("no Chromium")
    archive = CACHE / AXE
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm, and no axe-core in the cache")
        CACHE.mkdir(parents=True, exist_ok=True)
        package = AXE.removesuffix(".tgz").replace("axe-core-", "axe-core@")
        done = subprocess.run([npm, "pack", package], cwd=CACHE, capture_output=True, text=True, timeout=120)
        if done.returncode or not archive.exists():
            pytest.skip(f"npm cannot fetch axe-core: {done.stderr[-200:]}")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def quantiles(column_id: int, values: np.ndarray) -> dict:
    return {
        "target_kind": "COLUMN",
        "storage_id": of_column(column_id),
        "column_id": column_id,
        "role": "QUANTILES",
        "sketch_type": "apache-datasketches-kll-doubles-v1",
        "data": kll(values),
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with app_in(tmp_path_factory.mktemp("browser")) as app:
        for snapshot in (1, 2):
            at = KEY | {"snapshot_id": snapshot}
            put(
                app,
                [at | {"row_count": 900 * snapshot, "data_file_count": 2, "total_size_bytes": 123_456}],
                "stats.tables",
            )
            numbers = {
                "logical_type": "DOUBLE",
                "row_count": 900,
                "null_count": 30,
                "ndv": 800.0,
                "ndv_exact": False,
                "ndv_lower": 780.0,
                "ndv_upper": 820.0,
                "min": "0.5",
                "max": "99.5",
                "mean": 41.0,
                "stddev": 4.0,
            }
            put(app, [at | {"column_id": 1, "column_name": "amount"} | numbers])
            put(
                app,
                [
                    at
                    | {
                        "column_id": 2,
                        "column_name": "a very long name " * 8,
                        "logical_type": "STRING",
                        "row_count": 900,
                        "null_count": 900,
                    }
                ],
            )
            files = [
                at
                | {
                    "file_path": f"f{day}",
                    "file_content": "DATA",
                    "size_bytes": 10 * day,
                    "row_count": 5,
                    "partition_data_json": json.dumps({"day": day}),
                }
                for day in range(3)
            ]
            put(app, files, "stats.files")
            put(app, [at | quantiles(1, np.linspace(0.5, 99.5, 870))], "stats.sketches")
        orders = dict(zip(KEY, ("lake", "sales", "orders"), strict=True)) | {"snapshot_id": 1}
        put(app, [orders | {"row_count": 9000, "data_file_count": 3, "total_size_bytes": 912_345}], "stats.tables")
        columns = {
            "id": {"logical_type": "INT", "ndv": 9000.0, "min": "1", "max": "9000", "mean": 4500.5},
            "region": {"logical_type": "STRING", "ndv": 3.0, "min": "east", "max": "south"},
            "amount": {"logical_type": "DOUBLE", "ndv": 8120.0, "min": "0.5", "max": "240", "mean": 38.2},
        }
        whole = orders | {"row_count": 9000, "null_count": 0, "ndv_exact": True}
        put(app, [whole | {"column_id": at, "column_name": name} | columns[name] for at, name in enumerate(columns, 1)])
        amounts = np.sort(np.random.default_rng(1).gamma(2, 19, 9000))
        sketches = [quantiles(1, np.arange(1.0, 9001)), quantiles(3, np.clip(amounts, 0.5, 240))]
        put(app, [orders | sketch for sketch in sketches], "stats.sketches")
        with pages_of(app) as base:
            yield base


@pytest.fixture(scope="module")
def instrumented_site(site, axe):
    """The pages with axe-core injected, from another server: the policy of the pages lets no script run."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/frame"):
                width, path = self.path.removeprefix("/frame").split("/", 1)
                paths = [f"/{path}"] if path else PAGES.values()
                frames = [_FRAME.format(width=int(width), path=html.escape(path)) for path in paths]
                self.send(200, "text/html", "".join([*frames, _RESULTS]).encode())
                return
            try:
                answer = urllib.request.urlopen(site.rstrip("/") + self.path)
            except urllib.error.HTTPError as refusal:
                answer = refusal
            body, kind = answer.read(), answer.headers["Content-Type"]
            if "html" in kind:
                body = body.replace(b"</body>", f"<script>{axe}</script>{_RUN}</body>".encode())
            self.send(200, kind, body)

        def send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run_axe(url: str, flags: list[str], profile: Path) -> Any:
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--dump-dom",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=10000",
        *flags,
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    found = re.search(r'<pre id="axe-results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("screen", SCREENS)
def test_pages_have_no_violation_and_fit_the_window(instrumented_site, screen, tmp_path):
    width, flags = SCREENS[screen]
    found = run_axe(f"{instrumented_site}/frame{width}/", ["--window-size=1400,1000", *flags], tmp_path)
    for page, results in zip(PAGES, found, strict=True):
        assert results["window"] == width, page
        assert not results["violations"], page
        assert results["width"] <= width, f"{page} scrolls sideways"
        assert not results["beyond"], f"tables of {page} scroll sideways"
        red = int(re.findall(r"\d+", results["dark"])[0])
        assert (red < 80) == screen.startswith("dark"), page


@pytest.mark.parametrize("screen", SCREENS)
def test_screenshot_shows_the_page(instrumented_site, screen, tmp_path):
    """The pictures stay where STATFLIGHT_SCREENSHOTS says: the documentation has them."""
    width, flags = SCREENS[screen]
    page = f"{instrumented_site}/frame{width}/table?name=lake.sales.orders"
    picture = Path(os.environ.get("STATFLIGHT_SCREENSHOTS", tmp_path)).absolute() / f"{screen}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000",
        f"--screenshot={picture}",
        f"--window-size={max(width + 16, 500)},920",
        *flags,
        page,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 10_000, "an empty page is smaller"


def test_axe_finds_a_known_violation(axe, tmp_path):
    head = "<!DOCTYPE html><html lang=en><head><title>x</title></head>"
    text = f"{head}<body><main><h1>x</h1><img src=a></main></body></html>"
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", f"<script>{axe}</script>{_RUN}</body>"))
    results = run_axe(page.as_uri(), [], tmp_path / "profile")
    assert [violation[1] for violation in results["violations"]] == ["image-alt"]
