"""Which class of frequency a key is of: the part of the index that frequency order needs.

Rows of a master in frequency order lie in up to 16 classes, each half as large as the next: the
first class has the rows most asked for, the last the less frequent half. Within a class rows are
in the order of their keys, so that a sparse index finds their page; which class a key is of is
known by a function that takes 5 bits a key, because it does not keep the keys (see
`semistream.kernels.classes`). An index that gave each key's page would take three times as much.
In the index file it is what kernels read, as it is:

    a word (8 bytes) for each part of the keys and one more: number of its first cell · 256 + seed
    cells, two to a byte
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import StoreError
from semistream.kernels.classes import pack_cells, parts_of, solve_part
from semistream.store.sorting import in_order

KEYS_PER_PART = 16_384
CELLS_PER_KEY = 1.23
SEEDS = 256

_PAIRS = pa.schema([("part", pa.int32()), ("key64", pa.int64()), ("class", pa.int64())])
_PAIR_BYTES = 16
_BATCH_ROWS = 262_144


class ClassWriter:
    """Takes keys and their classes while pages are written, and makes the function at the end.

    Pairs go to a file first: how many parts there will be depends on their number.
    """

    def __init__(self, scratch: Path, memory_bytes: int) -> None:
        self._scratch = scratch
        self._memory_bytes = memory_bytes
        self._path = scratch / "pairs"
        self._file = self._path.open("wb")
        self._count = 0

    def add(self, keys: npt.NDArray[np.int64], class_: int) -> None:
        """Note the class of keys, none of which was there before."""
        self._file.write(np.stack([keys, np.full(len(keys), class_)], axis=1).tobytes())
        self._count += len(keys)

    def add_all(self, scratch: Path) -> None:
        """Note all that another writer, which is closed, took in that directory."""
        with (scratch / self._path.name).open("rb") as file:
            while data := file.read(_BATCH_ROWS * _PAIR_BYTES):
                self._file.write(data)
                self._count += len(data) // _PAIR_BYTES

    def close(self) -> None:
        """Close the file of pairs; the directory that it lies in goes as a whole."""
        self._file.close()

    def finish(self) -> tuple[npt.NDArray[np.uint8], int]:
        """The function as bytes, and its number of parts."""
        self._file.close()
        parts = max(self._count // KEYS_PER_PART, 1)
        most = int(self._count * CELLS_PER_KEY) + 40 * parts
        head = np.zeros(parts + 1, np.int64)
        cells = np.zeros(most // 2 + 1, np.uint8)
        first, done = 0, 0
        for part, keys, classes in self._by_part(parts):
            head[done:part] = first << 8
            values, seed = _solved(keys, classes)
            pack_cells(values, first, cells)
            head[part] = first << 8 | seed
            first += len(values)
            done = part + 1
        head[done:] = first << 8
        return np.concatenate([head.view(np.uint8), cells[: first // 2 + 1]]), parts

    def _by_part(
        self, parts: int
    ) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """The pairs of every part that has any, in order."""
        reader = pa.RecordBatchReader.from_batches(_PAIRS, self._batches(parts))
        query = "SELECT part, key64, class FROM packed ORDER BY part"
        left: list[pa.RecordBatch] = []
        for batch in in_order(reader, query, _BATCH_ROWS, self._scratch, self._memory_bytes):
            part = batch.column("part").to_numpy()
            # All but the last part of a batch are complete.
            whole = int(np.searchsorted(part, part[-1]))
            if whole:
                yield from _split([*left, batch.slice(0, whole)])
                left = []
            left.append(batch.slice(whole))
        if left:
            yield from _split(left)

    def _batches(self, parts: int) -> Iterator[pa.RecordBatch]:
        with self._path.open("rb") as file:
            while data := file.read(_BATCH_ROWS * _PAIR_BYTES):
                pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
                keys, classes = (np.ascontiguousarray(column) for column in pairs.T)
                part = np.empty(len(keys), np.int32)
                parts_of(keys, parts, part)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(part), pa.array(keys), pa.array(classes)], schema=_PAIRS
                )


def _split(
    batches: list[pa.RecordBatch],
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    part, keys, classes = (
        np.concatenate([batch.column(name).to_numpy() for batch in batches])
        for name in _PAIRS.names
    )
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(part)], strict=True):
        yield int(part[start]), keys[start:end], classes[start:end]


def _solved(
    keys: npt.NDArray[np.int64], classes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], int]:
    cells = -(-int(len(keys) * CELLS_PER_KEY + 32) // 3) * 3
    values = np.empty(cells, np.int64)
    users, order = np.empty(2 * cells, np.int64), np.empty(2 * cells, np.int64)
    for seed in range(SEEDS):
        if solve_part(keys, classes, seed, values, users, order):
            return values, seed
    raise StoreError(
        f"no index of frequencies was found for {len(keys)} keys in {SEEDS} attempts",
        hint="this should never happen: please report it with the table's keys",
    )
