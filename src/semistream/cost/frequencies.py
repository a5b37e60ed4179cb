"""How often the stream asks for each key of the master, without naming the keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError

_F64 = npt.NDArray[np.float64]

EXACT_RANKS = 4096
"""Ranks of Zipf's law that stand alone; those behind them stand in groups of about equal rank."""

GROUPS_PER_DOUBLING = 32


@dataclass(frozen=True)
class Frequencies:
    """Keys in groups, the most frequent first: so many keys, each asked for with this probability.

    Probabilities are per stream row and sum to the share of the stream that has a partner.
    """

    keys: _F64
    probability: _F64

    @classmethod
    def zipf(cls, keys: int, exponent: float) -> Frequencies:
        """P(rank i) proportional to i ** -exponent, over so many keys; 0 is uniform."""
        if keys < 1:
            return cls(np.zeros(0), np.zeros(0))
        if not 0 <= exponent < np.inf:
            raise OptionError(f"skew={exponent} is not a Zipf exponent", hint="give 0 or more")
        exact = min(keys, EXACT_RANKS)
        ranks = np.arange(1, exact + 1, dtype=np.float64)
        counts, weights = np.ones(exact), ranks**-exponent
        if keys > exact:
            doublings = np.log2(keys / exact)
            borders = np.unique(
                np.round(np.geomspace(exact, keys, int(GROUPS_PER_DOUBLING * doublings) + 2))
            )
            low, high = borders[:-1] + 0.5, borders[1:] + 0.5
            counts = np.append(counts, high - low)
            weights = np.append(
                weights, (_area(high, exponent) - _area(low, exponent)) / (high - low)
            )
        return cls(counts, weights / np.dot(counts, weights))

    @classmethod
    def seen(cls, sample: npt.NDArray[np.int64], keys: int) -> Frequencies:
        """From the keys of some stream rows: Zipf's law with the exponent that fits them best.

        It is the one with which as many rows would have as many different keys. Frequencies of
        single keys in a sample say little: most of the keys that come later are not among them.
        """
        rows, different = len(sample), len(np.unique(sample))
        if rows < 2 or keys < 2 or different >= cls.zipf(keys, 0.0).distinct(rows):
            return cls.zipf(keys, 0.0)
        low, high = 0.0, 4.0
        for _ in range(30):
            middle = (low + high) / 2
            if cls.zipf(keys, middle).distinct(rows) > different:
                low = middle
            else:
                high = middle
        return cls.zipf(keys, low)

    @cached_property
    def _reach(self) -> tuple[_F64, _F64]:
        mass = self.keys * self.probability
        return (
            np.concatenate([[0.0], np.cumsum(self.keys)]),
            np.concatenate([[0.0], np.cumsum(mass)]),
        )

    @property
    def count(self) -> float:
        """All keys."""
        return float(self._reach[0][-1])

    def top(self, keys: float) -> float:
        """Share of the stream that asks for the `keys` most frequent keys: p_N."""
        reach, mass = self._reach
        return float(np.interp(keys, reach, mass))

    def reach(self, share: float) -> float:
        """The fewest keys that are together asked for by that share of the stream."""
        reach, mass = self._reach
        return float(np.interp(share, mass, reach))

    def rank(self, keys: float) -> float:
        """How often the key of this rank is asked for."""
        at = int(self._reach[0].searchsorted(max(keys, 1.0))) - 1
        return float(self.probability[min(max(at, 0), len(self.probability) - 1)])

    def distinct(self, rows: float) -> float:
        """Different keys among so many stream rows."""
        return float(np.dot(self.keys, -np.expm1(-self.probability * rows)))

    def above(self, probability: float) -> float:
        """Keys that are asked for at least that often."""
        return float(self.keys[self.probability >= probability].sum())

    def singly(self, most: int) -> tuple[_F64, float]:
        """Probabilities of the `most` most frequent keys one by one, and of all others together."""
        reach, _ = self._reach
        ends = np.minimum(np.round(reach[1:]), most).astype(np.int64)
        repeats = np.diff(ends, prepend=0)
        single = np.repeat(self.probability, repeats)
        return single, max(float(np.dot(self.keys, self.probability)) - float(single.sum()), 0.0)


def _area(x: _F64, exponent: float) -> _F64:
    """Integral of t ** -exponent from 1 to x."""
    rest = 1.0 - exponent
    area: _F64 = np.log(x) if abs(rest) < 1e-12 else np.expm1(rest * np.log(x)) / rest
    return area
