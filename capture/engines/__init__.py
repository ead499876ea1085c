"""The engines that come with the project. Third parties add theirs under the entry point `statflight.engines`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from capture.spi import CaptureEngine


def default_engines(spark_master: str | None = None, inline_max_cells: int | None = None) -> list[CaptureEngine]:
    """The compute engine, the native one, and whatever is installed besides. Starts no JVM."""
    from capture.engines.native import NativeEngine
    from capture.engines.spark import SparkEngine

    limits = {} if inline_max_cells is None else {"inline_max_cells": inline_max_cells}
    engines: list[CaptureEngine] = [SparkEngine(master=spark_master, **limits), NativeEngine()]
    engines += [point.load()() for point in entry_points(group="statflight.engines")]
    return engines


def described(engines: Sequence[CaptureEngine]) -> list[dict[str, Any]]:
    """Rows of `sys.engines`."""
    return [
        {
            "engine_id": engine.id,
            "priority": engine.priority,
            "connectors": sorted(engine.capabilities.connectors),
            "target_kinds": sorted(map(str, engine.capabilities.target_kinds)),
            "statistic_kinds": _kinds(engine.capabilities.target_kinds),
            "execution_modes": sorted(map(str, engine.capabilities.modes)),
            "sampling": sorted(map(str, engine.capabilities.sampling)),
        }
        for engine in engines
    ]


def _kinds(by_target: Mapping[Any, frozenset[str]]) -> str:
    import json

    return json.dumps({str(target): sorted(kinds) for target, kinds in sorted(by_target.items())})
