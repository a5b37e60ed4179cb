"""Frequencies: Zipf's law in groups is the law itself, and a sample tells its exponent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from semistream.core.errors import OptionError
from semistream.cost import Frequencies
from semistream.workloads.zipf import zipf_ranks


def exact(keys: int, exponent: float) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    weights /= weights.sum()
    return weights


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
@pytest.mark.parametrize("keys", [1, 100, 50_000])
def test_groups_stand_for_the_law(keys: int, exponent: float) -> None:
    made, p = Frequencies.zipf(keys, exponent), exact(keys, exponent)
    assert made.count == pytest.approx(keys)
    for part in (1, keys // 3, keys // 2, keys):
        assert made.top(part) == pytest.approx(p[:part].sum(), rel=0.002, abs=1e-9)
        if part:
            assert made.reach(made.top(part)) == pytest.approx(part, rel=1e-6)
            assert made.rank(part) == pytest.approx(p[part - 1], rel=0.03)
    for rows in (10, 1000, 100_000):
        assert made.distinct(rows) == pytest.approx((-np.expm1(-p * rows)).sum(), rel=0.002)


def test_most_frequent_keys_one_by_one() -> None:
    single, rest = Frequencies.zipf(20_000, 1.0).singly(5000)
    p = exact(20_000, 1.0)
    assert len(single) == 5000
    assert single == pytest.approx(p[:5000], rel=0.02)
    assert rest == pytest.approx(p[5000:].sum(), rel=0.01)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.8, 1.0])
def test_a_sample_tells_the_exponent(exponent: float) -> None:
    sample = zipf_ranks(500_000, exponent, 30_000, seed=5)
    found = Frequencies.seen(sample, 500_000)
    wanted = Frequencies.zipf(500_000, exponent)
    assert found.distinct(200_000) == pytest.approx(wanted.distinct(200_000), rel=0.05)
    assert found.top(5000) == pytest.approx(wanted.top(5000), abs=0.05)


def test_a_single_key_and_none() -> None:
    assert Frequencies.seen(np.zeros(100, np.int64), 1000).top(1) > 0.9
    assert Frequencies.seen(np.zeros(0, np.int64), 1000).top(500) == pytest.approx(0.5)
    assert Frequencies.zipf(0, 1.0).count == 0


def test_no_exponent() -> None:
    with pytest.raises(OptionError, match="exponent"):
        Frequencies.zipf(10, -1.0)
