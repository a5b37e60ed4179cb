"""CMESHJOIN: MESHJOIN behind a cache of master rows that were asked for often."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semistream.core.budget import MemoryPlan
from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.cache import TupleCache
from semistream.joins.scanning import ScanJoin
from semistream.joins.sizing import best_cache
from semistream.joins.threshold import Threshold, check_threshold
from semistream.kernels.admission import RANDOM


class CMeshJoin(ScanJoin):
    """CMESHJOIN, as far as it is described in the SSBJ paper (Naeem, Weber, Lutteroth, §2.3).

    MESHJOIN with a cache H_R of hot master rows in front. *Stream-probing phase* (`push`): rows
    found in H_R are answered at once, the others enter H and Q. *Disk-probing phase* (`step`): the
    next chunk is read, H is probed with its rows, and the batch goes that has met all of R; a row
    of R that finds more than `threshold` waiting rows enters H_R.

    It stays exact because a row of R enters H_R when all rows that wait for it have just met it:
    they do not meet it again before they leave, and later ones find it in H_R.

    Names: h_R is the number of rows in `cache`, h_S the capacity of `waiting`; b, k and w as in
    MESHJOIN.

    Departures. Only sketched in its source; what is missing is as in CACHEJOIN: a full cache
    overwrites an entry at random, the threshold rises with that and comes down again (see
    `Threshold`). The stream-probing phase ends after as many rows as can wait, else a stream of
    hits would go on for ever while others wait. The source restricts it to one-to-many joins; here
    a key that repeats in R is cached too, where all its rows lie in the middle of one page: rows of
    a key are neighbours, and no index is needed to know that none is missing. Otherwise as
    `MeshJoin`.
    """

    name = "cmeshjoin"
    traits = Traits(
        paper="as described by Naeem, Weber, Lutteroth",
        idea="meshjoin behind a cache of rows that were asked for more than a threshold",
        needs_index=False,
        skew="tuple",
    )

    def __init__(
        self,
        *args: Any,
        threshold: int | None = None,
        cache_share: float | None = None,
        **options: Any,
    ) -> None:
        if cache_share is not None and not 0 <= cache_share < 1:
            raise OptionError(
                f"cache_share={cache_share} is not a share",
                hint="give a number from 0 to below 1, or leave it out",
            )
        self.first_threshold = check_threshold(threshold)
        self.cache_share = cache_share
        super().__init__(*args, **options)

    def divide(self, blob_bytes: float) -> MemoryPlan:
        plan = super().divide(blob_bytes)
        left = plan["waiting rows"] - self.least_waiting(blob_bytes)
        share = self.cache_share
        if share is None:
            share = best_cache(left, self.master.rows * self._cache_of(0).row_bytes)
        cache = int(share * left)
        shares = {**plan.shares, "cache": cache, "waiting rows": plan["waiting rows"] - cache}
        return MemoryPlan(plan.total_bytes, shares)

    def more_parts(self) -> dict[str, int]:
        return {"cache scratch": self.master.page_bytes if self._cache_of(0).has_bytes else 0}

    def allocate_more(self, blob_bytes: float) -> None:
        self.budget.set("cache scratch", self.plan["cache scratch"])
        self.cache = self._cache_of(self.plan["cache"])
        self.cache.set_bytes(self.plan["cache"])
        self.budget.set("cache", self.cache.size_bytes)
        self.match.cached = self.cache.to_output
        self.match.cached_key = self.cache.to_verify
        self.match.policy = RANDOM
        self._threshold = Threshold(self.match, self.cache, self.waiting, self.first_threshold)
        self._probed = 0

    def _cache_of(self, size_bytes: int) -> TupleCache:
        return TupleCache(self.binding, size_bytes, self.master.page_bytes, seed=self.seed)

    @property
    def cached_rows(self) -> int:
        return self.cache.rows if self._out is not None else 0

    @property
    def threshold(self) -> int:
        """Requests that a row must exceed to be cached."""
        return self._threshold.value

    def accept(self, batch: pa.RecordBatch) -> int:
        if self.waiting.rows:
            left = self.waiting.capacity - self._probed
            if left <= 0:
                return 0
            batch = batch.slice(0, left)
        accepted = super().accept(batch)
        self._probed += accepted
        return accepted

    def pages_to_probe(self) -> int:
        self._probed = 0
        self._threshold.loaded(self.most_packets(self.chunk_pages))
        return super().pages_to_probe()
