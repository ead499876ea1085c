"""Every table of the corpora in one server: those of the shared lakes, and random ones with a history."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.flight_server.faces.iceberg_rest import questions
from tests.flight_server.live_server import Client
from tests.integration import random_lakes

LAKES: Final = Path(__file__).resolve().parents[3] / "shared/lakes"
WITHIN: Final = LAKES / "iceberg"  # the directory that paths in its tables' metadata are relative to
SEEDS: Final = range(int(os.environ.get("STATFLIGHT_SEEDS", "2")))
RANDOM: Final = {
    "parquet": random_lakes.parquet,
    "int96": random_lakes.int96,
    "delta": random_lakes.delta,
    "delta_deletes": random_lakes.delta_deletes,
    "iceberg": random_lakes.iceberg,
    "iceberg_deletes": random_lakes.iceberg_deletes,
    "iceberg_names": random_lakes.iceberg_names,
}
ROWS: Final = 200  # of a random table


def register(client: Client, root: Path) -> None:
    """Registers a catalog for each corpus, and discovers its tables.

    Args:
        root: Directory for what is made.
    """
    for catalog, format, uri, options in [*_shared(root), *_made(root)]:
        body = {"catalog": catalog, "format": format, "uri": uri, "options": options}
        client.act("register_connector", body)
        client.act("discover", {"catalog": catalog})


_Place = tuple[str, str, str, dict[str, str]]
"""Name, format and address of a catalog, and its options."""


def _shared(root: Path) -> Iterator[_Place]:
    yield "delta", "delta", str(LAKES / "delta"), {}
    yield "iceberg", "iceberg", str(WITHIN / "data/persistent"), {}
    for format in ("delta", "iceberg"):
        yield f"spark_{format}", format, str(LAKES / "written_by_spark"), {}
    for folder in ("parquet", "parquet_bad"):
        for path in (LAKES / folder).glob("*.parquet"):
            (root / folder / path.stem).mkdir(parents=True)
            shutil.copy(path, root / folder / path.stem)
        yield folder, "parquet", str(root / folder), {}


def _made(root: Path) -> Iterator[_Place]:
    for format, make in questions.FORMATS.items():
        uri, _ = make(root / "questions" / format, with_nan=True)
        yield f"questions_{format}", format, str(uri), {}
    for seed in SEEDS:
        for name, build in RANDOM.items():
            place = root / f"{name}_{seed}"
            place.mkdir()
            lake = build(random.Random(f"{name} {seed}"), place, ROWS)
            yield place.name, lake.format, lake.uri, lake.options
