"""Learned rules over made series: how many injected faults they find, and how many alarms are false.

500 daily series of five kinds of measures, with weekday seasons, trends, steps and noise. From the fourth week on, each
series has faults now and then: three loads in one, a third of one, none at all, columns that turn null, means that
move. Each day is one run over all series. The first three alarms in the week of a step tell of a real change, and count
neither way.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from flight_server.insight.expectations import COUNT, most_are_false, newest, plain, share

pytestmark = pytest.mark.benchmark

SERIES, DAYS, FROM = 500, 100, 21
START = datetime(2026, 1, 5, 6, tzinfo=UTC)
FAULT_EVERY = 40.0  # days, on average
KINDS = {
    "rows added": COUNT,
    "rows": COUNT,
    "null_fraction": share(0.002),
    "distinct_fraction": share(0.02),
    "mean": plain(10.0),
}


def made(kind: str, random: np.random.Generator) -> tuple[list[float], set[int], set[int]]:
    """A series, the days of its faults, and those of its steps."""
    days = np.arange(DAYS)
    weekly = np.where(days % 7 >= 5, random.uniform(0.3, 1.0) if random.random() < 0.5 else 1.0, 1.0)
    trend = 1 + random.choice([0, 0, 1, -1]) * random.uniform(0.1, 0.5) * days / DAYS
    noise = random.choice([0.01, 0.03, 0.1])
    steps = {int(random.integers(FROM, DAYS - 5))} if random.random() < 0.3 else set()
    level = np.where(np.isin(days, list(steps)).cumsum() > 0, random.choice([0.5, 2.0]), 1.0)
    faults: set[int] = set()
    day = FROM + int(random.exponential(FAULT_EVERY))
    while day < DAYS - 1:
        if all(not 0 <= day - step < 7 for step in steps):
            faults.add(day)
        day += 4 + int(random.exponential(FAULT_EVERY))
    bad = np.isin(days, list(faults))
    if kind in ("rows added", "rows"):
        values = random.uniform(1e3, 1e6) * weekly * trend * level * np.exp(random.normal(0, noise, DAYS))
        values[bad] *= random.choice([0.0, 0.33, 3.0], bad.sum())
        if kind == "rows added":
            values = values.cumsum()
    elif kind == "null_fraction":
        values = random.choice([0.0, 0.01, 0.2]) * trend * level * np.exp(random.normal(0, noise, DAYS))
        values[bad] = np.minimum(values[bad] * 3 + 0.05, 1.0)
    elif kind == "distinct_fraction":
        values = random.choice([0.05, 0.5, 1.0]) * trend * (1 + random.normal(0, 0.008, DAYS))
        steps = set()
        values[bad] *= 0.4
        values = np.minimum(values, 1.0)
    else:
        spread = random.choice([0.1, 0.3, 1.0])
        values = random.uniform(-50, 50) + 10 * (level - 1) + 5 * (trend - 1) + random.normal(0, spread, DAYS)
        values += 3 * (weekly - 1)
        values[bad] += random.choice([-1, 1], bad.sum()) * 12.0
    return [float(value) for value in values], faults, steps


def test_faults_are_found_and_alarms_are_true():
    random = np.random.default_rng(29)
    names = list(KINDS)
    series = [(names[i % len(names)], *made(names[i % len(names)], random)) for i in range(SERIES)]
    times = [START + timedelta(days=day) for day in range(DAYS)]
    counts: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in KINDS}  # found, faults, false, judged
    told: list[set[int]] = [set() for _ in range(SERIES)]  # days of alarms of a step, which someone calls expected
    for day in range(FROM, DAYS):
        judged = [
            (
                kind,
                day in faults,
                any(0 <= day - step < 7 for step in steps),
                newest(values[: day + 1], times[: day + 1], KINDS[kind], welcome),
            )
            for (kind, values, faults, steps), welcome in zip(series, told, strict=True)
        ]
        believed = most_are_false([one.probability for *_, one in judged if one is not None])
        for place, (kind, is_fault, is_step, one) in enumerate(judged):
            alarm = one is not None and one.strange and one.probability <= believed
            if alarm and is_step and not is_fault:
                told[place].add(day)
                continue
            counts[kind][0] += alarm and is_fault
            counts[kind][1] += is_fault
            counts[kind][2] += alarm and not is_fault
            counts[kind][3] += not is_fault
    print("\nkind                recall  precision  false alarms per 1,000 series and day")
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    for name, (found, faults, false, judged_days) in {**counts, "all": total}.items():
        precision = found / max(found + false, 1)
        print(f"{name:18}  {found / faults:6.3f}  {precision:9.3f}  {1000 * false / judged_days:.2f}")
    found, faults, false, judged_days = total
    assert found / faults >= 0.9 and found / (found + false) >= 0.9 and 1000 * false / judged_days <= 1.0
