"""CMESHJOIN's cost: SSBJ's equations with a threshold (c_F) in the place of c_B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semistream.cost.model import LEAST_ROWS, Plan, cache_scratch
from semistream.cost.scanning import LINK_BYTES, ScanModel
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.sizing import best_cache

CACHE_SHARE = 0.92
"""What the cache answers, of what the hottest rows would; measured. See `probing.CACHE_SHARE`."""


class CMeshJoinModel(ScanModel):
    """MESHJOIN's loop for what misses the cache; hits come beside it."""

    name = "cmeshjoin"

    def more_parts(self, workload: Workload, memory_bytes: int) -> dict[str, float]:
        return {"cache scratch": cache_scratch(workload)}

    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        plan = super().plan(workload, memory_bytes, costs, **settings)
        least = LEAST_ROWS * (workload.slot_bytes + LINK_BYTES) + 4096
        left = max(plan.shares["waiting rows"] - least, 0.0)
        share = settings.get("cache_share")
        if share is None:
            share = best_cache(left, workload.rows * workload.cached_bytes)
        cache = share * left
        shares = {**plan.shares, "cache": cache}
        shares["waiting rows"] -= cache
        return replace(
            plan,
            shares=shares,
            cached=cache / workload.cached_bytes,
            waiting=shares["waiting rows"] / (workload.slot_bytes + LINK_BYTES),
        )

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        entering = plan.waiting / plan.packets
        share = CACHE_SHARE * workload.frequencies.top(plan.cached / workload.key_rows)
        return self.scanned(
            workload, plan, entering, hit_share=share, has_cache=True, offered=entering
        )


MODEL = CMeshJoinModel()
