"""Plans for a goal: the highest rate for a given memory, or the least memory for a given rate.

Offline, over the models: the option that a join has for the size of its reads is scanned, and
memory is found by bisection. Two joins tune themselves while they run: AMESHJOIN by the rate that
it watches (`ameshjoin_tuner` gives it measured costs), and SWEEPJOIN, which moves the border
between waiting rows and cache after every sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from semistream.core.budget import format_bytes
from semistream.core.errors import BudgetError, OptionError, unknown_name
from semistream.cost import MODELS
from semistream.cost.model import CostModel, Prediction
from semistream.cost.units import UnitCosts
from semistream.cost.workload import Workload
from semistream.joins.ameshjoin import Observed, Setting, Tuner, tune

MEMORY_STEP = 1.005
"""Bisection over the memory ends when its ends are so close."""

HEADROOM = 1.1
"""The least memory is found for a rate that much higher: predictions are off by some per cent."""

MOST_MEMORY = 2.0
"""Memory beyond this multiple of the master serves nothing."""


@dataclass(frozen=True)
class Point:
    """A point of a curve: the value of the option or of the memory, and what is predicted there."""

    value: float
    rows_per_s: float
    c_loop_s: float


@dataclass(frozen=True)
class Tuned:
    """The best plan found for a join, and the curve over which it was found.

    `over` names what the curve is over: an option of the join, or "memory".
    """

    prediction: Prediction
    over: str
    curve: tuple[Point, ...]

    @property
    def join(self) -> str:
        """The join's name."""
        return self.prediction.join

    @property
    def rows_per_s(self) -> float:
        """The predicted service rate."""
        return self.prediction.rows_per_s

    @property
    def options(self) -> dict[str, Any]:
        """What to hand to `make_join` besides the memory."""
        return dict(self.prediction.plan.settings)


def highest_rate(
    join: str, workload: Workload, memory_bytes: int, costs: UnitCosts, **settings: Any
) -> Tuned:
    """The plan of a join with the highest predicted rate within a memory."""
    model = _model(join)
    default = _predict(model, workload, memory_bytes, costs, settings)
    if not model.tunes:
        return Tuned(default, "memory", memory_curve(join, workload, memory_bytes, costs))
    best, points = default, []
    for value in model.grid(workload, memory_bytes):
        try:
            one = _predict(model, workload, memory_bytes, costs, {**settings, model.tunes: value})
        except BudgetError:
            continue
        points.append(Point(float(value), one.rows_per_s, one.c_loop_s))
        if one.rows_per_s > best.rows_per_s:
            best = one
    return Tuned(best, model.tunes, tuple(points))


def least_memory(
    join: str, workload: Workload, rate: float, costs: UnitCosts, *, most: int | None = None
) -> Tuned:
    """The plan of a join that reaches a rate with the least memory, and some headroom."""
    if not 0 < rate < float("inf"):
        raise OptionError(f"rate={rate} is not a number of rows per second", hint="above 0")
    model = _model(join)
    low = least_for(model, workload)
    high = most or int(MOST_MEMORY * workload.pages * workload.page_bytes) + 4 * low
    wanted = HEADROOM * rate
    best = found = highest_rate(join, workload, low, costs)
    if best.rows_per_s >= wanted:
        return best
    # From below: with very much memory some joins are slower again.
    size = low
    while found.rows_per_s < wanted:
        if size >= high:
            raise OptionError(
                f"{join} cannot reach {rate:,.0f} rows/s with a tenth to spare: at most "
                f"{best.rows_per_s:,.0f} are predicted, with "
                f"{format_bytes(best.prediction.plan.memory_bytes)}",
                hint="lower the rate, try another join, or divide the stream among several joins",
            )
        low, size = size, min(2 * size, high)
        found = highest_rate(join, workload, size, costs)
        best = max(best, found, key=lambda one: one.rows_per_s)
    high, best = size, found
    while high / low > MEMORY_STEP:
        middle = round((low * high) ** 0.5)
        found = highest_rate(join, workload, middle, costs)
        if found.rows_per_s >= wanted:
            high, best = middle, found
        else:
            low = middle
    return best


def ranked(
    workload: Workload,
    costs: UnitCosts,
    *,
    memory_bytes: int | None = None,
    rate: float | None = None,
    joins: Iterable[str] | None = None,
) -> list[Tuned]:
    """All joins that can do it, the best first: by rate for a memory, by memory for a rate."""
    found: list[Tuned] = []
    refusals: list[BudgetError | OptionError] = []
    for join in MODELS if joins is None else joins:
        try:
            if memory_bytes is not None:
                found.append(highest_rate(join, workload, memory_bytes, costs))
            else:
                assert rate is not None
                found.append(least_memory(join, workload, rate, costs))
        except (BudgetError, OptionError) as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    if memory_bytes is not None:
        return sorted(found, key=lambda one: -one.rows_per_s)
    return sorted(found, key=lambda one: one.prediction.plan.memory_bytes)


def memory_curve(
    join: str, workload: Workload, memory_bytes: int, costs: UnitCosts
) -> tuple[Point, ...]:
    """The predicted rate from a quarter to four times a memory."""
    model, points = _model(join), []
    for step in range(-4, 5):
        size = round(memory_bytes * 2 ** (step / 2))
        try:
            one = _predict(model, workload, size, costs, {})
        except BudgetError:
            continue
        points.append(Point(float(size), one.rows_per_s, one.c_loop_s))
    return tuple(points)


def least_for(model: CostModel, workload: Workload) -> int:
    """The least memory with which a join can run at all."""
    low, high = 1, 1 << 16
    while not _fits(model, workload, high):
        low, high = high, 2 * high
        if high > 1 << 50:
            raise BudgetError(f"{model.name} fits no memory", hint="check the master")
    while high - low > max(low // 256, 1):
        middle = (low + high) // 2
        if _fits(model, workload, middle):
            high = middle
        else:
            low = middle
    return high


def ameshjoin_tuner(costs: UnitCosts, memory_bytes: int) -> Tuner:
    """A tuner for AMESHJOIN's option of that name, with a request's cost as it was measured."""
    request_s = costs.at(memory_bytes).call

    def tuned(observed: Observed) -> Setting:
        return tune(replace(observed, request_s=request_s))

    return tuned


def _model(join: str) -> CostModel:
    if join not in MODELS:
        raise unknown_name("join", join, MODELS)
    return MODELS[join]


def _predict(
    model: CostModel,
    workload: Workload,
    memory_bytes: int,
    costs: UnitCosts,
    settings: dict[str, Any],
) -> Prediction:
    return model.predict(workload, model.plan(workload, memory_bytes, costs, **settings), costs)


def _fits(model: CostModel, workload: Workload, memory_bytes: int) -> bool:
    try:
        model.plan(workload, memory_bytes)
    except BudgetError:
        return False
    return True
