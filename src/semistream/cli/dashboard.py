"""`semistream dashboard`: a recorded run once more."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.cli.watching import announce, page_options
from semistream.core.clock import SystemClock
from semistream.dashboard import (
    Access,
    DashboardServer,
    History,
    RecordedRun,
    replay,
    report_of,
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="So many times as fast as it was.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report, an HTML file, and show no page.",
)
@click.option("--seconds", type=click.FloatRange(min=0), hidden=True, help="End after this time.")
@page_options
@json_option
def dashboard(
    file: Path,
    speed: float,
    report: Path | None,
    seconds: float | None,
    host: str,
    port: int,
    token: str | None,
    hide_keys: bool,
    as_json: bool,
) -> None:
    """Replay the run that FILE has recorded ('semistream run … --record FILE').

    Shows it on the page of a running pipeline until Ctrl-C comes. A recording that was cut is shown
    up to there.
    """
    run = RecordedRun(file)
    if report is not None:
        report.write_text(report_of(run, hide_keys=hide_keys), encoding="utf-8")
        _warn(run)
        render.note(f"Report: {report}")
        if as_json:
            render.document({"report": str(report), "problem": run.problem})
        return
    history, stop = History(), threading.Event()
    server = DashboardServer(run.about, history, Access(host, port, token))
    count = 0
    try:
        announce(server)
        clock = SystemClock()
        begun_ns = clock.now_ns()
        render.note(f"Replaying {str(file)!r} at {speed:g} times its speed; Ctrl-C ends it")
        if seconds is not None:
            threading.Timer(seconds, stop.set).start()
        count = replay(run, history, clock, stop, speed=speed, hide_keys=hide_keys)
        _warn(run)
        if not stop.is_set():
            took_s = (clock.now_ns() - begun_ns) / 1e9
            render.note(f"All {count:,} moments shown in {took_s:.0f} s; the page stays")
        stop.wait()
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        history.close()
        server.close()
    if as_json:
        render.document({"address": server.address, "moments": count, "problem": run.problem})


def _warn(run: RecordedRun) -> None:
    if run.problem:
        render.note(f"warning: {run.problem}; everything before that is shown")
