"""The built-in engines, and those of third parties in the entry point group `statflight.engines`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from capture.cluster import SPARK, Session, Uncapturable, cluster
from capture.spec import CaptureSpec, Engine, FileSketches, Sampling
from capture.spi import Capabilities, CaptureEngine, Mode, Outcome, rank
from store.model.errors import InvalidArgument
from store.model.targets import Target, TargetKind
from store.plugins import Broken, Plugins

log = logging.getLogger("statflight.worker")


def default_engines(
    inline_max_cells: int | None = None,
    spark: Session | None = None,
    engine: Engine = Engine.AUTO,
    file_sketches: FileSketches = FileSketches.AUTO,
) -> list[CaptureEngine]:
    """Creates the compute engine, the native engine and the installed third-party ones, unsorted. Starts no JVM.

    One that is not part of this build, or that cannot be made, is left out; the log names it, and `described` has a row
    for one of a third party.

    Args:
        inline_max_cells: Largest scan, in rows times columns, that is computed in this process; None: decided by
            the thresholds of `compute/choice.py`.
        spark: The session of the compute engine; None for one of its own, on all cores of this machine.
        engine: Where the compute engine reads data, unless a request says otherwise.
        file_sketches: What the compute engine keeps of each file for the next capture.
    """
    from capture.engines.compute.engine import ComputeEngine

    engines: list[CaptureEngine] = [ComputeEngine(inline_max_cells, spark, engine, file_sketches)]
    for name in ENGINES.built_in:
        try:
            engines.append(ENGINES.load(name)())
        except InvalidArgument as missing:
            log.warning("%s; tables are captured without it", missing)
    engines += [engine for _, engine in ENGINES.each() if not isinstance(engine, Broken)]
    return engines


def _made(engine_class: Callable[[], CaptureEngine]) -> CaptureEngine:
    """An engine of a third party; raises if it lacks what `described` shows of it."""
    engine = engine_class()
    _rows(engine)
    return engine


ENGINES: Final = Plugins(
    group="statflight.engines",
    field="engine",
    noun="engine",
    built_in={"native": "capture.engines.native.engine:NativeEngine"},
    make=_made,
)


def supporting(engines: Sequence[Mapping[str, Any]], format: str, spec: CaptureSpec) -> list[Mapping[str, Any]]:
    """The `engines` (rows of `sys.engines`) that support a capture nobody waits for, the first candidate first; none of
    those that could not be loaded."""
    loaded = [row for row in engines if not row.get("error")]
    fit = [row for row in loaded if not _capabilities(row).mismatch_of(spec, format, Mode.ASYNC)]
    if spec.target.kind is TargetKind.EXPRESSION:
        fit = [row for row in fit if row["engine_id"] == spec.target.engine_kind]
    return sorted(fit, key=lambda row: (rank(row["priority"], spec.kinds), row["engine_id"]))


def refused(target: Target) -> tuple[Outcome, str] | None:
    """The outcome and detail of a target that its engine is known to refuse before it looks at the table; None for
    others. Starts no JVM."""
    if target.kind is not TargetKind.EXPRESSION or target.engine_kind != SPARK:
        return None
    try:
        cluster().checked(target.engine_expression_key or b"")
    except Uncapturable as error:
        return Outcome.UNCAPTURABLE, str(error)
    except InvalidArgument as error:
        return Outcome.DEGRADED, str(error)
    return None


def _capabilities(row: Mapping[str, Any]) -> Capabilities:
    """The capabilities in a row of `sys.engines`, which does not tell partitions and budgets."""
    sets = (frozenset(row[name] or ()) for name in ("connectors", "execution_modes", "sampling"))
    return _told(row["statistic_kinds"] or "{}", *sets)


@lru_cache(64)
def _told(
    kinds: str, connectors: frozenset[str], modes: frozenset[Mode], sampling: frozenset[Sampling]
) -> Capabilities:
    """The capabilities that an engine tells; many requests ask for the same."""
    of_targets = {target: frozenset(of) for target, of in json.loads(kinds).items()}
    return Capabilities(of_targets, connectors, modes, sampling, partitions=True, budgets=True)


def described(engines: Sequence[CaptureEngine]) -> list[dict[str, Any]]:
    """Rows of `sys.engines`: one for each id that results of an engine have, and one for each installed engine that
    could not be loaded in this process, with the reason in `error`."""
    rows = [row for engine in engines for row in _rows(engine)]
    ids = {row["engine_id"] for row in rows}
    broken = [each for each in ENGINES.broken.values() if each.name not in ids]
    return rows + [{"engine_id": each.name, "error": str(each)} for each in broken]


def _rows(engine: CaptureEngine) -> list[dict[str, Any]]:
    by_id: Mapping[str, Capabilities] = getattr(engine, "by_engine_id", {engine.id: engine.capabilities})
    return [_row(engine_id, engine.priority, told) for engine_id, told in by_id.items()]


def _row(engine_id: str, priority: int, told: Capabilities) -> dict[str, Any]:
    of_kinds = {str(target): sorted(kinds) for target, kinds in sorted(told.target_kinds.items())}
    return {
        "engine_id": str(engine_id),
        "priority": int(priority),
        "connectors": sorted(told.connectors),
        "target_kinds": sorted(map(str, told.target_kinds)),
        "statistic_kinds": json.dumps(of_kinds),
        "execution_modes": sorted(map(str, told.modes)),
        "sampling": sorted(map(str, told.sampling)),
        "error": None,
    }
