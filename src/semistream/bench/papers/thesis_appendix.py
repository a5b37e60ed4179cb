"""Thesis, appendices A to C: how the intake depends on the sizes of a join's parts."""

from __future__ import annotations

from math import log

from semistream.bench.papers.experiment import Axis, Experiment, Measured
from semistream.bench.papers.ground import Ground, Played
from semistream.bench.papers.hybrids import (
    MASTER,
    MASTERS,
    PARTITION_PAGES,
    play,
    setting,
)
from semistream.bench.papers.rules import Check, Curve, Curves, Verdict, falls, holds, judge

WAITING = Axis("rows that wait (h_S)", "1,000", log=True)
HELD = (75.0, 150, 300, 600)
PAGES = (2, 4, 8, 16)
LOADED = Axis("disk buffer", "pages", log=True)
INTAKE = Axis("rows per iteration (w)", log=True)
PARTS = Axis("rows per iteration (w_N, w_S)", log=True)
CACHE_ROWS = 64_000
W_N, W_S = "w_N", "w_S"


def _counted(played: Played, series: str = "w") -> Measured:
    hits = played.did.hits
    rows = {"w": played.rows, W_N: hits, W_S: played.rows - hits}[series]
    return Measured(rows / played.loops, played.verified, played.facts())


def _hybrid(
    ground: Ground, *, waiting: float = 300, pages: int = PARTITION_PAGES, rows: float = 2
) -> Measured:
    one = setting(rows=rows)
    return _counted(play(ground, "hybridjoin", one, pages=pages, waiting=waiting * 1000))


def _extended(ground: Ground, held: float) -> Measured:
    """X-HYBRIDJOIN with the same rows waiting, whatever the non-swappable part."""
    return _counted(play(ground, "xhybridjoin", setting(), held_rows=held, waiting=300_000))


def _optimised(
    ground: Ground,
    series: str,
    *,
    waiting: float = 200,
    pages: int = PARTITION_PAGES,
    rows: float = 2,
    cached: float = CACHE_ROWS,
) -> Measured:
    played = play(
        ground,
        "optimisedxhybridjoin",
        setting(rows=rows),
        pages=pages,
        held_rows=cached,
        waiting=waiting * 1000,
    )
    return _counted(played, series)


def power(curve: Curve, what: str, low: float, high: float) -> Check:
    """From end to end the curve grows like a power of x between `low` and `high`."""
    first, last = min(curve), max(curve)
    found = log(curve[last] / curve[first]) / log(last / first)
    return holds(low <= found <= high, f"{what} grows with the power {found:.2f}")


def _linear(curves: Curves) -> Verdict:
    return judge([power(curves["w"], "w", 0.6, 1.4)], [power(curves["w"], "w", 0.85, 1.15)])


def _inverse(curves: Curves) -> Verdict:
    return judge([power(curves["w"], "w", -1.4, -0.6)], [power(curves["w"], "w", -1.15, -0.85)])


def _sub_linear(curves: Curves) -> Verdict:
    return judge([power(curves["w"], "w", 0.02, 0.6)])


def _by_master(curves: Curves) -> Verdict:
    return judge(
        [
            power(curves[W_S], "w_S", -1.4, -0.6),
            power(curves[W_N], "w_N", -1.6, -0.02),
        ],
        [
            power(curves[W_S], "w_S", -1.15, -0.85),
            power(curves[W_N], "w_N slowly", -0.5, -0.02),
        ],
    )


def _parts_linear(curves: Curves) -> Verdict:
    return judge([power(curves[W_S], "w_S", 0.6, 1.4)], [power(curves[W_S], "w_S", 0.85, 1.15)])


EXPERIMENTS = (
    Experiment(
        id="T-A1",
        paper="thesis-appendix",
        title="HYBRIDJOIN's intake by the rows that wait",
        x=WAITING,
        values=HELD,
        series=("w",),
        y=INTAKE,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "d": "one partition"},
        claim="w is proportional to h_S",
        cell=lambda ground, x, series: _hybrid(ground, waiting=x),
        rule=_linear,
        as_claimed=lambda x, series: x,
        cost=3,
    ),
    Experiment(
        id="T-A2",
        paper="thesis-appendix",
        title="HYBRIDJOIN's intake by the disk buffer",
        x=LOADED,
        values=PAGES,
        series=("w",),
        y=INTAKE,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "h_S": "300,000"},
        claim="w is proportional to d",
        cell=lambda ground, x, series: _hybrid(ground, pages=int(x)),
        rule=_linear,
        as_claimed=lambda x, series: x,
        cost=3,
    ),
    Experiment(
        id="T-A3",
        paper="thesis-appendix",
        title="HYBRIDJOIN's intake by the size of R",
        x=MASTER,
        values=MASTERS,
        series=("w",),
        y=INTAKE,
        clock="counted",
        fixed={"e": "1", "h_S": "300,000", "d": "one partition"},
        claim="w is proportional to 1/n_R",
        cell=lambda ground, x, series: _hybrid(ground, rows=x),
        rule=_inverse,
        as_claimed=lambda x, series: 1 / x,
        cost=4,
    ),
    Experiment(
        id="T-B1",
        paper="thesis-appendix",
        title="X-HYBRIDJOIN's intake by the non-swappable part",
        x=Axis("non-swappable part", "rows", log=True),
        values=(250, 1000, 4000, 16000, 64000),
        series=("w",),
        y=INTAKE,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "h_S": "300,000"},
        claim="w grows sub-linearly with d_N",
        cell=lambda ground, x, series: _extended(ground, x),
        rule=_sub_linear,
        as_claimed=lambda x, series: x**0.2,
        cost=4,
    ),
    Experiment(
        id="T-C1",
        paper="thesis-appendix",
        title="Optimised X-HYBRIDJOIN's intake by the size of R",
        x=MASTER,
        values=MASTERS,
        series=(W_N, W_S),
        y=PARTS,
        clock="counted",
        fixed={"e": "1", "h_R": "64,000", "h_S": "200,000"},
        claim="w_N falls slowly with n_R, w_S like about 1/n_R",
        cell=lambda ground, x, series: _optimised(ground, series, rows=x),
        rule=_by_master,
        as_claimed=lambda x, series: x**-0.2 if series == W_N else 1 / x,
        remark="w_N follows w_S here: rows that hit come between two loads, and a load makes room"
        " for w_S others.",
        cost=4,
    ),
    Experiment(
        id="T-C2",
        paper="thesis-appendix",
        title="Optimised X-HYBRIDJOIN's intake by the disk buffer",
        x=LOADED,
        values=PAGES,
        series=(W_N, W_S),
        y=PARTS,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "h_R": "64,000", "h_S": "200,000"},
        claim="w_S is proportional to d",
        cell=lambda ground, x, series: _optimised(ground, series, pages=int(x)),
        rule=_parts_linear,
        as_claimed=lambda x, series: x,
        cost=3,
    ),
    Experiment(
        id="T-C3",
        paper="thesis-appendix",
        title="Optimised X-HYBRIDJOIN's intake by the rows that wait",
        x=WAITING,
        values=HELD,
        series=(W_N, W_S),
        y=PARTS,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "h_R": "64,000"},
        claim="w_S is proportional to h_S",
        cell=lambda ground, x, series: _optimised(ground, series, waiting=x),
        rule=_parts_linear,
        as_claimed=lambda x, series: x,
        cost=3,
    ),
    Experiment(
        id="T-C4",
        paper="thesis-appendix",
        title="Optimised X-HYBRIDJOIN's intake by the rows that are cached",
        x=Axis("rows of H_R", log=True),
        values=(4_000, 16_000, 64_000, 256_000),
        series=(W_N, W_S),
        y=PARTS,
        clock="counted",
        fixed={"n_R": "2 M", "e": "1", "h_S": "200,000"},
        claim="w_S falls with h_R",
        cell=lambda ground, x, series: _optimised(ground, series, cached=x),
        rule=lambda c: judge([falls(c[W_S], "w_S", by=1.05)]),
        as_claimed=lambda x, series: x if series == W_N else x**-0.2,
        remark="The thesis takes the part of the whole stream that asks for a partition; only what"
        " misses the cache waits for it (contradiction 20).",
        cost=3,
    ),
)
