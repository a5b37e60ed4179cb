"""What a second lookup position changes in a cost."""

from __future__ import annotations

from semistream.cost import intake
from semistream.cost.model import Plan
from semistream.cost.probing import ProbingModel
from semistream.cost.workload import Workload
from semistream.joins.second_lookup import LISTED

POSITION = 0.3


class SecondLookupModel(ProbingModel):
    """Every other load is for a younger row; the list of arrivals takes memory."""

    def further_parts(self, workload: Workload, memory_bytes: int, span: int) -> dict[str, float]:
        rows = memory_bytes // max(int(workload.slot_bytes), 1)
        groups = -(-max(workload.pages, 1) // span)
        listed = 2 * min(rows, LISTED) + 2
        return {
            **super().further_parts(workload, memory_bytes, span),
            "arrivals": 4 * listed + 4 * groups,
        }

    def queue(self, masses: intake._F64, waiting: float, plan: Plan) -> intake.Queue:
        position = float(plan.settings.get("second_position", POSITION))
        return intake.second_lookup(masses, waiting, position)
