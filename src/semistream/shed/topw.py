"""TOPW: the rows with most results."""

from __future__ import annotations

from semistream.shed.policy import Numbers, Policy


class TopW(Policy):
    """TOPW (MESHJOIN paper, §4): of each interval the w rows with the largest f_R, the number of
    their partners in R, so that as many results as possible are left.

    The paper keeps them in a "max heap"; what must be found again and again is the least of those
    that are kept, so that it is a min-heap. Here rows come in batches, and a partition of the
    scores at their w-th largest does the same. Of rows with equally many results the first stay.
    """

    name = "topw"
    idea = "the rows with most results"
    needs_results = True

    def scores(self, results: Numbers) -> Numbers:
        return results
