"""Arrivals with bursts on many time scales: the sum of on/off sources, repaired from the thesis.

M. A. Naeem's thesis (section 5.3, figure 5.4) adds up sources that switch on and off, source i
sending 2**i rows per time step. As printed it cannot run: one on/off flag serves all sources,
new toggle times are never stored, and sources get lost from the queue. Here each source keeps its
own state, starts at a random phase of its cycle, and toggles as often as its times say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.kernels.jit import inlined, kernel
from semistream.workloads.permutation import random_word, stream_key, unit_float

MAX_SOURCES = 40

_ONE = np.uint64(1)


def bursty_counts(
    steps: int,
    *,
    seed: int,
    sources: int = 10,
    pareto: float | None = None,
    mean_per_step: float | None = None,
) -> npt.NDArray[np.int64]:
    """Rows that arrive in each of the first `steps` time steps.

    Source i of 1..sources sends 2**i rows per step while it is on, and stays on or off for
    2**(i-1) steps on average. These times are uniform as in the thesis, whose bursts end at about
    2**sources steps, or, when `pareto` gives a tail exponent above 1, heavy-tailed: exponents
    below 2 make the sum self-similar with Hurst parameter (3 - pareto) / 2 (Willinger et al.,
    "Self-Similarity Through High-Variability", IEEE/ACM ToN 5(1), 1997).

    Unscaled, the peak is 2**(sources+1) - 2 rows per step and the mean half of it;
    `mean_per_step` scales the long-run mean (the sum stays within one row of the scaled sum).
    A pure function of its arguments, and the first k steps of a longer run are a run of k steps.
    """
    if steps < 0:
        raise OptionError(f"{steps} time steps are not possible", hint="give a number >= 0")
    if not 1 <= sources <= MAX_SOURCES:
        raise OptionError(f"{sources} sources are not possible", hint=f"1 to {MAX_SOURCES}")
    if pareto is not None and not 1.0 < pareto < np.inf:
        raise OptionError(
            f"the tail exponent is {pareto}",
            hint="above 1 (the mean time must exist); below 2 for self-similar arrivals",
        )
    mean_unscaled = 2.0**sources - 1.0
    if mean_per_step is not None and not 0.0 <= mean_per_step < np.inf:
        raise OptionError(f"mean_per_step is {mean_per_step}", hint="give a number >= 0")
    totals = np.zeros(steps, dtype=np.int64)
    tail = 0.0 if pareto is None else float(pareto)
    for source in range(1, sources + 1):
        _add_source(totals, np.int64(source), tail, stream_key(seed, f"bursty {source}"))
    if mean_per_step is None:
        return totals
    # Differences of the rounded-down running sum: no rounding error adds up, and a longer run
    # begins with the same numbers.
    running = np.floor(np.cumsum(totals).astype(np.float64) * (mean_per_step / mean_unscaled))
    return np.diff(running, prepend=0.0).astype(np.int64)


@inlined
def _duration(uniform: float, mean: float, tail: float) -> Any:
    if tail == 0.0:
        return 2.0 * mean * uniform
    return mean * (tail - 1.0) / tail * uniform ** (-1.0 / tail)


@inlined
def _residual(uniform: float, split: float, mean: float, tail: float) -> Any:
    """What is left of a duration that is under way at a random instant (renewal theory)."""
    # With it the process is stationary from the first step on: no common start, no warm-up.
    if tail == 0.0:
        return 2.0 * mean * (1.0 - np.sqrt(uniform))
    shortest = mean * (tail - 1.0) / tail
    if split < shortest / mean:
        return shortest * uniform
    return shortest * uniform ** (-1.0 / (tail - 1.0))


@kernel
def _add_source(totals: Any, source: Any, tail: Any, key: Any) -> None:
    # One source at a time: sources are independent, so their order within a step is no matter
    # and no queue is needed. Position 0 of the key gives the start, position k the k-th time.
    rows_per_step = np.int64(1) << source
    mean = 0.5 * rows_per_step
    zero = np.uint64(0)
    on = unit_float(random_word(key, zero, zero)) < 0.5
    toggle = _residual(
        unit_float(random_word(key, zero, _ONE)),
        unit_float(random_word(key, zero, _ONE + _ONE)),
        mean,
        tail,
    )
    drawn = zero
    for step in range(len(totals)):
        while toggle <= step:
            drawn += _ONE
            on = not on
            toggle += _duration(unit_float(random_word(key, drawn, zero)), mean, tail)
        if on:
            totals[step] += rows_per_step
