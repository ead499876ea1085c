"""Says at the end of a run what ran and what was skipped, each with its reason."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints a line for each file: how many tests passed and failed, and why others were skipped."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if not report.nodeid.startswith("tests/interop/"):
                continue
            file = report.nodeid.partition("::")[0].rpartition("/")[2]
            counts[file][outcome] += 1
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                reasons[file][report.longrepr[2].removeprefix("Skipped: ").strip()] = None
    if not counts:
        return
    terminalreporter.section("servers, engines and clients of others")
    for file, found in sorted(counts.items()):
        told = ", ".join(f"{count} {outcome}" for outcome, count in found.items())
        terminalreporter.write_line(f"{file:32} {told}")
        for reason in reasons[file]:
            terminalreporter.write_line(f"{'':32} skipped: {reason}")
