"""The pages of the repository as a site, with a generated reference: hooks that MkDocs calls (`mkdocs.yml`).

Pages keep their paths, so that their links hold in both places. `make docs` builds the site.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SCREENSHOTS: Final = ROOT / "build/screenshots"
ROOMS: Final = ("store", "capture", "flight_server", "tests/benchmarks")
_LINK: Final = re.compile(r"\[([^][]+)\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def sources() -> list[str]:
    """Paths of all pages and pictures, relative to the repository."""
    beside_code = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in (".md", ".png"))
    return ["README.md", "CHANGELOG.md", *sorted(path.relative_to(ROOT).as_posix() for path in beside_code)]


def for_mkdocs(page: str) -> str:
    """A page's text as MkDocs takes it.

    Links to code become their text, and a block's language stands alone, without the words that tests read.
    """
    parts = _FENCED.split(re.sub(r"^(```\w+) .*$", r"\1", page, flags=re.MULTILINE))
    parts[::2] = [
        _LINK.sub(lambda link: link[0] if link[2].endswith((".md", ".png")) else link[1], part) for part in parts[::2]
    ]
    return "".join(parts)


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    cells = [tuple(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ("---",) * len(columns), *cells]) + "\n"


def commands() -> str:
    """The command line, as its help tells it."""
    import click

    from flight_server.cli import app

    whole = click.Context(app, info_name="statflight")
    parts = [f"# The command line\n\n```\n{app.get_help(whole)}\n```\n"]
    for name in app.list_commands(whole):
        command = app.get_command(None, name)
        assert command is not None
        context = click.Context(command, info_name=f"statflight {name}")
        parts.append(f"## `statflight {name}`\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def settings() -> str:
    """Each setting with its default, its variable and its meaning."""
    from flight_server.core.config import Settings
    from flight_server.process.settings import declared

    doc = inspect.getdoc(Settings) or ""
    meaning = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", doc, re.MULTILINE))
    defaults = vars(Settings())
    del meaning["of_parts"]
    for name, setting in declared().items():
        meaning[name], defaults[name] = setting.meaning, setting.default
    rows = [
        (
            f"`{name}`",
            f"`{defaults[name]}`" if defaults[name] not in (None, {}) else "",
            f"`STATFLIGHT_{name.upper()}`",
            re.sub(r"\s+", " ", text),
        )
        for name, text in meaning.items()
    ]
    return (
        "# Settings\n\nIn `statflight.toml`, as environment variables, or by `-o name=value`; see"
        " [configuration](../flight_server/guides/configuration.md).\n\n"
        + _table(("setting", "default", "variable", "meaning"), rows)
    )


def flights() -> str:
    """Each flight with its columns and their types."""
    from store.model.schemas import FLIGHTS

    parts = ["# Flights\n\nWhat each number means is in [SEMANTICS.md](../store/SEMANTICS.md).\n"]
    for name, flight in FLIGHTS.items():
        columns = [(f"`{column.name}`", f"`{column.type}`") for column in flight.schema]
        puts = "Takes puts. " if flight.writable else ""
        parts.append(f"## `{name}`\n\n{flight.description}. {puts}\n\n{_table(('column', 'type'), columns)}")
    return "\n".join(parts)


def actions() -> str:
    """Each action with its body and what it does."""
    from flight_server.process.parts import actions as all_actions

    rows = [(f"`{action.name}`", action.description, f"`{action.arguments}`") for action in all_actions().values()]
    return "# Actions\n\nBodies are JSON; see [PROTOCOL.md](../flight_server/PROTOCOL.md).\n\n" + _table(
        ("action", "what it does", "body"), rows
    )


def errors() -> str:
    """Each error code with its Flight status; the page on troubleshooting has what to do."""
    from flight_server.guides.error_codes import error_codes

    page = "../flight_server/guides/troubleshooting.md"
    rows = [(f"`{name}`", f"`{code.status}`", code.retry) for name, code in error_codes().items()]
    return (
        "# Errors\n\nA message begins with its code in brackets; hints and the parts at fault follow it."
        f" [Troubleshooting]({page}) says what each means, and what to do.\n\n"
        + _table(("code", "status", "another try may help"), rows)
    )


def metrics() -> str:
    """The Prometheus metrics."""
    from flight_server.process import metrics as module

    return "# Metrics\n\n" + (inspect.getdoc(module) or "").split("\n\n", 1)[1]


def python() -> str:
    """The Python client, which mkdocstrings reads from its docstrings."""
    options = {"heading_level": 2, "inherited_members": True, "show_root_heading": True, "show_source": False}
    kinds = [
        "flight_server.client.connect",
        "flight_server.client.StatsClient",
        "flight_server.client.dataset.FlightDataset",
    ]
    parts = [f"::: {kind}\n    options: {json.dumps(options)}\n" for kind in kinds]
    return "# Python\n\n`import statflight` offers the following.\n\n" + "\n".join(parts)


def pages() -> str:
    """Pictures of the server's pages, which a test makes where Chromium is."""
    pictures = [path.stem for path in sorted(SCREENSHOTS.glob("*.png"))]
    shown = "\n".join(f"## {name}\n\n![The page of a table: {name}]({name}.png)\n" for name in pictures)
    return f"# Pages\n\n`statflight serve --http-port 8816` serves them; here is that of a table.\n\n{shown}"


REFERENCE: Final = {
    f"reference/{make.__name__}.md": make
    for make in (commands, settings, flights, actions, errors, metrics, pages, python)
}


def on_files(files: Any, config: Any) -> Any:
    """Replaces the pages that MkDocs found by those of the repository and the generated ones."""
    from mkdocs.structure.files import File

    for file in list(files):
        if not file.src_uri.startswith("assets/"):
            files.remove(file)
    for path in sources():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for picture in SCREENSHOTS.glob("*.png"):
        files.append(File.generated(config, f"reference/{picture.name}", abs_src_path=str(picture)))
    for path, make in REFERENCE.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called with the text of each page."""
    return for_mkdocs(markdown)
