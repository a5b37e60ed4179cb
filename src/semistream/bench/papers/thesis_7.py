"""Thesis ch. 7: Optimised X-HYBRIDJOIN."""

from __future__ import annotations

from semistream.bench.papers.equations import Setting
from semistream.bench.papers.experiment import Axis, Experiment, Measured
from semistream.bench.papers.ground import Ground
from semistream.bench.papers.hybrids import (
    LOOP,
    MASTER,
    MASTERS,
    MEMORIES,
    MEMORY,
    PARTITION_PAGES,
    RATE,
    USUAL,
    loop,
    model,
    run_rate,
    setting,
    tuned_rows,
)
from semistream.bench.papers.rules import Curves, Verdict, above, judge, peaks, rises
from semistream.bench.papers.thesis_6 import models_agree

JOIN = "optimisedxhybridjoin"
OTHERS = ("xhybridjoin", "hybridjoin", "meshjoin")
HELD = Axis("rows of H_R", log=True)
HELD_ROWS = (1_000.0, 4_000, 16_000, 64_000, 128_000, 192_000, 256_000, 320_000)
LOADED = Axis("disk buffer", "pages", log=True)
PAGES = (1, 2, 4, 7, 15, 30)


def _grid(ground: Ground, x: float, series: str) -> Measured:
    pages = int(series.removeprefix("buffer of ").removesuffix(" pages"))
    return run_rate(ground, JOIN, setting(), pages=pages, held_rows=x)


def tuning(ground: Ground, join: str, series: str, pages: int, held_rows: float) -> Measured:
    """The rate by the equations, or of a run, with these sizes of buffer and cache."""
    if series == "model":
        return Measured(model(ground, join, setting(), pages=pages, held_rows=held_rows).rate)
    is_sorted = join == JOIN
    return run_rate(ground, join, setting(), pages=pages, held_rows=held_rows, is_sorted=is_sorted)


def _run(ground: Ground, one: Setting, series: str) -> Measured:
    return run_rate(ground, series, one, held_rows=tuned_rows(series, one))


def _best(curves: Curves) -> Verdict:
    others = [above(curves[JOIN], curves[name], f"beside {name}", 1.05) for name in OTHERS]
    return judge(others)


def _claimed(series: str) -> float:
    return {JOIN: 40.0, "xhybridjoin": 20, "hybridjoin": 12, "meshjoin": 10}[series]


EXPERIMENTS = (
    Experiment(
        id="T7-2",
        paper="thesis-7",
        title="Optimised X-HYBRIDJOIN by the sizes of H_R and of the disk buffer",
        x=HELD,
        values=HELD_ROWS,
        series=tuple(f"buffer of {pages} pages" for pages in (2, 7, 15)),
        y=RATE,
        clock="modelled",
        fixed=USUAL,
        claim="the rate rises with H_R to a maximum and falls after it",
        cell=_grid,
        rule=lambda c: judge(
            [peaks(c["buffer of 7 pages"], "the rate with 7 pages")],
            [peaks(curve, f"the rate, {name}") for name, curve in c.items()],
        ),
        as_claimed=lambda x, series: 1 / (x + 1e9 / x),
        cost=4,
    ),
    Experiment(
        id="T7-3a",
        paper="thesis-7",
        title="Tuning Optimised X-HYBRIDJOIN's buffer by model and by measurement",
        x=LOADED,
        values=PAGES,
        series=("model", "measured"),
        y=RATE,
        clock="modelled",
        fixed=USUAL,
        claim="both agree to 1.5 %",
        cell=lambda ground, x, series: tuning(
            ground, JOIN, series, int(x), tuned_rows(JOIN, setting())
        ),
        rule=lambda c: models_agree(c, 0.08, rises),
        as_claimed=lambda x, series: x * (1.015 if series == "model" else 1),
        cost=3,
    ),
    Experiment(
        id="T7-3b",
        paper="thesis-7",
        title="Tuning Optimised X-HYBRIDJOIN's H_R by model and by measurement",
        x=HELD,
        values=HELD_ROWS,
        series=("model", "measured"),
        y=RATE,
        clock="modelled",
        fixed=USUAL,
        claim="both agree to 0.33 %",
        cell=lambda ground, x, series: tuning(ground, JOIN, series, PARTITION_PAGES, x),
        rule=lambda c: models_agree(c, 0.08, peaks),
        as_claimed=lambda x, series: 1 / (x + 1e9 / x) * (1.003 if series == "model" else 1),
        cost=3,
    ),
    Experiment(
        id="T7-4a",
        paper="thesis-7",
        title="Optimised X-HYBRIDJOIN and others by the size of R",
        x=MASTER,
        values=MASTERS,
        series=(JOIN, *OTHERS),
        y=RATE,
        clock="modelled",
        fixed={"M": "50 MB", "e": "1"},
        claim="Optimised X-HYBRIDJOIN is significantly better than all others",
        cell=lambda ground, x, series: _run(ground, setting(rows=x), series),
        rule=_best,
        as_claimed=lambda x, series: _claimed(series) / x,
        cost=4,
    ),
    Experiment(
        id="T7-4b",
        paper="thesis-7",
        title="Optimised X-HYBRIDJOIN and others by memory",
        x=MEMORY,
        values=MEMORIES,
        series=(JOIN, *OTHERS),
        y=RATE,
        clock="modelled",
        fixed={"n_R": "2 M", "e": "1"},
        claim="Optimised X-HYBRIDJOIN is significantly better than all others",
        cell=lambda ground, x, series: _run(ground, setting(x), series),
        rule=_best,
        as_claimed=lambda x, series: _claimed(series) * x,
        cost=4,
    ),
    Experiment(
        id="T7-5",
        paper="thesis-7",
        title="Optimised X-HYBRIDJOIN's cost by its model and as counted",
        x=MEMORY,
        values=MEMORIES,
        series=("model", "measured"),
        y=LOOP,
        clock="modelled",
        fixed={"n_R": "2 M", "e": "1"},
        claim="the calculated cost is closely matched with the measured one",
        cell=lambda ground, x, series: loop(ground, JOIN, x, series),
        rule=lambda c: models_agree(c, 0.1, rises),
        as_claimed=lambda x, series: x,
        cost=4,
    ),
)
