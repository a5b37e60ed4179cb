"""A pool of master pages in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.frames import FRAMES
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster

FRAME_BYTES = 9
"""Bytes of a frame besides its page: which page it holds, whether it was used."""


class PagePool:
    """Frames for as many pages as `size_bytes` allow.

    Pages that are read are kept, the clock algorithm decides instead of which; if `chosen`, only
    those for which `choose` has set a frame aside.
    """

    def __init__(self, master: FileMaster, size_bytes: int, *, chosen: bool = False) -> None:
        self.capacity = max(size_bytes // (master.page_bytes + FRAME_BYTES), 0)
        self.size_bytes = self.capacity * (master.page_bytes + FRAME_BYTES)
        self._region = Region(self.capacity * master.page_bytes)
        self._frame_of = np.full(max(master.pages, 1), -1, np.int32)
        self._page_in = np.full(max(self.capacity, 1), -1, np.int64)
        self.frames = Struct(
            FRAMES,
            data=self._region.bytes,
            page_bytes=master.page_bytes,
            count=self.capacity,
            frame_of=self._frame_of,
            page_in=self._page_in,
            touched=np.zeros(max(self.capacity, 1), np.uint8),
            chosen=chosen,
        )

    @staticmethod
    def table_bytes(master: FileMaster) -> int:
        """Bytes of the table that says where each page is."""
        return 4 * max(master.pages, 1)

    @property
    def pages(self) -> int:
        """Pages held."""
        return int(self.frames.used)

    def give_back(self) -> None:
        """Frames are used from the first on: give the memory behind the last one back."""
        self._region.release(self.pages * int(self.frames.page_bytes))

    def frames_of(self, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The frame of each page; below 0 where it is not held."""
        return self._frame_of[pages]

    def choose(self, page: int, frame: int) -> None:
        """Keep a page in this frame when it is read next; the page in it goes at once."""
        old = int(self._page_in[frame])
        if old >= 0:
            self._frame_of[old] = -1
            self._page_in[frame] = -1
            self.frames.used -= 1
        self._frame_of[page] = -2 - frame
