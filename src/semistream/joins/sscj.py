"""SSCJ: CACHEJOIN whose full cache gives up the least frequent row."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.cachejoin import CacheJoin
from semistream.kernels.admission import LEAST

AGING_LOOKUPS = 8
"""Look-ups per cached row between two halvings of the counters."""


class Sscj(CacheJoin):
    """SSCJ, the semi-stream cache join, as far as it is described in the lookup-element paper (§2)
    and the SSBJ paper (§2.3), both by Naeem, Weber and Lutteroth; no paper of its own was at hand.

    CACHEJOIN, but a full H_R overwrites its least frequent row. Phases and names as there.

    Departures: those of CACHEJOIN. How often a row is asked for is not said to be counted in any
    particular way: here each entry has a counter that begins with the requests that brought it in
    and grows with each hit; the one with the lowest goes (a hand that goes round finds it, with the
    lowest counter known to it). Counters are halved now and then, so that past favour fades.
    """

    name = "sscj"
    traits = Traits(
        paper="as described by Naeem, Weber, Lutteroth",
        idea="cachejoin whose full cache gives up the least frequent row",
        skew="tuple",
    )

    policy = LEAST

    def hold(self) -> None:
        super().hold()
        self._aged_at = 0

    def loaded(self, first: int, count: int) -> None:
        super().loaded(first, count)
        lookups = int(self.match.hits + self.match.misses)
        if lookups - self._aged_at >= AGING_LOOKUPS * max(self.cache.rows, 1):
            self._aged_at = lookups
            self.cache.age()
            self.match.floor = 0
