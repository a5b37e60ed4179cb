"""Some columns of packed records as Arrow arrays, for conditions to look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.kernels.rows import OUTPUT, PAIRS, spread_bytes, total_lengths
from semistream.kernels.struct import Struct
from semistream.store.layout import LeafValues, RowLayout


class ColumnBlock:
    """Room for `names` of up to `rows` records, filled by kernels through `out`.

    The arrays share the block's memory: they are to be used before the next ones are made.
    """

    def __init__(
        self, layout: RowLayout, names: Sequence[str], rows: int, heap_bytes: int = 0
    ) -> None:
        self._layout = layout
        self._names = tuple(names)
        self._numbers = [i for name in names for i in layout.leaf_range(name)]
        self._leaves = [layout.leaves[i] for i in self._numbers]
        self._values = [np.empty(rows * (leaf.width_bytes or 4), np.uint8) for leaf in self._leaves]
        self._nulls = np.empty((rows, layout.null_bytes), np.uint8)
        self._seen = np.zeros(layout.null_bytes, np.uint8)
        self.has_bytes = any(leaf.is_bytes for leaf in self._leaves)
        self.out = Struct(
            OUTPUT,
            stream=layout.fields(names),
            room=rows,
            address=np.array([values.ctypes.data for values in self._values], np.int64),
            stream_nulls=self._nulls,
            seen_nulls=self._seen,
            pairs=np.zeros(2 * PAIRS, np.int64),
        )
        self.grow_heap(heap_bytes if self.has_bytes else 0)

    @staticmethod
    def row_bytes(layout: RowLayout, names: Sequence[str]) -> int:
        """Bytes of a record's columns here, without its byte strings."""
        numbers = [i for name in names for i in layout.leaf_range(name)]
        return layout.null_bytes + sum(layout.leaves[i].width_bytes or 12 for i in numbers)

    @property
    def heap_bytes(self) -> int:
        """Room for byte strings."""
        return int(self.out.heap_room)

    def grow_heap(self, heap_bytes: int) -> None:
        """Give byte strings this much room; only while empty."""
        self._heap = np.empty(heap_bytes, np.uint8)
        self.out.heap, self.out.heap_room = self._heap, heap_bytes

    def clear(self) -> None:
        """Make room for other records."""
        self.out.rows = self.out.written = self.out.heap_used = 0
        self._seen[:] = 0

    def arrays(self) -> list[pa.Array]:
        """The columns in the order of the names."""
        rows = int(self.out.rows)
        strings = self._spread(rows)
        leaves = [
            LeafValues(leaf, rows, pa.py_buffer(values), strings.get(i), number)
            for i, (leaf, values, number) in enumerate(
                zip(self._leaves, self._values, self._numbers, strict=True)
            )
        ]
        return self._layout.select(self._names).batch(leaves, self._nulls[:rows], self._seen)

    def _spread(self, rows: int) -> dict[int, pa.Buffer]:
        # In the heap byte strings lie in the order of the layout, not in that of the names.
        numbers = sorted(
            (i for i, leaf in enumerate(self._leaves) if leaf.is_bytes),
            key=lambda i: self._numbers[i],
        )
        if not numbers:
            return {}
        lengths = self.out.array("address")[numbers]
        totals = np.empty(len(numbers), np.int64)
        total_lengths(lengths, rows, totals)
        buffers = [pa.allocate_buffer(int(total)) for total in totals]
        targets = np.array([buffer.address for buffer in buffers], np.int64)
        spread_bytes(self._heap, lengths, rows, targets)
        return dict(zip(numbers, buffers, strict=True))
