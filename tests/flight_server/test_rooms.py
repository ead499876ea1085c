"""The README of the rooms names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_that_the_page_names_exists():
    text = (ROOT / "flight_server/README.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|\.md|/))`", text))
    assert len(named) > 40
    assert {name for name in named if not ((ROOT / "flight_server" / name).exists() or (ROOT / name).exists())} == set()
