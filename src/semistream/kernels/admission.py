"""Kernels that decide which master rows the papers' caches hold.

A key enters when it was asked for more often than a threshold while its page was on disk. Without
room, the cache of CACHEJOIN gives up a key at random, that of SSCJ the one that was asked for
least; either way the threshold rises by one. How it comes down again is the join's affair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.cache import (
    MOST_HITS,
    blocks_for,
    find,
    give_up,
    has_place,
    keep,
    place_drawn,
    word_at,
)
from semistream.kernels.jit import inlined, kernel
from semistream.kernels.memory import load_i32, store_i32
from semistream.kernels.pages import mix

EARNED, FIXED, RANDOM, LEAST = 0, 1, 2, 3
"""Who enters a cache and who leaves: by what a row earns (SWEEPJOIN, in `matching`); nobody; above
the threshold, for one at random; above the threshold, for the least frequent."""


@inlined
def reopen_tally(match: Any, number: int) -> int:
    """Go on with the tally of a page whose rows came in several portions; how many keys it has.

    A tally that was kept for another page is dropped.
    """
    touched = match.open_touched
    if match.open_page != number + 1:
        for i in range(touched):
            low = np.int64(load_i32(match.asked + 4 * i))
            store_i32(match.tally + 4 * low, np.int32(0))
        touched = np.int64(0)
    match.open_page, match.open_touched = np.int64(0), np.int64(0)
    return touched


@inlined
def keep_tally(match: Any, number: int, touched: int) -> bool:
    """Keep the tally of a page for more of its rows to come: a threshold is for all of a load."""
    match.open_page, match.open_touched = number + 1, touched
    return True


@inlined
def _random_place(cache: Any) -> int:
    """A used place, drawn at random; -1 if none was found."""
    for _ in range(64):
        cache.random = np.int64(mix(cache.random + 0x9E3779B9))
        at = place_drawn(cache, cache.random)
        if word_at(cache, at) != 0:
            return at
    return -1


@inlined
def least_frequent(match: Any, cache: Any) -> int:
    """The place with the fewest hits; -1 if the cache is empty.

    A hand goes round and stops at the first key with no more than `floor` hits. Counters only grow
    (`floor` follows where they do not: see `promote` and whoever ages them), so that after a round
    in vain the fewest hits seen are the new floor.
    """
    while True:
        following = np.int64(MOST_HITS) * 2
        for _ in range(cache.places):
            match.hand = match.hand + 1 if match.hand + 1 < cache.places else np.int64(0)
            word = word_at(cache, match.hand)
            if word != 0:
                if word >> 32 <= match.floor:
                    return match.hand
                following = min(following, word >> 32)
        if following > MOST_HITS:
            return -1
        match.floor = following


@kernel
def promote(
    match: Any, cache: Any, key: int, page: int, records: int, stride: int, rows: int, hits: int
) -> None:
    """Cache a key for which `hits` rows had waited, if that is above the threshold.

    A key with several rows needs as many times more. The caller has answered all rows that waited.
    """
    if match.policy == FIXED or hits <= match.threshold * rows or find(cache, key) >= 0:
        return
    blocks = blocks_for(cache, records, stride, rows)
    if rows > cache.limit or blocks > cache.blocks.limit:
        return
    while not has_place(cache, rows, blocks):
        victim = least_frequent(match, cache) if match.policy == LEAST else _random_place(cache)
        if victim < 0:
            return
        give_up(cache, victim)
        cache.given_up += 1
        match.threshold += 1
    keep(cache, key, page, records, stride, rows, hits)
    match.floor = min(match.floor, hits)
