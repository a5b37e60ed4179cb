"""Unit costs for tests: about those of a machine of today."""

from __future__ import annotations

from semistream.cost.calibrate import PRIOR, SIZES
from semistream.cost.units import ReadCost, UnitCosts

TYPICAL = UnitCosts(
    tuple((size, PRIOR) for size in SIZES),
    {"buffered": ReadCost(1e-6, 1.2e-6), "direct": ReadCost(2e-5, 6e-6)},
)
