"""X-HYBRIDJOIN's cost: thesis Eq. 6.1 to 6.9."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from semistream.cost import intake
from semistream.cost.model import Plan
from semistream.cost.probing import ProbingModel, _printed
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.sizing import best_cache
from semistream.joins.xhybridjoin import FRAME_BYTES


class XHybridJoinModel(ProbingModel):
    """The first pages stay in memory; rows that they answer wait no longer than a step."""

    name = "xhybridjoin"

    def held(
        self, workload: Workload, left_bytes: float, span: int, settings: dict[str, Any]
    ) -> tuple[str, float]:
        frame = workload.page_bytes + FRAME_BYTES
        given = settings.get("nonswappable_pages")
        pages = span if given is None else int(given)
        if settings.get("tuned"):
            share = best_cache(left_bytes, workload.pages * frame)
            pages = int(share * left_bytes / frame)
        table = 4 * workload.pages
        pages = int(min(pages, workload.pages, max(left_bytes - table, 0) // frame))
        return "non-swappable part", float(pages * frame + table if pages else 0)

    def pages_held(self, workload: Workload, shares: dict[str, float]) -> float:
        size = shares["non-swappable part"] - 4 * workload.pages
        return max(size, 0.0) // (workload.page_bytes + FRAME_BYTES)

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        held = int(plan.held_pages)
        masses = workload.page_masses().copy()
        share = float(masses[:held].sum()) / max(float(masses.sum()), 1e-12)
        masses[:held] = 0.0
        starts = np.arange(0, len(masses), plan.pages)
        spans = np.add.reduceat(masses, starts)
        loads = self.loads(workload, plan)
        # Rows for held pages wait for the next step: they take slots of the others.
        waits = intake.hybrid(spans, plan.waiting).rows
        for _ in range(8):
            between = loads * waits * share / max(1 - share, 1e-6)
            waits = intake.hybrid(spans, max(plan.waiting - between, 1.0)).rows
        loop = self._counted(workload, plan, waits, share, plan.waiting, False)
        # They go the way of all waiting rows, not that of a cache.
        return replace(
            loop,
            hits=0.0,
            held=loop.hits,
            waits=loop.rows,
            looked_up=loop.looked_up / max(1 - share, 1e-6),
        )

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w; printed is Eq. 6.9, which takes a variance for a count."""
        if not printed:
            return self.loop(workload, plan).rows
        partitions = (workload.pages - plan.held_pages) / plan.pages
        held = max(plan.held_pages * workload.rows_per_page, 1.0)
        return intake.printed_xhybrid(plan.waiting, partitions, held, workload.rows)

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 6.5: c_loop = c_IO(b_sw) + (d_N + d_S)·c_H + w·(c_O + c_E + c_S + c_A)."""
        w = self.intake(workload, plan, printed=True)
        probes = (plan.pages + plan.held_pages) * workload.rows_per_page
        return _printed(workload, plan, costs, w, 0.0, probes)


MODEL = XHybridJoinModel()
