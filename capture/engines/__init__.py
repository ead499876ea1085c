"""The built-in engines, and those of third parties in the entry point group `statflight.engines`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from capture.spec import CaptureSpec, Engine, FileSketches
from capture.spi import Capabilities, CaptureEngine, Mode, rank
from store.model.targets import TargetKind

if TYPE_CHECKING:
    from capture.spark.session import Spark


def default_engines(
    inline_max_cells: int | None = None,
    spark: Spark | None = None,
    engine: Engine = Engine.AUTO,
    file_sketches: FileSketches = FileSketches.AUTO,
) -> list[CaptureEngine]:
    """Creates the compute engine, the native engine and the installed third-party ones, unsorted. Starts no JVM.

    Args:
        inline_max_cells: Largest scan, in rows times columns, that is computed in this process; None: decided by
            the thresholds of `compute/choice.py`.
        spark: The session of the compute engine; None for one of its own, on all cores of this machine.
        engine: Where the compute engine reads data, unless a request says otherwise.
        file_sketches: What the compute engine keeps of each file for the next capture.
    """
    from capture.engines.compute.engine import ComputeEngine
    from capture.engines.native.engine import NativeEngine

    compute = ComputeEngine(inline_max_cells, spark, engine, file_sketches)
    engines: list[CaptureEngine] = [compute, NativeEngine()]
    engines += [point.load()() for point in entry_points(group="statflight.engines")]
    return engines


def supporting(engines: Sequence[Mapping[str, Any]], format: str, spec: CaptureSpec) -> list[Mapping[str, Any]]:
    """The `engines` (rows of `sys.engines`) that support a capture nobody waits for, the first candidate first."""
    fit = [row for row in engines if not _capabilities(row).mismatch_of(spec, format, Mode.ASYNC)]
    if spec.target.kind is TargetKind.EXPRESSION:
        fit = [row for row in fit if row["engine_id"] == spec.target.engine_kind]
    return sorted(fit, key=lambda row: (rank(row["priority"], spec.kinds), row["engine_id"]))


def _capabilities(row: Mapping[str, Any]) -> Capabilities:
    """The capabilities in a row of `sys.engines`, which does not tell partitions and budgets."""
    kinds = json.loads(row["statistic_kinds"] or "{}")
    return Capabilities(
        {target: frozenset(of) for target, of in kinds.items()},
        frozenset(row["connectors"] or ()),
        frozenset(row["execution_modes"] or ()),
        frozenset(row["sampling"] or ()),
        partitions=True,
        budgets=True,
    )


def described(engines: Sequence[CaptureEngine]) -> list[dict[str, Any]]:
    """One row of `sys.engines` per engine."""
    return [
        {
            "engine_id": engine.id,
            "priority": engine.priority,
            "connectors": sorted(engine.capabilities.connectors),
            "target_kinds": sorted(map(str, engine.capabilities.target_kinds)),
            "statistic_kinds": json.dumps(
                {str(target): sorted(kinds) for target, kinds in sorted(engine.capabilities.target_kinds.items())}
            ),
            "execution_modes": sorted(map(str, engine.capabilities.modes)),
            "sampling": sorted(map(str, engine.capabilities.sampling)),
        }
        for engine in engines
    ]
