"""SSBJ: MESHJOIN behind a cache that holds the keys for which that takes less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.cache import TupleCache
from semistream.joins.scanning import ScanJoin
from semistream.kernels.admission import FIXED
from semistream.kernels.struct import Struct
from semistream.kernels.watching import (
    UNMARKED,
    WATCH,
    WATCH_BYTES,
    count_waiting,
    evict,
    keys_without_rows,
    move_keys,
    watch_keys,
)

SWITCHING_BYTES = 500_000
"""The paper's switching buffer."""

BUFFER_SHARE = 32
"""The switching buffer and the watched keys take at most this part of the memory each."""

EVICTION_CYCLES = 10
INCREMENTING, SWITCHING, PHASE_OUT = 1, 2, 0
HISTOGRAM_SHARE, LEAST_COUNTS, MOST_COUNTS = 8, 32, 1024
"""The histogram's part of the watched keys' memory, and how many counts it tells apart."""

LEAST_WATCHED_BYTES = 8 * LEAST_COUNTS + 4 * WATCH_BYTES
LEAST_ROWS = 64
COUNT, RECORDS, COLLECTED = 1, 2, 3
"""Columns of the watched keys: rows that wait, records seen, first collected entry plus one."""


def own_parts(memory_bytes: int) -> dict[str, int]:
    """Memory of the switching buffer and for the keys that are watched."""
    share = min(memory_bytes // BUFFER_SHARE, SWITCHING_BYTES)
    return {"switching buffer": share, "watched keys": max(share, LEAST_WATCHED_BYTES)}


class SemiStreamBalancedJoin(ScanJoin):
    """SSBJ (Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join, §3).

    MESHJOIN (the *disk phase*) behind a cache H_R of master rows (the *cache phase*). Each join
    value is in one of the two, in that which needs less memory for it: m records of v_R bytes in
    the cache, or the n stream rows of v_S bytes that wait with it in H_S. *Cache inequality*: cache
    it if m·v_R < n·v_S. So the memory is the least for a given rate, and the rate the greatest for
    a given memory. If the stream is so fast that everything is worth it, all of R ends up in the
    cache and nothing is read any more: a main-memory hash join.

    Values move while R is scanned, in three states of one R-cycle each. *Incrementing*: the records
    of the values that wait are counted. *Switching*: values that fulfil the inequality are marked,
    and all their records are collected. *Phase-out*: they are in the cache; older rows with those
    values stay in H_S until their cycle ends. At every tenth R-cycle values that no longer fulfil
    the inequality are evicted. `factor` is the hysteresis sf: more than 1 makes moving in either
    direction harder; the paper finds 1 to be best. `ratio` is v_R / v_S, by default that of the
    bytes that both really take here, tables and links included.

    Names: H_R is `cache`, H_S `waiting`, s_count a column of `watch`, sB the entries of the cache
    that are not yet linked; rc is `cycle`.

    Departures. The printed inequality is tested at each record with the rows that wait at that
    moment, and only while some do, so that a value can enter the cache with some of its records and
    results are lost: here values are chosen once, at the beginning of the switching cycle, best
    savings first while they fit, and everything is collected, whether rows still wait or not. For
    the same reason values without any record can be cached, as the text wants and the printed code
    does not do; they count like one record. Values are evicted once per tenth cycle; as printed it
    happens again at each step of that cycle, with counters just set to zero. Printed counts are
    divided by 10 whatever a value's age; here the counter of a young value begins with what it
    would have had in the cycles before it was cached. Exactly the rows of a batch expire, not all
    rows of their values. Values with a single waiting row are not watched, and of the others only
    as many as a part of the memory holds, those with most rows first. At most as many rows as find
    room are taken in between two chunks, or a stream of hits would keep the scan from going on.
    Memory that the cache takes is the waiting rows' before, so they leave first: a row less may
    wait from the moment a value is marked.
    """

    name = "ssbj"
    traits = Traits(
        paper="Naeem, Weber, Lutteroth: SSBJ",
        idea="as meshjoin, with each key's rows in a cache where that takes less memory",
        needs_index=False,
        skew="tuple",
    )

    def __init__(
        self, *args: Any, factor: float = 1.0, ratio: float | None = None, **options: Any
    ) -> None:
        if not 1 <= factor < float("inf"):
            raise OptionError(f"factor={factor} is not at least 1")
        if ratio is not None and not 0 < ratio < float("inf"):
            raise OptionError(f"ratio={ratio} is not above zero")
        self.factor, self.ratio = factor, ratio
        super().__init__(*args, **options)

    # Memory.

    def more_parts(self) -> dict[str, int]:
        return own_parts(self.budget.limit_bytes)

    def allocate_more(self, blob_bytes: float) -> None:
        plan = self.plan
        self.budget.set("watched keys", plan["watched keys"])
        # A small part for the histogram: only the counts of the keys with most rows matter.
        counts = min(max(plan["watched keys"] // HISTOGRAM_SHARE // 8, LEAST_COUNTS), MOST_COUNTS)
        self._histogram = np.zeros(counts, np.int64)
        self._watched = np.zeros(((plan["watched keys"] - 8 * counts) // WATCH_BYTES, 4), np.int64)
        self.watch = Struct(WATCH, table=self._watched, places=len(self._watched))
        self._flexible = plan["waiting rows"]
        self._switching_bytes = plan["switching buffer"]
        capacity = self._flexible + self._switching_bytes
        # Byte strings of a record lie in its page.
        self.cache = TupleCache(self.binding, capacity, self.master.page_bytes, seed=self.seed)
        self.match.cached, self.match.cached_key = self.cache.to_output, self.cache.to_verify
        # Values move by the inequality alone, not when a record finds many rows.
        self.match.policy = FIXED
        self.cycle = 0
        self._since_step = 0
        self._granted = self._promised = 0
        self._blocks = self.waiting.heap.limit if self.waiting.heap is not None else 0
        self._grant(0)

    def _grant(self, size_bytes: int) -> None:
        """Let the cache have so much of the memory of waiting rows, who have left it already."""
        self._granted, self._promised = size_bytes, 0
        self._limit_strings()
        if self.waiting.heap is not None:
            self.waiting.heap.settle()
        self.budget.set("cache", 0)
        self.budget.set("waiting rows", self._flexible - size_bytes)
        self.cache.set_bytes(size_bytes + self._switching_bytes)
        self.budget.set("cache", size_bytes + self._switching_bytes)

    def _limit_strings(self) -> None:
        """Byte strings of waiting rows get the same share of their memory as the rows of theirs."""
        if self.waiting.heap is not None:
            share = self.row_capacity / self.waiting.capacity
            self.waiting.heap.set_limit(int(self._blocks * share))

    @property
    def row_capacity(self) -> int:
        """Rows that may wait beside what the cache has and was promised."""
        lost = (self._granted + self._promised) / (self.waiting.row_bytes + 4)
        return max(self.waiting.capacity - int(np.ceil(lost)), 1)

    @property
    def cached_rows(self) -> int:
        return self.cache.rows if self._out is not None else 0

    def rows_to_enter(self) -> int:
        batch = self.portion(self.row_capacity)
        entered = int(self._entered[0])
        return min(batch, entered + max(self.row_capacity - self.waiting.rows, 0))

    @property
    def _price(self) -> float:
        """v_R / v_S: what a cached record takes, in waiting rows."""
        return self.ratio or self.cache.row_bytes / (self.waiting.row_bytes + 4)

    def _cached_bytes(self) -> int:
        """What the cache needs; a value without records counts like one with a single one."""
        rows = self.cache.rows + int(keys_without_rows(self.cache.state.kernel))
        return int(np.ceil(rows * self.cache.row_bytes))

    def accept(self, batch: pa.RecordBatch) -> int:
        # Rows that all hit the cache must not keep those that wait from meeting the next chunk.
        room = self.waiting.capacity - self._since_step if self.waiting.rows else batch.num_rows
        accepted = super().accept(batch.slice(0, max(room, 0)))
        self._since_step += accepted
        return accepted

    # The cycles.

    def work(self) -> None:
        self._since_step = 0
        super().work()

    def _begin(self) -> None:
        if self._page == 0 and self.master.pages:
            self._new_cycle()
        super()._begin()

    def _new_cycle(self) -> None:
        self.cycle += 1
        state = self.cycle % 3
        if state == PHASE_OUT:
            self._move()
        if self.cycle % EVICTION_CYCLES == 0:
            self._evict()
        if state == INCREMENTING:
            self._watch()
        elif state == SWITCHING:
            self._mark()

    def _watch(self) -> None:
        """Incrementing: count the records of the values with which most rows wait."""
        self._watched[:, COUNT] = 0
        self.watch.keys, self.watch.collecting = 0, 0
        most = len(self._watched) * 3 // 4
        if most:
            waiting, cache = self.waiting.state.kernel, self.cache.state.kernel
            watch_keys(waiting, cache, self.watch.kernel, most, self._histogram)

    def _mark(self) -> None:
        """Switching: choose the values that fulfil the inequality and collect their records."""
        count_waiting(self.waiting.state.kernel, self.watch.kernel)
        table = self._watched
        table[:, COLLECTED] = UNMARKED
        rows = np.maximum(table[:, RECORDS], 1)
        savings = table[:, COUNT] - self.factor * self._price * rows
        room = self._room()
        found = np.flatnonzero((table[:, COUNT] > 0) & (savings > 0) & (rows <= room))
        best = found[np.argsort(-savings[found], kind="stable")]
        chosen = best[np.cumsum(rows[best]) <= room]
        table[chosen, COLLECTED] = 0
        self.watch.collecting = 1
        if not len(chosen):
            self.watch.keys = 0
            return
        needed = self._cached_bytes() + int(np.ceil(rows[chosen].sum() * self.cache.row_bytes))
        self._promised = max(needed - self._granted, 0)
        self._limit_strings()

    def _room(self) -> int:
        """Records that the switching buffer holds, and for which waiting rows can leave."""
        least = (LEAST_ROWS + 2) * (self.waiting.row_bytes + 4) + self.waiting.fixed_bytes
        left = self._flexible - self._ring_bytes - least - self._cached_bytes()
        return int(max(min(self._switching_bytes, left), 0) / self.cache.row_bytes)

    def _move(self) -> None:
        """Phase-out: what was collected is in the cache from now on."""
        if self.watch.keys:
            # As if it had been there since the counters began.
            cycles = EVICTION_CYCLES - -self.cycle % EVICTION_CYCLES
            move_keys(self.cache.state.kernel, self.watch.kernel, cycles)
            self.watch.keys = 0
        self._grant(min(self._cached_bytes(), self._granted + self._promised))

    def _evict(self) -> None:
        """Values that would take less memory in the disk phase go there."""
        evict(self.cache.state.kernel, EVICTION_CYCLES * self._price / self.factor)
        if not self.cache.has_bytes or not self.cache.keys:
            # Byte strings do not move together: their memory is used again, not given back.
            self._grant(min(self._cached_bytes(), self._granted))

    def _expire(self) -> None:
        super()._expire()
        # The circle of slots goes through all of the memory; only where rows lie is it real.
        self.waiting.release_before(int(self.waiting.state.free))
