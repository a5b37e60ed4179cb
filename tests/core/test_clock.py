"""Clocks: the machine's goes on, the one driven by hand does not."""

from __future__ import annotations

from semistream.core.clock import SystemClock
from semistream.testing import ManualClock


def test_the_machines_clock_never_goes_back() -> None:
    clock = SystemClock()
    assert clock.real
    moments = [clock.now_ns() for _ in range(1000)]
    assert moments == sorted(moments)


def test_a_clock_driven_by_hand_stands_still() -> None:
    clock = ManualClock(5)
    assert not clock.real
    assert clock.now_ns() == clock.now_ns() == 5
    clock.advance(1.5)
    assert clock.now_ns() == 1_500_000_005
