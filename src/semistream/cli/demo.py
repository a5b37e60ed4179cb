"""`semistream demo`: the whole pipeline to watch, on data made for it."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.cli.watching import Watching, watching_options
from semistream.core.budget import format_bytes
from semistream.core.clock import SystemClock
from semistream.etl.pipeline import Join, Master, Pipeline, Sink, Source, Spark, Trigger
from semistream.store.build import build_master
from semistream.store.file import open_master
from semistream.workloads import products, sales

if TYPE_CHECKING:
    from semistream.bench.checksum import Checksum

MASTER = "products.master"
SEED = 1

MOST_BATCH_ROWS = 200_000
"""A burst is taken in micro-batches of at most this many rows."""


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.1), default=30.0, hidden=True)
@click.option("--rows", type=click.IntRange(min=1000), default=1_000_000, hidden=True)
@click.option("--memory", default="8MB", show_default=True, help="64MB, or 5% of the master.")
@click.option("--skew", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Sales per second on average; they come in bursts.",
)
@watching_options
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    seconds: float,
    rows: int,
    memory: str,
    skew: float,
    rate: int,
    watching: Watching,
    as_json: bool,
) -> None:
    """Run the whole pipeline for 30 seconds and show what happens.

    Builds a master of a million products, starts Spark on this machine, enriches a bursty stream of
    sales and writes the result to Parquet files, which are then compared with DuckDB's join.
    Everything is made in a temporary folder and removed at the end. Ctrl-C ends it early.
    """
    from semistream.cli import streaming
    from semistream.spark.pipeline import start
    from semistream.spark.recorder import recorded

    clock = SystemClock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-demo-")))
        pipeline = demo_pipeline(folder, rows=rows, memory=memory, skew=skew, rate=rate)
        watcher = stack.enter_context(watching.of(pipeline, clock))
        render.note(f"Building a master of {rows:,} products …")
        path = folder / MASTER
        build_master(path, products(rows), key="product_id")
        with open_master(path) as master:
            size = format_bytes(master.data_bytes)
        render.note("Starting Spark …")
        with (
            streaming.session(pipeline.spark, folder / "spark.log") as session,
            recorded(session, clock, None if watcher is None else watcher.add) as recorder,
            streaming.stop_on_interrupt() as stop,
        ):
            query = start(pipeline, session)
            render.note("Loading the kernels, then joining; Ctrl-C ends it …")
            title = f"Sales enriched with {rows:,} products ({size} on disk), written to Parquet"
            with render.LiveFacts(title) as live:
                took_s = streaming.watch(query, recorder, live, stop, clock, seconds, watcher)
        written = read_back(pipeline.sink)
        render.note(f"Comparing {written.rows:,} written rows with DuckDB's join of the sales …")
        sent = rows_sent(pipeline.sink)
        verified = is_right(written, sent, rows=rows, skew=skew, scratch=folder)
    if as_json:
        what = {"products": rows, "skew": skew, "rows_sent": sent, "rows_written": written.rows}
        figures = streaming.plain_summary(recorder, took_s)
        render.document({**what, "verified": verified, **figures})
    else:
        pairs = streaming.summary(recorder, took_s)
        pairs.append(("written rows", f"{written.rows:,}, of {sent:,} sales"))
        pairs.append(("same as DuckDB", "yes" if verified else render.bold("NO")))
        render.facts("What happened", pairs)
    ctx.exit(0 if verified else 1)


def demo_pipeline(folder: Path, *, rows: int, memory: str, skew: float, rate: int) -> Pipeline:
    """The pipeline of the demonstration, as a file might describe it."""
    return Pipeline(
        source=Source(
            "semistream-workload",
            options={
                "products": rows,
                "skew": skew,
                "seed": SEED,
                "rate": rate,
                "bursty": True,
                "batch_rows": MOST_BATCH_ROWS,
            },
        ),
        master=Master(folder / MASTER),
        join=Join("product_id", memory=memory),
        sink=Sink("parquet", path=folder / "enriched"),
        trigger=Trigger(every="1 second"),
        spark=Spark(name="semistream-demo"),
    )


def read_back(sink: Sink) -> Checksum:
    """The checksum of all rows that the query has written."""
    from semistream.bench.checksum import Checksum
    from semistream.bench.oracle import JOINED
    from semistream.core.errors import SourceError
    from semistream.spark import read_sink

    written = Checksum()
    assert sink.path is not None
    try:
        rows = read_sink(sink.path)
    except SourceError:  # ended before the first micro-batch
        return written
    for batch in rows.to_batches(columns=JOINED.names):
        written.add(batch.cast(JOINED))
    return written


def rows_sent(sink: Sink) -> int:
    """Sales in the micro-batches that the sink has finished: where the last of them ended."""
    from semistream.spark.sinks import finished_batches

    assert sink.path is not None
    assert sink.checkpoint_path is not None
    finished = finished_batches(sink.path)
    if not finished:
        return 0
    offsets = (sink.checkpoint_path / "offsets" / str(finished[-1])).read_text()
    # The format's version, the query's settings, and a line for every source.
    return int(json.loads(offsets.splitlines()[2])["sale"])


def is_right(written: Checksum, sent: int, *, rows: int, skew: float, scratch: Path) -> bool:
    """Whether rows were written, and they are those of DuckDB's join of the same sales."""
    from semistream.bench.oracle import ProductOracle

    with ProductOracle(rows, scratch=scratch) as oracle:
        expected = oracle.expected(list(sales(sent, products=rows, skew=skew, seed=SEED)))
    return sent > 0 and expected.agrees(written, sent)
