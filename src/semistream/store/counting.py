"""How many rows of a master have a key: what databases keep as most common values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semistream.core.errors import CorruptPageError
from semistream.kernels.counting import count_runs
from semistream.store.file import FileMaster

ENTRY_BYTES = 16
CHUNK_BYTES = 1 << 20

_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyCounts:
    """The rows of the most frequent keys, and the average for all others.

    Keys are those that occur more than once, as many of them as find room, the most frequent first.
    Whether a key occurs at all is not known: an unknown one counts like the average of the rest.
    """

    keys: _I64
    counts: _I64
    rest: float

    @classmethod
    def of(cls, master: FileMaster, most: int) -> KeyCounts:
        """Count by one scan of the master, unless its keys are unique; at most so many keys."""
        keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        manifest = master.manifest
        if not manifest.is_unique and most > 0:
            for more, times in _repeated(master):
                keys, counts = np.append(keys, more), np.append(counts, times)
                if len(keys) > 2 * most:
                    keys, counts = _most_frequent(keys, counts, most)
            keys, counts = _most_frequent(keys, counts, most)
        others = max(manifest.keys - len(keys), 0)
        rows = max(manifest.rows - int(counts.sum()), 0)
        order = np.argsort(keys)
        return cls(keys[order], counts[order], max(rows / others, 1.0) if others else 1.0)

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and counts."""
        return self.keys.nbytes + self.counts.nbytes

    def rows_of(self, key64: _I64) -> npt.NDArray[np.float64]:
        """How many rows each key has."""
        at, listed = self._find(key64)
        found = np.full(len(key64), self.rest)
        found[listed] = self.counts[at[listed]]
        return found

    def lists(self, key64: _I64) -> npt.NDArray[np.bool_]:
        """Whether each key is listed, and so surely in the master."""
        return self._find(key64)[1]

    def _find(self, key64: _I64) -> tuple[_I64, npt.NDArray[np.bool_]]:
        if not len(self.keys):
            return np.zeros(len(key64), np.int64), np.zeros(len(key64), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, key64), len(self.keys) - 1)
        return at, self.keys[at] == key64


def _most_frequent(keys: _I64, counts: _I64, most: int) -> tuple[_I64, _I64]:
    if len(keys) <= most:
        return keys, counts
    best = np.argpartition(counts, len(counts) - most)[-most:]
    return keys[best], counts[best]


def _repeated(master: FileMaster) -> Iterator[tuple[_I64, _I64]]:
    """Keys that occur more than once, with their rows."""
    pages = max(CHUNK_BYTES // master.page_bytes, 1)
    room = pages * master.most_rows_per_page + 1
    keys, counts = np.empty(room, np.int64), np.empty(room, np.int64)
    for shard in master.shards:
        run = np.zeros(2, np.int64)
        with (master.path / shard.file).open("rb") as file:
            for first in range(0, shard.pages, pages):
                wanted = min(pages, shard.pages - first) * master.page_bytes
                data = np.frombuffer(file.read(wanted), np.uint8)
                if len(data) < wanted:
                    raise CorruptPageError(
                        f"{shard.file!r} of {str(master.path)!r} is cut short",
                        hint="restore the file or build the master again",
                    )
                listed = count_runs(data, master.page_bytes, 2, run, keys, counts)
                yield keys[:listed], counts[:listed]
        if run[1] > 1:
            yield run[:1], run[1:]
