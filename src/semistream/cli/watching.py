"""Options of the commands that run a pipeline, for all that shows or keeps what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from semistream.cli import render
from semistream.core.budget import format_bytes
from semistream.core.clock import Clock
from semistream.core.durations import parse_milliseconds
from semistream.dashboard import About, Access, DashboardServer, Watch
from semistream.dashboard.server import LOOPBACK, PORT
from semistream.etl.pipeline import Pipeline
from semistream.store.file import open_master
from semistream.store.sql import Table

_F = TypeVar("_F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)

_PAGE_OPTIONS = (
    click.option(
        "--host",
        default=LOOPBACK,
        show_default=True,
        help="Where the dashboard listens; elsewhere than on this machine it needs a token.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="Its port; the next free one if it is in use, 0 for any.",
    ),
    click.option(
        "--token",
        envvar="SEMISTREAM_TOKEN",
        help="What a visitor must know, at least 16 characters; also SEMISTREAM_TOKEN.",
    ),
    click.option("--hide-keys", is_flag=True, help="Show and keep shares of hot keys, not keys."),
)


def page_options(command: _F) -> _F:
    """`--host`, `--port`, `--token` and `--hide-keys`."""
    for option in reversed(_PAGE_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Watching:
    """The options, as they were given."""

    dashboard: bool
    host: str
    port: int
    token: str | None
    hide_keys: bool
    record: Path | None
    report: Path | None
    log_lines: Path | None

    @contextmanager
    def of(self, pipeline: Pipeline, clock: Clock) -> Iterator[Watch | None]:
        """Watches a pipeline in here, if any option asks for it; says where, before all else."""
        if not (self.dashboard or self.record or self.report or self.log_lines):
            yield None
            return
        watch = Watch(
            About(pipeline.spark.name, facts(pipeline)),
            clock,
            access=Access(self.host, self.port, self.token) if self.dashboard else None,
            record=self.record,
            report=self.report,
            lines=self.log_lines,
            hide_keys=self.hide_keys,
        )
        every = pipeline.trigger.every
        if every is not None:
            watch.tracker.every_s = parse_milliseconds(every, what="every") / 1000
        with watch:
            if watch.server is not None:
                announce(watch.server)
            yield watch
        if self.report is not None:
            render.note(f"Report: {self.report}")


def watching_options(command: _F) -> _F:
    """All options for watching a pipeline, handed to the command as `watching`."""

    @wraps(command)
    def called(*args: Any, **options: Any) -> Any:
        taken = {one.name: options.pop(one.name) for one in fields(Watching)}
        return command(*args, watching=Watching(**taken), **options)

    own = (
        click.option(
            "--dashboard", is_flag=True, help="Show it on a page; the address comes first."
        ),
        click.option("--record", type=_FILE, help="Record it, for 'semistream dashboard FILE'."),
        click.option("--report", type=_FILE, help="Write a report at the end, an HTML file."),
        click.option(
            "--log-lines", type=_FILE, help="Add structured lines (JSON) on its state to this log."
        ),
    )
    made: Any = page_options(called)
    for option in reversed(own):
        made = option(made)
    return made  # type: ignore[no-any-return]  # what click makes of a function is a function


def announce(server: DashboardServer) -> None:
    """Say where the page is, and that it is not where it should be."""
    if server.moved:
        render.note(f"Port {server.access.port} is in use; the dashboard takes {server.port}.")
    render.note(f"Dashboard: {server.address}")


def facts(pipeline: Pipeline) -> dict[str, str]:
    """What is fixed for the whole run, for people."""
    known: dict[str, str] = {}
    for number, step in enumerate(pipeline.steps, start=1):
        mark = f" {number}" if len(pipeline.steps) > 1 else ""
        known[f"join{mark}"] = step.how if step.kind == "enrich" else step.kind
        known[f"memory{mark}"] = str(step.memory)
        if isinstance(step.master, Table):
            known[f"master{mark}"] = str(step.master)
        elif step.master.exists():
            with open_master(step.master) as master:
                known[f"master{mark}"] = f"{master.rows:,} rows, {format_bytes(master.data_bytes)}"
        if step.max_wait:
            known[f"rows wait up to{mark}"] = step.max_wait
    known["sink"] = pipeline.sink.format
    return known
