"""INLJ's cost: no source prints one beyond "a constant number of disk accesses per tuple"."""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.cost import intake
from semistream.cost.model import (
    CostModel,
    Plan,
    index_scratch,
    looked_up,
    output_bytes,
    output_rows,
    row_room,
)
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.inlj import BATCH_ROWS, READ_PAGES
from semistream.joins.pool import FRAME_BYTES


class InljModel(CostModel):
    """A loop is a batch of rows; each page that is not in the pool is read, once for the batch.

    The pool keeps a page for about as long as Che's formula says of the least recently used ones.
    """

    name = "inlj"

    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        page, pages = workload.page_bytes, max(workload.pages, 1)
        output = output_bytes(workload, memory_bytes)
        read = max(min(READ_PAGES, memory_bytes // 16 // page), 2)
        rows = max(min(BATCH_ROWS, int(memory_bytes // 16 // workload.slot_bytes)), 64)
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page chains": 12 * pages,
            "scratch": index_scratch(workload) + row_room(workload, memory_bytes),
            "read buffer": read * page,
            "waiting rows": rows * workload.slot_bytes + 4096,
            "page table": 4 * pages,
        }
        shares = self.divided(workload, memory_bytes, parts, "buffer pool", page + 16)
        return Plan(
            memory_bytes,
            shares,
            waiting=shares["waiting rows"] / workload.slot_bytes,
            held_pages=min(shares["buffer pool"] / (page + FRAME_BYTES), workload.pages),
            buffer_pages=read,
            output_rows=output_rows(workload, output),
            settings=settings,
        )

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        masses = workload.page_masses()
        age = intake.pool_age(masses, plan.held_pages)
        missing = np.exp(-masses * age) if np.isfinite(age) else np.zeros_like(masses)
        rows = min(plan.waiting, float(BATCH_ROWS))
        wanted = intake.wanted_pages(masses, rows)
        pages = float((wanted * missing).sum())
        held = rows * (1 - float((masses * missing).sum()) / max(float(masses.sum()), 1e-12))
        _, requests, seeks = intake.runs(wanted * missing, 0, max(plan.buffer_pages // 2, 1))
        alone = workload.frequencies.distinct(rows) / max(rows, 1.0)
        results = rows * workload.results
        return Loop(
            rows=rows,
            waits=rows,
            held=held,
            behind=rows * max(1 - alone, 0.0),
            results=results,
            looked_up=looked_up(rows),
            pages=pages,
            requests=requests if pages else 0.0,
            seeks=seeks if pages else 0.0,
            calls=1 + results / plan.output_rows,
        )


MODEL = InljModel()
