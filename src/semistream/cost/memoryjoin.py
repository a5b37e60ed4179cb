"""The in-memory join's cost."""

from __future__ import annotations

from math import ceil
from typing import Any

from semistream.cost.model import (
    CostModel,
    Plan,
    index_scratch,
    output_bytes,
    output_rows,
    row_room,
)
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.indexed import INTAKE_ROWS
from semistream.joins.memoryjoin import (
    FRAME_BYTES,
    MOST_BUFFER_BYTES,
    MOST_OUTPUT_BYTES,
    WAITING_PART,
)


class MemoryJoinModel(CostModel):
    """A loop is a block of rows, all answered from memory. Loading the master is not part of it."""

    name = "memoryjoin"

    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        page, pages, limit = workload.page_bytes, max(workload.pages, 1), memory_bytes
        output = output_bytes(workload, limit, min(limit / 16, MOST_OUTPUT_BYTES) / limit)
        buffer = max(min(limit // 64, MOST_BUFFER_BYTES) // page, 2)
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page chains": 4 * pages,
            "read buffer": buffer * page,
            "scratch": index_scratch(workload) + row_room(workload, limit),
            "waiting rows": max(limit // WAITING_PART, 64 * workload.slot_bytes + 4096),
        }
        whole = workload.pages * (page + FRAME_BYTES)
        shares = self.divided(workload, limit, parts, "pages", whole)
        return Plan(
            limit,
            shares,
            waiting=0.0,
            held_pages=workload.pages,
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings=settings,
        )

    def worked_bytes(self, plan: Plan) -> int:
        """None: it was measured with a whole master in memory, whatever the memory."""
        return 0

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        room = max(plan.output_rows / workload.results, 1.0)
        # Blocks until the output is full, of which the last is smaller.
        rows = room / ceil(room / INTAKE_ROWS)
        results = rows * workload.results
        return Loop(
            rows=rows,
            held=rows,
            waits=0.0,
            found=rows,
            results=results,
            looked_up=rows,
            calls=results / plan.output_rows,
        )


MODEL = MemoryJoinModel()
