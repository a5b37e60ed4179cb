"""Sums over the whole join, estimated from the results of a sample of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError


@dataclass(frozen=True)
class Estimate:
    """An estimated sum, its standard error, and an interval that holds it with `confidence`."""

    value: float
    standard_error: float
    low: float
    high: float
    confidence: float


def estimate_sum(
    values: npt.ArrayLike,
    weights: npt.ArrayLike,
    rows: npt.ArrayLike | None = None,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """The sum of `values` over the whole join, from the results that a sampling policy left.

    `weights` is the column that `weights=` named. `rows` identifies each result's stream row, and
    is needed where rows have several results: those of one row are kept or shed together. A count
    is the sum of ones. An estimate of many rows is near a normal distribution, from which the
    interval comes.

    The value is unbiased: sum(w·y), with y the sum over a row's results and w its weight. The
    variance is estimated by sum(w·(w - 1)·y²). With Cluster Sampling that is unbiased; with Sample
    w it is too large, by what the rows have in common.
    """
    y, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if y.shape != w.shape or y.ndim != 1:
        raise OptionError(f"{y.shape} values and {w.shape} weights do not belong together")
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence} is not between 0 and 1", hint="give 0.95")
    if rows is not None:
        _, first, number = np.unique(np.asarray(rows), return_index=True, return_inverse=True)
        y, w = np.bincount(number, y, len(first)).astype(np.float64), w[first]
    value = float((w * y).sum())
    error = float(np.sqrt((w * (w - 1.0) * y**2).sum()))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return Estimate(value, error, value - reach, value + reach, confidence)
