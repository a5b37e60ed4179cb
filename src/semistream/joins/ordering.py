"""Ordered output: results wait until those of all older stream rows have left."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ORDER = "\0order"
"""Column of results: the number of their stream row, in the order in which rows came."""

FINAL = "\0final"
"""Column of a snapshot's results: whether their row does not wait any more."""

Orders = npt.NDArray[np.int64]


class HeldResults:
    """Results that must not leave yet, as batches sorted by their rows' numbers.

    *Final* results are those of rows that never waited. The others can be dropped as long as their
    row waits: it meets its partners again.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[pa.RecordBatch, Orders, bool]] = []
        self.dropped_from: int | None = None
        """Results of rows from this number on are dropped when they come."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is held."""
        return sum(batch.get_total_buffer_size() for batch, _, _ in self._batches)

    def rows_before(self, number: int) -> int:
        """Results of rows before this number."""
        return sum(int(np.searchsorted(orders, number)) for _, orders, _ in self._batches)

    def add(self, batch: pa.RecordBatch, *, final: bool) -> None:
        """Hold results back."""
        orders = batch.column(ORDER).to_numpy()
        by_order = np.argsort(orders, kind="stable")
        if self.dropped_from is not None and not final:
            by_order = by_order[: np.searchsorted(orders[by_order], self.dropped_from)]
        if len(by_order):
            self._batches.append((batch.take(pa.array(by_order)), orders[by_order], final))

    def release(self, before: int) -> pa.RecordBatch | None:
        """Take all results of rows before this number out, in the order of their rows."""
        ready, kept = [], []
        for batch, orders, final in self._batches:
            count = int(np.searchsorted(orders, before))
            if count:
                ready.append(batch.slice(0, count))
            if count < len(orders):
                rest = batch.slice(count)
                if 2 * count > len(orders):
                    # A small rest must not hold on to the memory of the whole.
                    rest = rest.take(pa.array(np.arange(rest.num_rows)))
                kept.append((rest, orders[count:], final))
        self._batches = kept
        if not ready:
            return None
        whole = pa.Table.from_batches(ready).combine_chunks().to_batches()[0]
        by_order = np.argsort(whole.column(ORDER).to_numpy(), kind="stable")
        return whole.take(pa.array(by_order)).drop_columns([ORDER])

    def drop(self, room_bytes: int, oldest: int) -> None:
        """Drop results of the youngest rows until the others fit half of the room.

        Those of the `oldest` row stay. `dropped_from` says from which row on they are gone.
        """
        droppable = [orders for _, orders, final in self._batches if not final]
        orders = np.sort(np.concatenate(droppable)) if droppable else np.empty(0, np.int64)
        bytes_per_result = max(self.size_bytes / max(len(orders), 1), 1)
        keep = min(int(room_bytes / 2 / bytes_per_result), len(orders) - 1)
        cut = max(int(orders[keep]), oldest + 1) if len(orders) else oldest + 1
        if self.dropped_from is not None:
            cut = min(cut, self.dropped_from)
        batches, self._batches = self._batches, []
        self.dropped_from = cut
        for batch, _, final in batches:
            self.add(batch, final=final)

    def all(self) -> pa.RecordBatch | None:
        """Everything, with a column that says what is final."""
        if not self._batches:
            return None
        parts = [
            batch.append_column(FINAL, pa.array(np.full(batch.num_rows, final)))
            for batch, _, final in self._batches
        ]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def put_back(self, everything: pa.RecordBatch) -> None:
        """Hold again what `all` gave."""
        results = everything.drop_columns([FINAL])
        for final in (True, False):
            chosen = results.filter(pa.compute.equal(everything.column(FINAL), final))
            if chosen.num_rows:
                self.add(chosen, final=final)
