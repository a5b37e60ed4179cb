"""SSIJ's cost: its paper has a worst case only (§V); this is our own."""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.cost import intake
from semistream.cost.model import (
    CostModel,
    Plan,
    far,
    index_scratch,
    output_bytes,
    output_rows,
    row_room,
)
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.pool import FRAME_BYTES
from semistream.joins.ssij import BINS, MOST_BUFFER_BYTES, PAGE_S, RANK_BYTES, REQUEST_BYTES, SEEK_S


class SsijModel(CostModel):
    """A loop is the time from one join phase to the next.

    SB fills with the rows whose page is not cached; then all their pages are read in order, through
    every gap that costs less than a seek. A page stays cached while it is wanted by more rows per
    loop than its memory would hold, less what reading it alone would cost.
    """

    name = "ssij"

    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        page, pages = workload.page_bytes, max(workload.pages, 1)
        output = output_bytes(workload, memory_bytes)
        buffer = max(min(memory_bytes // 12, MOST_BUFFER_BYTES) // page, 2)
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page lists": 4 * (pages + 1),
            "page table": 4 * pages,
            "read buffer": buffer * page,
            "scratch": index_scratch(workload) + 8 * BINS + row_room(workload, memory_bytes),
        }
        shares = self.divided(workload, memory_bytes, parts, "stream and cache")
        return Plan(
            memory_bytes,
            shares,
            waiting=shares["stream and cache"] / workload.slot_bytes,
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings=settings,
        )

    def shared(self, workload: Workload, plan: Plan) -> tuple[int, float]:
        """Pages in the cache and the rows of a loop, where both agree."""
        masses = np.sort(workload.page_masses())[::-1]
        total = max(float(masses.sum()), 1e-12)
        frame = workload.page_bytes + FRAME_BYTES + RANK_BYTES
        slot = workload.slot_bytes
        room = plan.shares["stream and cache"]
        most = int(min((room - 66 * slot) // frame, len(masses) - 1))
        cached = np.unique(np.geomspace(1, max(most, 1), 200).astype(np.int64)) - 1
        share = np.concatenate([[0.0], np.cumsum(masses)])[cached] / total
        rows = (room - cached * frame) / slot * 15 / 16 / np.maximum(1 - share, 1e-9)
        best = 0
        for i, count in enumerate(cached):
            if masses[count] * rows[i] < frame / slot - self._saved(masses[count:], rows[i]):
                break
            best = i
        return int(cached[best]), float(rows[best])

    def _saved(self, masses: intake._F64, rows: float) -> float:
        wanted = intake.wanted_pages(masses, rows)
        pages, _, scans = intake.runs(_scattered(wanted), round(SEEK_S / PAGE_S) - 1, 1e9)
        cost = scans * SEEK_S + pages * PAGE_S
        alone = min(scans / max(float(wanted.sum()), 1.0), 1.0)
        return rows * alone * (SEEK_S + PAGE_S) / cost if cost else 0.0

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        cached, rows = self.shared(workload, plan)
        masses = workload.page_masses().copy()
        hottest = np.argsort(masses)[::-1][:cached]
        share = float(masses[hottest].sum()) / max(float(masses.sum()), 1e-12)
        masses[hottest] = 0.0
        wanted = intake.wanted_pages(masses, rows)
        request = max(min(plan.buffer_pages // 6, REQUEST_BYTES // workload.page_bytes), 1)
        gap = round(SEEK_S / PAGE_S) - 1
        pages, requests, seeks = intake.runs(wanted, gap, request)
        waits = rows * (1 - share)
        online = 16.0 / max(1 - share, 1e-6)
        results = rows * workload.results
        alone = workload.frequencies.distinct(waits) / max(waits, 1.0)
        return Loop(
            rows=rows,
            waits=rows,
            held=rows - waits,
            behind=rows * max(1 - alone, 0.0),
            far=waits * far(plan.buffer_pages * workload.page_bytes),
            results=results,
            looked_up=rows,
            pages=pages,
            requests=requests,
            seeks=seeks,
            calls=online + results / plan.output_rows,
        )


def _scattered(wanted: intake._F64) -> intake._F64:
    """Pages sorted by interest, in any order: as they lie in the master."""
    mixed: intake._F64 = np.random.default_rng(0).permutation(wanted)
    return mixed


MODEL = SsijModel()
