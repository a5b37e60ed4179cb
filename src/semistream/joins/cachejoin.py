"""CACHEJOIN: HYBRIDJOIN behind a cache of master rows that were asked for often."""

from __future__ import annotations

from typing import Any

from semistream.core.join import Traits
from semistream.joins.probing import CachingJoin
from semistream.joins.threshold import Threshold, check_threshold
from semistream.kernels.admission import RANDOM


class CacheJoin(CachingJoin):
    """CACHEJOIN (Naeem, PhD thesis, Auckland 2012, ch. 8, Algorithm 6).

    Optimised X-HYBRIDJOIN without sorting R: H_R starts empty. *Stream-probing phase* (`push`):
    rows found in H_R are answered at once, the others wait in H_S and Q. *Disk-probing phase*
    (`step`): load the partition of the oldest waiting row and probe H_S; a row of R that was asked
    for more than `threshold` times enters H_R. If H_R is full, it overwrites an entry at random and
    the threshold rises by one.

    Names: h_R is the number of rows in `cache`, h_S the capacity of `waiting`, d the rows of `span`
    pages.

    Departures: those of HYBRIDJOIN, and the bound on the stream-probing phase, see Optimised
    X-HYBRIDJOIN. The thesis gives the threshold neither a start nor a way down; here it starts at
    the number of waiting rows that take the memory of a cached one. It falls, not under 1, by one
    with every load after which H_R still has room, and to half of itself after as many loads as
    there are partitions: it rises with each overwritten entry, and if it fell more slowly, a stream
    whose keys drift would find the cache frozen. A key that repeats in R needs as many times more
    requests, and is not cached where its rows reach over a page's edge. Entries keep the output's
    columns only.
    """

    name = "cachejoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 8",
        idea="hybridjoin behind a cache of rows that were asked for more than a threshold",
        skew="tuple",
    )

    policy = RANDOM

    def __init__(self, *args: Any, threshold: int | None = None, **options: Any) -> None:
        self.first_threshold = check_threshold(threshold)
        super().__init__(*args, **options)

    @property
    def threshold(self) -> int:
        """Requests that a row must exceed to be cached."""
        return self._threshold.value

    def hold(self) -> None:
        self._threshold = Threshold(self.match, self.cache, self.waiting, self.first_threshold)

    def loaded(self, first: int, count: int) -> None:
        self._threshold.loaded(self.groups)
