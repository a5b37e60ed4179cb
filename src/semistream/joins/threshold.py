"""When a row of the master has been asked for often enough to be cached."""

from __future__ import annotations

from semistream.core.errors import OptionError
from semistream.joins.cache import TupleCache
from semistream.joins.waiting import WaitingRows
from semistream.kernels.struct import Struct


class Threshold:
    """CACHEJOIN's threshold with a start and a way down, which its thesis does not give.

    It starts at the number of waiting rows that take the memory of a cached one. Kernels raise it
    with every row that another one has to make room for. It falls by one, not under 1, with every
    load after which the cache still has room, and by half after as many loads as the master has
    parts: else a stream whose keys drift would freeze the cache.
    """

    def __init__(
        self, match: Struct, cache: TupleCache, waiting: WaitingRows, start: int | None
    ) -> None:
        self._match, self._cache = match, cache
        if start is None:
            start = max(int(cache.row_bytes / waiting.row_bytes), 1)
        match.threshold = start
        self._given_up, self._loads = 0, 0

    @property
    def value(self) -> int:
        """Requests that a row must exceed to be cached."""
        return int(self._match.threshold)

    def loaded(self, parts: int) -> None:
        """A part of the master was loaded, of which there are so many."""
        cache = self._cache.state
        overwrote = cache.given_up > self._given_up
        self._given_up = cache.given_up
        self._loads += 1
        fall = 0
        if self._loads % parts == 0:
            fall = max(self.value // 2, 1)
        elif cache.used < cache.limit and not overwrote:
            fall = 1
        self._match.threshold = max(self.value - fall, 1)


def check_threshold(threshold: int | None) -> int | None:
    """The option of that name, checked."""
    if threshold is not None and threshold < 1:
        raise OptionError(
            f"threshold={threshold} is not above zero",
            hint="give the requests that a row must exceed at first, or leave it out",
        )
    return threshold
