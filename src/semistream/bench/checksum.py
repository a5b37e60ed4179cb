"""A checksum of joined rows that does not depend on their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.kernels.jit import inlined, kernel

_U64 = npt.NDArray[np.uint64]


def row_hashes(batch: pa.RecordBatch) -> _U64:
    """A 64-bit hash of every row over all its columns, in their order; no nulls, fixed widths.

    The hash of a row is a sum of its words, each times an odd constant of its own, mixed at the
    end. The sum of all rows' hashes tells two results apart whatever the order of their rows.
    """
    hashes = np.zeros(batch.num_rows, np.uint64)
    if batch.num_rows == 0:
        return hashes
    position = 0
    for column in batch.columns:
        assert column.null_count == 0, "the checksum is for columns without nulls"
        width = column.type.byte_width
        word = np.dtype(np.uint64 if width % 8 == 0 else np.uint32 if width % 4 == 0 else np.uint8)
        per_row = width // word.itemsize
        data = column.buffers()[1]
        words = np.frombuffer(data, word, len(column) * per_row, column.offset * width)
        _add_column(hashes, words.reshape(-1, per_row), position)
        position += per_row
    _finish(hashes)
    return hashes


class Checksum:
    """The sum of the hashes of rows that were added, and their number."""

    def __init__(self) -> None:
        self.value = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the rows of a batch."""
        self.value = (self.value + int(row_hashes(batch).sum(dtype=np.uint64))) % 2**64
        self.rows += batch.num_rows


@inlined
def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def _add_column(hashes: Any, words: Any, position: Any) -> None:
    rows, per_row = words.shape
    for word in range(per_row):
        constant = _mix(np.uint64(position + word + 1)) | np.uint64(1)
        for row in range(rows):
            hashes[row] += np.uint64(words[row, word]) * constant


@kernel
def _finish(hashes: Any) -> None:
    for row in range(hashes.size):
        hashes[row] = _mix(hashes[row])
