"""`semistream run`: a pipeline from a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.cli.watching import Watching, watching_options
from semistream.core.clock import SystemClock
from semistream.etl.checking import PlanLine, check_pipeline
from semistream.etl.pipeline import Pipeline, load_pipeline
from semistream.etl.schema import pipeline_schema


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--check", is_flag=True, help="Validate and show the resolved plan; run nothing.")
@click.option(
    "--schema", is_flag=True, help="Print the JSON schema of pipeline files, for editors."
)
@click.option("--seconds", type=click.FloatRange(min=0.1), help="End after this time.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where Spark writes its log. [default: a file in the system's temporary folder]",
)
@watching_options
@json_option
def run(
    file: Path | None,
    check: bool,
    schema: bool,
    seconds: float | None,
    log: Path | None,
    watching: Watching,
    as_json: bool,
) -> None:
    """Run the pipeline that FILE, in TOML, describes.

    Shows what it does until the source ends, the time is over or Ctrl-C comes. Started again, it
    goes on where its checkpoint says. The keys of the file are in docs/pipelines.md.
    """
    if schema:
        render.document(pipeline_schema())
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    pipeline = load_pipeline(file)
    if check:
        show_plan(pipeline, as_json)
        return
    from semistream.cli import streaming
    from semistream.spark.pipeline import ensure_masters, start, start_feeds
    from semistream.spark.recorder import recorded

    clock = SystemClock()
    log = log or Path(tempfile.gettempdir()) / f"semistream-{file.stem}-spark.log"
    with watching.of(pipeline, clock) as watcher:
        for built in ensure_masters(pipeline):
            render.note(f"Built the master {str(built)!r}")
        for line in plan(pipeline):
            render.note(f"{line.what:<8} {line.plan}")
        render.note(f"Spark's log: {log}")
        with (
            streaming.session(pipeline.spark, log) as session,
            streaming.stop_on_interrupt() as stop,
        ):
            feeds = start_feeds(pipeline, session)
            tell = None if watcher is None else watcher.add
            try:
                with (
                    recorded(session, clock, tell) as recorder,
                    render.LiveFacts(file.name) as live,
                ):
                    query = start(pipeline, session)
                    took_s = streaming.watch(
                        query, recorder, live, stop, clock, seconds, watcher, feeds
                    )
            finally:
                for feed in feeds:
                    feed.stop()
    if as_json:
        render.document(streaming.plain_summary(recorder, took_s))
    else:
        render.facts("What happened", streaming.summary(recorder, took_s))


def plan(pipeline: Pipeline) -> list[PlanLine]:
    """What is going to run, in a few lines."""
    with tempfile.TemporaryDirectory() as folder:
        return list(check_pipeline(pipeline, Path(folder)))


def show_plan(pipeline: Pipeline, as_json: bool) -> None:
    """The resolved plan, for people or as JSON."""
    lines = plan(pipeline)
    if as_json:
        render.document({"ok": True, "plan": [[line.what, line.plan] for line in lines]})
    else:
        render.facts("The plan", [(line.what, line.plan) for line in lines])
