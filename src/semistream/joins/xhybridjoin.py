"""X-HYBRIDJOIN: HYBRIDJOIN with the most frequent part of the master always in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.core.errors import OptionError
from semistream.core.join import Traits
from semistream.joins.probing import ProbingJoin
from semistream.joins.sizing import best_cache
from semistream.kernels.frames import FRAMES
from semistream.kernels.matching import FULL, IDLE
from semistream.kernels.queue import withdraw
from semistream.kernels.region import Region
from semistream.kernels.struct import Struct

FRAME_BYTES = 13
"""Bytes of a frame besides its page: four for where each page is, nine for what it holds."""


class XHybridJoin(ProbingJoin):
    """X-HYBRIDJOIN (Naeem, PhD thesis, Auckland 2012, ch. 6, Algorithm 4).

    As HYBRIDJOIN, with R sorted by descending access frequency (`build_master(…, frequency=…)`) and
    a disk buffer of two parts: the *non-swappable* part holds the first pages of R and is loaded
    once, the *swappable* part takes a partition of the rest. One iteration (`step`): probe with the
    non-swappable part, then load the partition of the oldest row that is left and probe with it.

    Names: b_sw is `span`, b_ns is `resident_pages`, with d_S and d_N rows.

    Sizes. *Untuned*, the default, as first published: both parts are one HYBRIDJOIN partition.
    *Tuned* (`tuned=True`): the non-swappable part gets what pays most for keys by Zipf's law with
    exponent 1, see `semistream.joins.sizing`. `nonswappable_pages` sets it by hand.

    Departures: those of HYBRIDJOIN. Rows hang on their page, so probing H with the non-swappable
    part means joining the resident pages that rows wait for, not a look-up for each of its rows.
    With several shards the non-swappable part is the first pages of each. Sizes are tuned with the
    mean of the thesis's intake (§6.4.3), whose printed form takes a variance for a count. On a
    master in key order the first pages are pages like all others: exact, and of no use.
    """

    name = "xhybridjoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 6",
        idea="hybridjoin with the first pages of a master in frequency order always in memory",
        skew="static",
    )

    def __init__(
        self,
        *args: Any,
        tuned: bool = False,
        nonswappable_pages: int | None = None,
        **options: Any,
    ) -> None:
        if nonswappable_pages is not None and nonswappable_pages < 0:
            raise OptionError(
                f"nonswappable_pages={nonswappable_pages} is below zero",
                hint="give the pages to keep in memory, or leave it out",
            )
        if tuned and nonswappable_pages is not None:
            raise OptionError(
                "nonswappable_pages is given, and tuned=True asks to find it",
                hint="leave one of them out",
            )
        self.tuned = tuned
        self.nonswappable_pages = nonswappable_pages
        super().__init__(*args, **options)

    def held_part(self, left_bytes: int) -> dict[str, int]:
        frame = self.master.page_bytes + FRAME_BYTES
        pages = self.span if self.nonswappable_pages is None else self.nonswappable_pages
        if self.tuned:
            share = best_cache(left_bytes, self.master.pages * frame)
            pages = int(share * left_bytes / frame)
        # The table of frames has an entry for every page of the master.
        table = 4 * self.master.pages
        fits = max(left_bytes - table, 0) // frame
        pages = min(pages, self.master.pages, fits)
        return {"non-swappable part": pages * frame + table if pages else 0}

    def hold(self) -> None:
        master = self.master
        size = self.plan["non-swappable part"]
        frame = master.page_bytes + FRAME_BYTES
        count = max(size - 4 * master.pages, 0) // frame
        runs = self.hottest_runs(count)
        # Each shard rounds its share up: leave out what does not fit.
        runs = runs[: np.searchsorted(np.cumsum(runs[:, 1]), count, side="right")]
        self._resident = np.concatenate(
            [np.empty(0, np.int64), *(np.arange(first, first + n) for first, n in runs)]
        )
        self.resident_pages = len(self._resident)
        self.budget.set("non-swappable part", size)
        if not self.resident_pages:
            return
        self._pool = Region(self.resident_pages * master.page_bytes)
        self._parts = Struct(
            FRAMES,
            data=self._pool.bytes,
            page_bytes=master.page_bytes,
            count=self.resident_pages,
            frame_of=np.full(master.pages, -1, np.int32),
            page_in=np.full(self.resident_pages, -1, np.int64),
            touched=np.zeros(self.resident_pages, np.uint8),
        )
        self.load(runs, self._parts)

    @property
    def cached_rows(self) -> int:
        held = self.resident_pages if self._out is not None else 0
        return int(held * self.master.rows / max(self.master.pages, 1))

    def probe_held(self) -> int:
        wanted = self._resident[self.waiting.tail[self._resident] >= 0]
        if not len(wanted):
            return IDLE
        left = self.join_pool(wanted, self._parts)
        for first, last in self._resident_ranges():
            withdraw(self.waiting.state.kernel, first, last - first + 1)
        return FULL if len(left) else IDLE

    def _resident_ranges(self) -> list[tuple[int, int]]:
        """First and last page of every stretch of resident pages."""
        breaks = np.flatnonzero(np.diff(self._resident) > 1) + 1
        return [(int(part[0]), int(part[-1])) for part in np.split(self._resident, breaks)]
