"""Costs of the joins that scan the master in a circle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semistream.core.budget import type_of_size
from semistream.cost.model import (
    LEAST_ROWS,
    CostModel,
    Plan,
    geometric,
    output_bytes,
    output_rows,
    row_room,
)
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.packets import Packets
from semistream.joins.scanning import RUN_BYTES, SCRATCH_BYTES, buffer_bytes, chunk_bytes

LINK_BYTES = 4
"""What a waiting row takes in the rings by which it is found."""


class ScanModel(CostModel):
    """MESHJOIN's equations (Eq. 1, 2, 3), with what the implementation has besides.

    A loop is a chunk of b pages. w = h_S / k rows enter with it and as many leave; all its rows
    probe. M: read buffer, queue of packets, output, and h_S rows of f·v_S + v_ptr bytes each.
    """

    by_index = False
    tunes = "chunk"

    def packets(self, workload: Workload, chunk_pages: int, memory_bytes: int) -> int:
        """Packets of the queue: k, or k·l."""
        return max(-(-workload.pages // chunk_pages), 1)

    def more_parts(self, workload: Workload, memory_bytes: int) -> dict[str, float]:
        """Memory of the algorithm's own parts."""
        return {}

    def plan(
        self,
        workload: Workload,
        memory_bytes: int,
        costs: UnitCosts | None = None,
        *,
        chunk: type_of_size | None = None,
        **settings: Any,
    ) -> Plan:
        page = workload.page_bytes
        pages = min(max(chunk_bytes(chunk, memory_bytes) // page, 1), max(workload.pages, 1))
        buffer = min(2 * pages, max(buffer_bytes(memory_bytes) // page, 2))
        packets = self.packets(workload, pages, memory_bytes)
        output = output_bytes(workload, memory_bytes)
        parts: dict[str, float] = {
            "output": output,
            "read buffer": buffer * page,
            "queue": Packets.ENTRY_BYTES * (packets + 1),
            "scratch": SCRATCH_BYTES + row_room(workload, memory_bytes),
            **self.more_parts(workload, memory_bytes),
        }
        least = LEAST_ROWS * (workload.slot_bytes + 8) + 4096
        shares = self.divided(workload, memory_bytes, parts, "waiting rows", least)
        own = {} if chunk is None else {"chunk": chunk}
        return Plan(
            memory_bytes,
            shares,
            waiting=shares["waiting rows"] / (workload.slot_bytes + LINK_BYTES),
            pages=pages,
            packets=packets,
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings={**own, **settings},
        )

    def grid(self, workload: Workload, memory_bytes: int) -> Iterable[Any]:
        page = workload.page_bytes
        most = min(memory_bytes // 10 // page, max(workload.pages, 1))
        return [pages * page for pages in geometric(1, max(most, 1))]

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        return self.scanned(workload, plan, plan.waiting / plan.packets)

    def scanned(
        self,
        workload: Workload,
        plan: Plan,
        entering: float,
        *,
        hit_share: float = 0.0,
        has_cache: bool = False,
        watched: float = 0.0,
        offered: float = 0.0,
        pages: float | None = None,
    ) -> Loop:
        """A loop in which `entering` rows begin to wait, and hits come beside them."""
        read = workload.pages / max(-(-workload.pages // plan.pages), 1) if pages is None else pages
        rows = entering / max(1 - hit_share, 1e-6)
        probes = read * workload.rows_per_page
        run = max(min(RUN_BYTES // workload.page_bytes, plan.buffer_pages // 4), 1)
        asked = workload.frequencies
        alone = asked.distinct(plan.waiting) / max(plan.waiting, 1.0)
        results = rows * workload.results
        return Loop(
            rows=rows,
            hits=rows - entering,
            waits=entering,
            behind=entering * max(1 - alone, 0.0),
            results=results,
            cache_looked_up=rows if has_cache else 0.0,
            probes=probes,
            offered=offered,
            watched=watched * probes,
            pages=read,
            requests=max(read / run, read / workload.pages),
            seeks=read / max(workload.pages, 1),
            calls=1 + results / plan.output_rows,
        )

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 2: c_loop = c_IO(b) + w·(c_E + c_S + c_A) + b·(v_pg/v_R)·(c_H + selectivity·c_O)."""
        cost = costs.at(plan.memory_bytes)
        read = costs.disk or costs.read[workload.io]
        w = self.intake(workload, plan, printed=True)
        rows = plan.pages * workload.rows_per_page
        sigma = w * workload.results / rows
        return (
            read(plan.pages)
            + w * (cost.expire + cost.read + cost.append)
            + rows * (cost.probe + sigma * cost.result)
        )

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w; printed is Eq. 3.3: (M - b·v_pg) / (v_S + (N_R/b)·(v_ptr + f·v_S))."""
        if not printed:
            return self.loop(workload, plan).rows
        slot = workload.slot_bytes + LINK_BYTES
        left = plan.memory_bytes - plan.pages * workload.page_bytes
        return left / (workload.slot_bytes + workload.pages / plan.pages * slot)
