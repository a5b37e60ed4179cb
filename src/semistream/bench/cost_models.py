"""The cost models beside what the joins really do.

*Cells*: every join with every memory and skew, predicted rate and c_loop beside the measured ones.
*Buffers*: the option for the size of reads is varied; is the best one where the model says?
*Least memory*: does a join with the least memory for a rate hold that rate, and fail with less?

Unit costs are measured first, unless a calibration is handed in. All results are verified.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from semistream.bench.core import (
    Cell,
    CoreResult,
    Ground,
    Told,
    make,
    measure,
    prepared,
    stream_of,
)
from semistream.bench.core import CoreOptions as Grid
from semistream.bench.masters import product_master
from semistream.bench.oracle import PAYLOAD
from semistream.core.budget import parse_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import BudgetError, OptionError
from semistream.cost import MODELS, UnitCosts, Workload
from semistream.cost.calibrate import JoinTimer, Timed, one_of_best, with_own
from semistream.cost.model import Plan
from semistream.cost.tuner import least_memory
from semistream.joins.operator import Operator
from semistream.store.file import FileMaster
from semistream.workloads import sale_schema
from semistream.workloads.arrivals import Arrivals

WHOLE = {"1%": "120%", "5%": "150%", "10%": "200%"}
"""Memories of the join in memory, which needs all of the master, in the place of others."""

SETTLING_S = 30.0
"""How long a cache may take to fill: SSBJ moves a few keys every three passes."""

ROUNDS = 3
"""Turns of each size of reads, of which the median counts."""

HELD_SHARE = 0.1
"""A rate was held if at the end no more than this part of the rows was not accepted yet."""


@dataclass(frozen=True)
class CostCell:
    """One cell: predicted and measured."""

    join: str
    memory: str
    skew: float
    predicted_rows_per_s: float
    measured_rows_per_s: float
    predicted_c_loop_s: float
    measured_c_loop_s: float
    predicted_hit_share: float
    measured_hit_share: float
    predicted_pages_per_row: float
    measured_pages_per_row: float
    memory_bytes: int
    io: str
    verified: bool

    @property
    def rate_error(self) -> float:
        """How far the predicted rate is off, as a share of the measured one."""
        return abs(self.predicted_rows_per_s / self.measured_rows_per_s - 1)

    @property
    def loop_error(self) -> float:
        """The same of c_loop."""
        return abs(self.predicted_c_loop_s / self.measured_c_loop_s - 1)

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class BufferResult:
    """A join's option for the size of its reads: where the model and the measurement are best."""

    join: str
    memory: str
    skew: float
    option: str
    values: tuple[float, ...]
    predicted_rows_per_s: tuple[float, ...]
    measured_rows_per_s: tuple[float, ...]
    steps_apart: int
    lost: float
    verified: bool

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class HoldResult:
    """A rate that was offered for some time to a join with so much memory."""

    join: str
    rate: float
    memory_bytes: int
    share: float
    seconds: float
    backlog_rows: int
    held: bool

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


def run_cells(
    grid: Grid,
    workdir: Path,
    costs: UnitCosts,
    *,
    timer: JoinTimer | None = None,
    settle_s: float = SETTLING_S,
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[CostCell]:
    """Run the grid join by join; the cells of a join are yielded when all are done. Memories that
    are too small for a join are left out, with a word.

    Parts of a join's cells take turns. With a `timer` the join's own costs are measured anew before
    them and in between: on a machine that others use as well, the same work takes twice as long
    some minutes later.
    """
    clock = clock or SystemClock()
    with prepared(grid, workdir, tell=tell) as ground:
        _load_kernels(ground, grid)
        count, number = len(grid.joins) * len(grid.skews) * len(grid.memories), 0
        for join in grid.joins:
            timed = _times(timer, join, costs)
            with ExitStack() as stack:
                cells: list[tuple[Plan, Cell]] = []
                for skew, given in itertools.product(grid.skews, grid.memories):
                    number += 1
                    memory = WHOLE.get(given, given) if join == "memoryjoin" else given
                    tell(f"[{number:3}/{count}] {join}, memory {memory}, skew {skew:g}")
                    size = parse_bytes(memory, of=ground.master.data_bytes)
                    try:
                        plan = MODELS[join].plan(_workload(ground.master, skew), size, costs)
                        cell = Cell(
                            ground,
                            join=join,
                            memory=memory,
                            skew=skew,
                            seconds=grid.cell_s,
                            seed=grid.seed,
                            clock=clock,
                            settle_s=settle_s,
                            whole_loops=True,
                        )
                    except BudgetError as error:
                        tell(f"          left out: {error.message}")
                        continue
                    cells.append((plan, stack.enter_context(cell)))
                for _ in range(max((cell.parts for _, cell in cells), default=0)):
                    for _, cell in cells:
                        cell.measure_part()
                    timed += _times(timer, join, costs)
                now = with_own(costs, join, best_runs(timed))
                for plan, cell in cells:
                    yield _cell(ground.master, plan, cell.result(), now)


def _times(timer: JoinTimer | None, join: str, costs: UnitCosts) -> list[Timed]:
    if timer is None:
        return []
    return [one for size, _ in costs.sizes for one in timer.own_times(join, size)]


def best_runs(runs: Sequence[Timed]) -> list[Timed]:
    """Of each size and run one of the best, as of a cell's parts."""
    order = sorted(runs, key=lambda one: (one.size, str(one.run)))
    same = itertools.groupby(order, key=lambda one: (one.size, str(one.run)))
    return [one_of_best(list(those), Timed.seconds_per_row) for _, those in same]


def _cell(master: FileMaster, plan: Plan, result: CoreResult, costs: UnitCosts) -> CostCell:
    said = MODELS[result.join].predict(_workload(master, result.skew), plan, costs)
    return CostCell(
        join=result.join,
        memory=result.memory,
        skew=result.skew,
        predicted_rows_per_s=said.rows_per_s,
        measured_rows_per_s=result.rows_per_s,
        predicted_c_loop_s=said.c_loop_s,
        measured_c_loop_s=result.seconds / max(result.loops, 1),
        predicted_hit_share=said.loop.hit_share,
        measured_hit_share=result.hit_share,
        predicted_pages_per_row=said.loop.pages / said.loop.rows,
        measured_pages_per_row=result.pages_per_row,
        memory_bytes=parse_bytes(result.memory, of=master.data_bytes),
        io=master.io,
        verified=result.verified,
    )


def run_buffers(
    grid: Grid,
    workdir: Path,
    costs: UnitCosts,
    *,
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[BufferResult]:
    """For joins with an option for the size of reads: every second value of its grid, measured in
    turns, so that a noisy machine hurts all alike."""
    clock = clock or SystemClock()
    with prepared(grid, workdir, tell=tell) as ground:
        master = ground.master
        _load_kernels(ground, grid)
        for skew, join, memory in itertools.product(grid.skews, grid.joins, grid.memories):
            model, workload = MODELS[join], _workload(master, skew)
            size = parse_bytes(memory, of=master.data_bytes)
            values = list(model.grid(workload, size))[::2]
            if not values:
                raise OptionError(f"{join} has no size of reads to vary", hint="leave it out")
            plans = [model.plan(workload, size, costs, **{model.tunes: value}) for value in values]
            predicted = [model.service_rate(workload, plan, costs) for plan in plans]
            rounds: list[list[CoreResult]] = [[] for _ in values]
            for turn, (found, value) in itertools.product(
                range(ROUNDS), zip(rounds, values, strict=True)
            ):
                tell(
                    f"[round {turn + 1}/{ROUNDS}] {join}, memory {memory}, skew {skew:g}, "
                    f"{model.tunes} {value}"
                )
                cell = Cell(
                    ground,
                    join=join,
                    memory=memory,
                    skew=skew,
                    seconds=grid.cell_s / ROUNDS,
                    seed=grid.seed,
                    clock=clock,
                    **{model.tunes: value},
                )
                found.append(measure(cell))
            measured = [statistics.median(one.rows_per_s for one in found) for found in rounds]
            verified = all(one.verified for found in rounds for one in found)
            said = max(range(len(values)), key=lambda i: predicted[i])
            best = max(range(len(values)), key=lambda i: measured[i])
            yield BufferResult(
                join=join,
                memory=memory,
                skew=skew,
                option=model.tunes,
                values=tuple(float(value) for value in values),
                predicted_rows_per_s=tuple(predicted),
                measured_rows_per_s=tuple(measured),
                steps_apart=abs(said - best),
                lost=1 - measured[said] / measured[best],
                verified=verified,
            )


def run_least_memory(
    grid: Grid,
    workdir: Path,
    costs: UnitCosts,
    *,
    rate: float,
    seconds: float = 30.0,
    shares: Sequence[float] = (1.0, 0.7),
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[HoldResult]:
    """Offer a rate to joins with the least memory for it, and with a part of that."""
    clock = clock or SystemClock()
    skew = grid.skews[0]
    with product_master(workdir, grid.rows, io=grid.io) as master:
        stream = list(stream_of(grid, skew))
        for join in grid.joins:
            tuned = least_memory(join, _workload(master, skew), rate, costs)
            plan = tuned.prediction.plan
            for share in shares:
                memory = int(share * plan.memory_bytes)
                tell(f"{join}, {memory:,} bytes, {rate:,.0f} rows/s for {seconds:g} s")
                operator = make(
                    join, master, str(memory), seed=grid.seed, clock=clock, **plan.settings
                )
                with operator:
                    backlog = hold(operator, stream, rate, seconds, clock)
                yield HoldResult(
                    join=join,
                    rate=rate,
                    memory_bytes=memory,
                    share=share,
                    seconds=seconds,
                    backlog_rows=backlog,
                    held=backlog <= HELD_SHARE * rate * seconds,
                )


def hold(
    operator: Operator, stream: Sequence[pa.RecordBatch], rate: float, seconds: float, clock: Clock
) -> int:
    """Offer rows as they arrive at an even rate; how many were not accepted at the end.

    The join is filled first, so that an empty memory does not make up for a low rate.
    """
    batches = itertools.cycle(stream)
    rest = next(batches)
    full = False
    while not full:
        accepted = operator.push(rest)
        full = accepted < rest.num_rows
        rest = rest.slice(accepted)
        if rest.num_rows == 0:
            operator.take()
            rest = next(batches)
        else:
            operator.step()
    arrivals, accepted_rows = Arrivals(rate), 0
    start = clock.now_ns()
    while True:
        elapsed = clock.now_ns() - start
        due = arrivals.rows_at(elapsed) - accepted_rows
        if elapsed >= seconds * 1e9:
            return due
        offered = rest.slice(0, max(due, 0))
        accepted = operator.push(offered) if due > 0 else 0
        accepted_rows += accepted
        rest = rest.slice(accepted)
        if rest.num_rows == 0:
            rest = next(batches)
        if accepted < offered.num_rows or due <= 0:
            operator.step()
        else:
            operator.take()


def _load_kernels(ground: Ground, grid: Grid) -> None:
    for join in grid.joins:
        if join != "memoryjoin":  # which may need more memory than the grid has
            ground.load_kernels(join, grid.memories[-1])


def _workload(master: FileMaster, skew: float) -> Workload:
    return Workload.of(master, sale_schema(), "product_id", skew=skew, columns=PAYLOAD)
