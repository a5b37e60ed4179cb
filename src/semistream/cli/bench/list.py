"""`semistream bench list`: which benchmarks there are."""

from __future__ import annotations

import click

from semistream.bench import BENCHMARKS
from semistream.cli import render
from semistream.cli.options import json_option


@click.command("list")
@json_option
def list_benchmarks(as_json: bool) -> None:
    """List the benchmarks."""
    if as_json:
        render.document([{"name": name, "what": what} for name, what in BENCHMARKS.items()])
        return
    render.table(("name", "measures"), list(BENCHMARKS.items()))
    render.line("Run one with: semistream bench run NAME")
