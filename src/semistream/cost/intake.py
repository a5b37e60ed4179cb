"""Intake: how many stream rows an iteration answers (w), at once (w_N) and after waiting (w_S).

The repaired formulas of the papers, and the printed ones beside them for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_F64 = npt.NDArray[np.float64]

EULER = 0.5772156649
PRINTED_KAPPA = 1.36
"""Eq. 5.2's constant, which the thesis measured at exponent 1."""


def rising_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises crosses zero, by bisection; an end where it does not."""
    for _ in range(80):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


class Queue(NamedTuple):
    """A full queue of rows of which the oldest chooses the partition that is loaded.

    `rows` are answered per load (w_S); `age` is how many rows came since a row that reaches the
    front did (T); `served` is the mean number of rows that wait for a partition that is loaded.
    """

    rows: float
    age: float


SINGLE, GROUPS = 256, 256
"""Partitions that stand alone where there are many, and groups of all others."""


def grouped(pi: _F64) -> tuple[_F64, _F64]:
    """Masses, the largest first, and how many partitions have each of them.

    The many small ones stand in groups of about equal mass, with their mean.
    """
    if len(pi) <= SINGLE + GROUPS:
        return pi, np.ones(len(pi))
    falling = np.sort(pi)[::-1]
    borders = np.unique(np.linspace(SINGLE, len(pi), GROUPS + 1).astype(np.int64))
    counts = np.diff(borders).astype(np.float64)
    means = np.add.reduceat(falling, borders[:-1]) / counts
    return np.append(falling[:SINGLE], means), np.append(np.ones(SINGLE), counts)


def hybrid(masses: _F64, waiting: float) -> Queue:
    """HYBRIDJOIN's intake, with the stream's interest in every partition and h_S waiting rows.

    A partition begins to wait with its first row and is loaded when that row has become the oldest,
    T rows later; then π·T more rows wait for it. So it fills π·T/(1 + π·T) · (1 + π·T/2) slots on
    average, and T is such that all together are h_S. Loads per row are Σ π/(1 + π·T).
    """
    total = float(masses.sum())
    if total <= 0:
        return Queue(1.0, 0.0)
    pi, count = grouped(masses[masses > 0] / total)

    def full(age: float) -> float:
        x = pi * age
        return float(np.dot(count, x / (1 + x) * (1 + x / 2))) - waiting

    age = rising_root(full, 0.0, 4.0 * waiting + 1.0)
    return Queue(1.0 / float(np.dot(count, pi / (1 + pi * age))), age)


def printed_hybrid(waiting: float, partition_rows: float, rows: float) -> float:
    """Eq. 5.2 as printed: w = 1.36 · h_S · d / n_R."""
    return PRINTED_KAPPA * waiting * partition_rows / rows


def second_lookup(masses: _F64, waiting: float, position: float) -> Queue:
    """Intake when every other load is for the row at `position`·h_S from the young end.

    A partition that waits is loaded when its first row has become the oldest (age T), or before
    that, from the age A on at which a row is at the second position, whenever it is the one that is
    found there: the more likely the more of its rows are that old.
    """
    total = float(masses.sum())
    if total <= 0:
        return Queue(1.0, 0.0)
    pi, count = grouped(masses[masses > 0] / total)
    plain = hybrid(masses, waiting)
    rows, age = plain.rows, plain.age
    young = position * waiting
    hazard = np.zeros_like(pi)
    for _ in range(40):

        def stays(until: float, hazard: _F64 = hazard, young: float = young) -> tuple[_F64, _F64]:
            """Mean time that a partition waits, and the mean of its square."""
            rest = max(until - young, 0.0)
            h = np.maximum(hazard, 1e-300)
            gone = -np.expm1(-h * rest)
            first = np.where(hazard * rest > 1e-9, gone / h, rest)
            second = np.where(
                hazard * rest > 1e-6, 2 * (gone / h - rest * np.exp(-h * rest)) / h, rest**2
            )
            start = min(until, young)
            return start + first, start**2 + 2 * start * first + second

        def full(until: float) -> float:
            mean, square = stays(until)
            rate = 1 / (1 / pi + mean)
            return float(np.dot(count, rate * (mean + pi * square / 2))) - waiting

        age = rising_root(full, 0.0, 64.0 * waiting + 1.0)
        mean, _ = stays(age)
        rate = 1 / (1 / pi + mean)
        new_rows = 1.0 / float(np.dot(count, rate))
        # Of the rows of a load, those that had reached the second position.
        old = rate * (1 + pi * np.maximum(mean - young, 0.0)) * (mean > young)
        weight = old / max(float(np.dot(count, old)), 1e-300)
        # A partition is there to be found only while it has waited for longer than A.
        there = np.maximum(rate * np.maximum(mean - young, 1.0), 1e-300)
        found = weight / (2 * new_rows) / there
        hazard = 0.5 * hazard + 0.5 * np.minimum(found, 10.0)
        rows = new_rows
    return Queue(rows, age)


def printed_xhybrid(waiting: float, partitions: float, resident_rows: float, rows: float) -> float:
    """Eq. 6.9 as printed, for Zipf's law with exponent 1: it takes a variance for a count."""
    p_n = harmonic(resident_rows) / harmonic(rows)
    old = 1 / partitions
    new = p_n + (1 - p_n) / partitions
    return waiting * old * (1 - old) / (1 + old * (1 - old) - new * (1 - new))


def repaired_xhybrid(waiting: float, partitions: float, share: float) -> float:
    """Eq. 6.9 with the mean instead of the variance; `share` of the stream is answered at once."""
    old = 1 / partitions
    new = share + (1 - share) / partitions
    return waiting * old / (1 + old - new)


def printed_share(cached_rows: float, rows: float) -> float:
    """Eq. 7.4 as printed: p_N ≈ ln h_R / ln n_R."""
    return log(cached_rows) / log(rows)


def printed_power(cached_rows: float, rows: float) -> float:
    """Eq. 7.5 as printed: p_N = n_R^y · h_R^z, with the exponents of a doubling of each.

    The ratios of a doubling are those of Eq. 7.4; the law lacks a constant factor.
    """
    share = printed_share(cached_rows, rows)
    phi = printed_share(cached_rows, 2 * rows) / share
    psi = printed_share(2 * cached_rows, rows) / share
    return float(rows ** log2(phi) * cached_rows ** log2(psi))


def printed_miss(cached_rows: float, rows: float, partitions: float) -> float:
    """Eq. 7.7 as printed: the share of the stream that a load answers, of the whole stream."""
    return (log(rows) - log(cached_rows + 1)) / (partitions * (log(rows) + EULER))


def share_by_zipf(cached_rows: float, rows: float) -> float:
    """p_N for exponent 1: H(h_R) / H(n_R)."""
    return harmonic(cached_rows) / harmonic(rows)


def harmonic(n: float) -> float:
    """The harmonic number of n, for n from 0 on."""
    if n < 1:
        return max(n, 0.0)
    return log(n) + EULER + 1 / (2 * n)


def largest_first(groups: float, waiting: float) -> float:
    """Rows of a load when the largest slot is loaded first: all slots grow to the same size.

    A slot has half of that on average, whatever its rate, so that it is 2·h_S / slots.
    """
    return max(2 * waiting / max(groups, 1.0), 1.0)


def pool_age(masses: _F64, pages: float) -> float:
    """Rows after which a page that was not asked for leaves a pool of so many (Che's formula)."""
    held = np.count_nonzero(masses)
    if pages >= held:
        return float("inf")

    def filled(age: float) -> float:
        return float(np.sum(-np.expm1(-masses * age))) - pages

    return rising_root(filled, 0.0, 1e4 * len(masses) / max(float(masses.sum()), 1e-9))


def wanted_pages(masses: _F64, rows: float) -> _F64:
    """The chance that somebody waits for each page when so many rows have come."""
    chance: _F64 = -np.expm1(-masses * rows)
    return chance


def runs(wanted: _F64, gap: int, longest: float) -> tuple[float, float, float]:
    """Pages, requests and seeks to read wanted pages in order through gaps of at most `gap`.

    Each page is wanted by itself with its probability. A gap of g pages is read through if wanted
    pages lie on both sides and g <= gap; a run ends at a longer one or after `longest` pages.
    """
    n = len(wanted)
    if n == 0:
        return 0.0, 0.0, 0.0
    free = 1 - wanted
    total = float(wanted.sum())
    bridged, ends = 0.0, total
    clear = np.ones(n)
    for distance in range(1, gap + 2):
        if distance >= n:
            break
        # A wanted page whose next wanted one is `distance` away.
        near = wanted[:-distance] * clear[: n - distance] * wanted[distance:]
        bridged += (distance - 1) * float(near.sum())
        ends -= float(near.sum())
        clear[: n - distance] *= free[distance:]
    ends = max(ends, 1.0 if total > 0 else 0.0)
    pages = total + bridged
    length = pages / ends if ends else 0.0
    requests = ends if length <= 0 else ends * _cuts(length, longest)
    return pages, requests, ends


def _cuts(length: float, longest: float) -> float:
    """Requests of a run of `length` pages on average, cut after `longest`.

    Lengths are about geometric: most runs are short, a few are cut several times.
    """
    if length <= 1:
        return 1.0
    stay = exp(-longest / length)
    return 1 / (1 - stay) if stay < 1 - 1e-12 else length / longest
