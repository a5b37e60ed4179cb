"""`semistream run`: a pipeline from a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.cli.watching import Watching, watching_options
from semistream.core.budget import format_bytes
from semistream.core.clock import SystemClock
from semistream.etl.pipeline import Pipeline, load_pipeline
from semistream.store.file import open_master


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--seconds", type=click.FloatRange(min=0.1), help="End after this time.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where Spark writes its log. [default: a file in the system's temporary folder]",
)
@watching_options
@json_option
def run(
    file: Path, seconds: float | None, log: Path | None, watching: Watching, as_json: bool
) -> None:
    """Run the pipeline that FILE, in TOML, describes.

    Shows what it does until the source ends, the time is over or Ctrl-C comes. Started again, it
    goes on where its checkpoint says. The keys of the file are in docs/pipelines.md.
    """
    from semistream.cli import streaming
    from semistream.spark.pipeline import ensure_master, start
    from semistream.spark.recorder import recorded

    pipeline = load_pipeline(file)
    clock = SystemClock()
    log = log or Path(tempfile.gettempdir()) / f"semistream-{file.stem}-spark.log"
    with watching.of(pipeline, clock) as watcher:
        if ensure_master(pipeline.master):
            render.note(f"Built the master {str(pipeline.master.path)!r}")
        for line in plan(pipeline):
            render.note(line)
        render.note(f"Spark's log: {log}")
        with (
            streaming.session(pipeline.spark, log) as session,
            recorded(session, clock, None if watcher is None else watcher.add) as recorder,
            streaming.stop_on_interrupt() as stop,
        ):
            query = start(pipeline, session)
            with render.LiveFacts(file.name) as live:
                took_s = streaming.watch(query, recorder, live, stop, clock, seconds, watcher)
    if as_json:
        render.document(streaming.plain_summary(recorder, took_s))
    else:
        render.facts("What happened", streaming.summary(recorder, took_s))


def plan(pipeline: Pipeline) -> list[str]:
    """What is going to run, in a few lines."""
    source, join, sink, trigger = pipeline.source, pipeline.join, pipeline.sink, pipeline.trigger
    with open_master(pipeline.master.path) as master:
        size = f"{master.rows:,} rows, {format_bytes(master.data_bytes)}"
    to = sink.path or sink.table or ""
    when = "until all is joined" if trigger.available_now else f"every {trigger.every or 'moment'}"
    wait = f", rows wait up to {join.max_wait}" if join.max_wait else ""
    return [
        f"source   {source.format} {source.path or ''}".rstrip(),
        f"master   {pipeline.master.path} ({size})",
        f"join     {join.how} by {join.algorithm}, memory {join.memory}{wait}",
        f"sink     {sink.format} {to}".rstrip(),
        f"trigger  {when}",
        f"spark    {pipeline.spark.master}",
    ]
