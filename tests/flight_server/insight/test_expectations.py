"""What series let expect: noise, seasons, trends, steps, growth, feedback, and gaps between commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from flight_server.insight import expectations
from flight_server.insight.expectations import COUNT, LEAST, most_are_false, newest, plain, share

MONDAY = datetime(2026, 1, 5, 6, tzinfo=UTC)


def days(count):
    return [MONDAY + timedelta(days=day) for day in range(count)]


def noisy(count, level=1000.0, noise=0.03, seed=1):
    return list(level * np.exp(np.random.default_rng(seed).normal(0, noise, count)))


def judged(values, kind=COUNT, expected=()):
    return newest(values, days(len(values)), kind, expected)


def test_nothing_is_expected_of_few_values():
    assert judged(noisy(LEAST)) is None and judged(noisy(LEAST + 1)) is not None


@pytest.mark.parametrize("count", [12, 40, 150])
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_wrong_loads_are_strange_and_noise_is_not(count, factor):
    values = noisy(count)
    one = judged(values)
    assert not one.strange and one.low < values[-1] < one.high and one.probability > 0.001
    other = judged([*values[:-1], values[-1] * factor])
    assert other.strange and other.probability < 0.001


def test_small_changes_of_flat_series_do_not_matter():
    assert not judged([1000.0] * 30 + [1050.0]).strange
    assert judged([1000.0] * 30 + [1200.0]).strange
    assert not judged([0.0] * 30 + [0.001], share(0.002)).strange
    assert judged([0.0] * 30 + [0.05], share(0.002)).strange
    assert not judged([2026.0] * 30 + [2026.5], plain(10.0)).strange
    assert judged([2026.0] * 30 + [2040.0], plain(10.0)).strange


def test_weekends_are_a_season():
    values = [v * (0.2 if day % 7 >= 5 else 1) for day, v in enumerate(noisy(60))]
    found = expectations.expectations(values, days(60), COUNT)
    assert not any(one.strange for one in found[28:])
    values[-1] *= 5  # a working day's load on a Thursday is not strange, five of them are
    assert judged(values).strange
    saturday = values[:55]
    saturday[-1] = 1000.0
    assert days(55)[-1].weekday() == 5 and judged(saturday).strange


def test_growing_tables_are_judged_by_what_they_grow_by():
    values = list(np.cumsum(noisy(60)))
    one = judged(values)
    assert not one.strange and values[-2] < one.low < values[-1] < one.high
    assert judged([*values[:-1], values[-2]]).strange  # nothing was loaded
    assert judged([*values[:-1], values[-2] + 3000]).strange


def test_trends_are_followed():
    values = [50 + 0.5 * day + noise for day, noise in enumerate(np.random.default_rng(1).normal(0, 0.3, 60))]
    assert not judged(values, plain(5.0)).strange
    assert judged([*values[:-1], values[-1] - 6], plain(5.0)).strange


def test_what_is_strange_is_not_learned_however_often_it_comes():
    values = noisy(30) + noisy(20, 3000.0, seed=2)
    found = expectations.expectations(values, days(50), COUNT)
    assert all(one.strange for one in found[30:])
    there_and_back = noisy(30) + noisy(6, 3000.0) + noisy(3, seed=3)
    back = expectations.expectations(there_and_back, days(39), COUNT)[30:]
    assert [one.strange for one in back] == [True] * 6 + [False] * 3


def test_third_expected_value_on_one_side_is_the_new_level():
    values = [*noisy(30), *noisy(6, 3000.0, seed=2), *noisy(2, seed=3)]
    found = expectations.expectations(values, days(38), COUNT, expected={30})
    assert [one.strange for one in found[30:]] == [False] * 6 + [True] * 2
    assert [one.low < 3000 < one.high for one in found[30:36]] == [False] * 3 + [True] * 3


def test_value_called_expected_is_not_strange_nor_are_others_like_it():
    values = [*noisy(30), 3000.0, *noisy(4, seed=4), 3100.0]
    assert judged(values).strange
    assert not judged(values, expected={30}).strange
    assert judged([*values[:-1], 9000.0], expected={30}).strange


def test_alarms_of_one_run_are_corrected():
    assert most_are_false([0.0004] + [0.5] * 5) == 0.0004
    assert most_are_false([0.0004] + [0.5] * 500) == 0.0  # one in 500 series is to be expected
    assert most_are_false([]) == 0.0


def test_gap_between_commits():
    every_day = days(30)
    assert every_day[-1].weekday() == 1
    assert expectations.longest_gap(every_day, every_day[-1] + timedelta(hours=20)) == timedelta(hours=36)
    working = [day for day in days(40) if day.weekday() < 5]
    friday = max(day for day in working if day.weekday() == 4)
    known = [day for day in working if day <= friday]
    assert expectations.longest_gap(known, friday + timedelta(days=2)) == timedelta(hours=108)  # over a weekend
    assert expectations.longest_gap(known[:-1], friday) == timedelta(hours=36)
    assert expectations.longest_gap(every_day[:5], every_day[5]) is None
    backfill = [every_day[0] + timedelta(seconds=second) for second in range(30)]
    assert expectations.longest_gap(backfill, every_day[9]) is None  # nothing is known of days


def test_ranges_hold_only_values_that_can_be():
    shares = [0.001, 0.0, 0.002, 0.0, 0.001, 0.0, 0.003, 0.0, 0.001, 0.0]
    counts = [3.0, 1.0, 5.0, 2.0, 4.0, 1.0, 6.0, 2.0, 1.0, 3.0]
    for values, kind, most in ((shares, share(0.002), 1.0), (counts, COUNT, np.inf)):
        found = newest(values, days(10), kind)
        assert 0.0 == found.low < found.high <= most


def alarms(values, kind=COUNT):
    found = [newest(values[:end], days(end), kind) for end in range(1, len(values) + 1)]
    return [place for place, one in enumerate(found) if one is not None and one.strange]


@pytest.mark.parametrize("every", [2, 3, 5, 7, 10])
@pytest.mark.parametrize("seed", range(4))
def test_tables_that_grow_in_batches_raise_no_alarm(every, seed):
    batches = noisy(60 // every + 1, noise=0.1, seed=seed)
    values = [sum(batches[: day // every + 1]) for day in range(60)]
    assert alarms(values) == []


def test_batch_is_judged_once_there_are_enough_of_them():
    values = [sum(noisy(30)[: day // 3 + 1]) for day in range(60)]
    assert "batches are known" in judged(values[:10]).unknown
    assert not judged(values[:30]).unknown and not judged(values[:30]).strange  # no batch today
    assert judged([*values[:30], values[29] + 30_000]).strange
    assert judged([*values[:30], values[29] - 5000]).strange


@pytest.mark.parametrize("low", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("weekend", [{5, 6}, {0}])
def test_weekly_patterns_raise_no_alarm_before_they_are_known(low, weekend):
    values = [v * (low if day % 7 in weekend else 1) for day, v in enumerate(noisy(56))]
    assert alarms(values) == []
    second = 12 if 5 in weekend else 14
    assert low == 0.5 or 5 not in weekend or judged(values[: second + 1]).unknown


def test_value_unlike_its_weekday_is_strange_all_the_same():
    values = noisy(13)
    values[5] = values[12] = 100.0  # like the Saturday before
    assert not judged(values).strange and judged([*values[:-1], 10_000.0]).strange
