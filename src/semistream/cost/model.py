"""What every cost model is: memory, c_loop and service rate of one algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import log2
from typing import Any, ClassVar

from semistream.core.budget import format_bytes
from semistream.core.errors import BudgetError, OptionError
from semistream.cost.units import Loop, UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.indexed import INTAKE_ROWS, RUNS, SPARE_ROWS
from semistream.joins.operator import MOST_OUTPUT_ROWS
from semistream.kernels.matching import PAGES_AHEAD, WORK_ROWS

NEAR_BYTES = 1 << 19
LEAST_ROWS = 64
"""Rows without which no join can wait."""


@dataclass(frozen=True)
class Plan:
    """How a join uses its memory.

    In the papers' symbols: b is `pages` (read per iteration: a chunk, a partition, a segment), h_S
    `waiting` rows, h_R `cached` rows; `held_pages` stay in memory, `packets` is the length of a
    scanning join's queue (k, or k·l). `settings` are the options of `make_join` that make it so.
    """

    memory_bytes: int
    shares: Mapping[str, float]
    waiting: float
    pages: int = 1
    packets: int = 1
    cached: float = 0.0
    held_pages: float = 0.0
    buffer_pages: int = 1
    output_rows: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """What a model says of a plan."""

    join: str
    plan: Plan
    loop: Loop
    c_loop_s: float
    rows_per_s: float


class CostModel(ABC):
    """Memory, c_loop and service rate of one algorithm, as pure functions.

    `plan` divides a memory as the join does (fixed-width rows; byte strings on average), `loop`
    counts what an iteration does, and unit costs make seconds of it. `printed=True` gives the
    papers' own formulas where they differ, for comparison.
    """

    name: ClassVar[str]
    by_index: ClassVar[bool] = True
    tunes: ClassVar[str] = ""
    """The option over which a tuner scans; empty where the join finds its shares by itself."""

    @abstractmethod
    def plan(
        self, workload: Workload, memory_bytes: int, costs: UnitCosts | None = None, **settings: Any
    ) -> Plan:
        """How the join divides so much memory, given options of its own."""

    @abstractmethod
    def loop(self, workload: Workload, plan: Plan, costs: UnitCosts | None = None) -> Loop:
        """What one iteration does."""

    def grid(self, workload: Workload, memory_bytes: int) -> Iterable[Any]:
        """Values of the option that is tuned; none where there is nothing to tune."""
        return ()

    def memory(self, workload: Workload, plan: Plan) -> float:
        """Bytes that the plan needs: the sum of its parts."""
        return float(sum(plan.shares.values()))

    def intake(self, workload: Workload, plan: Plan, *, printed: bool = False) -> float:
        """w: stream rows answered per iteration; as its paper prints it, where there is one."""
        if printed:
            raise OptionError(
                f"no paper prints the intake of {self.name}", hint="leave printed=True out"
            )
        return self.loop(workload, plan).rows

    def c_loop(
        self, workload: Workload, plan: Plan, costs: UnitCosts, *, printed: bool = False
    ) -> float:
        """Seconds of one iteration; with `printed` by the paper's equation and intake."""
        if printed:
            return self.printed_c_loop(workload, plan, costs)
        return self.predict(workload, plan, costs).c_loop_s

    def printed_c_loop(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """c_loop as the paper prints it."""
        raise OptionError(f"no paper prints a c_loop of {self.name}", hint="leave printed=True out")

    def service_rate(self, workload: Workload, plan: Plan, costs: UnitCosts) -> float:
        """μ = w / c_loop: stream rows per second."""
        return self.predict(workload, plan, costs).rows_per_s

    def predict(self, workload: Workload, plan: Plan, costs: UnitCosts) -> Prediction:
        """All of it at once."""
        loop = self.loop(workload, plan, costs)
        seconds = costs.loop_s(
            loop, self.worked_bytes(plan), workload.io, by_index=self.by_index, join=self.name
        )
        return Prediction(self.name, plan, loop, seconds, loop.rows / seconds if seconds else 0.0)

    def worked_bytes(self, plan: Plan) -> int:
        """The memory that unit costs depend on: that in which the join goes here and there."""
        return plan.memory_bytes

    def period(self, plan: Plan) -> int:
        """Loops after which the join does the same again."""
        return 1

    # Parts that plans share.

    def divided(
        self,
        workload: Workload,
        memory_bytes: int,
        parts: Mapping[str, float],
        flexible: str,
        least: float | None = None,
    ) -> dict[str, float]:
        """Fixed parts and the rest for `flexible`; an error that tells the minimum."""
        fixed = sum(parts.values())
        wanted = LEAST_ROWS * workload.slot_bytes + 4096 if least is None else least
        if memory_bytes - fixed < wanted:
            raise BudgetError(
                f"{self.name} needs at least {format_bytes(fixed + wanted)} for this master and "
                f"got {format_bytes(memory_bytes)}",
                hint=f'give memory="{int(fixed + wanted) + 1}" or more',
            )
        return {**parts, flexible: memory_bytes - fixed}


def output_bytes(workload: Workload, memory_bytes: int, share: float = 1 / 16) -> float:
    """Room for results, as `Operator.common_parts` plans it."""
    rows = int(memory_bytes * share) // max(workload.output_bytes, 1)
    least = max(workload.page_rows, 16)
    size = min(max(rows, least), MOST_OUTPUT_ROWS) * workload.output_bytes
    return size * 2 if workload.strings else size


def output_rows(workload: Workload, size_bytes: float) -> float:
    """Results that find room in an output of that size."""
    size = size_bytes / 2 if workload.strings else size_bytes
    return max(size / max(workload.output_bytes, 1), 1.0)


def cache_scratch(workload: Workload) -> float:
    """Space in which a cached row's byte strings are put together."""
    return float(workload.page_bytes if workload.strings else 0)


def index_scratch(workload: Workload, pages_together: int = PAGES_AHEAD) -> float:
    """Work space of a join by index."""
    lists = 8 * INTAKE_ROWS + 16 * RUNS + 32 * WORK_ROWS + 16 * pages_together
    return lists + 8 * workload.page_rows + 4096


def row_room(workload: Workload, memory_bytes: int) -> float:
    """Space in which a stream row's byte strings are put together."""
    return max(memory_bytes // 64, 1024) if workload.stream_strings else 0


def far(buffer_bytes: float) -> float:
    """How much of a read buffer has left the processor's nearest caches when it is joined.

    Pages go through all of the buffer in turn. Up to half a megabyte none of it has, from two
    megabytes on all of it, on processors of the last years.
    """
    return min(max(log2(max(buffer_bytes, 1.0) / NEAR_BYTES) / 2, 0.0), 1.0)


def looked_up(free: float, hit_share: float = 0.0) -> float:
    """Rows that a push looks up to fill `free` slots: blocks, of which the last is used in part.

    The join looks up more rows than fit, to be sure of enough, and what found no room is looked up
    again.
    """
    looked, miss = 0.0, max(1 - hit_share, 1e-6)
    while free >= 1:
        block = min(INTAKE_ROWS, SPARE_ROWS + 3 * free)
        looked += block
        if block * miss >= free:
            break
        free -= block * miss
    return looked


def geometric(low: float, high: float, per_doubling: int = 2) -> list[int]:
    """Whole numbers from low to high, so many in each doubling."""
    values, at = [], max(low, 1.0)
    while at < high:
        values.append(round(at))
        at *= 2 ** (1 / per_doubling)
    values.append(max(int(high), 1))
    return sorted(set(values))
