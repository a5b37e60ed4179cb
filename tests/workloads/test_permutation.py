"""The computed shuffle is a bijection for every size, and it shuffles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.core.errors import OptionError
from semistream.workloads import permute, unpermute
from semistream.workloads.permutation import MAX_DOMAIN

SEEDS = st.integers(-(2**63), 2**64)


@given(n=st.one_of(st.integers(1, 40), st.integers(1, 5000)), seed=SEEDS)
@settings(deadline=None)
def test_every_size_is_mapped_onto_itself(n: int, seed: int) -> None:
    everything = np.arange(n)
    images = permute(everything, n, seed)
    np.testing.assert_array_equal(np.sort(images), everything)
    np.testing.assert_array_equal(unpermute(images, n, seed), everything)
    np.testing.assert_array_equal(permute(unpermute(everything, n, seed), n, seed), everything)


@given(n=st.integers(1, MAX_DOMAIN), seed=SEEDS, data=st.data())
@settings(deadline=None)
def test_large_sizes_are_mapped_back(n: int, seed: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    images = permute(values, n, seed)
    assert all(0 <= v < n for v in images.tolist())
    assert unpermute(images, n, seed).tolist() == values
    assert len(set(images.tolist())) == len(set(values))


@pytest.mark.parametrize("n", [2, 3, 7, 64, 100])
def test_every_value_lands_everywhere_equally_often(n: int) -> None:
    seeds = 4000
    images = np.stack([permute(np.arange(n), n, seed) for seed in range(seeds)])
    for value in (0, n // 2, n - 1):
        counts = np.bincount(images[:, value], minlength=n)
        chi_square = ((counts - seeds / n) ** 2 / (seeds / n)).sum()
        assert chi_square < (n - 1) + 5 * np.sqrt(2 * (n - 1)) + 10


def test_neighbours_are_scattered() -> None:
    n = 1_000_003
    images = permute(np.arange(100_000), n, seed=1)
    steps = np.abs(np.diff(images))
    assert np.mean(steps) == pytest.approx(n / 3, rel=0.02)  # as for independent positions
    assert abs(np.corrcoef(np.arange(100_000), images)[0, 1]) < 0.02


def test_values_outside_are_refused() -> None:
    for values, n in [([5], 5), ([-1], 5), ([0], 0), ([0], MAX_DOMAIN + 1)]:
        with pytest.raises(OptionError):
            permute(values, n, seed=0)
        with pytest.raises(OptionError):
            unpermute(values, n, seed=0)
    assert len(permute([], 5, seed=0)) == 0
