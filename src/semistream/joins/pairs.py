"""Probing under a condition: blocks of waiting rows against blocks of master rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryBudget
from semistream.core.conditions import Comparison, Condition, common_type
from semistream.joins.binding import Binding, as_given
from semistream.joins.columns import ColumnBlock
from semistream.joins.waiting import WaitingRows
from semistream.kernels.pairs import (
    BLOCK,
    copy_block,
    copy_slots,
    emit_pairs,
    equal_pairs,
    fill_block,
    pages_of,
    unanswered,
)
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster

Numbers = npt.NDArray[np.int64]
Pairs = tuple[Numbers, Numbers]

MOST_ROWS = 16_384
"""Waiting rows of a block: sorting more at once gains nothing."""

MOST_PAIRS = 65_536
"""Candidates checked at once."""

NUMBERS_BYTES = 48
"""Per row of either block: its number to be compared by, its place in the order, its range."""

_LOWER, _UPPER = {">", ">=", "=="}, {"<", "<=", "=="}


@dataclass(frozen=True)
class Sizes:
    """How large the blocks of a join under a condition are, and what they take."""

    pages: int
    master_rows: int
    stream_rows: int
    stream_heap: int
    pairs: int
    size_bytes: int

    @classmethod
    def of(
        cls, master: FileMaster, binding: Binding, limit_bytes: int, blob_bytes: float, longest: int
    ) -> Sizes:
        """Sizes for a budget; `longest` are the bytes in which one stream row must find room."""
        condition = binding.condition
        assert condition is not None
        wide = binding.master_layout
        stream_row = ColumnBlock.row_bytes(binding.layout, condition.stream_columns)
        master_row = ColumnBlock.row_bytes(wide, condition.master_columns)
        strings = any(
            leaf.is_bytes
            for layout, names in (
                (binding.layout, condition.stream_columns),
                (wide, condition.master_columns),
            )
            for name in names
            for leaf in (layout.leaves[i] for i in layout.leaf_range(name))
        )
        share = limit_bytes // 20
        # Master rows: record and columns, and the page's bytes again where there are strings.
        page_rows = max(master.most_rows_per_page, 1)
        page = page_rows * (wide.record_bytes + master_row + NUMBERS_BYTES)
        page += 2 * master.page_bytes if strings else 0
        pages = max(min(share // page, max(master.pages, 1), 256), 1)
        row = stream_row + NUMBERS_BYTES + (2 * blob_bytes if strings else 0)
        stream_rows = int(max(min(share // row, MOST_ROWS), 64))
        heap = max(int(stream_rows * blob_bytes), longest) if strings else 0
        pair = 2 * (stream_row + master_row) + 64
        pairs = int(max(min(share // pair, MOST_PAIRS), 256))
        size = pages * page + int(stream_rows * (stream_row + NUMBERS_BYTES)) + 2 * heap
        return cls(pages, pages * page_rows, stream_rows, heap, pairs, size + pairs * pair)


class PairProbe:
    """Finds and emits the partners of all waiting rows in some pages of the master.

    Candidates come from the hash rings where the join has a key; else from the order of a column
    that the condition bounds, with the waiting rows of a block sorted by it; else all pairs are
    candidates. What the candidates do not guarantee is checked by the condition itself, on columns
    of pairs. All of it is bounded by `Sizes`, but for what a predicate allocates by itself.
    """

    def __init__(
        self,
        binding: Binding,
        match: Struct,
        out: Struct,
        waiting: WaitingRows,
        sizes: Sizes,
        page_bytes: int,
        budget: MemoryBudget,
    ) -> None:
        condition = binding.condition
        assert condition is not None
        self._binding, self._match, self._out, self._waiting = binding, match, out, waiting
        self._condition, self.sizes, self._budget = condition, sizes, budget
        wide = binding.master_layout
        self._records = Region(sizes.master_rows * wide.record_bytes)
        self._block = Struct(
            BLOCK, records=self._records.bytes, stride=wide.record_bytes, page_bytes=page_bytes
        )
        self._master = ColumnBlock(wide, condition.master_columns, sizes.master_rows)
        self._stream = ColumnBlock(
            binding.layout, condition.stream_columns, sizes.stream_rows, sizes.stream_heap
        )
        self._bounds = () if binding.key_names else _bounds(condition, binding)
        guaranteed = set(map(id, self._bounds))
        self._rest = [part for part in condition.parts if id(part) not in guaranteed]
        self._found: Iterator[Pairs] | None = None
        self._pairs: Pairs = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._emitted = 0

    @property
    def is_busy(self) -> bool:
        """Whether the pages that were begun are not done yet."""
        return self._found is not None

    def begin(
        self, address: int, pages: int, slots: Numbers | None = None, since: Numbers | None = None
    ) -> None:
        """Begin with some pages that lie in memory one after the other.

        Not for all waiting rows but for some, if `slots` are given; each of them looks for partners
        from page `since` on, counted from the first.
        """
        fill_block(self._block.kernel, address, pages)
        if slots is None or since is None:
            self._found = self._partners()
        else:
            self._found = self._partners_of(slots, since)

    def go_on(self) -> bool:
        """Emit partners; False if the output is full before all pages are done."""
        assert self._found is not None
        while True:
            slots, records = self._pairs
            self._emitted = int(
                emit_pairs(
                    self._match.kernel,
                    self._out.kernel,
                    self._waiting.state.kernel,
                    self._block.kernel,
                    slots,
                    records,
                    self._emitted,
                )
            )
            if self._emitted < len(slots):
                return False
            found = next(self._found, None)
            self._emitted = 0
            if found is None:
                self._found = None
                self._pairs = (slots[:0], records[:0])
                return True
            self._pairs = found

    def _partners(self) -> Iterator[Pairs]:
        master = self._master_batch()
        if self._binding.key_names:
            yield from self._equal(master)
            return
        slots = np.empty(self.sizes.stream_rows, np.int64)
        state, match = self._waiting.state.kernel, self._match.kernel
        done, total = 0, self._waiting.rows
        while done < total:
            count = min(len(slots), total - done)
            chosen = slots[: unanswered(match, state, done, count, slots)]
            done += count
            while len(chosen):
                taken = self._copy_stream(chosen)
                stream = self._stream_batch()
                for i, j in self._candidates(stream, master):
                    keep = self._holds(stream, master, i, j)
                    yield chosen[i[keep]], j[keep]
                chosen = chosen[taken:]

    def _partners_of(self, slots: Numbers, since: Numbers) -> Iterator[Pairs]:
        master = self._master_batch()
        page = np.empty(master.num_rows, np.int64)
        pages_of(self._block.kernel, page)
        while len(slots):
            stream = self.columns_of(slots)
            for i, j in self._candidates(stream, master):
                keep = self._holds(stream, master, i, j) & (page[j] >= since[i])
                yield slots[i[keep]], j[keep]
            slots, since = slots[stream.num_rows :], since[stream.num_rows :]

    def columns_of(self, slots: Numbers) -> pa.RecordBatch:
        """The stream's columns of the condition, of as many rows as there is room for."""
        self._copy_stream(slots[: self.sizes.stream_rows])
        return self._stream_batch()

    def _equal(self, master: pa.RecordBatch) -> Iterator[Pairs]:
        """Pairs with the same key, for which the condition holds."""
        place = np.array([0, -1], np.int64)
        slots, records = np.empty((2, self.sizes.pairs), np.int64)
        while place[0] < self._block.count:
            count = equal_pairs(
                self._match.kernel,
                self._out.kernel,
                self._waiting.state.kernel,
                self._block.kernel,
                place,
                slots,
                records,
            )
            left = slots[:count], records[:count]
            while len(left[0]):
                taken = self._copy_stream(left[0])
                stream = self._stream_batch()
                for start, end in _pieces(taken, self._piece(stream, master)):
                    i, j = np.arange(start, end), left[1][start:end]
                    keep = self._holds(stream, master, i, j)
                    yield left[0][i[keep]], j[keep]
                left = left[0][taken:], left[1][taken:]

    def _candidates(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Iterator[Pairs]:
        """Rows of both blocks that may be partners; where there are bounds, all that meet them."""
        order = np.arange(stream.num_rows)
        low = np.zeros(master.num_rows, np.int64)
        high = np.full(master.num_rows, stream.num_rows)
        if self._bounds:
            order, low, high = self._within_bounds(stream, master)
        counts = np.maximum(high - low, 0)
        ends = np.cumsum(counts)
        for start, end in _pieces(int(ends[-1]) if len(ends) else 0, self._piece(stream, master)):
            # The pairs start to end of the list "record 0 with its rows, record 1 with its rows".
            first = int(np.searchsorted(ends, start, side="right"))
            last = int(np.searchsorted(ends, end, side="left"))
            number = np.arange(first, last + 1)
            before = ends[number] - counts[number]
            sizes = np.minimum(ends[number], end) - np.maximum(before, start)
            j = np.repeat(number, sizes)
            place = np.arange(start, end) - np.repeat(before, sizes) + np.repeat(low[number], sizes)
            yield order[place], j

    def _within_bounds(
        self, stream: pa.RecordBatch, master: pa.RecordBatch
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Rows in the order of the bounded column, and for each record its range of them."""
        order = np.empty(0, np.int64)
        low = high = np.zeros(master.num_rows, np.int64)
        for number, bound in enumerate(self._bounds):
            rows, records = bound.numbers(stream.column(bound.stream), master.column(bound.master))
            if number == 0:
                order = np.argsort(rows.values, kind="stable")
                # Nulls have no place in the order.
                order = order[rows.valid[order]]
                high = np.full(master.num_rows, len(order))
            values = rows.values[order]
            before = np.searchsorted(values, records.values, "left")
            behind = np.searchsorted(values, records.values, "right")
            if bound.sign in _LOWER:
                low = np.maximum(low, behind if bound.sign == ">" else before)
            if bound.sign in _UPPER:
                high = np.minimum(high, before if bound.sign == "<" else behind)
            high = np.where(records.valid, high, 0)
        return order, low, high

    def _holds(
        self, stream: pa.RecordBatch, master: pa.RecordBatch, i: Numbers, j: Numbers
    ) -> npt.NDArray[np.bool_]:
        flags = np.ones(len(i), np.bool_)
        if self._rest and len(i):
            rows, records = stream.take(pa.array(i)), master.take(pa.array(j))
            for part in self._rest:
                flags &= part.holds(rows, records)
        return flags

    def _piece(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> int:
        """Pairs whose columns find room together, also if all are as long as the longest."""
        longest = _longest(stream) + _longest(master) if self._rest else 0
        if not longest:
            return self.sizes.pairs
        room = self.sizes.pairs * 64 + self.sizes.stream_heap
        return max(min(self.sizes.pairs, room // longest), 1)

    # Columns of both sides.

    def _master_batch(self) -> pa.RecordBatch:
        block = self._master
        block.clear()
        needed = int(copy_block(block.out.kernel, self._match.nothing, self._block.kernel))
        if needed:
            block.grow_heap(needed)
            copy_block(block.out.kernel, self._match.nothing, self._block.kernel)
        return pa.RecordBatch.from_arrays(
            block.arrays(), names=list(self._condition.master_columns)
        )

    def _copy_stream(self, slots: Numbers) -> int:
        """Copy the columns of waiting rows, as many as there is room for; how many."""
        block = self._stream
        block.clear()
        state = self._waiting.state.kernel
        taken = int(copy_slots(block.out.kernel, self._match.nothing, state, slots))
        if taken == 0:
            # One row whose byte strings are longer than planned.
            size = max(2 * block.heap_bytes, self._waiting.scratch_bytes)
            used = self._budget.in_use()["condition"]
            self._budget.set("condition", used + 2 * (size - block.heap_bytes))
            block.grow_heap(size)
            return self._copy_stream(slots)
        return taken

    def _stream_batch(self) -> pa.RecordBatch:
        names = self._condition.stream_columns
        schema = self._binding.stream_schema
        columns = [
            as_given(column, schema.field(name).type)
            for name, column in zip(names, self._stream.arrays(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(names))


def _bounds(condition: Condition, binding: Binding) -> tuple[Comparison, ...]:
    """The comparisons that bound one column of the stream, the column with most of them.

    All of them compare in the same order: as floats, large integers may be equal that are not.
    """
    stream, master = binding.stream_schema, binding.master_layout.schema
    by_order: dict[tuple[str, bool], list[Comparison]] = {}
    for part in condition.comparisons:
        if part.sign != "!=":
            type_ = common_type(stream.field(part.stream).type, master.field(part.master).type)
            by_order.setdefault((part.stream, type_ == pa.float64()), []).append(part)

    best: tuple[Comparison, ...] = ()
    for bounds in by_order.values():
        if _strength(bounds) > _strength(best):
            best = tuple(bounds)
    return best


def _strength(bounds: Sequence[Comparison]) -> tuple[int, int]:
    """Bounds on both sides are worth more than several on one."""
    signs = {bound.sign for bound in bounds}
    return bool(signs & _LOWER) + bool(signs & _UPPER), len(bounds)


def _pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)


def _longest(batch: pa.RecordBatch) -> int:
    """Bytes of the longest row's byte strings, at most."""
    total = 0
    for column in batch.columns:
        buffers = column.buffers()
        if len(buffers) > 2 and batch.num_rows and buffers[1] is not None:
            wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
            starts = np.frombuffer(buffers[1], np.int64 if wide else np.int32)
            total += int(np.diff(starts[: batch.num_rows + 1].astype(np.int64)).max())
    return total
