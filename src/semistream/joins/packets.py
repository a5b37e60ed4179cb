"""The queue of a scanning join: which rows entered together, and at which page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Packets:
    """A queue of packets, each some rows that entered before the same page.

    Rows themselves lie in the order in which they came, so a packet is no more than their number
    and its start page: 16 bytes.
    """

    ENTRY_BYTES = 16

    def __init__(self, most: int) -> None:
        self._rows = np.zeros(most, np.int64)
        self._start = np.zeros(most, np.int64)
        self._head = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no further packet fits."""
        return self._count == len(self._rows)

    @property
    def oldest_start(self) -> int:
        """The page before which the oldest packet entered."""
        return int(self._start[self._head])

    def append(self, rows: int, start: int) -> None:
        """Add the youngest packet."""
        at = (self._head + self._count) % len(self._rows)
        self._rows[at], self._start[at] = rows, start
        self._count += 1

    def pop_oldest(self) -> int:
        """Take the oldest packet out; its rows."""
        rows = int(self._rows[self._head])
        self._head = (self._head + 1) % len(self._rows)
        self._count -= 1
        return rows

    def pop_youngest(self, most: int) -> int:
        """Take the youngest packet out, or `most` of its rows; how many rows it were."""
        at = (self._head + self._count - 1) % len(self._rows)
        rows = int(self._rows[at])
        if rows > most:
            self._rows[at] -= most
            return most
        self._count -= 1
        return rows

    def starts(self) -> npt.NDArray[np.int64]:
        """The start page of every row, oldest first."""
        at = (self._head + np.arange(self._count)) % len(self._rows)
        return np.repeat(self._start[at], self._rows[at])
