"""AMESHJOIN's cost: MESHJOIN's per iteration, with w and b from its tuner."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from semistream.cost.model import Plan
from semistream.cost.scanning import LINK_BYTES, ScanModel
from semistream.cost.units import UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.ameshjoin import (
    MOST_PACKETS,
    PAGE_S,
    REQUEST_S,
    ROW_S,
    Observed,
    Setting,
    tune,
)


class AMeshJoinModel(ScanModel):
    """The join's own tuner, asked with modelled costs, says how many pages a loop has."""

    name = "ameshjoin"
    tunes = ""

    def packets(self, workload: Workload, chunk_pages: int, memory_bytes: int) -> int:
        return min(max(workload.pages, 1), MOST_PACKETS)

    def grid(self, workload: Workload, memory_bytes: int) -> Iterable[Any]:
        return ()

    def plan(
        self,
        workload: Workload,
        memory_bytes: int,
        costs: UnitCosts | None = None,
        *,
        rate: float = math.inf,
        **settings: Any,
    ) -> Plan:
        plan = super().plan(workload, memory_bytes, costs, **settings)
        setting = self.setting(workload, plan, costs, rate)
        packets = max(-(-workload.pages // setting.pages), 1)
        buffer = min(2 * setting.pages, plan.buffer_pages)
        freed = (plan.buffer_pages - buffer) * workload.page_bytes
        shares = dict(plan.shares)
        shares["read buffer"] -= freed
        shares["waiting rows"] += freed
        waiting = shares["waiting rows"] / (workload.slot_bytes + LINK_BYTES)
        return replace(
            plan,
            shares=shares,
            pages=setting.pages,
            packets=packets,
            buffer_pages=max(buffer, 2),
            waiting=min(waiting, float(setting.rows * (packets + 1))),
        )

    def setting(
        self, workload: Workload, plan: Plan, costs: UnitCosts | None, rate: float
    ) -> Setting:
        """What the tuner answers when it sees this rate and these costs."""
        page_s, row_s = PAGE_S, ROW_S
        if costs is not None:
            cost = costs.at(plan.memory_bytes)
            read = costs.disk or costs.read[workload.io]
            page_s = read.page_s + workload.rows_per_page * cost.probe
            row_s = cost.read + cost.append
        return tune(
            Observed(
                rate=rate,
                master_pages=workload.pages,
                page_bytes=workload.page_bytes,
                buffer_pages=plan.buffer_pages,
                row_bytes=workload.slot_bytes + LINK_BYTES,
                memory_bytes=int(plan.shares["read buffer"] + plan.shares["waiting rows"]),
                request_s=REQUEST_S,
                page_s=page_s,
                row_s=row_s,
            )
        )


MODEL = AMeshJoinModel()
