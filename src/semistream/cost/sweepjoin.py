"""SWEEPJOIN's cost: our own, see docs/adr/0005."""

from __future__ import annotations

from typing import Any

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
from semistream.joins.cache import RECENT_BYTES
from semistream.joins.indexed import SPARE_ROWS
from semistream.joins.sweepjoin import (
    GAP_BYTES,
    LONGEST_RUN_BYTES,
    RUNS_IN_BUFFER,
    SEEN_SHARE,
    buffer_bytes,
    output_share,
    pages_together,
)
from semistream.kernels.reading import LIGHT
from semistream.kernels.waiting import MARKED
from semistream.store.reader import window_bytes

REFUSED_SHARE = 0.5
"""Keys beyond those that the inequality wants, as a share of them: the join counts as wanted also
what it refused in a sweep, and grows its cache for it; measured."""

LOOKING = 6.0
"""How much dearer than in these costs looking is beside joining in what the join measures: its rows
fill the processor's caches, and much of `find` and `result` is not in its time of joining."""

AHEAD_BYTES = 14_000_000
"""More memory than this is not slower memory: rows are taken in, collected and joined in passes
that ask for it ahead of its use. With 12 and 24 MB the rates are the same."""


class SweepJoinModel(CostModel):
    """A loop is a sweep: with P rows in the pool 2·P rows wait for it, since each waits half.

    A key is cached that is asked for more often in a sweep than its rows' memory would hold waiting
    ones; less often already where the processor, not the disk, is what takes the time.
    """

    name = "sweepjoin"

    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        page, limit = workload.page_bytes, memory_bytes
        output = output_bytes(workload, limit, output_share(limit, workload.io))
        buffer = buffer_bytes(limit, workload.io, page) // page
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page chains": 4 * max(workload.pages, 1) + workload.pages // MARKED + 1,
            "read buffer": buffer * page,
            "scratch": index_scratch(workload, pages_together(limit, workload.io, page))
            + row_room(workload, limit),
        }
        shares = self.divided(workload, limit, parts, "pool and cache")
        return Plan(
            limit,
            shares,
            waiting=shares["pool and cache"] / workload.slot_bytes,
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings=settings,
        )

    def worked_bytes(self, plan: Plan) -> int:
        return min(plan.memory_bytes, AHEAD_BYTES)

    def shared(
        self, workload: Workload, plan: Plan, disk_share: float
    ) -> tuple[float, float, float]:
        """Keys in the cache, the share of the stream they answer, and the rows of the pool."""
        cached = workload.cached_bytes + RECENT_BYTES
        slot, record = workload.slot_bytes, cached * workload.key_rows
        room, asked = plan.shares["pool and cache"], workload.frequencies
        worth = max(2 * cached / slot * disk_share, 1.0) * workload.key_rows

        def surplus(keys: float) -> float:
            pool = max(room - keys * record, 66 * slot) / slot
            sweep = 2 * pool / max(1 - asked.top(keys), 1e-9)
            return worth - asked.rank(keys) * sweep

        most = min(0.95 * room / record, asked.count)
        keys = intake.rising_root(surplus, 0.0, most) if surplus(0.5) < 0 else 0.0
        least = min(room / 50 / record, asked.count)
        keys = max(min((1 + REFUSED_SHARE) * keys, most), least)
        return keys, asked.top(keys), max(room - keys * record, 66 * slot) / slot

    def _has_windows(self, workload: Workload, plan: Plan) -> bool:
        """Whether the read buffer is large enough for windows."""
        buffer = plan.buffer_pages * workload.page_bytes
        return workload.io == "buffered" and window_bytes(buffer) > 0

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        if costs is None:
            return self._swept(workload, plan, 1.0, sees=True)
        # The more the disk counts, the fewer keys are cached: the share that agrees with itself.
        low, high = 0.0, 1.0
        for _ in range(10):
            disk_share = (low + high) / 2
            loop = self._swept(workload, plan, disk_share, sees=costs.disk is None)
            if self._waiting(workload, plan, costs, loop) > disk_share:
                low = disk_share
            else:
                high = disk_share
        return loop

    def _waiting(self, workload: Workload, plan: Plan, costs: UnitCosts, loop: Loop) -> float:
        """The disk's part in the cost of a miss, as the join measures it.

        To the join copies of what the operating system has in its cache are waiting as well.
        """
        cost = costs.at(self.worked_bytes(plan), self.name)
        found = cost.find + workload.results * cost.result
        joining = loop.waits * found + loop.far * cost.far + loop.pages * cost.page
        reading = costs.io_s(loop, workload.io) * (LOOKING if loop.seen else 1.0)
        if workload.io == "direct" or costs.disk is not None:
            busy = costs.busy_s(loop, self.worked_bytes(plan), by_index=True, join=self.name)
            reading = max(reading - busy, 0.0)
        return reading / max(reading + joining, 1e-12)

    def _swept(self, workload: Workload, plan: Plan, disk_share: float, *, sees: bool) -> Loop:
        keys, share, pool = self.shared(workload, plan, disk_share)
        waits = 2 * pool
        rows = waits / max(1 - share, 1e-6)
        wanted = intake.wanted_pages(workload.page_masses(keys), rows)
        longest = max(
            min(plan.buffer_pages // RUNS_IN_BUFFER, LONGEST_RUN_BYTES // workload.page_bytes), 1
        )
        gap = GAP_BYTES[workload.io] // workload.page_bytes
        pages, requests, seeks = intake.runs(wanted, gap, longest)
        seen = sees and self._has_windows(workload, plan) and 64 * pages >= LIGHT * workload.pages
        if seen and SEEN_SHARE * pool >= workload.pages:
            pages, requests, seeks = intake.runs(wanted, longest, longest)
        results = rows * workload.results
        calls = results / plan.output_rows
        looked = rows + SPARE_ROWS * calls
        return Loop(
            rows=rows,
            hits=rows - waits,
            waits=waits,
            # What is seen was in no cache of the processor before.
            far=waits * (1.0 if seen else far(plan.buffer_pages * workload.page_bytes)),
            results=results,
            looked_up=looked * (1 - share),
            cache_looked_up=looked,
            offered=waits,
            pages=pages,
            seen=pages if seen else 0.0,
            requests=requests,
            seeks=seeks,
            calls=max(calls, 1.0),
        )


MODEL = SweepJoinModel()
