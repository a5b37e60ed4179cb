"""Results on their way to Arrow: columns that kernels fill, handed on without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.joins.binding import Binding
from semistream.kernels.rows import OUTPUT, PAIRS, STAGED, spread_bytes, total_lengths
from semistream.kernels.struct import Struct
from semistream.store.layout import LeafValues


def _result_pool() -> pa.MemoryPool:
    """Where the memory of results comes from: jemalloc, where Arrow has it.

    Whoever takes large results lets go of them together. mimalloc, Arrow's default, gives such
    memory back to the operating system at once, and to get it again takes about as long as to join.
    """
    has = "jemalloc" in pa.supported_memory_backends()
    return pa.jemalloc_memory_pool() if has else pa.default_memory_pool()


class OutputBuffer:
    """Room for `rows` results and `heap_bytes` of byte strings, filled by kernels through `out`.

    The columns are given away with a batch; new ones take their place.
    """

    def __init__(self, binding: Binding, rows: int, heap_bytes: int) -> None:
        self._binding = binding
        self._pool = _result_pool()
        self.rows = rows
        layout, master = binding.layout, binding.master_layout
        self._stream_leaves = list(layout.leaves)
        numbers = [i for name in binding.columns for i in master.leaf_range(name)]
        self._master_leaves = [master.leaves[i] for i in numbers]
        self._leaves = self._stream_leaves + self._master_leaves
        self._bits = list(range(len(self._stream_leaves))) + numbers
        self._stream_reader = layout.select(layout.schema.names)
        self._master_reader = master.select(binding.columns)
        self._widths = [leaf.width_bytes or 4 for leaf in self._leaves]
        self._strings = any(leaf.is_bytes for leaf in self._leaves)
        self._null_bytes = (layout.null_bytes, master.null_bytes)
        first, second = self._null_bytes
        self._stream_nulls = np.empty((rows, first), np.uint8)
        self._master_nulls = np.empty((rows, second), np.uint8)
        self._seen = np.zeros(first + second, np.uint8)
        self.out = Struct(
            OUTPUT,
            stream=layout.fields(),
            room=rows,
            stream_nulls=self._stream_nulls,
            master_nulls=self._master_nulls,
            seen_nulls=self._seen,
            pairs=np.zeros(2 * PAIRS, np.int64),
            staged=np.zeros(STAGED * layout.record_bytes, np.uint8),
        )
        self.grow_heap(heap_bytes if self._strings else 0)
        self._renew()

    @staticmethod
    def row_bytes(binding: Binding) -> int:
        """Bytes that one result takes here, without its byte strings."""
        layout, master = binding.layout, binding.master_layout
        leaves = list(layout.leaves)
        leaves += [master.leaves[i] for name in binding.columns for i in master.leaf_range(name)]
        width = sum(leaf.width_bytes or 4 for leaf in leaves)
        return width + layout.null_bytes + master.null_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        return self.rows * self.row_bytes(self._binding) + self.heap_bytes

    @property
    def heap_bytes(self) -> int:
        """Room for byte strings."""
        return int(self.out.heap_room)

    @property
    def pending(self) -> int:
        """Results not yet taken."""
        return int(self.out.rows)

    def grow_heap(self, heap_bytes: int) -> None:
        """Make room for a result with longer byte strings than planned; only while empty."""
        self._heap = np.empty(heap_bytes, np.uint8)
        self.out.heap, self.out.heap_room = self._heap, heap_bytes

    def take(self) -> pa.RecordBatch | None:
        """The results so far as a batch, and an empty buffer in their place."""
        n = self.pending
        if n == 0:
            return None
        if 2 * n < self.rows and not self._shared:
            # A batch must not hold on to much more memory than its rows need.
            for buffer, width in zip(self._buffers, self._widths, strict=True):
                buffer.resize(n * width, shrink_to_fit=True)
            self.out.address = self._addresses()
        batch = self.peek()
        self._renew()
        return batch

    def peek(self) -> pa.RecordBatch | None:
        """The results so far as a batch that shares this buffer's memory."""
        n = self.pending
        if n == 0:
            return None
        assert self.out.written == n, "results were noted and not written"
        # Memory that somebody looks at must not move; more results go behind what they see.
        self._shared = True
        count, first = len(self._stream_leaves), self._null_bytes[0]
        strings = self._spread(n) if self._strings else {}
        values = [
            LeafValues(leaf, n, buffer, strings.get(i), bit)
            for i, (leaf, buffer, bit) in enumerate(
                zip(self._leaves, self._buffers, self._bits, strict=True)
            )
        ]
        binding, seen = self._binding, self._seen
        stream = self._stream_reader.batch(values[:count], self._stream_nulls[:n], seen[:first])
        master = self._master_reader.batch(values[count:], self._master_nulls[:n], seen[first:])
        columns = binding.stream_columns(stream) + master
        if binding.mark is not None:
            # The last bit is no leaf's: it is set in the record that stands for none.
            columns.append(pa.array(self._master_nulls[:n, -1] < 128))
        return pa.RecordBatch.from_arrays(columns, schema=binding.output_schema)

    def _spread(self, rows: int) -> dict[int, pa.Buffer]:
        # In the heap the master's byte strings lie in its own order, not in that of the output.
        count = len(self._stream_leaves)
        numbers = sorted(
            (i for i, leaf in enumerate(self._leaves) if leaf.is_bytes),
            key=lambda i: i if i < count else count + self._bits[i],
        )
        lengths = self._addresses()[numbers]
        totals = np.empty(len(numbers), np.int64)
        total_lengths(lengths, rows, totals)
        buffers = [pa.allocate_buffer(int(total), memory_pool=self._pool) for total in totals]
        targets = np.array([buffer.address for buffer in buffers], np.int64)
        spread_bytes(self._heap, lengths, rows, targets)
        return dict(zip(numbers, buffers, strict=True))

    def _renew(self) -> None:
        self._buffers = [
            pa.allocate_buffer(self.rows * width, memory_pool=self._pool, resizable=True)
            for width in self._widths
        ]
        self._shared = False
        self._seen[:] = 0
        self.out.address = self._addresses()
        self.out.rows = self.out.written = 0
        self.out.heap_used = 0

    def _addresses(self) -> npt.NDArray[np.int64]:
        return np.array([buffer.address for buffer in self._buffers], np.int64)
