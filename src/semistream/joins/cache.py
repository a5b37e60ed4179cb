"""The tuple cache: hot master rows in memory, in front of the disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from semistream.joins.binding import Binding
from semistream.joins.waiting import BlockHeap
from semistream.kernels.cache import CACHE, age, collect, compact, refill, shrink
from semistream.kernels.region import Region
from semistream.kernels.rows import FIELDS
from semistream.kernels.struct import Struct
from semistream.kernels.waiting import BLOCK_BYTES
from semistream.store.layout import blank_record

PLACES_PER_ENTRY = 1.5
"""Places of the table for each entry: at most three quarters of them are ever used."""

TABLE_BYTES = int(16 * PLACES_PER_ENTRY) + 16
"""Bytes of the table per entry: its places, and 16 for the moment when it is built anew."""

RECENT_BYTES = 4
"""Counters per entry for keys that are not cached: each has two, shared with others."""

HISTOGRAM = 4096


class TupleCache:
    """Master rows by key, complete per key; least wanted ones leave first.

    Entries keep the output's columns only, and the key's where it must be verified. One that
    `recalls` also counts how often keys are asked for that it has not, as `asked_lately` needs.
    """

    def __init__(
        self,
        binding: Binding,
        capacity_bytes: int,
        longest_blob: int,
        *,
        seed: int = 0,
        recalls: bool = False,
    ) -> None:
        layout = binding.master_layout
        verified = [] if binding.spec.is_number else list(binding.spec.names)
        kept = [name for name in layout.schema.names if name in {*verified, *binding.columns}]
        numbers = [i for name in kept for i in layout.leaf_range(name)]
        strings = [i for i in numbers if layout.leaves[i].is_bytes]
        # Null bytes as in the page, then a blob reference if needed, the fields, the link.
        at = layout.null_bytes
        blob_offset = -1
        if strings:
            blob_offset, at = at, at + 4
        offsets = {}
        for i in numbers:
            offsets[i] = at
            at += layout.leaves[i].width_bytes or 4
        self.entry_bytes = at + 4
        self.from_page = layout.fields(kept)

        def from_entry(columns: Sequence[str]) -> Struct:
            chosen = [i for name in columns for i in layout.leaf_range(name)]
            return Struct(
                FIELDS,
                count=len(chosen),
                offset=np.array([offsets[i] for i in chosen], np.int64),
                width=np.array([layout.leaves[i].width_bytes or 4 for i in chosen], np.int64),
                strings=len(strings),
                string_at=np.array([offsets[i] for i in strings], np.int64),
                string_wanted=np.array([int(i in chosen) for i in strings], np.int64),
                null_bytes=layout.null_bytes,
                blob_at=blob_offset,
                record_bytes=self.entry_bytes,
                blank=blank_record(self.entry_bytes, 0, layout.null_bytes),
            )

        self.to_output = from_entry(binding.columns)
        self.to_verify = from_entry(verified)
        entries = capacity_bytes // self.entry_bytes + 1
        self._region = Region(entries * self.entry_bytes)
        self._histogram = np.zeros(HISTOGRAM, np.int64)
        self._table = np.zeros(0, np.int64)
        self._recent = np.zeros(0, np.uint8)
        self._table_bytes = TABLE_BYTES + (RECENT_BYTES if recalls else 0)
        self._scratch = np.empty(longest_blob if strings else 0, np.uint8)
        self.state = Struct(
            CACHE,
            table=self._table,
            entries=self._region.bytes,
            entry_bytes=self.entry_bytes,
            link_at=self.entry_bytes - 4,
            scratch=self._scratch,
            free=-1,
            random=seed,
            page=self.from_page,
            kept=from_entry(kept),
        )
        self._heap: BlockHeap | None = None
        if strings:
            self._heap = BlockHeap(self.state.blocks, capacity_bytes // BLOCK_BYTES)

    @property
    def has_bytes(self) -> bool:
        """Whether entries have byte strings."""
        return self._heap is not None

    @property
    def row_bytes(self) -> float:
        """Bytes that a cached row takes, with its share of the table and of the blocks."""
        return self.entry_bytes + self._table_bytes + self._blocks_per_row() * BLOCK_BYTES

    def _blocks_per_row(self) -> float:
        if self._heap is None:
            return 0.0
        return max(self._heap.used / self.rows, 1.0) if self.rows else 2.0

    @property
    def rows(self) -> int:
        """Rows cached."""
        return int(self.state.used)

    @property
    def keys(self) -> int:
        """Keys cached."""
        return int(self.state.keys)

    @property
    def size_bytes(self) -> int:
        """Bytes granted to entries, table and blocks."""
        entries = int(self.state.limit)
        blocks = self._heap.limit if self._heap else 0
        return entries * (self.entry_bytes + self._table_bytes) + blocks * BLOCK_BYTES

    def set_bytes(self, size_bytes: int) -> None:
        """Allow this much memory; the least wanted rows leave if they are too many."""
        entries = max(int(size_bytes / self.row_bytes), 0)
        blocks = 0
        if self._heap is not None:
            left = size_bytes - entries * (self.entry_bytes + self._table_bytes)
            blocks = max(left // BLOCK_BYTES, 0)
        if self._heap is not None and blocks < self._heap.reach:
            # Blocks do not move: what lies above the new limit can only go as a whole.
            self.clear()
        shrink(self.state.kernel, entries, blocks)
        compact(self.state.kernel, entries)
        self._region.release(entries * self.entry_bytes)
        if self._heap is not None:
            self._heap.set_limit(blocks)
            self._heap.settle()
        self._build_table(entries)

    def clear(self) -> None:
        """Forget all rows."""
        self._table[:] = 0
        self.state.free, self.state.fresh, self.state.used, self.state.keys = -1, 0, 0, 0
        if self._heap is not None:
            self._heap.empty()

    def age(self) -> npt.NDArray[np.int64]:
        """Halve all counters; how many keys had each count before."""
        age(self.state.kernel, self._histogram)
        self._recent >>= 1
        return self._histogram

    def _build_table(self, entries: int) -> None:
        used = np.empty(2 * self.keys, np.int64)
        count = collect(self.state.kernel, used)
        places = int(entries * PLACES_PER_ENTRY) + (1 if entries else 0)
        # The old table goes before the new one comes: only what was collected is held twice.
        self._table = self.state.table = np.zeros(0, np.int64)
        self._table = self.state.table = np.zeros(2 * places, np.int64)
        self.state.places = places
        refill(self.state.kernel, used, count)
        if self._table_bytes > TABLE_BYTES:
            lines = entries * RECENT_BYTES // 64 + 1
            self._recent = self.state.recent = np.zeros(64 * lines, np.uint8)
            self.state.recent_lines = lines
