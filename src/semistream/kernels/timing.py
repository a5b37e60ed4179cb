"""Kernels that do one thing alone, for measuring what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import kernel
from semistream.kernels.reading import give_back, in_flight, oldest, submit


@kernel
def read_only_runs(ring: Any, runs: npt.NDArray[np.int64]) -> bool:
    """Read runs of pages, several ahead, and do nothing with them; False if a read failed."""
    submitted = 0
    while True:
        while submitted < runs.shape[0] and submit(ring, runs[submitted, 0], runs[submitted, 1]):
            submitted += 1
        if in_flight(ring) == 0:
            return True
        if oldest(ring) == 0:
            return False
        give_back(ring)
