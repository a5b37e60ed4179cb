"""`semistream bench run cost-models|buffer-size|least-memory`: predictions beside measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import click

from semistream.bench.core import CoreOptions
from semistream.bench.cost_models import CostCell, run_buffers, run_cells, run_least_memory
from semistream.bench.masters import default_workdir
from semistream.cli import render
from semistream.cli.options import json_option, names, numbers
from semistream.core.budget import format_bytes
from semistream.core.clock import Clock, ProcessorClock, SystemClock
from semistream.core.errors import OptionError
from semistream.cost.calibrate import Calibration, calibrate
from semistream.cost.units import UnitCosts
from semistream.joins.registry import JOINS
from semistream.store.file import IO_MODES

_F = TypeVar("_F", bound=Callable[..., Any])

MEDIAN_ERROR, MOST_ERROR = 0.15, 0.40
"""What predictions are held to."""


def _grid_options(joins: str, memory: str, skew: str) -> Callable[[_F], _F]:
    """The options that the three commands share, with their defaults."""

    def decorate(command: _F) -> _F:
        for option in reversed(
            (
                click.option("--rows", type=int, default=2_000_000, show_default=True,
                             help="Rows of the master."),
                click.option("--memory", callback=names, metavar="SIZE[,SIZE…]", default=memory,
                             show_default=True, help="Memories: 64MB, or 5% of the master."),
                click.option("--skew", callback=numbers, metavar="NUMBER[,NUMBER…]", default=skew,
                             show_default=True, help="Zipf exponents of the stream's keys."),
                click.option("--joins", callback=names, metavar="NAME[,NAME…]", default=joins,
                             show_default=True, help="Joins to run, or all."),
                click.option("--io", type=click.Choice(IO_MODES), default="buffered",
                             show_default=True, help="Way of reading."),
                click.option("--seconds", type=float, default=3.0, show_default=True,
                             help="Seconds of a cell."),
                click.option("--cpu-time", is_flag=True, help="Measure processor time: for "
                             "buffered reads on a machine that others use too."),
                click.option("--calibration", type=click.Path(path_type=Path, dir_okay=False),
                             help="Unit costs to use. [default: measured now]"),
                click.option("--workdir", type=click.Path(path_type=Path, file_okay=False),
                             help="Where masters are kept. "
                             "[default: a folder below the system's temporary one]"),
            )
        ):  # fmt: skip
            command = option(command)
        return command

    return decorate


def _clock(cpu_time: bool, io: str) -> Clock:
    if cpu_time and io != "buffered":
        raise OptionError("--cpu-time does not see waiting for direct reads", hint="leave it out")
    return ProcessorClock() if cpu_time else SystemClock()


def _costs(calibration: Path | None, folder: Path, clock: Clock) -> UnitCosts:
    if calibration is not None:
        return Calibration.load(calibration).costs
    render.note("unit costs of this machine")
    folder.mkdir(parents=True, exist_ok=True)
    return calibrate(folder, clock=clock, tell=render.note).costs


def _grid(
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    joins: tuple[str, ...],
    io: str,
    seconds: float,
) -> CoreOptions:
    chosen = tuple(JOINS) if joins == ("all",) else joins
    return CoreOptions(rows=rows, memories=memory, skews=skew, joins=chosen, io=io, seconds=seconds)


@click.command("cost-models")
@_grid_options(joins="all", memory="1%,5%,10%", skew="0,1")
@click.option(
    "--settle", type=float, default=30.0, show_default=True,
    help="Seconds that a cache may take to fill before a cell is measured.",
)  # fmt: skip
@json_option
@click.pass_context
def run_cost_models_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    joins: tuple[str, ...],
    io: str,
    seconds: float,
    cpu_time: bool,
    calibration: Path | None,
    workdir: Path | None,
    settle: float,
    as_json: bool,
) -> None:
    """Compare predicted with measured rates and c_loop of every join.

    Ends with code 1 if a result is not what DuckDB's join gives, if the median error is above
    15 %, or any above 40 %.
    """
    grid = _grid(rows, memory, skew, joins, io, seconds)
    folder = workdir or default_workdir()
    done: list[CostCell] = []
    clock = _clock(cpu_time, io)
    costs = _costs(calibration, folder, clock)
    for cell in run_cells(grid, folder, costs, settle_s=settle, tell=render.note, clock=clock):
        done.append(cell)
        render.note(
            f"          {render.count(cell.measured_rows_per_s)} rows/s, predicted "
            f"{render.count(cell.predicted_rows_per_s)}"
        )
    if as_json:
        render.document([cell.to_dict() for cell in done])
    else:
        _show(done)
    good = bool(done) and all(cell.verified for cell in done)
    for errors in ([one.rate_error for one in done], [one.loop_error for one in done]):
        good = good and median(errors) <= MEDIAN_ERROR and max(errors) <= MOST_ERROR
    ctx.exit(0 if good else 1)


def _show(done: list[CostCell]) -> None:
    columns = (
        "join", "memory", "skew", "rows/s", "predicted", "off", "c_loop ms", "predicted ",
        "off ", "hits", "predicted  ", "verified",
    )  # fmt: skip
    rows = [
        (
            one.join,
            one.memory,
            f"{one.skew:g}",
            render.count(one.measured_rows_per_s),
            render.count(one.predicted_rows_per_s),
            f"{one.predicted_rows_per_s / one.measured_rows_per_s - 1:+.0%}",
            f"{one.measured_c_loop_s * 1e3:.3f}",
            f"{one.predicted_c_loop_s * 1e3:.3f}",
            f"{one.predicted_c_loop_s / one.measured_c_loop_s - 1:+.0%}",
            f"{one.measured_hit_share:.0%}",
            f"{one.predicted_hit_share:.0%}",
            "yes" if one.verified else render.bold("NO"),
        )
        for one in done
    ]
    render.table(columns, rows, right=set(columns) - {"join"})
    if done:
        for what, errors in (
            ("rate", [one.rate_error for one in done]),
            ("c_loop", [one.loop_error for one in done]),
        ):
            render.line(f"{what}: median error {median(errors):.1%}, largest {max(errors):.0%}")


@click.command("buffer-size")
@_grid_options(joins="meshjoin,hybridjoin", memory="5%", skew="0")
@json_option
@click.pass_context
def run_buffers_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    joins: tuple[str, ...],
    io: str,
    seconds: float,
    cpu_time: bool,
    calibration: Path | None,
    workdir: Path | None,
    as_json: bool,
) -> None:
    """Vary the size of reads: is the best where the model says?

    Sizes double from one to the next. Ends with code 1 if the two are more than one step apart, or
    a result is not what DuckDB's join gives.
    """
    grid = _grid(rows, memory, skew, joins, io, seconds)
    folder = workdir or default_workdir()
    clock = _clock(cpu_time, io)
    costs = _costs(calibration, folder, clock)
    done = list(run_buffers(grid, folder, costs, tell=render.note, clock=clock))
    if as_json:
        render.document([one.to_dict() for one in done])
    else:
        columns = ("join", "memory", "skew", "size", "rows/s", "predicted")
        groups = [
            [
                (one.join, one.memory, f"{one.skew:g}", f"{one.option} {value:g}",
                 render.count(measured), render.count(said))
                for value, measured, said in zip(
                    one.values, one.measured_rows_per_s, one.predicted_rows_per_s, strict=True
                )
            ]
            for one in done
        ]  # fmt: skip
        render.table(columns, *groups, right=set(columns) - {"join"})
        for one in done:
            render.line(
                f"{one.join}, {one.memory}: {one.steps_apart} steps apart; the predicted best "
                f"loses {one.lost:.1%}"
            )
    ctx.exit(0 if all(one.verified and one.steps_apart <= 1 for one in done) else 1)


@click.command("least-memory")
@_grid_options(joins="meshjoin", memory="5%", skew="0")
@click.option("--rate", type=float, default=300_000, show_default=True, help="Rows per second.")
@json_option
@click.pass_context
def run_least_memory_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    joins: tuple[str, ...],
    io: str,
    seconds: float,
    cpu_time: bool,
    calibration: Path | None,
    workdir: Path | None,
    rate: float,
    as_json: bool,
) -> None:
    """Offer a rate to a join with the least memory for it, and with 70 % of that.

    `--seconds 30` is the time for which it must hold. Ends with code 1 if it does not, or if 70 %
    would have been enough.
    """
    grid = _grid(rows, memory, skew, joins, io, seconds)
    folder = workdir or default_workdir()
    clock = _clock(cpu_time, io)
    costs = _costs(calibration, folder, clock)
    done = list(
        run_least_memory(
            grid, folder, costs, rate=rate, seconds=seconds, tell=render.note, clock=clock
        )
    )
    if as_json:
        render.document([one.to_dict() for one in done])
    else:
        columns = ("join", "rows/s", "memory", "of the least", "seconds", "backlog", "held")
        render.table(
            columns,
            [
                (one.join, render.count(one.rate), format_bytes(one.memory_bytes),
                 f"{one.share:.0%}", f"{one.seconds:g}", f"{one.backlog_rows:,}",
                 "yes" if one.held else "no")
                for one in done
            ],
            right=set(columns) - {"join"},
        )  # fmt: skip
    ctx.exit(0 if all(one.held == (one.share >= 1) for one in done) else 1)
