"""The filter for absent keys, made when a stream asks for many of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.absent import note_pages, rule_out
from semistream.store.file import FileMaster
from semistream.store.inspect import page_runs

BITS_PER_ROW = (8, 4, 2)
"""Half as many bits of a key are looked at: of the absent keys 2.4 %, 16 % and 39 % pass."""

READ_BYTES = 4 << 20


class AbsentFilter:
    """Tells of a key and the page that would hold it that it is not there.

    It takes a few bits for every row of the master, and one reading of all pages to be made. When a
    join moves to another version, only pages are read that changed.
    """

    def __init__(
        self,
        master: FileMaster,
        bits_per_row: int = BITS_PER_ROW[0],
        like: AbsentFilter | None = None,
    ) -> None:
        self.master = master
        self.bits_per_row: int = bits_per_row if like is None else like.bits_per_row
        self.words: int = like.words if like is not None else _words(master, bits_per_row)
        self._blocks = np.zeros(master.pages * self.words, np.uint64)
        lacking = np.ones(master.pages, bool)
        if like is not None:
            lacking = self._copied(like)
        for first, count in page_runs(master, READ_BYTES):
            some = np.flatnonzero(lacking[first : first + count]) + first
            for run in np.split(some, np.flatnonzero(np.diff(some) != 1) + 1):
                if len(run):
                    pages = master.read_pages(int(run[0]), len(run))
                    note_pages(
                        self._blocks, self.words, self._probes, run, pages, master.page_bytes
                    )

    @staticmethod
    def size_for(master: FileMaster, bits_per_row: int = BITS_PER_ROW[0]) -> int:
        """Bytes that the filter of a master takes."""
        return 8 * _words(master, bits_per_row) * master.pages

    @property
    def _probes(self) -> int:
        return self.bits_per_row // 2

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes."""
        return int(self._blocks.nbytes)

    def rule_out(self, keys: npt.NDArray[np.int64], pages: npt.NDArray[np.int32]) -> None:
        """Set the page of every key to -1 that is not there."""
        rule_out(self._blocks, self.words, self._probes, keys, pages)

    def _copied(self, like: AbsentFilter) -> npt.NDArray[np.bool_]:
        """Take over the blocks of pages that lie where they lay; which pages are lacking then."""
        lacking = np.ones(self.master.pages, bool)
        blocks = self._blocks.reshape(-1, self.words)
        others = like._blocks.reshape(-1, self.words)
        ranges = zip(self.master.shard_ranges(), like.master.shard_ranges(), strict=True)
        files = zip(self.master.shards, like.master.shards, strict=True)
        for ((begin, end), (old_begin, old_end)), (shard, old) in zip(ranges, files, strict=True):
            if shard.file != old.file or begin == end or old_begin == old_end:
                continue
            places = self.master.places(begin, end - begin)
            old_places = like.master.places(old_begin, old_end - old_begin)
            order = np.argsort(old_places)
            at = np.minimum(np.searchsorted(old_places, places, sorter=order), len(order) - 1)
            found = order[at]
            same = old_places[found] == places
            blocks[begin:end][same] = others[old_begin:old_end][found[same]]
            lacking[begin:end] = ~same
        return lacking


def _words(master: FileMaster, bits_per_row: int) -> int:
    rows = -(-master.rows // max(master.pages, 1))
    return max(-(-rows * bits_per_row // 64), 1)
