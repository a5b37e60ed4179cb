"""The page while real pipelines run, and what it costs them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
import pytest

pytest.importorskip("pyspark")

from semistream.core.clock import SystemClock
from semistream.dashboard import About, Access, Moment, Recording, Watch
from tests.dashboard.feed import Feed, HandClock
from tests.dashboard.pages import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

COMMAND = [sys.executable, "-c", "from semistream.cli import main; main()"]


@contextmanager
def command(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command with a page: its process, and the address from its first line."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith("Dashboard: http://127.0.0.1:"), first
        yield process, first.split()[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spark
def test_the_page_of_a_demo(browser: Browser) -> None:
    arguments = ["demo", "--dashboard", "--seconds", 6, "--rows", 50_000, "--memory", "4MB"]
    with command(*arguments, "--rate", 20_000) as (process, address):
        with opened(browser, address) as seen:
            seen.wait_for_state("starting", 20)  # before Spark is there
            # While kernels are loaded for the first rows, others pile up: either state is right.
            seen.page.wait_for_function(
                "() => ['keeping up', 'falling behind'].includes("
                "document.getElementById('word').textContent)",
                timeout=120_000,
            )
            seen.wait_for_panels(5)
            assert min(seen.colours().values()) > 5
            before = seen.legend("rates")
            seen.page.wait_for_function(
                "(before) => document.querySelector('#panel-rates .legend').innerText"
                ".replaceAll('\\n', ' ') !== before",
                arg=before,
                timeout=5000,
            )
            assert seen.page.locator(".keys .key").count() == 8
            assert seen.wait_for_state("stopped", 60) == "its 6 seconds are over"
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "same as DuckDB" in out


def master(tmp_path: Path, rows: int) -> Path:
    from semistream import build_master
    from semistream.workloads import products

    build_master(tmp_path / "products.master", products(rows), key="product_id")
    return tmp_path / "products.master"


def started(spark: SparkSession, path: Path, **options: object) -> Any:
    from semistream.spark import enrich
    from semistream.spark.sources import register

    register(spark)
    reader = spark.readStream.format("semistream-workload").options(**options)  # type: ignore[arg-type]
    enriched = enrich(reader.load(), path, "product_id", memory="8MB")
    return enriched.writeStream.format("noop").start()


@pytest.mark.slow
def test_falling_behind_and_back(browser: Browser, spark: SparkSession, tmp_path: Path) -> None:
    from semistream.spark.recorder import recorded

    path, clock = master(tmp_path, 200_000), SystemClock()
    with (
        Watch(About("overload"), clock, access=Access(port=0)) as watch,
        recorded(spark, clock, watch.add),
    ):
        assert watch.server is not None
        with opened(browser, watch.server.address) as seen:
            # For ten seconds more than micro-batches of this size can carry, and then nothing.
            query = started(
                spark, path, products=200_000, rate=2_000_000, rows=20_000_000, batch_rows=100_000
            )
            try:
                seen.wait_for_state("falling behind", 60)
                assert "catching up" in seen.wait_for_state("keeping up", 120)
            finally:
                query.stop()
            watch.stop("enough")
            assert seen.wait_for_state("stopped", 10) == "enough"


@pytest.mark.slow
def test_the_rate_with_a_page_open(
    browser: Browser, spark: SparkSession, tmp_path: Path, record_property: Any
) -> None:
    """One run as fast as it goes; by turns nobody looks, and somebody does."""
    from semistream.spark.recorder import MicroBatch, recorded

    turn_s, turns = 7.0, 6
    path, clock = master(tmp_path, 1_000_000), SystemClock()
    listeners: list[Any] = []

    def tell(batch: MicroBatch) -> None:
        for listener in listeners:
            listener(batch)

    rates: dict[bool, list[float]] = {False: [], True: []}
    with recorded(spark, clock, tell) as recorder:
        query = started(spark, path, products=1_000_000, batch_rows=200_000)
        try:
            while recorder.worked < 20:
                time.sleep(0.2)
            for turn in range(2 * turns):
                # Off, on, on, off: a drift of the machine falls on both alike.
                watched = turn % 4 in (1, 2)
                with ExitStack() as stack:
                    if watched:
                        watch = stack.enter_context(
                            Watch(About("overhead"), clock, access=Access(port=0))
                        )
                        listeners.append(watch.add)
                        assert watch.server is not None
                        seen = stack.enter_context(opened(browser, watch.server.address))
                        seen.wait_for_panels(20)
                    before, begun = recorder.total().rows_in, recorder.batches[-1].ended_ns
                    time.sleep(turn_s)
                    after, ended = recorder.total().rows_in, recorder.batches[-1].ended_ns
                    rates[watched].append((after - before) / (ended - begun) * 1e9)
                    listeners.clear()
        finally:
            query.stop()
    ratio = median(rates[True]) / median(rates[False])
    record_property("ratio", ratio)
    print(f"rows/s without a page {rates[False]}, with one {rates[True]}, ratio {ratio:.3f}")
    assert ratio > 0.97


def long_recording(path: Path, hours: float) -> None:
    """Hours of a pipeline, played."""
    from dataclasses import replace

    from semistream.dashboard.tracker import Tracker

    clock = HandClock()
    feed = Feed(Tracker(clock), clock)
    with Recording(path, About("a long run", {"memory": "8MB"})) as file:
        moments: list[Moment] = []
        for second in range(600):
            feed.second(100_000 if second % 300 < 250 else 200_000)
            moments.append(feed.tracker.moment())
        begun = moments[0].at
        for number in range(int(hours * 3600 / 0.8)):
            file.add(replace(moments[number % len(moments)], at=begun + 0.8 * number))


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [float(os.environ.get("SEMISTREAM_REPLAY_MINUTES", "10"))])
def test_memory_stays_flat_at_sixty_times_the_speed(
    browser: Browser, tmp_path: Path, minutes: float
) -> None:
    path = tmp_path / "long.jsonl"
    long_recording(path, minutes + 0.5)  # an hour of it a minute
    with command("dashboard", path, "--speed", 60) as (process, address):
        server = psutil.Process(process.pid)
        with opened(browser, address) as seen:
            seen.wait_for_panels(20)
            client = seen.page.context.new_cdp_session(seen.page)

            def sizes() -> tuple[int, int]:
                client.send("HeapProfiler.collectGarbage")
                heap = client.send("Runtime.getHeapUsage")["usedSize"]
                return server.memory_info().rss, int(heap)

            seen.page.wait_for_timeout(15_000 + 60_000 * minutes * 0.1)
            first = sizes()
            clock = seen.text("#clock")
            seen.page.wait_for_timeout(60_000 * minutes * 0.9 - 15_000)
            last = sizes()
            assert seen.text("#clock") != clock
            print(f"server and page at first {first}, at last {last} bytes")
            assert last[0] - first[0] < 8_000_000
            assert last[1] - first[1] < 3_000_000
