"""CACHEJOIN with a second lookup position."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.cachejoin import CacheJoin
from semistream.joins.second_lookup import SecondLookup


class CacheJoin2(SecondLookup, CacheJoin):
    """CACHEJOIN with a second lookup element (Naeem, Weber, Lutteroth, Dobbie: *Optimizing
    Queue-based Semi-Stream Joins with Indexed Master Data*, §3 and §4).

    As CACHEJOIN, but every other load is for the row at `second_position` · (waiting rows) from the
    young end of the queue. Behind a cache it gains less than in HYBRIDJOIN, and only on masters in
    frequency order.

    Departures: those of CACHEJOIN and of `hybridjoin2`.
    """

    name = "cachejoin2"
    traits = Traits(
        paper="Naeem, Weber, Lutteroth, Dobbie, lookup element",
        idea="cachejoin that loads for a younger row every other time",
        skew="tuple",
    )
