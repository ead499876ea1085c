"""Choice of where a scan runs: in this process, or on Spark. Says why, with figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from capture.cluster import Session, Unavailable
from capture.compute import local
from capture.spec import Engine

WARM_CELLS: Final = 100_000_000
"""Cells (rows times columns) above which a job on a warm session finishes sooner, which costs half a second."""
COLD_CELLS: Final = 1_000_000_000
"""The same without a session, which takes 8 s to start; this process computes meanwhile."""
LOCAL_CORES: Final = 4  # up to which a local master is no faster than this process; more threads wait for the GIL


@dataclass(frozen=True, slots=True)
class Choice:
    """The place in which a scan runs, with the reason.

    Attributes:
        overlapped: Whether this process begins while the session starts.
        reason: The reason with figures, for `sys.capture_decisions`.
        note: Why Spark was wanted and does not run; empty if it does, or was not wanted.
    """

    on_spark: bool
    reason: str
    overlapped: bool = False
    note: str = ""


def choose(engine: Engine, asked: str, rows: int, columns: int, spark: Session, inline_max_cells: int | None) -> Choice:
    """Chooses where a scan runs.

    Args:
        asked: The setting and who set it, for the reason.
        spark: The session, which is started for `Engine.SPARK`.
        inline_max_cells: Largest scan of `Engine.AUTO` in this process, in cells; None: WARM_CELLS or COLD_CELLS.

    Raises:
        Unavailable: The engine is `spark`, and Spark does not start.
    """
    cells = rows * columns
    size = f"{rows:,} rows × {columns:,} columns = {cells:,} cells"
    here = f"in this process on {local.CORES} cores"
    if not cells:
        return Choice(False, f"{asked}: {size}, nothing to read")
    if engine is Engine.LOCAL:
        return Choice(False, f"{asked}: {size}, {here}")
    if engine is Engine.SPARK:
        try:
            spark.ensure()
        except Unavailable as error:
            raise type(error)(f"{asked} cannot run: {error}") from None
        return Choice(True, f"{asked}: {size}, {_on(spark)}")
    is_warm = spark.is_warm
    if inline_max_cells is not None:
        threshold = inline_max_cells
        from_ = f"above {inline_max_cells:,} cells (inline_max_cells)"
    elif spark.is_one_try and spark.cores <= LOCAL_CORES:
        threshold = cells
        from_ = f"never: up to {LOCAL_CORES} cores of this machine are no faster there"
    else:
        threshold = WARM_CELLS if is_warm else COLD_CELLS
        from_ = f"above {threshold:,} cells ({'a warm' if is_warm else 'no warm'} session)"
    if cells <= threshold:
        return Choice(False, f"{asked}: {size}, {here}; on Spark {from_}")
    if inline_max_cells is None:
        return Choice(True, f"{asked}: {size}, {_on(spark)}, as {from_}", overlapped=not is_warm)
    try:
        spark.ensure()
    except Unavailable as error:
        return Choice(False, f"{asked}: {size}, {here}", note=f"computed without Spark: {error}")
    return Choice(True, f"{asked}: {size}, {_on(spark)}, as {from_}")


def _on(spark: Session) -> str:
    return f"on {spark.cores} cores of {spark.master}"
