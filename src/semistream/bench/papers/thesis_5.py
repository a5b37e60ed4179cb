"""Thesis ch. 5: HYBRIDJOIN beside MESHJOIN and INLJ."""

from __future__ import annotations

import numpy as np

from semistream.bench.papers.equations import (
    MB,
    NODE_BYTES,
    ROW_BYTES,
    STREAM_BYTES,
    THESIS_FUDGE,
    mesh_c_loop,
    mesh_w,
    printed_hybrid,
)
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
    SCAN_PAGES,
    SCANS,
    SKEW,
    SKEWS,
    USUAL,
    c_loop_ms,
    model,
    play,
    run_rate,
    setting,
)
from semistream.bench.papers.machine import PAGE_BYTES, PARTITION_BYTES, THESIS
from semistream.bench.papers.rules import (
    Curves,
    Verdict,
    above,
    close,
    falls,
    flat,
    holds,
    judge,
    near,
    peaks,
    rises,
)
from semistream.workloads import bursty_counts, zipf_ranks

THREE = ("hybridjoin", "meshjoin", "inlj")
BUFFER = PARTITION_BYTES / PAGE_BYTES
BACKLOG_S = 10.0
"""How long a stream is looked at that INLJ cannot keep up with."""


def _page_use(ground: Ground, x: float, series: str) -> Measured:
    """How many of 1,000 stream rows ask for the partition of 20 pages at x % of R."""
    rows, count = 16_000 * (PAGE_BYTES // ROW_BYTES), 4_000_000
    size = 20 * (PAGE_BYTES // ROW_BYTES)
    first = int(x / 100 * (rows - size))
    ranks = zipf_ranks(rows, 1.0, count, ground.seed) - 1
    inside = np.count_nonzero((ranks >= first) & (ranks < first + size))
    return Measured(inside / count * 1000)


def _table_1(ground: Ground, x: float, series: str) -> Measured:
    held = setting(x).waiting(BUFFER)
    sizes = {
        "disk buffer": PARTITION_BYTES / MB,
        "hash table": held * THESIS_FUDGE * STREAM_BYTES / MB,
        "queue": held * NODE_BYTES / MB,
    }
    return Measured(sum(sizes.values()) if series == "total" else sizes[series])


TABLE_1 = {"disk buffer": 0.059, "hash table": 47.66, "queue": 2.24, "total": 49.959}
TABLE_2 = {"w, rows": 109.0, "c_loop, ms": 12.837, "service rate, 1000 rows/s": 8.491}


def _table_2(ground: Ground, x: float, series: str) -> Measured:
    what, _, how = series.partition(" as ")
    if how == "counted":
        played = play(ground, "hybridjoin", setting(x))
        seconds = THESIS.seconds(played.did, played.probes)
        w, c_loop = played.rows / played.loops, seconds / played.loops
        return Measured(_parts(w, c_loop)[what], played.verified, played.facts())
    found = printed_hybrid(setting(x), BUFFER, THESIS)
    return Measured(_parts(found.w, found.c_loop_s)[what])


def _parts(w: float, c_loop_s: float) -> dict[str, float]:
    return dict(zip(TABLE_2, (w, c_loop_s * 1000, w / c_loop_s / 1000), strict=True))


def _judge_table_2(curves: Curves) -> Verdict:
    kappa = 1.36 * curves["w, rows as counted"][50] / curves["w, rows as printed"][50]
    return judge(
        [
            near(curves[f"{what} as printed"], {50: mark}, f"{what} as printed", 0.05)
            for what, mark in TABLE_2.items()
        ],
        [holds(1.2 < kappa < 1.5, f"κ as counted is {kappa:.2f}, printed 1.36")],
    )


def _by_buffer(ground: Ground, x: float, series: str) -> Measured:
    return Measured(printed_hybrid(setting(), x * 1024 / PAGE_BYTES, THESIS).rate)


def _sold_often(ground: Ground, x: float, series: str) -> Measured:
    rows, count = ground.scaled(2e6), 4_000_000
    ranks = zipf_ranks(rows, 1.0, count, ground.seed)
    return Measured(float(np.mean(ranks <= x / 100 * rows)))


def _bursts(ground: Ground, x: float, series: str) -> Measured:
    """Variance over mean of the arrivals in windows of x steps; 1 without bursts."""
    counts = bursty_counts(1 << 18, seed=ground.seed)
    if series == "poisson":
        generator = np.random.default_rng(ground.seed)
        counts = generator.poisson(counts.mean(), len(counts))
    size = int(x)
    sums = counts[: len(counts) // size * size].reshape(-1, size).sum(axis=1)
    return Measured(float(sums.var() / sums.mean()))


def _processing(ground: Ground, x: float, series: str) -> Measured:
    """Seconds from intake to the match: rows that wait over the rate, half of that in a scan."""
    one = setting(rows=x)
    done = run_rate(ground, series, one)
    if series == "inlj":
        return Measured(1 / done.y, done.verified, done.more)
    pages = SCAN_PAGES if series in SCANS else PARTITION_PAGES
    stay = one.waiting(pages) / done.y
    return Measured(stay / 2 if series in SCANS else stay, done.verified, done.more)


def _waiting(ground: Ground, x: float, series: str) -> Measured:
    """Seconds that rows wait for the disk to be asked, at an arrival rate of x rows/s.

    MESHJOIN waits for w rows. HYBRIDJOIN waits for the load that is under way: half of it on
    average. INLJ does not wait unless it falls behind: then for its backlog, on average over the
    first ten seconds.
    """
    if series == "meshjoin":
        return Measured(mesh_w(setting(), SCAN_PAGES) / x)
    if series == "hybridjoin":
        return Measured(THESIS.disk(BUFFER) / 2)
    at_once = 1 / (THESIS.disk(1) + THESIS.read + THESIS.probe + THESIS.result)
    return Measured(max(x / at_once - 1, 0.0) * BACKLOG_S / 2)


def _judge_waiting(curves: Curves) -> Verdict:
    mesh, hybrid, inlj = curves["meshjoin"], curves["hybridjoin"], curves["inlj"]
    above_inlj = [x for x in sorted(inlj) if hybrid[x] > inlj[x]]
    border = max(above_inlj, default=0.0)
    return judge(
        [
            above(mesh, hybrid, "MESHJOIN beside HYBRIDJOIN", 2),
            holds(bool(above_inlj), f"HYBRIDJOIN waits longer than INLJ up to {border:g} rows/s"),
            holds(inlj[2000] > hybrid[2000], "INLJ waits longer at 2,000 rows/s"),
        ],
        [holds(border < 250, "from 250 rows/s on INLJ waits longer")],
    )


def _by_master(ground: Ground, x: float, series: str) -> Measured:
    return run_rate(ground, series, setting(rows=x))


def _by_memory(ground: Ground, x: float, series: str) -> Measured:
    return run_rate(ground, series, setting(x))


def _by_skew(ground: Ground, x: float, series: str) -> Measured:
    return run_rate(ground, series, setting(skew=x))


def _best(curves: Curves, by: float = 1.05) -> Verdict:
    hybrid, mesh, inlj = (curves[name] for name in THREE)
    return judge(
        [
            above(hybrid, mesh, "HYBRIDJOIN beside MESHJOIN"),
            above(hybrid, inlj, "HYBRIDJOIN beside INLJ", 2),
        ],
        [above(hybrid, mesh, "significantly better than MESHJOIN", by)],
    )


def _best_with_skew(curves: Curves) -> Verdict:
    hybrid, mesh, inlj = (curves[name] for name in THREE)
    skewed = [x for x in hybrid if x > 0]
    gain = {x: hybrid[x] / mesh[x] for x in hybrid}
    return judge(
        [
            above(hybrid, mesh, "HYBRIDJOIN beside MESHJOIN with skew", 1.02, xs=skewed),
            above(hybrid, inlj, "HYBRIDJOIN beside INLJ", 1.5),
            holds(gain[1] > 1.1 * gain[0], f"the gain goes from {gain[0]:.2f} to {gain[1]:.2f}"),
        ],
        [holds(0.5 <= gain[0] < 1, f"without skew HYBRIDJOIN has {gain[0]:.2f} of MESHJOIN's")],
    )


def _loops(ground: Ground, x: float, series: str) -> Measured:
    join, _, how = series.partition(", ")
    one = setting(x)
    if how == "model":
        if join == "meshjoin":
            return Measured(mesh_c_loop(one, SCAN_PAGES, THESIS) * 1000)
        return Measured(model(ground, join, one).c_loop_s * 1000)
    played = play(ground, join, one)
    if join == "meshjoin":
        per_page = THESIS.seconds(played.did, played.probes) / played.did.pages_read
        seconds = per_page * SCAN_PAGES + THESIS.disk.seek_s
        return Measured(seconds * 1000, played.verified, played.facts())
    return c_loop_ms(played)


EXPERIMENTS = (
    Experiment(
        id="T5-1",
        paper="thesis-5",
        title="How often a partition of R is asked for, by its place",
        x=Axis("place in R", "%"),
        values=(0, 10, 20, 40, 60, 80, 100),
        series=("use",),
        y=Axis("stream rows for a partition", "per 1,000", log=True),
        clock="counted",
        fixed={"R": "16,000 pages", "partition": "20 pages", "e": "1"},
        claim="pages are used less and less towards the end of R",
        cell=_page_use,
        rule=lambda c: judge([falls(c["use"], "the use", by=5)]),
        as_claimed=lambda x, series: 100 / (x + 1),
        remark="The thesis calls R sorted in ascending order of frequency; its figure shows the"
        " descending one (contradiction 16).",
    ),
    Experiment(
        id="T5-T1",
        paper="thesis-5",
        title="Memory of HYBRIDJOIN (Table 5.1)",
        x=MEMORY,
        values=(50,),
        series=tuple(TABLE_1),
        y=Axis("memory", "MB", log=True),
        clock="equations",
        claim="disk buffer 0.059, hash table 47.66, queue 2.24, in all 49.959 MB",
        cell=_table_1,
        rule=lambda c: judge(
            [
                near(c[name], {50: TABLE_1[name]}, name, 0.05)
                for name in ("disk buffer", "hash table", "total")
            ],
            [near(c["queue"], {50: TABLE_1["queue"]}, "queue", 0.05)],
        ),
        as_claimed=lambda x, series: TABLE_1[series],
        marks={name: {50: mark} for name, mark in TABLE_1.items()},
        remark="Computed with f = 8 and 12 bytes for a node of the queue, which the thesis states;"
        " its own queue fits 7.5 bytes (contradiction 13).",
    ),
    Experiment(
        id="T5-T2",
        paper="thesis-5",
        title="Cost and rate of HYBRIDJOIN (Table 5.2)",
        x=MEMORY,
        values=(50,),
        series=tuple(f"{what} as {how}" for how in ("printed", "counted") for what in TABLE_2),
        y=Axis("rows, ms, or 1000 rows/s", log=True),
        clock="modelled",
        fixed={"n_R": "2 M", "e": "1"},
        claim="w is 109 rows, c_loop 12.837 ms, the rate 8,491 rows/s",
        cell=_table_2,
        rule=_judge_table_2,
        as_claimed=lambda x, series: TABLE_2[series.partition(" as ")[0]],
        marks={f"{what} as printed": {50: mark} for what, mark in TABLE_2.items()},
        remark="The thesis measured κ = 1.36 in w = κ·h_S·d/n_R; in the steady state it is about 2"
        " at any skew (contradiction 17).",
    ),
    Experiment(
        id="T5-3",
        paper="thesis-5",
        title="HYBRIDJOIN's rate by the size of the disk buffer",
        x=Axis("disk buffer", "KB", log=True),
        values=(15, 30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360),
        series=("hybridjoin",),
        y=RATE,
        clock="equations",
        fixed=USUAL,
        claim="the rate has one maximum, at 60 KB",
        cell=_by_buffer,
        rule=lambda c: judge(
            [peaks(c["hybridjoin"], "the rate")],
            [
                holds(
                    max(c["hybridjoin"], key=lambda x: c["hybridjoin"][x]) <= 240,
                    "the maximum is near 60 KB",
                )
            ],
        ),
        as_claimed=lambda x, series: 1 / (x + 3600 / x),
        remark="With a seek in every load larger loads pay: the thesis's best buffer of 60 KB"
        " supposes a disk without one, and half of its own read of 60 KB must then be a seek"
        " (Theorem 1).",
    ),
    Experiment(
        id="T5-5",
        paper="thesis-5",
        title="How many sales the products that sell most have",
        x=Axis("products that sell most", "%"),
        values=(1, 5, 10, 20, 50),
        series=("sales",),
        y=Axis("share of the sales"),
        clock="counted",
        fixed={"n_R": "2 M", "e": "1"},
        claim="about 20 % of the products are sold often: 80 % of the sales",
        cell=_sold_often,
        rule=lambda c: judge(
            [rises(c["sales"], "the share", by=1.2)],
            [holds(0.75 <= c["sales"][20] <= 0.92, f"20 % have {c['sales'][20]:.0%} of the sales")],
        ),
        as_claimed=lambda x, series: (x / 100) ** 0.14,
        marks={"sales": {20: 0.8}},
        remark="80/20 is exponent 0.8614, not 1 (contradiction 24).",
    ),
    Experiment(
        id="T5-6",
        paper="thesis-5",
        title="Bursts of the stream generator",
        x=Axis("window", "steps", log=True),
        values=(1, 4, 16, 64, 256, 1024),
        series=("generator", "poisson"),
        y=Axis("variance / mean of arrivals", log=True),
        clock="counted",
        claim="the flow of transactions is bursty and self-similar rather than regular",
        cell=_bursts,
        rule=lambda c: judge(
            [
                above(c["generator"], c["poisson"], "bursts beside a regular flow", 10),
                rises(c["generator"], "from window to window", by=2),
            ]
        ),
        as_claimed=lambda x, series: 1.0 if series == "poisson" else 100 * x,
        remark="The printed generator cannot run; this one is repaired (contradiction 25).",
    ),
    Experiment(
        id="T5-7a",
        paper="thesis-5",
        title="Processing time by the size of R",
        x=MASTER,
        values=MASTERS,
        series=THREE,
        y=Axis("time from intake to match", "s", log=True),
        clock="modelled",
        fixed={"M": "50 MB", "e": "1"},
        claim="HYBRIDJOIN's is far below MESHJOIN's; INLJ's is constant",
        cell=_processing,
        rule=lambda c: judge(
            [
                above(c["meshjoin"], c["hybridjoin"], "MESHJOIN beside HYBRIDJOIN"),
                above(c["hybridjoin"], c["inlj"], "HYBRIDJOIN beside INLJ", 2),
            ],
            [
                above(c["meshjoin"], c["hybridjoin"], "far below", 2),
                flat(c["inlj"], "INLJ", 0.3),
            ],
        ),
        as_claimed=lambda x, series: {"meshjoin": 9 * x, "hybridjoin": 3 * x, "inlj": 0.005}[
            series
        ],
        remark="Of MESHJOIN half of the cycle counts, as the thesis does; its rows stay for all of"
        " it (contradiction 18). HYBRIDJOIN's time is the mean stay by Little's law. INLJ's pool"
        " is as large a part of R as memory is, so that it is slower with a larger R.",
    ),
    Experiment(
        id="T5-7b",
        paper="thesis-5",
        title="Waiting time by the arrival rate",
        x=Axis("arrival rate", "rows/s", log=True),
        values=(125, 250, 500, 1000, 2000),
        series=("meshjoin", "hybridjoin", "inlj"),
        y=Axis("waiting time", "s"),
        clock="equations",
        fixed={"M": "50 MB", "n_R": "2 M"},
        claim="MESHJOIN waits longer than HYBRIDJOIN; below 150 rows/s HYBRIDJOIN waits longer than"
        " INLJ, whose backlog grows above",
        cell=_waiting,
        rule=_judge_waiting,
        as_claimed=lambda x, series: {
            "meshjoin": 1000 / x,
            "hybridjoin": 0.1,
            "inlj": max(x - 150, 0.01) / 100,
        }[series],
    ),
    Experiment(
        id="T5-7c",
        paper="thesis-5",
        title="HYBRIDJOIN, MESHJOIN and INLJ by the size of R",
        x=MASTER,
        values=MASTERS,
        series=THREE,
        y=RATE,
        clock="modelled",
        fixed={"M": "50 MB", "e": "1"},
        claim="HYBRIDJOIN is significantly better than both for all sizes of R",
        cell=_by_master,
        rule=_best,
        as_claimed=lambda x, series: {"hybridjoin": 20, "meshjoin": 10, "inlj": 1}[series] / x,
        marks={"hybridjoin": {2: 8_491}},
        cost=4,
    ),
    Experiment(
        id="T5-7d",
        paper="thesis-5",
        title="HYBRIDJOIN, MESHJOIN and INLJ by memory",
        x=MEMORY,
        values=MEMORIES,
        series=THREE,
        y=RATE,
        clock="modelled",
        fixed={"n_R": "2 M", "e": "1"},
        claim="HYBRIDJOIN is better than both for all memories",
        cell=_by_memory,
        rule=_best,
        as_claimed=lambda x, series: {"hybridjoin": 20, "meshjoin": 10, "inlj": 1}[series] * x,
        marks={"hybridjoin": {50: 8_491}},
        cost=4,
    ),
    Experiment(
        id="T5-7e",
        paper="thesis-5",
        title="HYBRIDJOIN, MESHJOIN and INLJ by skew",
        x=SKEW,
        values=SKEWS,
        series=THREE,
        y=RATE,
        clock="modelled",
        fixed={"M": "50 MB", "n_R": "2 M"},
        claim="HYBRIDJOIN is better than both for every skew but 0, more with more skew; at 0"
        " MESHJOIN wins by a constant factor",
        cell=_by_skew,
        rule=_best_with_skew,
        as_claimed=lambda x, series: {"hybridjoin": 7 + 10 * x, "meshjoin": 9, "inlj": 1}[series],
        marks={"hybridjoin": {1: 8_491}},
        remark="A full queue answers twice what a scan does per page at any skew (contradiction"
        " 17), which outweighs the seek.",
        cost=4,
    ),
    Experiment(
        id="T5-8",
        paper="thesis-5",
        title="Costs by the models and as counted",
        x=MEMORY,
        values=MEMORIES,
        series=(
            "hybridjoin, model",
            "hybridjoin, measured",
            "meshjoin, model",
            "meshjoin, measured",
        ),
        y=LOOP,
        clock="modelled",
        fixed={"n_R": "2 M", "e": "1"},
        claim="the calculated cost closely resembles the measured one",
        cell=_loops,
        rule=lambda c: judge(
            [
                rises(c["hybridjoin, measured"], "HYBRIDJOIN's cost", by=1.2),
                close(c["hybridjoin, measured"], c["hybridjoin, model"], "HYBRIDJOIN", 0.3),
                close(c["meshjoin, measured"], c["meshjoin, model"], "MESHJOIN", 0.3),
            ],
            [
                close(c["hybridjoin, measured"], c["hybridjoin, model"], "HYBRIDJOIN", 0.1),
                close(c["meshjoin, measured"], c["meshjoin, model"], "MESHJOIN", 0.1),
            ],
        ),
        as_claimed=lambda x, series: x,
        cost=4,
    ),
)
