"""Intake models beside a simulation of the algorithms, and the printed formulas beside them."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
import pytest

from semistream.cost import intake

PARTITIONS, WAITING, LOADS = 200, 4000, 1200


def masses(skew: float) -> npt.NDArray[np.float64]:
    """Keys by Zipf's law, scattered over partitions."""
    generator = np.random.default_rng(3)
    keys = PARTITIONS * 100
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    spread = np.bincount(generator.permutation(keys) // 100, weights=weights / weights.sum())
    return spread.astype(np.float64)


def simulated(pi: npt.NDArray[np.float64], position: float | None) -> float:
    """Rows per load of a HYBRIDJOIN; with a position, every other load is for a younger row."""
    generator = np.random.default_rng(4)
    arrivals = iter(generator.choice(len(pi), 400 * LOADS, p=pi / pi.sum()).tolist())
    rows: deque[tuple[int, int]] = deque()  # number of arrival, partition
    waiting = np.zeros(len(pi), np.int64)
    begun = np.zeros(len(pi), np.int64)  # rows before this number have left
    count, number, answered = 0, 0, []
    for load in range(LOADS):
        while count < WAITING:
            partition = next(arrivals)
            rows.append((number, partition))
            waiting[partition] += 1
            number, count = number + 1, count + 1
        while rows[0][0] < begun[rows[0][1]]:
            rows.popleft()
        chosen = rows[0][1]
        if position is not None and load % 2:
            place, at = position * count, 0
            for came, partition in reversed(rows):
                if came >= begun[partition]:
                    at += 1
                    if at >= place:
                        chosen = partition
                        break
        count -= int(waiting[chosen])
        if load >= LOADS // 3:
            answered.append(int(waiting[chosen]))
        waiting[chosen], begun[chosen] = 0, number
    return float(np.mean(answered))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_hybridjoin_as_simulated(skew: float) -> None:
    pi = masses(skew)
    found = intake.hybrid(pi, WAITING).rows
    assert found == pytest.approx(simulated(pi, None), rel=0.05)
    # κ is about 2 at every skew, where the thesis prints 1.36.
    assert found * PARTITIONS / WAITING == pytest.approx(2.0, rel=0.06)
    assert intake.printed_hybrid(WAITING, 100, 100 * PARTITIONS) == pytest.approx(
        1.36 * WAITING / PARTITIONS
    )


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_second_position_as_simulated(skew: float) -> None:
    pi = masses(skew)
    found = intake.second_lookup(pi, WAITING, 0.3).rows
    assert found == pytest.approx(simulated(pi, 0.3), rel=0.1)
    if skew == 0:
        assert found / intake.hybrid(pi, WAITING).rows == pytest.approx(0.87, abs=0.03)


def test_shares_of_the_cache_as_printed_and_as_they_are() -> None:
    """The specification's figures for n_R = 2 M, h_R = 1000."""
    assert intake.share_by_zipf(1000, 2e6) == pytest.approx(0.496, abs=0.001)
    assert intake.printed_share(1000, 2e6) == pytest.approx(0.476, abs=0.001)
    assert intake.printed_power(1000, 2e6) == pytest.approx(0.976, abs=0.001)


def test_the_printed_intake_of_xhybridjoin_peaks_at_one_half() -> None:
    """It takes p·(1 - p) for p; the mean grows with the share that is answered at once."""
    printed = [intake.printed_xhybrid(1e5, 500, held, 2e6) for held in (1e2, 1e3, 1e5)]
    assert printed[1] > printed[0]
    assert printed[1] > printed[2]
    repaired = [intake.repaired_xhybrid(1e5, 500, share) for share in (0.3, 0.5, 0.8)]
    assert repaired == sorted(repaired)
    assert repaired[1] == pytest.approx(1e5 / 500 / 0.5, rel=0.01)


def test_runs_over_wanted_pages() -> None:
    generator = np.random.default_rng(5)
    chance = generator.random(4000) * 0.6
    pages = requests = 0.0
    for _ in range(20):
        at = np.flatnonzero(generator.random(4000) < chance)
        gaps = np.diff(at)
        pages += len(at) + (gaps[gaps <= 3] - 1).sum()
        requests += 1 + (gaps > 3).sum()
    found = intake.runs(chance, 2, 1e9)
    assert found[0] == pytest.approx(pages / 20, rel=0.03)
    assert found[1] == pytest.approx(requests / 20, rel=0.05)
    assert intake.runs(np.zeros(0), 2, 8) == (0.0, 0.0, 0.0)


def test_a_pool_keeps_what_is_asked_for() -> None:
    uniform = np.full(1000, 1e-3)
    age = intake.pool_age(uniform, 300)
    assert -np.expm1(-1e-3 * age) == pytest.approx(0.3, rel=1e-6)
    assert intake.pool_age(uniform, 1000) == np.inf


def test_largest_slots_first() -> None:
    assert intake.largest_first(100, 5000) == 100
