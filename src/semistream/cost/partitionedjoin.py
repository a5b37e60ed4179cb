"""Partitioned Join's cost: described without one; this is our own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from semistream.cost import intake
from semistream.cost.model import (
    LEAST_ROWS,
    CostModel,
    Plan,
    far,
    geometric,
    index_scratch,
    looked_up,
    output_bytes,
    output_rows,
    row_room,
)
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.indexed import RUNS
from semistream.joins.partitionedjoin import BUFFER_SHARE, FEWEST_SEGMENTS
from semistream.joins.sizing import best_partition


class PartitionedJoinModel(CostModel):
    """A loop loads the largest slots, as many segments as hold a hundredth of the master.

    All slots grow to the same size before they are served, whatever their rate. The R-buffer
    answers the stream's interest in the pages that it holds, the most wanted ones.
    """

    name = "partitionedjoin"
    tunes = "segment_pages"

    def plan(
        self,
        workload: Workload,
        memory_bytes: int,
        costs: UnitCosts | None = None,
        *,
        segment_pages: int | None = None,
        buffer_share: float = BUFFER_SHARE,
        **settings: Any,
    ) -> Plan:
        page, pages = workload.page_bytes, max(workload.pages, 1)
        if segment_pages is None:
            span = min(best_partition(memory_bytes / page), max(pages // FEWEST_SEGMENTS, 1))
        else:
            span = min(segment_pages, pages)
        if workload.shards > RUNS // 2:
            span = min(span, RUNS // 2)
        output = output_bytes(workload, memory_bytes)
        buffer = max(2 * span, min(64, memory_bytes // 16 // page))
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page chains": 4 * pages + 8 * -(-pages // span),
            "scratch": index_scratch(workload) + row_room(workload, memory_bytes),
            "read buffer": buffer * page,
            "page table": 4 * pages,
            "slot sizes": 4 * -(-pages // span),
        }
        left = memory_bytes - sum(parts.values()) - LEAST_ROWS * workload.slot_bytes - 4096
        parts["R-buffer"] = max(buffer_share * left, 0.0)
        shares = self.divided(workload, memory_bytes, parts, "waiting rows")
        own = {} if segment_pages is None else {"segment_pages": segment_pages}
        return Plan(
            memory_bytes,
            shares,
            waiting=shares["waiting rows"] / workload.slot_bytes,
            pages=span,
            held_pages=min(shares["R-buffer"] // (page + 17), pages),
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings={**own, **settings},
        )

    def grid(self, workload: Workload, memory_bytes: int) -> Iterable[Any]:
        memory = memory_bytes // 4 // workload.page_bytes
        return geometric(1, max(min(memory, workload.pages // FEWEST_SEGMENTS), 1))

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        masses = np.sort(workload.span_masses(1))[::-1]
        total = max(float(masses.sum()), 1e-12)
        share = float(masses[: int(plan.held_pages)].sum()) / total
        segments = max(-(-workload.pages // plan.pages), 1)
        slot = intake.largest_first(segments, plan.waiting)
        loads = max(min(workload.pages // 100 // plan.pages, RUNS // 2), 1)
        loads = min(loads, segments)
        waits = slot * loads
        rows = waits / max(1 - share, 1e-6)
        pages = loads * (1 + (plan.pages - 1) * (slot - 1) / (slot + 1))
        longest = max(plan.buffer_pages // 2, plan.pages)
        alone = workload.frequencies.distinct(plan.waiting) / max(plan.waiting, 1.0)
        results = rows * workload.results
        return Loop(
            rows=rows,
            waits=rows,
            held=rows - waits,
            behind=rows * max(1 - alone, 0.0),
            far=waits * far(plan.buffer_pages * workload.page_bytes),
            results=results,
            # Each row is also counted into its slot, which costs about as much as a look-up.
            looked_up=looked_up(rows) + rows,
            pages=pages,
            requests=loads * max(plan.pages / longest, 1.0),
            seeks=float(loads),
            calls=1 + results / plan.output_rows,
        )


MODEL = PartitionedJoinModel()
