"""A second lookup position: every other load is chosen by a younger row than the oldest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.joins.probing import ProbingJoin
from semistream.kernels.queue import ARRIVALS, note_arrivals, note_emptied, take_at
from semistream.kernels.struct import Struct

LISTED = 4096
"""Rows that are listed at most, of those that wait: of more, every so many-th."""


class SecondLookup(ProbingJoin):
    """Loads alternate between the partition of the oldest row and that of the row at a fraction of
    the queue counted from its young end (`second_position`).

    A partition waits for its oldest row to come to the front, however many rows ask for it, so
    frequent partitions are loaded hardly more often than rare ones and their rows pile up. The
    youngest rows are a fair sample of the stream: what they ask for is frequent.
    """

    def __init__(self, *args: Any, second_position: float = 0.3, **options: Any) -> None:
        if not 0 <= second_position < 1:
            raise OptionError(
                f"second_position={second_position} is not a fraction of the queue",
                hint="give a number from 0 (the newest row) to below 1; 0.3 is the paper's",
            )
        self.second_position = second_position
        super().__init__(*args, **options)

    def further_parts(self) -> dict[str, int]:
        groups = -(-max(self.master.pages, 1) // self.span)
        return {**super().further_parts(), "arrivals": 4 * self._listed + 4 * groups}

    @property
    def _listed(self) -> int:
        """Places of the list: twice as many as rows wait, for those that have left meanwhile."""
        return 2 * min(self._most_rows, LISTED) + 2

    @property
    def _most_rows(self) -> int:
        return self.budget.limit_bytes // self.binding.layout.record_bytes

    def hold(self) -> None:
        super().hold()
        self._arrivals = Struct(
            ARRIVALS,
            groups=np.zeros(self._listed, np.int32),
            capacity=self._listed,
            every=-(-self._most_rows // LISTED),
            emptied=np.zeros(self.groups, np.int32),
        )
        self._turn = False

    def taken_in(self, rows: int, valid: npt.NDArray[np.uint8]) -> None:
        waiting = self.waiting.state.kernel
        note_arrivals(waiting, self._arrivals.kernel, self._pages, valid, rows)

    def loaded(self, first: int, count: int) -> None:
        super().loaded(first, count)
        note_emptied(self.waiting.state.kernel, self._arrivals.kernel, first, count)

    def choose(self, most: int) -> npt.NDArray[np.int64]:
        chosen: list[int] = []
        while len(chosen) < most:
            self._turn = not self._turn
            group = -1
            if not self._turn:
                waiting = self.waiting.state.kernel
                group = int(take_at(waiting, self._arrivals.kernel, self.second_position))
            if group < 0:
                oldest = self.oldest_groups(1)
                if not len(oldest):
                    break
                group = int(oldest[0])
            chosen.append(group)
        return np.array(chosen, np.int64)
