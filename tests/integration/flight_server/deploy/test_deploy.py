"""The systemd unit and the image: hardening, user, health check and settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import flight_server
from flight_server.config import PREFIX, Settings

DEPLOY = Path(flight_server.__file__).parent / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_exposure_level_of_the_systemd_unit_is_low():
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", DEPLOY / "statflight.service"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    found = re.search(r"exposure level for statflight.service: ([\d.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze has no --offline: {done.stderr[-200:]}")
    assert float(found[1]) <= 3


def test_image_has_its_own_user_a_health_check_and_known_settings():
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER statflight$", text, re.MULTILINE) and "HEALTHCHECK" in text and "/health" in text
    variables = re.findall(rf"{PREFIX}(\w+)=", text)
    assert variables and all(hasattr(Settings(), name.lower()) for name in variables)
