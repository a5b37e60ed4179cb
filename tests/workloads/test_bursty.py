"""Bursty arrivals: stationary, as many rows as asked, bursts on long scales, prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.core.errors import OptionError
from semistream.workloads import bursty_counts


@given(
    steps=st.integers(0, 300),
    more=st.integers(0, 300),
    seed=st.integers(-(2**63), 2**64),
    sources=st.integers(1, 40),
    pareto=st.one_of(st.none(), st.floats(1.01, 5.0)),
    mean=st.one_of(st.none(), st.floats(0.0, 1e6)),
)
@settings(deadline=None)
def test_a_longer_run_begins_with_the_shorter_one(
    steps: int, more: int, seed: int, sources: int, pareto: float | None, mean: float | None
) -> None:
    def run(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return bursty_counts(n, seed=seed, sources=sources, pareto=pareto, mean_per_step=mean)

    whole = run(steps + more)
    assert len(whole) == steps + more
    assert (whole >= 0).all()
    np.testing.assert_array_equal(run(steps), whole[:steps])


@pytest.mark.parametrize("pareto", [None, 1.5, 1.9])
def test_every_step_has_the_mean_from_the_first_on(pareto: float | None) -> None:
    runs = np.stack([bursty_counts(64, seed=seed, pareto=pareto) for seed in range(4000)])
    peak = 2**11 - 2
    assert runs.min() >= 0
    assert runs.max() <= peak
    assert (runs % 2 == 0).all(), "the smallest source sends two rows"
    # Stationary: no step is special. One step's standard deviation is sqrt(sum of 4**i) / 2.
    error = np.sqrt(sum(4**i for i in range(1, 11))) / 2 / np.sqrt(4000)
    for step in (0, 1, 7, 63):
        assert abs(runs[:, step].mean() - peak / 2) < 5 * error
    assert runs[:, 0].std() == pytest.approx(runs[:, 63].std(), rel=0.1)


def test_a_single_source_toggles_several_times_per_step() -> None:
    # Source 1 stays on for at most 2 steps, half a step in a quarter of the cases.
    counts = bursty_counts(100_000, seed=1, sources=1)
    assert set(counts.tolist()) == {0, 2}
    assert counts.mean() == pytest.approx(1.0, abs=0.05)


def test_counts_are_scaled_to_the_mean_without_losing_rows() -> None:
    raw = bursty_counts(50_000, seed=8)
    for mean in (0.01, 3.3, 5000.0):
        scaled = bursty_counts(50_000, seed=8, mean_per_step=mean)
        assert abs(scaled.sum() - raw.sum() * mean / 1023) <= 1
        assert scaled.mean() == pytest.approx(mean, rel=0.1)
    assert bursty_counts(100, seed=8, mean_per_step=0.0).sum() == 0


def variance_of_means(counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], scale: int) -> float:
    return float(counts[: len(counts) // scale * scale].reshape(-1, scale).mean(axis=1).var())


def test_heavy_tails_keep_bursts_on_long_scales() -> None:
    steps = 1 << 21
    short, long = 1 << 13, 1 << 16
    slopes = {}
    for pareto in (None, 1.2):
        ratios = []
        for seed in range(3):
            counts = bursty_counts(steps, seed=seed, pareto=pareto)
            ratios.append(variance_of_means(counts, short) / variance_of_means(counts, long))
        # Variance falls with scale**(2 H - 2): by 1 per octave when bursts are short, H = 1/2.
        slopes[pareto] = np.log2(np.median(ratios)) / 3
    assert slopes[None] == pytest.approx(1.0, abs=0.35)
    assert slopes[1.2] < 0.6  # (3 - 1.2) / 2 = 0.9, which is a slope of 0.2


def test_arguments_are_checked() -> None:
    for wrong in (
        {"steps": -1},
        {"sources": 0},
        {"sources": 41},
        {"pareto": 1.0},
        {"pareto": float("nan")},
        {"mean_per_step": -1.0},
    ):
        options: dict[str, Any] = {"steps": 10, "seed": 0} | wrong
        with pytest.raises(OptionError):
            bursty_counts(**options)
