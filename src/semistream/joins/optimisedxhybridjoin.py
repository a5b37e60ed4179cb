"""Optimised X-HYBRIDJOIN: the most frequent master rows answer the stream before it waits."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.probing import CachingJoin


class OptimisedXHybridJoin(CachingJoin):
    """Optimised X-HYBRIDJOIN (Naeem, PhD thesis, Auckland 2012, ch. 7, Algorithm 5).

    R is sorted by descending access frequency (`build_master(…, frequency=…)`). H_R, a hash table
    of the most frequent rows of R, is loaded once; H_S and Q hold only rows that miss in it.
    *Stream-probing phase* (`push`): rows found in H_R are answered at once, the others wait.
    *Disk-probing phase* (`step`): load the partition of the oldest waiting row and probe H_S.

    Names: h_R is the number of rows in `cache`, h_S the capacity of `waiting`, d the rows of `span`
    pages.

    Departures: those of HYBRIDJOIN. The stream-probing phase also ends after h_S probes: as
    printed, a stream of hits goes on for ever and rows in H_S starve. H_R is charged for its table
    and its links, not only for its rows, and keeps the output's columns only. A key whose rows
    reach over a page's edge is not held. Without room for H_R it is HYBRIDJOIN. With several shards
    H_R takes the first pages of each. On a master in key order H_R holds rows like all others:
    exact, and of no use.
    """

    name = "optimisedxhybridjoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 7",
        idea="answer from the first rows of a master in frequency order, else as hybridjoin",
        skew="static",
    )

    def hold(self) -> None:
        entries = int(self.cache.state.limit)
        if entries and self.master.rows:
            # A page more, for keys that are left out.
            pages = entries * self.master.pages // self.master.rows + 1
            self.load(self.hottest_runs(min(pages, self.master.pages)))
