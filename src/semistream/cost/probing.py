"""Costs of the HYBRIDJOIN family: the oldest waiting row chooses the partition that is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from semistream.cost import intake
from semistream.cost.model import (
    LEAST_ROWS,
    CostModel,
    Plan,
    cache_scratch,
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
from semistream.joins.probing import FEWEST_PARTITIONS, PIECES, SMALL_PIECE
from semistream.joins.sizing import best_cache, best_partition

CACHE_SHARE = 0.85
"""What a cache that is filled by a threshold answers, of what the hottest rows would; measured."""


LOAD_CALLS, PIECE_CALLS = 1 / 4, 1 / 16
"""What a load, and each of its pieces, takes of what a round of push and step takes: measured with
partitions of 1 to 90 pages."""


class ProbingModel(CostModel):
    """HYBRIDJOIN's equations (5.1, 5.3), with the intake of the specification's simulation.

    A loop is a load of one partition, b pages. It answers the w_S rows that wait for it, and beside
    them w_N hits come in, where there is a cache.
    """

    tunes = "partition_pages"
    caches = False

    def span(self, workload: Workload, memory_bytes: int, partition_pages: int | None) -> int:
        """Pages of a partition, as the join chooses it."""
        if partition_pages is not None:
            span = min(partition_pages, max(workload.pages, 1))
        else:
            memory = (memory_bytes - workload.index_bytes) / workload.page_bytes
            span = min(best_partition(memory), max(workload.pages // FEWEST_PARTITIONS, 1))
        return min(span, RUNS // 4) if workload.shards > RUNS // 4 else span

    def further_parts(self, workload: Workload, memory_bytes: int, span: int) -> dict[str, float]:
        """Memory of what an algorithm has besides."""
        return {}

    def held(
        self, workload: Workload, left_bytes: float, span: int, settings: dict[str, Any]
    ) -> tuple[str, float]:
        """The part that holds some of the master, and its bytes."""
        return "", 0.0

    def plan(
        self,
        workload: Workload,
        memory_bytes: int,
        costs: UnitCosts | None = None,
        *,
        partition_pages: int | None = None,
        **settings: Any,
    ) -> Plan:
        page = workload.page_bytes
        span = self.span(workload, memory_bytes, partition_pages)
        output = output_bytes(workload, memory_bytes)
        buffer = max(span, min(32, memory_bytes // 16 // page), 2)
        pages = max(workload.pages, 1)
        parts: dict[str, float] = {
            "index": workload.index_bytes,
            "output": output,
            "page chains": 4 * pages + 8 * -(-pages // span),
            "scratch": index_scratch(workload) + row_room(workload, memory_bytes),
            "read buffer": buffer * page,
            **self.further_parts(workload, memory_bytes, span),
        }
        least = LEAST_ROWS * workload.slot_bytes + 4096
        left = memory_bytes - sum(parts.values()) - least
        held_name, wanted = self.held(workload, max(left, 0.0), span, settings)
        if held_name:
            parts[held_name] = max(min(wanted, left), 0.0)
        shares = self.divided(workload, memory_bytes, parts, "waiting rows")
        own = {} if partition_pages is None else {"partition_pages": partition_pages}
        return Plan(
            memory_bytes,
            shares,
            waiting=shares["waiting rows"] / workload.slot_bytes,
            pages=span,
            cached=shares.get("cache", 0.0) / workload.cached_bytes,
            held_pages=self.pages_held(workload, shares),
            buffer_pages=buffer,
            output_rows=output_rows(workload, output),
            settings={**own, **settings},
        )

    def pages_held(self, workload: Workload, shares: dict[str, float]) -> float:
        """Pages that stay in memory."""
        return 0.0

    def grid(self, workload: Workload, memory_bytes: int) -> Iterable[Any]:
        memory = memory_bytes // 2 // workload.page_bytes
        return geometric(1, max(min(memory, workload.pages // FEWEST_PARTITIONS), 1))

    def queue(self, masses: intake._F64, waiting: float, plan: Plan) -> intake.Queue:
        """w_S and T for the stream's interest in the partitions."""
        return intake.hybrid(masses, waiting)

    def share_of_hits(self, workload: Workload, plan: Plan) -> float:
        """p_N: the share of the stream that the cache answers."""
        return 0.0

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        return self.loaded(workload, plan, self.share_of_hits(workload, plan))

    def loaded(
        self,
        workload: Workload,
        plan: Plan,
        hit_share: float,
        *,
        cached: float | None = None,
        offered: bool = False,
    ) -> Loop:
        """A load behind a cache that answers `hit_share` of the stream with its `cached` keys."""
        hottest = plan.cached / workload.key_rows if cached is None else cached
        masses = workload.span_masses(plan.pages, hottest)
        waiting = max(plan.waiting, 1.0)
        queue = self.queue(masses, waiting, plan)
        return self._counted(workload, plan, queue.rows, hit_share, waiting, offered)

    def _counted(
        self,
        workload: Workload,
        plan: Plan,
        waits: float,
        hit_share: float,
        waiting: float,
        offered: bool,
    ) -> Loop:
        rows = waits / max(1 - hit_share, 1e-6)
        pages = between_ends(plan.pages, waits)
        piece = max(-(-plan.pages // PIECES), min(SMALL_PIECE, plan.buffer_pages // 2))
        requests = max(-(-plan.pages // piece) * pages / plan.pages, 1.0)
        steps = 1 / self.loads(workload, plan)
        alone = workload.frequencies.distinct(waiting) / waiting if not hit_share else 1.0
        results = rows * workload.results
        looked = looked_up(waits / steps, hit_share) * steps
        return Loop(
            rows=rows,
            hits=rows - waits,
            waits=waits,
            behind=waits * max(1 - alone, 0.0),
            far=waits * far(plan.buffer_pages * workload.page_bytes),
            results=results,
            looked_up=looked * (1 - hit_share),
            cache_looked_up=looked if self.caches else 0.0,
            offered=waits if offered else 0.0,
            pages=pages,
            requests=requests,
            seeks=1.0,
            calls=steps + results / plan.output_rows + LOAD_CALLS + PIECE_CALLS * requests,
        )

    def loads(self, workload: Workload, plan: Plan) -> int:
        """Partitions that a step loads."""
        pieces = -(-plan.pages // max(-(-plan.pages // PIECES), SMALL_PIECE))
        return max(min(workload.pages // 100 // plan.pages, RUNS // 2 // max(pieces, 1)), 1)

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w; printed is Eq. 5.2: 1.36 · h_S · d / n_R."""
        if not printed:
            return self.loop(workload, plan).rows
        d = plan.pages * workload.rows_per_page
        return intake.printed_hybrid(plan.waiting, d, workload.rows)

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 5.3: c_loop = c_IO(v_buf) + d·c_H + w·(c_O + c_E + c_S + c_A)."""
        w = self.intake(workload, plan, printed=True)
        return _printed(workload, plan, costs, w, 0.0, plan.pages * workload.rows_per_page)


class CachingModel(ProbingModel):
    """A probing join behind a cache H_R of rows: Eq. 7.2 and 8.1, with the misses' look-ups.

    w_S is HYBRIDJOIN's on what is left of the stream, w_N = w_S · p_N / (1 - p_N).
    """

    caches = True
    threshold = True
    """Whether rows enter the cache by a threshold (c_F)."""

    def further_parts(self, workload: Workload, memory_bytes: int, span: int) -> dict[str, float]:
        return {"cache scratch": cache_scratch(workload)}

    def held(
        self, workload: Workload, left_bytes: float, span: int, settings: dict[str, Any]
    ) -> tuple[str, float]:
        share = settings.get("cache_share")
        if share is None:
            share = best_cache(left_bytes, workload.rows * workload.cached_bytes)
        return "cache", share * left_bytes

    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        share = self.share_of_hits(workload, plan)
        return self.loaded(
            workload, plan, share, cached=self.keys_gone(workload, plan), offered=self.threshold
        )

    def share_of_hits(self, workload: Workload, plan: Plan) -> float:
        return workload.frequencies.top(self.keys_gone(workload, plan))

    def keys_gone(self, workload: Workload, plan: Plan) -> float:
        """The fewest keys that would answer as many rows as the cache does.

        A cache that is filled by a threshold is not one of the hottest rows alone: once it is full,
        the threshold lets few others in.
        """
        whole = workload.frequencies.top(plan.cached / workload.key_rows)
        return workload.frequencies.reach(CACHE_SHARE * whole)

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w_N + w_S; printed takes Eq. 7.4 and 7.7, which overestimate and underestimate."""
        if not printed:
            return self.loop(workload, plan).rows
        hits, waits = self.printed_parts(workload, plan)
        return hits + waits

    def printed_parts(self, workload: Workload, plan: Plan) -> tuple[float, float]:
        """w_N and w_S as printed (Eq. 7.4, 7.7), for Zipf's law with exponent 1."""
        cached = max(plan.cached, 2.0)
        partitions = workload.pages / plan.pages
        waits = intake.printed_miss(cached, workload.rows, partitions) * plan.waiting
        share = intake.printed_share(cached, workload.rows)
        return waits * share / max(1 - share, 1e-6), waits

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """Eq. 7.2 and 8.1: … + d·(c_H + c_F) + w_S·(…) + w_N·(c_H + c_O + c_S)."""
        hits, waits = self.printed_parts(workload, plan)
        d = plan.pages * workload.rows_per_page
        seconds = _printed(workload, plan, costs, waits, hits, d)
        if self.threshold:
            seconds += d * costs.at(plan.memory_bytes).compare
        return seconds


def between_ends(pages: int, rows: float) -> float:
    """Pages from the first to the last that is wanted, of a partition with so many rows on average.

    Pages at both ends that nobody waits for are not read. n rows at random places reach over
    (n - 1)/(n + 1) of a partition; here one waits and Poisson's number of others.
    """
    others = rows - 1
    if others < 1e-3:
        reach = max(others, 0.0) / 3
    else:
        reach = 1 - 2 * (others + math.expm1(-others)) / others**2
    return 1 + (pages - 1) * reach


def _printed(
    workload: Workload, plan: Plan, costs: UnitCosts, waits: float, hits: float, probes: float
) -> float:
    cost = costs.at(plan.memory_bytes)
    read = costs.disk or costs.read[workload.io]
    return (
        read(plan.pages)
        + probes * cost.probe
        + waits * (cost.result + cost.expire + cost.read + cost.append)
        + hits * (cost.probe + cost.result + cost.read)
    )
