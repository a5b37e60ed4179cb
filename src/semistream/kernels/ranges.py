"""Which pages of a master a part of it has, and which numbers they have there.

A part knows its own pages by numbers without gaps, as if they were a whole master. The index it
shares with the others: what is found there are numbers in the whole master.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.jit import inlined
from semistream.kernels.memory import at
from semistream.kernels.struct import struct_type

RANGES = struct_type("count own whole shards")
"""`count` ranges of pages in each shard; 0 for a whole master, all of whose numbers are its own.
Where each range begins among the `own` pages and in the `whole` master; where shards begin in the
whole master. Ranges may be empty, and do not overlap."""


@inlined
def _range_of(ranges: Any, shard: int, begins: int, page: int) -> int:
    """The last range of a shard that does not begin behind a page."""
    first = ranges.count * shard
    last = first + ranges.count - 1
    begin = at(begins, first)
    # Ranges have about as many pages each: the guess is seldom wrong.
    share = (page - begin) / np.float64(at(begins, last) - begin + 1)
    found = min(max(first + np.int64(share * (last - first)), first), last)
    while found > first and at(begins, found) > page:
        found -= 1
    while found < last and at(begins, found + 1) <= page:
        found += 1
    return found


@inlined
def _renumbered(ranges: Any, shard: int, page: int, begins: int, others: int) -> int:
    """The number of a page where ranges begin at others, given the one where they begin so."""
    if ranges.count == 0:
        return page
    i = _range_of(ranges, shard, begins, page)
    return page - at(begins, i) + at(others, i)


@inlined
def whole_page(ranges: Any, shard: int, page: int) -> int:
    """The number that an own page has in the whole master."""
    return _renumbered(ranges, shard, page, ranges.own, ranges.whole)


@inlined
def own_page(ranges: Any, shard: int, page: int) -> int:
    """The own number of a page of the whole master that is in one of the ranges."""
    return _renumbered(ranges, shard, page, ranges.whole, ranges.own)


@inlined
def end_of_range(ranges: Any, shard: int, page: int, end: int) -> int:
    """Where the own pages end that follow one in its range, or `end` if that comes before."""
    if ranges.count == 0:
        return end
    following = _range_of(ranges, shard, ranges.own, page) + 1
    if following == ranges.count * (shard + 1):
        return end
    return min(end, at(ranges.own, following))
