"""Exact discrete Zipf ranks: P(rank i) proportional to i**-exponent for i = 1..n.

The papers' generator inverts a continuous distribution and rounds, which gives P(1):P(2) = 1.71
instead of 2 at exponent 1. This one is exact for every exponent >= 0 and every n, and needs no
table: rejection-inversion, W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates
from monotone discrete distributions", ACM TOMACS 6(3), 1996.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.kernels.jit import inlined, kernel
from semistream.workloads.permutation import random_word, stream_key, unit_float

MAX_RANKS = 1 << 53
"""Largest n: beyond it neighbouring ranks are no longer distinct as float64."""

_ONE = np.uint64(1)
_LOW_32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


def zipf_ranks(
    n: int, exponent: float, count: int, seed: int, start: int = 0
) -> npt.NDArray[np.int64]:
    """Positions start .. start + count - 1 of the endless stream of ranks that `seed` names.

    Each value lies in 1..n and depends only on (n, exponent, seed, its position), so slices made
    separately are equal to the same slices of one long run. Exponent 0 is uniform; 0.8614 gives
    the 80/20 rule at the papers' sizes; 1 is the papers' usual skew.
    """
    if not 1 <= n <= MAX_RANKS:
        raise OptionError(f"a Zipf distribution over {n} ranks is not possible", hint="n >= 1")
    if not 0.0 <= exponent < np.inf:
        raise OptionError(f"the Zipf exponent is {exponent}", hint="give a number >= 0")
    if count < 0 or start < 0:
        raise OptionError(f"count={count}, start={start}: neither may be negative")
    ranks = np.empty(count, dtype=np.int64)
    key = stream_key(seed, "zipf")
    if exponent == 0.0:
        _fill_uniform(ranks, np.uint64(n), key, np.uint64(start))
    else:
        _fill_zipf(ranks, np.int64(n), np.float64(exponent), key, np.uint64(start))
    return ranks


@inlined
def _area(x: float, exponent: float) -> Any:
    """Integral of t**-exponent from 1 to x."""
    # expm1 keeps all digits where the exponent is close to 1, so that only 1 itself is special.
    rest = 1.0 - exponent
    return np.log(x) if rest == 0.0 else np.expm1(rest * np.log(x)) / rest


@inlined
def _area_inverse(area: float, exponent: float) -> Any:
    rest = 1.0 - exponent
    if rest == 0.0:
        return np.exp(area)
    # Rounding may push the argument of log1p to -1 or below, where x would be infinite.
    return np.exp(np.log1p(max(area * rest, -1.0 + 1e-16)) / rest)


@kernel
def _fill_zipf(ranks: Any, n: Any, exponent: Any, key: Any, start: Any) -> None:
    # u is uniform over the area under the continuous hat, x its inverse, k the nearest rank. The
    # first test accepts nearly always without evaluating a logarithm; the second one is exact.
    area_low = _area(1.5, exponent) - 1.0
    area_high = _area(n + 0.5, exponent)
    squeeze = 2.0 - _area_inverse(_area(2.5, exponent) - 2.0**-exponent, exponent)
    top = np.float64(n)
    for i in range(len(ranks)):
        position = start + np.uint64(i)
        draw = np.uint64(0)
        while True:
            u = area_high + unit_float(random_word(key, position, draw)) * (area_low - area_high)
            x = _area_inverse(u, exponent)
            k = min(max(np.floor(x + 0.5), 1.0), top)
            if k - x <= squeeze or u >= _area(k + 0.5, exponent) - k**-exponent:
                ranks[i] = np.int64(k)
                break
            draw += _ONE


@kernel
def _fill_uniform(ranks: Any, n: Any, key: Any, start: Any) -> None:
    # Lemire, "Fast Random Integer Generation in an Interval", ACM TOMACS 29(1), 2019: the high
    # half of word * n, where words whose low half is below 2**64 mod n are drawn again. n < 2**54
    # lets the 128-bit product be put together from two products of a 32-bit half.
    below = (~n + _ONE) % n
    for i in range(len(ranks)):
        position = start + np.uint64(i)
        draw = np.uint64(0)
        while True:
            word = random_word(key, position, draw)
            if word * n >= below:
                n_low = n & _LOW_32
                n_high = n >> _S32
                w_low = word & _LOW_32
                w_high = word >> _S32
                middle = w_high * n_low + ((w_low * n_low) >> _S32)
                high = w_high * n_high
                high += (middle >> _S32) + ((w_low * n_high + (middle & _LOW_32)) >> _S32)
                ranks[i] = np.int64(high) + 1
                break
            draw += _ONE
