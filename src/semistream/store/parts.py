"""A master in parts: each has ranges of the keys, for a join of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import read_only
from semistream.kernels.pages import rows_of_part
from semistream.kernels.ranges import RANGES
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster

RANGES_PER_PART = 16
"""Ranges of keys in each part. With one range a part would have all that is asked for lately, where
new keys are larger than old ones."""


class MasterPart(FileMaster):
    """The pages of a master that may hold keys of one of several parts, as if they were a master.

    Which keys are its own `own` tells. Pages have numbers without gaps. Index and files are those
    of the whole master, which must stay open for as long as a join uses the part.
    """

    def __init__(self, whole: FileMaster, number: int, parts: int) -> None:
        self.__dict__.update(whole.__dict__)
        # It ends with the last that knows it, and its files with it.
        self._whole, self.number, self.parts = whole, number, parts
        self._borders = whole.borders(RANGES_PER_PART * parts)
        # To which part each range of keys belongs.
        self._owners = (np.arange(RANGES_PER_PART * parts) % parts).astype(np.uint8)
        begins, ends = self._own_ranges(whole)
        own = np.concatenate(([0], np.cumsum(ends - begins)))
        self._shard_start = own[::RANGES_PER_PART].copy()
        self._ranges = Struct(
            RANGES,
            count=RANGES_PER_PART,
            own=own[:-1].copy(),
            whole=begins,
            shards=whole._shard_start,
        )
        self._checked = np.zeros((self.pages + 7) // 8, np.uint8)
        self._pieces = np.zeros_like(whole._pieces)
        self.index = whole.index.copy()
        self.index.ranges = self._ranges
        self.index.shard_start, self.index.pages = self._shard_start, self.pages
        if len(whole._continued):
            pages = np.concatenate([np.arange(*ends) for ends in zip(begins, ends, strict=True)])
            # A page goes on with what is in the one before it, if that is there.
            self._continued = whole._continued[pages] * (np.diff(pages, prepend=-2) == 1)
            self.index.continued = self._continued

    @property
    def rows(self) -> int:
        """About as many as are in these pages."""
        whole = sum(shard.pages for shard in self.shards)
        return super().rows * self.pages // max(whole, 1)

    @property
    def index_bytes(self) -> int:
        """What it has beside the index of the whole master."""
        return self._marks_bytes

    def own(
        self, keys: npt.NDArray[np.int64], valid: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Which rows have keys of this part, and these keys, and whether they are valid.

        Every key belongs to one part, whether the master has it or not.
        """
        rows, own_keys = np.empty(len(keys), np.int32), np.empty(len(keys), np.int64)
        own_valid = np.empty(len(keys), np.uint8)
        count = rows_of_part(
            keys, valid, self._borders, self._owners, self.number, rows, own_keys, own_valid
        )
        return rows[:count], read_only(own_keys[:count]), read_only(own_valid[:count])

    def places(self, first: int, count: int) -> npt.NDArray[np.uint32]:
        """Where in their shard's file pages of one shard lie, in pages."""
        own, whole, shards = (self._ranges.array(name) for name in ("own", "whole", "shards"))
        pages = np.arange(first, first + count)
        ranges = np.searchsorted(own, pages, side="right") - 1
        pages += whole[ranges] - own[ranges]
        if self._places is None:
            return np.asarray(pages - shards[ranges // RANGES_PER_PART], np.uint32)
        return np.asarray(self._places[pages], np.uint32)

    def newer(self) -> FileMaster | None:
        """This part of the current version, if that is not this one."""
        whole = super().newer()
        return None if whole is None else MasterPart(whole, self.number, self.parts)

    def close(self) -> None:
        """Nothing: the files are those of the whole master."""

    def _own_ranges(self, whole: FileMaster) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first page, and the page after the last, of each range in each shard.

        A page that two of them want is the first one's.
        """
        firsts, begins, ends = whole.firsts(), [], []
        for start, end in whole.shard_ranges():
            # A range begins somewhere in the page before the first that begins in it.
            into = start + np.searchsorted(firsts[start:end], self._borders)
            first = np.maximum(np.concatenate(([start], into - 1)), start)
            first = first[self.number :: self.parts]
            after = np.concatenate((into, [end]))[self.number :: self.parts]
            first[1:] = np.maximum(first[1:], after[:-1])
            begins.append(first)
            ends.append(np.maximum(first, after))
        return np.concatenate(begins), np.concatenate(ends)


def in_parts(master: FileMaster, parts: int) -> list[FileMaster]:
    """A master in so many parts; the single one is all of it."""
    if parts == 1:
        return [master]
    return [MasterPart(master, number, parts) for number in range(parts)]
