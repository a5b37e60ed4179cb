"""Rows that want a span of pages, and find their partners there by a condition."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryBudget
from semistream.core.conditions import Comparison, Condition, key_range
from semistream.joins.binding import Binding
from semistream.joins.pairs import PairProbe, Sizes
from semistream.joins.waiting import WaitingRows
from semistream.kernels.spans import leave, move_on, put_on_lists, take_lists
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster

Numbers = npt.NDArray[np.int64]

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class SpanProbe:
    """Joins rows on the lists of pages with those pages, and lets them wait for the next one.

    A condition that bounds the master's key gives each row a span of pages in every shard; one that
    does not gives it all of them. A row meets the pages of a span in order, and one shard after the
    other. Rows with a key (`on` beside the condition) want the pages of that key.
    """

    def __init__(
        self,
        master: FileMaster,
        binding: Binding,
        match: Struct,
        out: Struct,
        waiting: WaitingRows,
        sizes: Sizes,
        budget: MemoryBudget,
    ) -> None:
        self._master, self._binding = master, binding
        self._match, self._out, self._waiting = match, out, waiting
        self.spans = not binding.key_names
        self._pairs = PairProbe(
            keyless(binding), match, out, waiting, sizes, master.page_bytes, budget
        )
        self.pages = sizes.pages
        self._slots = np.empty(sizes.stream_rows, np.int64)
        self._since = np.empty(sizes.stream_rows, np.int64)
        self._taken = self._slots[:0]
        self._leaving = self._slots[:0]
        self._left = 0
        self._first = self._end = 0

    @property
    def is_busy(self) -> bool:
        """Whether rows have been taken off their lists and are not done with their pages."""
        return self._pairs.is_busy or len(self._taken) > 0 or len(self._leaving) > 0

    def begin(self, address: int, first: int, pages: int) -> int:
        """Take rows off the lists of pages that lie in memory one after the other; how many.

        After `go_on` it may be that rows are left there, for which it is to be begun again.
        """
        state = self._waiting.state.kernel
        count = take_lists(state, first, pages, self._slots, self._since)
        self._taken = self._slots[:count]
        self._first, self._end = first, first + pages
        if count:
            self._pairs.begin(address, pages, self._taken, self._since[:count])
        return int(count)

    def go_on(self, now: int) -> bool:
        """Emit results until the rows that were taken are done; False if the output is full."""
        if self._pairs.is_busy and not self._pairs.go_on():
            return False
        if len(self._taken):
            state, index = self._waiting.state.kernel, self._master.index.kernel
            taken, since = self._taken, self._since[: len(self._taken)]
            done = move_on(state, index, self.spans, taken, since, self._first, self._end)
            self._taken = self._slots[:0]
            self._leaving, self._left = self._slots[: self._to_next_shard(int(done))], 0
        state, match = self._waiting.state.kernel, self._match.kernel
        self._left = int(leave(match, self._out.kernel, state, self._leaving, self._left, now))
        if self._left < len(self._leaving):
            self._leaving, self._left = self._leaving[self._left :], 0
            return False
        self._leaving = self._slots[:0]
        return True

    def _to_next_shard(self, count: int) -> int:
        """Let rows that are done in one shard wait in a later one; how many are done in all."""
        ranges = self._master.shard_ranges()
        if not self.spans or len(ranges) == 1 or count == 0:
            return count
        shard = next(number for number, (_, end) in enumerate(ranges) if self._first < end)
        done = 0
        while count > done:
            slots = self._slots[done:count]
            stream = self._pairs.columns_of(slots)
            some = slots[: stream.num_rows]
            words = self._words(*self._ranges(stream), shard + 1)
            without = int(put_on_lists(self._waiting.state.kernel, words, some))
            # Those that are done stay in front; the rest moves up.
            rest = slots[stream.num_rows :]
            self._slots[done + without : done + without + len(rest)] = rest.copy()
            done += without
            count = done + len(rest)
        return done

    # Where rows begin.

    def words(self, stream: pa.RecordBatch, pages: npt.NDArray[np.int32] | None = None) -> Numbers:
        """The spans of some rows: in the first shard where they have any, or in that of `pages`."""
        low, high = self._ranges(stream)
        words = self._words(low, high, 0)
        if pages is not None and self._master.pages:
            for first, end in self._master.shard_ranges():
                there = (pages >= first) & (pages < end)
                words[there] = self._span(low[there], high[there], first, end)
        return words

    def _ranges(self, stream: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """Which keys can be partners of each row: from, to, both included."""
        spec, found = self._master.spec, None
        condition = self._binding.condition
        assert condition is not None
        if spec.folded is not None:
            field = spec.schema.field(0)
            found = key_range(condition, field.name, field.type, stream)
        if found is None:
            rows = stream.num_rows
            return np.full(rows, _LEAST), np.full(rows, _MOST)
        return found

    def _words(self, low: Numbers, high: Numbers, shard: int) -> Numbers:
        """The span of each row in the first shard from `shard` on in which it has one."""
        words = np.full(len(low), -1, np.int64)
        for first, end in self._master.shard_ranges()[shard:]:
            open_ = words < 0
            if open_.any():
                words[open_] = self._span(low[open_], high[open_], first, end)
        return words

    def _span(self, low: Numbers, high: Numbers, first: int, end: int) -> Numbers:
        if first == end:
            return np.full(len(low), -1, np.int64)
        index = self._master.index
        if self._master.by_frequency:
            # Pages are not in key order: any of them may hold keys of a range.
            return np.full(len(low), (first << 32) | (end - 1), np.int64)
        base = int(index.base)
        starts = index.array("first")[first:end].astype(np.int64)
        if index.narrow:
            top = min(base + (1 << 32), _MOST)
            low = np.clip(low, max(base - 1, _LEAST), top) - base
            high = np.clip(high, max(base - 1, _LEAST), top) - base
        a = np.searchsorted(starts, low, "left")
        # The page before may hold the key as well, unless this one begins with it.
        begins = starts[np.minimum(a, len(starts) - 1)] == low
        if index.continued:
            continued = index.array("continued")[first:end]
            begins &= continued[np.minimum(a, len(starts) - 1)] == 0
        a = np.where(begins & (a < len(starts)), a, np.maximum(a - 1, 0))
        b = np.searchsorted(starts, high, "right") - 1
        words: Numbers = np.where(a <= b, ((a + first) << 32) | (b + first), -1)
        return words


def keyless(binding: Binding) -> Binding:
    """The same join with its equal keys as part of the condition."""
    assert binding.condition is not None
    pairs = zip(binding.key_names, binding.spec.names, strict=False)
    equal: list[Condition] = [Comparison(stream, "==", master) for stream, master in pairs]
    condition = reduce(and_, [*equal, binding.condition])
    return replace(binding, key_names=(), condition=condition)
