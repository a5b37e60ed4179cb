"""`semistream bench run auto`: what "auto" chooses, beside single joins."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.bench.auto import COMPETITORS, AutoCell, run_auto
from semistream.bench.masters import default_workdir
from semistream.cli import render
from semistream.cli.options import (
    joins_option,
    json_option,
    memories_option,
    skews_option,
    whole_numbers,
    workdir_option,
)
from semistream.core.clock import ProcessorClock, SystemClock
from semistream.store.file import IO_MODES

LEAST = 0.9
"""The part of the best single join's rate that "auto" is held to."""


@click.command("auto")
@click.option("--rows", type=int, default=1_000_000, show_default=True, help="Rows of the master.")
@memories_option("1%,5%,10%,120%")
@skews_option("0,0.5,1")
@click.option(
    "--copies", callback=whole_numbers, default="1,2", show_default=True, help="Rows of a key."
)
@joins_option(",".join(COMPETITORS))
@click.option("--io", type=click.Choice(IO_MODES), default="buffered", show_default=True)
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Of a run.")
@click.option("--cpu-time", is_flag=True, help="Measure processor time, not the wall clock's.")
@workdir_option
@json_option
@click.pass_context
def run_auto_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    copies: tuple[int, ...],
    joins: tuple[str, ...],
    io: str,
    seconds: float,
    cpu_time: bool,
    workdir: Path | None,
    as_json: bool,
) -> None:
    """Compare "auto" with single joins in every cell of a grid.

    Ends with code 1 if "auto" has less than 0.9 of the best join's rate anywhere, or if a result is
    wrong.
    """
    done: list[AutoCell] = []
    for cell in run_auto(
        workdir or default_workdir(), rows=rows, memories=memory, skews=skew, copies=copies,
        joins=joins, io=io, seconds=seconds, tell=render.note,
        clock=ProcessorClock() if cpu_time else SystemClock(),
    ):  # fmt: skip
        done.append(cell)
        render.note(f"        {cell.chosen} is {cell.of_best:.2f} of the best, {cell.best}")
    if as_json:
        render.document([cell.to_dict() for cell in done])
    else:
        columns = ("memory", "skew", "rows a key", "auto is", "rows/s", "best", "rows/s ", "share",
                   "verified")  # fmt: skip
        render.table(
            columns,
            [
                (one.memory, f"{one.skew:g}", str(one.copies), one.chosen,
                 render.count(one.auto_rows_per_s), one.best, render.count(one.best_rows_per_s),
                 f"{one.of_best:.2f}", "yes" if one.verified else render.bold("NO"))
                for one in done
            ],
            right=set(columns) - {"auto is", "best"},
        )  # fmt: skip
    ctx.exit(0 if all(one.verified and one.of_best >= LEAST for one in done) else 1)
