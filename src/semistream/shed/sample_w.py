"""Sample w: a uniform sample of each interval."""

from __future__ import annotations

import numpy as np

from semistream.shed.policy import Numbers, Policy


class SampleW(Policy):
    """Sample w (MESHJOIN paper, §4): a uniform sample of size w, without replacement.

    Where every row has one result (many-to-one), the results are a uniform sample of the join.
    Each row draws a number and the highest stay, which is a reservoir that works on whole batches.
    Of n rows of an interval each stands for n/w.
    """

    name = "sample"
    idea = "a uniform sample of each interval"
    weighs = True

    def scores(self, results: Numbers) -> Numbers:
        return self.random.random(len(results))

    def weights(self, results: Numbers, offered: int, threshold: float) -> Numbers:
        return np.full(len(results), offered / max(len(results), 1))
