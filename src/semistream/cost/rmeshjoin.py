"""R-MESHJOIN's cost: thesis Eq. 4.1 to 4.5."""

from __future__ import annotations

from semistream.cost.model import Plan
from semistream.cost.scanning import ScanModel
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.rmeshjoin import LEAST_ROWS, QUEUE_PARTITIONS, logical_partitions


class RMeshJoinModel(ScanModel):
    """A loop is a logical partition, b/l pages: w = h_S / (k·l) rows enter with it (Eq. 4.2)."""

    name = "rmeshjoin"

    def partitions(self, workload: Workload, chunk_pages: int, memory_bytes: int) -> int:
        """l."""
        rows = memory_bytes // max(int(workload.slot_bytes), 1)
        wanted = min(QUEUE_PARTITIONS, rows // LEAST_ROWS)
        chunks = max(-(-workload.pages // chunk_pages), 1)
        return min(logical_partitions(chunks, wanted), chunk_pages)

    def packets(self, workload: Workload, chunk_pages: int, memory_bytes: int) -> int:
        chunks = max(-(-workload.pages // chunk_pages), 1)
        parts = self.partitions(workload, chunk_pages, memory_bytes)
        return min(chunks * parts, max(workload.pages, 1))

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        entering = plan.waiting / plan.packets
        return self.scanned(workload, plan, entering, pages=workload.pages / plan.packets)

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w; printed is Eq. 4.2: h_S / Q_p, with (M - b·v_pg) / (f·v_S + q) rows held."""
        if not printed:
            return self.loop(workload, plan).rows
        left = plan.memory_bytes - plan.pages * workload.page_bytes
        return left / (workload.slot_bytes * plan.packets)

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 4.3: c_loop = c_IO(b)/l + w·(c_E + c_S + c_A) + (b/l)·(v_pg/v_R)·(c_H + c_O)."""
        cost = costs.at(plan.memory_bytes)
        read = costs.disk or costs.read[workload.io]
        parts = self.partitions(workload, plan.pages, plan.memory_bytes)
        w = self.intake(workload, plan, printed=True)
        rows = plan.pages / parts * workload.rows_per_page
        return (
            read(plan.pages) / parts
            + w * (cost.expire + cost.read + cost.append)
            + rows * (cost.probe + cost.result)
        )


MODEL = RMeshJoinModel()
