"""Rows of a batch that is drained: listed by their pages, packed when those are at hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.matching import BLOCKED, PAUSED
from semistream.kernels.planning import listed_runs, sort_words
from semistream.kernels.rows import COLUMNS
from semistream.kernels.struct import Struct
from semistream.store.keys import Keys
from semistream.store.layout import PackedColumns


class ListedRows:
    """The rows of one batch that must wait for pages, a word for each; kernels see it as `match`.

    Rows that wait from batch to batch are copied into slots, and chained where their page is: both
    are random accesses to memory. A batch that is drained stays where it is until all its rows are
    answered. So its rows are noted, sorted by page, and copied only when their pages are at hand,
    a few at a time. See `take_in` and `bring_in`.
    """

    def __init__(self, match: Struct) -> None:
        self._match = match
        self._plan = np.zeros(2, np.int64)
        self._room = np.empty(0, np.int64)
        self.pages = 0
        """Pages for which rows are listed."""

    def begin(
        self,
        room: npt.NDArray[np.int64],
        keys: Keys,
        packed: PackedColumns,
        now_ns: int,
    ) -> None:
        """From now on rows of these columns that must wait are listed.

        `room` has two words for each.
        """
        match, self._room = self._match, room
        match.words, match.most_listed, match.listed, match.brought = room, len(room) // 2, 0, 0
        match.list_keys, match.columns, match.list_time = keys.key64, packed.columns, now_ns

    def sort(self, pages: int) -> None:
        """All rows are listed: bring them into the order of their pages."""
        count = self.count
        self.pages = int(sort_words(self._room[:count], self._room[count : 2 * count], pages))
        self._plan[:] = 0

    @property
    def count(self) -> int:
        """Rows that were listed."""
        return int(self._match.listed)

    @property
    def is_full(self) -> bool:
        """Whether no more rows can be listed."""
        return bool(self._match.listed == self._match.most_listed)

    @property
    def rows(self) -> int:
        """Listed rows that have not come into slots."""
        return int(self._match.listed - self._match.brought)

    def plan(
        self,
        index: Struct,
        ring: Struct,
        gaps: tuple[int, int],
        longest: int,
        runs: npt.NDArray[np.int64],
    ) -> int:
        """Write the next runs of pages to read; how many. See `sweep_runs` for both gaps."""
        match = self._match.kernel
        found = listed_runs(match, index.kernel, ring.kernel, self._plan, *gaps, longest, runs)
        return int(found)

    @property
    def is_blocked(self) -> bool:
        """Whether listed rows found no room beside those that wait for the next pages."""
        return bool(self._match.blocked == BLOCKED)

    @property
    def is_paused(self) -> bool:
        """Whether no listed rows come in, until `plan_again`."""
        return bool(self._match.blocked == PAUSED)

    def pause(self) -> None:
        """Let no more listed rows come in."""
        self._match.blocked = PAUSED

    def plan_again(self) -> None:
        """There is room again: plan all pages whose rows have not come in."""
        self._match.blocked = 0
        self._plan[0], self._plan[1] = int(self._match.brought), 0

    def end(self) -> None:
        """All rows were answered: let go of the batch."""
        match, self._room = self._match, np.empty(0, np.int64)
        match.words = match.list_keys = self._room
        match.columns = Struct(COLUMNS)
        match.words = match.most_listed = match.listed = match.brought = match.blocked = 0
        self._plan[:] = 0
