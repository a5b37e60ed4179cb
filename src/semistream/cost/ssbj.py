"""SSBJ's cost: Eq. 1 to 5 of its paper."""

from __future__ import annotations

from dataclasses import replace

from semistream.cost.intake import rising_root
from semistream.cost.model import Plan
from semistream.cost.scanning import LINK_BYTES, ScanModel
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.ssbj import own_parts

CYCLES, WATCHING = 3, 2 / 3
"""Of three cycles through the master two count or collect the records of watched keys."""


class SsbjModel(ScanModel):
    """MESHJOIN's loop behind a cache with the keys for which the inequality holds.

    A key that is asked for n times in an R-cycle and has m records is cached where m records take
    less memory than n waiting rows. More cached keys leave fewer rows to wait, but those that wait
    are a smaller share of the stream: the border is where the two agree.
    """

    name = "ssbj"

    def more_parts(self, workload: Workload, memory_bytes: int) -> dict[str, float]:
        return dict(own_parts(memory_bytes))

    def balanced(self, workload: Workload, plan: Plan) -> tuple[float, float, float]:
        """Keys in the cache, the share of the stream they answer, and rows that wait."""
        slot = workload.slot_bytes + LINK_BYTES
        room = plan.shares["waiting rows"]
        record = workload.cached_bytes * workload.key_rows
        asked = workload.frequencies
        price = record / slot

        def surplus(keys: float) -> float:
            """How far the inequality is from holding for the last of so many keys."""
            waiting = max(room - keys * record, slot) / slot
            cycle = waiting / max(1 - asked.top(keys), 1e-9)
            return price - asked.rank(keys) * cycle

        most = min(room / record, asked.count)
        keys = rising_root(surplus, 0.0, most) if surplus(0.5) < 0 else 0.0
        return keys, asked.top(keys), max(room - keys * record, slot) / slot

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        _, share, waiting = self.balanced(workload, plan)
        entering = waiting / plan.packets
        held = replace(plan, waiting=waiting)
        return self.scanned(
            workload, held, entering, hit_share=share, has_cache=True, watched=WATCHING
        )

    def period(self, plan: Plan) -> int:
        return CYCLES * plan.packets

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 2: c_loop = c_IO(b) + b·(c_H + c_B) + w_N·(c_S + c_H + c_O) + w_S·(…)."""
        cost = costs.at(plan.memory_bytes)
        read = costs.disk or costs.read[workload.io]
        loop = self.loop(workload, plan)
        rows = plan.pages * workload.rows_per_page
        return (
            read(plan.pages)
            + rows * (cost.probe + cost.watch)
            + loop.hits * (cost.read + cost.probe + cost.result)
            + loop.waits * (cost.expire + cost.read + cost.append + cost.result)
        )

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w_N + w_S; the paper's is the same: what Eq. 1 leaves for waiting rows."""
        return self.loop(workload, plan).rows


MODEL = SsbjModel()
