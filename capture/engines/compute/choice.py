"""Choice of where a scan runs: in this process, or on Spark. Says why, with figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capture.compute import local
from capture.engines.compute.cost import Cost
from capture.spark.session import Spark, SparkUnavailable
from capture.spec import Engine


@dataclass(frozen=True, slots=True)
class Choice:
    """The place in which a scan runs, with the reason.

    Attributes:
        on_spark: Whether Spark computes it.
        overlapped: Whether this process begins while the session starts.
        reason: The reason with figures, for `sys.capture_decisions`.
        note: Why Spark was wanted and does not run; empty if it does, or was not wanted.
    """

    on_spark: bool
    reason: str
    overlapped: bool = False
    note: str = ""


def choose(
    engine: Engine, asked: str, rows: int, columns: int, spark: Spark, cost: Cost, inline_max_cells: int | None
) -> Choice:
    """Chooses where a scan runs.

    Args:
        engine: The setting.
        asked: The setting and who set it, for the reason.
        rows: Rows to read.
        columns: Columns to read.
        spark: The session, which is started for `Engine.SPARK`.
        cost: Measured costs, for `Engine.AUTO`.
        inline_max_cells: Largest scan of `Engine.AUTO` in this process, in cells; None: decided by cost.

    Raises:
        SparkUnavailable: The engine is `spark`, and Spark does not start.
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
        except SparkUnavailable as error:
            raise type(error)(f"{asked} cannot run: {error}") from None
        return Choice(True, f"{asked}: {size}, {_on(spark)}")
    if inline_max_cells is not None:
        threshold: float = inline_max_cells
        from_ = f"above {inline_max_cells:,} cells (inline_max_cells)"
    else:
        threshold = cost.threshold(is_warm=spark.is_warm)
        from_ = f"above {threshold:,.0f} cells ({'a warm' if spark.is_warm else 'no warm'} session)"
        from_ = "never, being no faster" if math.isinf(threshold) else from_
    if cells <= threshold:
        return Choice(False, f"{asked}: {size}, {here}; on Spark {from_}")
    if inline_max_cells is None:
        cold = not spark.is_warm
        return Choice(True, f"{asked}: {size}, {_on(spark)}, as {from_}", overlapped=cold)
    try:
        spark.ensure()
    except SparkUnavailable as error:
        return Choice(False, f"{asked}: {size}, {here}", note=f"computed without Spark: {error}")
    return Choice(True, f"{asked}: {size}, {_on(spark)}, as {from_}")


def _on(spark: Spark) -> str:
    return f"on {spark.cores} cores of {spark.master}"
