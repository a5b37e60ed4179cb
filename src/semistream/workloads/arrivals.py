"""When the rows of a stream arrive: at an even rate, or in bursts around one.

Which row is at a position never depends on it. Both directions are computed at once, without
counting from the beginning: rows that have arrived by a moment, and the moment of a row.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.workloads.bursty import bursty_counts

STEP_NS = 10_000_000
"""The time step of bursts."""

CYCLE_STEPS = 1 << 16
"""After eleven minutes bursts begin again from the first: a position anywhere is found at once."""


class Arrivals:
    """Rows that arrive at `rate` rows per second on average.

    In bursts if `bursty`, with times from a heavy tail where `pareto` gives its exponent.
    """

    def __init__(
        self, rate: float, *, bursty: bool = False, pareto: float | None = None, seed: int = 0
    ) -> None:
        if not 0.0 < rate < np.inf:
            raise OptionError(f"rate={rate} is not a number of rows per second", hint="above 0")
        if pareto is not None and not bursty:
            raise OptionError("pareto is for bursts", hint="say bursty=True too")
        bursty_counts(0, seed=seed, pareto=pareto)  # raises for an exponent that makes no sense
        self.rate = rate
        self.bursty = bursty
        self.pareto = pareto
        self.seed = seed

    def rows_at(self, elapsed_ns: int) -> int:
        """Rows that have arrived by this moment after the beginning."""
        if not self.bursty:
            return int(elapsed_ns * self.rate / 1e9)
        cycles, step = divmod(elapsed_ns // STEP_NS, CYCLE_STEPS)
        return cycles * int(self._running[-1]) + int(self._running[step])

    def moment_of(self, row: int) -> int:
        """The moment, in nanoseconds, by which this many rows have arrived."""
        if not self.bursty:
            return math.ceil(row * 1e9 / self.rate)
        cycles, rest = divmod(row, int(self._running[-1]))
        step = int(np.searchsorted(self._running, rest, side="left"))
        return (cycles * CYCLE_STEPS + step) * STEP_NS

    def moments_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`moment_of` of many rows, as far as 64 bits go: 292 years."""
        moments: npt.NDArray[np.int64]
        if self.bursty:
            cycles, rest = np.divmod(rows, self._running[-1])
            steps = np.searchsorted(self._running, rest, side="left")
            moments = (cycles * CYCLE_STEPS + steps) * STEP_NS
        else:
            moments = np.ceil(rows * 1e9 / self.rate).astype(np.int64)
        return moments

    @cached_property
    def _running(self) -> npt.NDArray[np.int64]:
        """Rows before each step of a cycle, and all of its rows."""
        counts = bursty_counts(CYCLE_STEPS, seed=self.seed, pareto=self.pareto)
        share = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
        total = max(self.rate * CYCLE_STEPS * STEP_NS / 1e9, 1.0)
        running: npt.NDArray[np.int64] = np.floor(share * total).astype(np.int64)
        return running
