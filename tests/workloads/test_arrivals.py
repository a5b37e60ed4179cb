"""Arrivals: rates held, and a position found without counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.errors import OptionError
from semistream.workloads import Arrivals
from semistream.workloads.arrivals import CYCLE_STEPS, STEP_NS

CYCLE_NS = CYCLE_STEPS * STEP_NS


@pytest.mark.parametrize("bursty", [False, True])
@pytest.mark.parametrize("rate", [0.001, 7.0, 250_000.0])
def test_the_rate_is_held_in_the_long_run(rate: float, bursty: bool) -> None:
    arrivals = Arrivals(rate, bursty=bursty, seed=3)
    assert arrivals.rows_at(0) == 0
    assert arrivals.rows_at(20 * CYCLE_NS) == pytest.approx(20 * rate * CYCLE_NS / 1e9, abs=20)


def test_bursts_are_bursts() -> None:
    def per_second(bursty: bool) -> float:
        arrivals = Arrivals(10_000, bursty=bursty, seed=3)
        rows = [arrivals.rows_at(second * 1_000_000_000) for second in range(600)]
        return float(np.std(np.diff(rows)) / 10_000)

    assert per_second(False) < 0.001
    assert per_second(True) > 0.2


@given(st.integers(0, 10**12), st.floats(0.01, 1e6), st.booleans())
def test_a_moment_is_the_first_with_so_many_rows(row: int, rate: float, bursty: bool) -> None:
    arrivals = Arrivals(rate, bursty=bursty)
    moment = arrivals.moment_of(row)
    assert arrivals.rows_at(moment + STEP_NS) >= row
    assert arrivals.rows_at(max(moment - STEP_NS, 0)) <= row


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_is_a_number_above_zero(rate: float) -> None:
    with pytest.raises(OptionError, match="rows per second"):
        Arrivals(rate)
