"""HYBRIDJOIN with a second lookup position."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.hybridjoin import HybridJoin
from semistream.joins.second_lookup import SecondLookup


class HybridJoin2(SecondLookup, HybridJoin):
    """HYBRIDJOIN with a second lookup element (Naeem, Weber, Lutteroth, Dobbie: *Optimizing
    Queue-based Semi-Stream Joins with Indexed Master Data*, §3 and §4).

    As HYBRIDJOIN, but every other load is for the row at `second_position` · (waiting rows) from
    the young end of the queue; the others are for the oldest row, so that none starves. It pays on
    masters in frequency order with skewed keys; on others HYBRIDJOIN is better.

    Departures: those of HYBRIDJOIN. The fraction is of the rows that wait at the moment, where the
    paper has the capacity h_S: the queue may be short. Where more than 4096 rows can wait, only
    every so many-th is listed with its place in the queue, which hardly moves the position.
    """

    name = "hybridjoin2"
    traits = Traits(
        paper="Naeem, Weber, Lutteroth, Dobbie, lookup element",
        idea="hybridjoin that loads for a younger row every other time",
        skew="partition",
    )
