"""Settings that parts declare."""

from __future__ import annotations

import pytest

from flight_server.core import config
from flight_server.core.config import Setting
from flight_server.core.setting_readers import as_truth
from flight_server.process import settings
from store.model.errors import InvalidArgument

LOUD = {"be_loud": Setting(as_truth, False, "Says more.")}


def load(toml, tmp_path, environ=None):
    path = tmp_path / "s.toml"
    path.write_text(toml)
    return config.load(path, environ=environ or {}, declared=LOUD)


def test_declared_setting_is_read_like_any_other(tmp_path):
    assert load("", tmp_path).of_parts == {"be_loud": False}
    assert load("be-loud = true", tmp_path).of_parts == {"be_loud": True}
    assert load("be_loud = true", tmp_path, {"STATFLIGHT_BE_LOUD": "off"}).of_parts == {"be_loud": False}
    shown = {name: (value, source) for name, value, source in config.effective(None, {}, LOUD)}
    assert shown["be_loud"] == (False, "default")


def test_wrong_value_of_a_declared_setting_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"be_loud.*true or false"):
        load("be_loud = 7", tmp_path)
    with pytest.raises(InvalidArgument, match=r'"be_laud".*be-loud'):
        load("be_laud = true", tmp_path)


def test_setting_that_no_part_declares_is_unknown(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("be_loud = true")
    with pytest.raises(InvalidArgument, match="be_loud"):
        settings.load(path, {})
