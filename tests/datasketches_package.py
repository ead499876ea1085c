"""The `datasketches` package, with which tests compare; a test that uses it is skipped where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest


class _Package:
    def __getattr__(self, name: str) -> Any:
        reason = "datasketches has no wheels for Python 3.14: nothing to compare with"
        return getattr(pytest.importorskip("datasketches", reason=reason), name)


datasketches = _Package()
