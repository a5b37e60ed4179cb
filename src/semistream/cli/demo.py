"""`semistream demo`: a join to watch, on data made for it."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pyarrow as pa

from semistream.bench.checksum import Checksum
from semistream.bench.oracle import ProductOracle
from semistream.cli import render
from semistream.cli.options import json_option
from semistream.core.budget import format_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.stats import JoinStats
from semistream.joins.api import JoinedStream, join
from semistream.store.build import build_master
from semistream.store.file import open_master
from semistream.workloads import bursty_counts, products, sale_schema, sales

STEP_S = 0.05
"""Rows arrive in steps of this length."""

SOURCES = 6
"""On/off sources behind the bursts: the longest last some seconds, peaks are twice the mean."""

SEED = 1
DRY_ROWS = 20_000


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option(
    "--rows", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Products."
)
@click.option("--memory", default="8MB", show_default=True, help="64MB, or 5% of the master.")
@click.option("--skew", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=500_000,
    show_default=True,
    help="Sales per second on average; bursts reach twice as many.",
)
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    seconds: float,
    rows: int,
    memory: str,
    skew: float,
    rate: int,
    as_json: bool,
) -> None:
    """Join a bursty stream of sales with a master of products and show what happens.

    Everything is made in a temporary folder and removed at the end. Ctrl-C ends the stream early.
    """
    with tempfile.TemporaryDirectory(prefix="semistream-demo-") as folder:
        path = Path(folder) / "products.master"
        render.note(f"Building a master of {rows:,} products …")
        build_master(path, products(rows), key="product_id")
        with open_master(path) as master, stop_on_interrupt() as stop:
            run = Run(rows, seconds, skew, rate, SystemClock(), stop)
            render.note("Loading the kernels (the first time they are compiled) …")
            for _ in join(run.sales(0, DRY_ROWS), master, "product_id", memory=memory):
                pass
            size = format_bytes(master.data_bytes)
            title = f"Sales joined with {rows:,} products ({size} on disk)"
            with render.LiveFacts(title) as live:
                run.ticker = Ticker(run, live)
                run.drain(join(run.arrivals(), master, "product_id", memory=memory))
            render.note("Comparing with DuckDB's join of the same sales …")
            verified = run.verified(Path(folder))
    if as_json:
        render.document(run.summary(verified))
    else:
        show(run, verified)
    ctx.exit(0 if verified else 1)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the join ends in order; a second one kills."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Run:
    """One run of the demonstration: arrivals paced by the clock, results summed up."""

    products: int
    seconds: float
    skew: float
    rate: int
    clock: Clock
    stop: threading.Event
    arrived: int = 0
    elapsed_s: float = 0.0
    produced: Checksum = field(default_factory=Checksum)
    joined: JoinedStream | None = None
    ticker: Callable[[], None] = lambda: None

    @property
    def stats(self) -> JoinStats:
        """Counters of the join up to now."""
        return JoinStats() if self.joined is None else self.joined.stats

    def arrivals(self) -> Iterator[pa.RecordBatch]:
        """Sales in bursts, no batch before its time, until the time is over or Ctrl-C comes."""
        steps = max(round(self.seconds / STEP_S), 1)
        counts = bursty_counts(steps, seed=SEED, sources=SOURCES, mean_per_step=self.rate * STEP_S)
        start_ns = self.clock.now_ns()
        for step, count in enumerate(counts):
            while not self.stop.is_set():
                ahead_s = step * STEP_S - (self.clock.now_ns() - start_ns) / 1e9
                self.ticker()
                if ahead_s <= 0:
                    break
                self.stop.wait(min(ahead_s, STEP_S))
            if self.stop.is_set() or self.clock.now_ns() - start_ns > self.seconds * 1e9:
                return
            for batch in self.sales(self.arrived, int(count)):
                self.arrived += batch.num_rows
                yield batch

    def sales(self, start: int, count: int) -> Iterator[pa.RecordBatch]:
        """Sales by their number; the same whenever they are asked for."""
        made = sales(count, products=self.products, skew=self.skew, start=start, seed=SEED)
        return iter(made) if count else iter([empty_batch()])

    def drain(self, joined: JoinedStream) -> None:
        """Take all results."""
        start_ns = self.clock.now_ns()
        self.joined = joined
        for batch in joined:
            self.produced.add(batch)
            self.ticker()
        self.elapsed_s = (self.clock.now_ns() - start_ns) / 1e9

    def verified(self, scratch: Path) -> bool:
        """Whether the results are those of DuckDB's join of the same sales."""
        with ProductOracle(self.products, scratch=scratch) as oracle:
            expected = oracle.expected(list(self.sales(0, self.arrived)))
        return expected.agrees(self.produced, self.arrived)

    def summary(self, verified: bool) -> dict[str, Any]:
        """What happened, for JSON."""
        return {
            "products": self.products,
            "skew": self.skew,
            "seconds": self.elapsed_s,
            "verified": verified,
            **self.stats.to_dict(),
        }


def empty_batch() -> pa.RecordBatch:
    """A step without a sale; it still tells the join the stream's columns."""
    return pa.RecordBatch.from_pylist([], schema=sale_schema())


class Ticker:
    """Shows the state of a run whenever it is time to."""

    def __init__(self, run: Run, live: render.LiveFacts) -> None:
        self._run = run
        self._live = live
        self._at_ns = run.clock.now_ns()
        self._before = JoinStats()

    def __call__(self) -> None:
        now_ns = self._run.clock.now_ns()
        passed_s = (now_ns - self._at_ns) / 1e9
        if passed_s < self._live.every_s:
            return
        stats = self._run.stats
        self._live.show(moment(self._before, stats, passed_s))
        self._at_ns, self._before = now_ns, stats


def moment(before: JoinStats, now: JoinStats, passed_s: float) -> list[tuple[str, render.Cell]]:
    """What happened in the last `passed_s` seconds."""
    looked_up = now.hits + now.misses - before.hits - before.misses
    hits = (now.hits - before.hits) / looked_up if looked_up else 0.0
    pages = (now.pages_read - before.pages_read) / passed_s
    return [
        ("input", f"{render.count((now.rows_in - before.rows_in) / passed_s)} rows/s"),
        ("joined", f"{render.count((now.rows_out - before.rows_out) / passed_s)} rows/s"),
        ("hits", f"{hits:.0%}"),
        ("read", f"{render.count(pages)} pages/s"),
        ("memory", f"{format_bytes(now.bytes_in_use)} of {format_bytes(now.bytes_limit)}"),
        ("waiting", f"{now.rows_waiting:,} rows"),
    ]


def show(run: Run, verified: bool) -> None:
    """The summary for people."""
    stats = run.stats
    rate = stats.rows_in / run.elapsed_s if run.elapsed_s else 0.0
    components = ", ".join(
        f"{name} {format_bytes(size)}" for name, size in stats.bytes_by_component.items() if size
    )
    pairs: list[tuple[str, render.Cell]] = [
        ("algorithm", stats.algorithm),
        (
            "stream rows",
            f"{stats.rows_in:,} in {run.elapsed_s:.1f} s ({render.count(rate)} rows/s)",
        ),
        ("joined rows", f"{stats.rows_out:,}"),
        ("hits in the cache", f"{stats.hit_share:.0%} of the look-ups"),
        ("pages read", f"{stats.pages_read:,} ({stats.pages_per_row:.4f} per stream row)"),
        ("read requests", f"{stats.requests:,}"),
        (
            "waited",
            f"half below {stats.latency_s(50):.3f} s, 99 % below {stats.latency_s(99):.3f} s",
        ),
        (
            "memory at most",
            f"{format_bytes(stats.bytes_peak)} of {format_bytes(stats.bytes_limit)}",
        ),
        ("divided into", components),
        ("same as DuckDB", "yes" if verified else render.bold("NO")),
    ]
    render.facts("What happened", pairs)
