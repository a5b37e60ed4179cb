"""Cluster Sampling: rows with many results are kept more often, and count for less."""

from __future__ import annotations

import numpy as np

from semistream.shed.policy import Numbers, Policy


class ClusterSampling(Policy):
    """Cluster Sampling (MESHJOIN paper, §4): a row is kept with a probability in proportion to f_R,
    the number of its partners in R. Its results are a cluster, kept or shed together: not a
    uniform sample of the join, but sums over the join can be estimated and bounded.

    Departure: the paper does not say how w rows are drawn. Here by priority sampling (Duffield,
    Lund, Thorup: Priority sampling for estimation of arbitrary subset sums, JACM 2007): a row with
    f results draws u from (0, 1] and has the priority f/u; the w highest stay, and with t the
    highest priority of the others a kept row stands for max(1, t/f) rows. Estimates are unbiased,
    and rows do not influence each other's errors. Rows without results are not kept while others
    are shed.
    """

    name = "cluster"
    idea = "a sample in which rows with many results are more likely"
    needs_results = True
    weighs = True

    def scores(self, results: Numbers) -> Numbers:
        return results / (1.0 - self.random.random(len(results)))

    def weights(self, results: Numbers, offered: int, threshold: float) -> Numbers:
        weights = np.ones(len(results))
        if threshold > 0:
            np.divide(threshold, results, out=weights, where=results > 0)
        return np.maximum(weights, 1.0)
