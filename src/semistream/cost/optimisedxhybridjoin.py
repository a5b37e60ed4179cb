"""Optimised X-HYBRIDJOIN's cost: thesis Eq. 7.1 to 7.3."""

from __future__ import annotations

from semistream.cost.model import Plan
from semistream.cost.probing import CachingModel
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload


class OptimisedXHybridJoinModel(CachingModel):
    """The first rows of the master are cached: the hottest ones, if it is in frequency order."""

    name = "optimisedxhybridjoin"
    threshold = False

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        share = self.share_of_hits(workload, plan)
        gone = plan.cached / workload.key_rows if workload.by_frequency else 0.0
        return self.loaded(workload, plan, share, cached=gone)

    def share_of_hits(self, workload: Workload, plan: Plan) -> float:
        if workload.by_frequency:
            return workload.frequencies.top(plan.cached / workload.key_rows)
        # In key order the first rows are rows like all others.
        return min(plan.cached / max(workload.rows, 1), 1.0)


MODEL = OptimisedXHybridJoinModel()
