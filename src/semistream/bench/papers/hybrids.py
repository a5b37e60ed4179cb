"""What thesis ch. 5 to 8 and its appendices share: the HYBRIDJOIN family at the thesis's sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semistream.bench.papers.equations import MB, ROW_BYTES, Family, Setting, best_held, family
from semistream.bench.papers.experiment import Axis, Measured
from semistream.bench.papers.ground import Ground, Held, Played
from semistream.bench.papers.machine import CACHED, PAGE_BYTES, THESIS, Machine

PARTITION_PAGES = 7
"""60 KB, the thesis's disk buffer for HYBRIDJOIN, in whole pages."""

PARTITION_ROWS = PARTITION_PAGES * PAGE_BYTES / ROW_BYTES
SCAN_PAGES = 0.93 * MB / PAGE_BYTES

MASTER = Axis("rows of R", "M", log=True)
MASTERS = (0.5, 1, 2, 4, 8)
MEMORY = Axis("memory", "MB")
MEMORIES = (50.0, 100, 150, 200, 250)
SKEW = Axis("Zipf exponent of the stream")
SKEWS = (0.0, 0.25, 0.5, 0.75, 1)
RATE = Axis("service rate", "rows/s")
LOOP = Axis("c_loop", "ms")
USUAL = {"M": "50 MB", "n_R": "2 M", "e": "1"}

SCANS = ("meshjoin", "rmeshjoin")
HOLDING = ("xhybridjoin", *CACHED)
"""Joins that hold the most frequent rows of R."""


DISK_ALONE = Machine(THESIS.disk)
"""The thesis's disk, with a processor that costs nothing."""


def setting(memory: float = 50, rows: float = 2, skew: float = 1.0) -> Setting:
    """M in MB and n_R in millions, with the sizes of Table 5.3."""
    return Setting(memory * MB, rows * 1e6, skew=skew)


def tuned_rows(join: str, one: Setting, pages: float = PARTITION_PAGES) -> float:
    """How many rows of R a join holds when it is tuned; none if it holds none.

    CACHEJOIN and the others are tuned for the stream of the default skew: they do not know it.
    """
    return best_held(join, replace(one, skew=1.0), pages, THESIS) if join in HOLDING else 0.0


def play(
    ground: Ground,
    join: str,
    one: Setting,
    *,
    pages: int = PARTITION_PAGES,
    held_rows: float = 0.0,
    waiting: float | None = None,
    is_sorted: bool = True,
    **more: Any,
) -> Played:
    """Run a join of ours with as many rows as the thesis's memory holds, at the ground's scale.

    `more` are options of the join.
    """
    share = ground.share
    if waiting is None:
        buffer = SCAN_PAGES if join in SCANS else pages
        waiting = one.waiting(buffer, held_rows * ROW_BYTES)
    rows_here = held_here(ground, one, held_rows)
    held = Held(waiting=waiting * share, cached=rows_here if join in CACHED else 0.0)
    options: dict[str, Any] = {}
    if join == "inlj":
        held = Held(pool_pages=one.memory_bytes / PAGE_BYTES * share)
    elif join not in SCANS:
        options = {"partition_pages": pages, "loads_per_step": 1}
    if join == "xhybridjoin":
        options["nonswappable_pages"] = max(round(rows_here * ROW_BYTES / PAGE_BYTES), 1)
    return ground.play_sales(
        join,
        rows=ground.scaled(one.rows),
        held=held,
        skew=one.skew,
        placement="rank" if is_sorted else "random",
        **options,
        **more,
    )


def held_here(ground: Ground, one: Setting, rows: float) -> float:
    """Rows that are held at the ground's scale, in place of `rows` in the thesis."""
    return ground.held_rows(rows, one.rows, one.skew) if rows else 0.0


def rate(played: Played, held_rows: float = 0.0, machine: Machine = THESIS) -> Measured:
    """The rate on the thesis's machine; `held_rows`, as many as there, are probed every loop."""
    return Measured(played.rate(machine, held_rows), played.verified, played.facts())


def run_rate(
    ground: Ground,
    join: str,
    one: Setting,
    *,
    pages: int = PARTITION_PAGES,
    held_rows: float = 0.0,
    is_sorted: bool = True,
    machine: Machine = THESIS,
) -> Measured:
    """Run a join and give its rate."""
    played = play(ground, join, one, pages=pages, held_rows=held_rows, is_sorted=is_sorted)
    return rate(played, held_rows if join == "xhybridjoin" else 0.0, machine)


def model(
    ground: Ground, join: str, one: Setting, *, pages: int = PARTITION_PAGES, held_rows: float = 0.0
) -> Family:
    """The equations at the ground's scale, to be compared with a run there."""
    waiting = one.waiting(pages, held_rows * ROW_BYTES) * ground.share
    return family(
        join,
        replace(one, rows=one.rows * ground.share),
        pages,
        THESIS,
        held_here(ground, one, held_rows),
        waiting=waiting,
        probed_rows=held_rows,
    )


def c_loop_ms(played: Played, held_rows: float = 0.0) -> Measured:
    """Milliseconds of an iteration on the thesis's machine."""
    probes = played.probes + played.loops * held_rows
    seconds = THESIS.seconds(played.did, probes) / max(played.loops, 1)
    return Measured(seconds * 1000, played.verified, played.facts())


def loop(ground: Ground, join: str, memory: float, series: str) -> Measured:
    """Cells of the cost validations: c_loop by the equations and as counted."""
    one = setting(memory)
    held_rows = tuned_rows(join, one)
    if series == "model":
        return Measured(model(ground, join, one, held_rows=held_rows).c_loop_s * 1000)
    played = play(ground, join, one, held_rows=held_rows, is_sorted=join != "cachejoin")
    return c_loop_ms(played, held_rows if join == "xhybridjoin" else 0.0)
