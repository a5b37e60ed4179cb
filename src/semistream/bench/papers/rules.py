"""Rules by which results are judged: checks of shape and of size, with their numbers in words.

A check looks at curves and says whether something holds. `judge` makes a verdict of them: all
checks hold, *reproduced*; those of the direction hold and others do not, *direction only*;
else *not reproduced*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

Curve = Mapping[float, float]
Curves = Mapping[str, Curve]
"""The metric by series and by value of the varied axis."""

Outcome = Literal["reproduced", "direction only", "not reproduced"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "direction only", "not reproduced")

NOISE = 0.03
"""Differences that are no difference."""


@dataclass(frozen=True)
class Verdict:
    """How results compare with a paper's claim, and why."""

    outcome: Outcome
    reason: str


class Check(NamedTuple):
    """Whether something holds, and what was seen."""

    holds: bool
    seen: str


def judge(direction: Sequence[Check], size: Sequence[Check] = ()) -> Verdict:
    """The verdict of checks of the direction and of further ones, of size."""
    assert direction, "a rule needs a check of the direction"
    good = all(check.holds for check in direction)
    outcome: Outcome = "not reproduced"
    if good:
        outcome = "reproduced" if all(check.holds for check in size) else "direction only"
    marked = (f"{check.seen}{'' if check.holds else ' [fails]'}" for check in (*direction, *size))
    return Verdict(outcome, "; ".join(marked))


def rises(curve: Curve, what: str, by: float = 1.1) -> Check:
    """From the first value to the last the curve rises by that factor, hardly ever falling."""
    ys = _ys(curve)
    steady = all(after >= before * (1 - NOISE) for before, after in _pairs(ys))
    grown = ys[-1] >= by * ys[0]
    return Check(steady and grown, f"{what} goes from {number(ys[0])} to {number(ys[-1])}")


def falls(curve: Curve, what: str, by: float = 1.1) -> Check:
    """From the first value to the last the curve falls by that factor, hardly ever rising."""
    ys = _ys(curve)
    steady = all(after <= before * (1 + NOISE) for before, after in _pairs(ys))
    shrunk = ys[0] >= by * ys[-1]
    return Check(steady and shrunk, f"{what} goes from {number(ys[0])} to {number(ys[-1])}")


def flat(curve: Curve, what: str, within: float = 0.1) -> Check:
    """The curve does not move by more than that part of its mean."""
    ys = _ys(curve)
    spread = (max(ys) - min(ys)) / (sum(ys) / len(ys) or 1.0)
    return Check(spread <= within, f"{what} varies by {spread:.1%}")


def peaks(curve: Curve, what: str, drop: float = 0.02) -> Check:
    """The largest value lies inside, and both ends are lower by that part."""
    xs, ys = sorted(curve), _ys(curve)
    best = max(range(len(ys)), key=lambda i: ys[i])
    inside = 0 < best < len(ys) - 1
    ends = max(ys[0], ys[-1]) <= (1 - drop) * ys[best]
    return Check(inside and ends, f"{what} is largest at {number(xs[best])}")


def dips(curve: Curve, what: str, drop: float = 0.02) -> Check:
    """The smallest value lies inside, and both ends are higher by that part."""
    lowest = {x: -y for x, y in curve.items()}
    xs, ys = sorted(curve), _ys(curve)
    best = max(range(len(ys)), key=lambda i: _ys(lowest)[i])
    inside = 0 < best < len(ys) - 1
    ends = min(ys[0], ys[-1]) >= (1 + drop) * ys[best]
    return Check(inside and ends, f"{what} is smallest at {number(xs[best])}")


def saturates(curve: Curve, what: str, rise: float = 1.1, late: float = 0.05) -> Check:
    """The curve rises by that factor, and hardly in its last third."""
    ys = _ys(curve)
    knee = ys[-max(len(ys) // 3, 1) - 1]
    good = max(ys) >= rise * ys[0] and abs(ys[-1] / knee - 1) <= late
    return Check(good, f"{what} goes from {number(ys[0])} to {number(knee)} and {number(ys[-1])}")


def above(a: Curve, b: Curve, what: str, factor: float = 1.0, xs: Iterable[float] = ()) -> Check:
    """At every value (or those given) the first curve is at least `factor` times the second."""
    ratios = [a[x] / b[x] for x in _common(a, b, xs)]
    return Check(min(ratios) >= factor, f"{what}: {_range(ratios)} times")


def within(
    a: Curve, b: Curve, what: str, low: float, high: float, xs: Iterable[float] = ()
) -> Check:
    """At every value (or those given) the first curve is `low` to `high` times the second."""
    ratios = [a[x] / b[x] for x in _common(a, b, xs)]
    good = low <= min(ratios) and max(ratios) <= high
    return Check(good, f"{what}: {_range(ratios)} times, wanted {number(low)} to {number(high)}")


def close(a: Curve, b: Curve, what: str, tolerance: float) -> Check:
    """The curves differ by no more than that part of the second one."""
    off = max(abs(a[x] / b[x] - 1) for x in _common(a, b))
    return Check(off <= tolerance, f"{what}: {off:.1%} apart at most")


def near(curve: Curve, marks: Curve, what: str, tolerance: float) -> Check:
    """The curve has the paper's numbers, to that part of them."""
    off = max(abs(curve[x] / mark - 1) for x, mark in marks.items())
    return Check(off <= tolerance, f"{what}: {off:.1%} from the paper's numbers at most")


def holds(condition: bool, seen: str) -> Check:
    """Any other condition."""
    return Check(condition, seen)


def note(seen: str) -> Check:
    """No check: something that a reader of the reason should know."""
    return Check(True, seen)


def number(value: float) -> str:
    """A number in words of a reason: three digits, or more for whole ones."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ys(curve: Curve) -> list[float]:
    return [curve[x] for x in sorted(curve)]


def _pairs(ys: Sequence[float]) -> Iterable[tuple[float, float]]:
    return pairwise(ys)


def _common(a: Curve, b: Curve, xs: Iterable[float] = ()) -> list[float]:
    wanted = set(xs)
    return sorted(x for x in a.keys() & b.keys() if not wanted or x in wanted)


def _range(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
