"""`semistream bench run cost-models|buffer-size|least-memory`: predictions beside measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

import click

from semistream.bench.core import CoreOptions
from semistream.bench.cost_models import CostCell, run_buffers, run_cells, run_least_memory
from semistream.bench.masters import default_workdir
from semistream.cli import render
from semistream.cli.options import (
    joins_option,
    json_option,
    memories_option,
    skews_option,
    workdir_option,
)
from semistream.core.budget import format_bytes
from semistream.core.clock import Clock, ProcessorClock, SystemClock
from semistream.core.errors import OptionError
from semistream.cost.calibrate import Calibration, JoinTimer, join_timer
from semistream.cost.units import UnitCosts
from semistream.joins.registry import JOINS
from semistream.store.file import IO_MODES

MEDIAN_ERROR, MOST_ERROR = 0.15, 0.40
"""What predictions are held to."""


@dataclass(frozen=True)
class Setting:
    """What the three commands are told alike: the grid, where, by which clock, at which costs."""

    grid: CoreOptions
    folder: Path
    clock: Clock
    costs: UnitCosts
    timer: JoinTimer | None


def grid_command(
    name: str, *, joins: str, memory: str, skew: str
) -> Callable[[Callable[..., bool]], click.Command]:
    """A command that takes a grid and ends with code 1 unless its function returns True.

    The function gets a `Setting`, its own options, and `as_json`.
    """

    def decorate(function: Callable[..., bool]) -> click.Command:
        @wraps(function)
        def run(
            rows: int,
            memory: tuple[str, ...],
            skew: tuple[float, ...],
            joins: tuple[str, ...],
            io: str,
            seconds: float,
            cpu_time: bool,
            calibration: Path | None,
            workdir: Path | None,
            **own: Any,
        ) -> None:
            chosen = tuple(JOINS) if joins == ("all",) else joins
            grid = CoreOptions(
                rows=rows, memories=memory, skews=skew, joins=chosen, io=io, seconds=seconds
            )
            folder, clock = workdir or default_workdir(), _clock(cpu_time, io)
            with _costs(calibration, folder) as (costs, timer):
                good = function(Setting(grid, folder, clock, costs, timer), **own)
            click.get_current_context().exit(0 if good else 1)

        made: Any = json_option(run)
        for option in (
            workdir_option,
            click.option(
                "--calibration",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Unit costs to use. [default: measured now]",
            ),
            click.option(
                "--cpu-time",
                is_flag=True,
                help="Measure processor time: for buffered reads on a machine that others use too.",
            ),
            click.option(
                "--seconds",
                type=float,
                default=3.0,
                show_default=True,
                help="Seconds of a cell, or for which a rate must hold.",
            ),
            click.option(
                "--io",
                type=click.Choice(IO_MODES),
                default="buffered",
                show_default=True,
                help="Way of reading.",
            ),
            joins_option(joins),
            skews_option(skew),
            memories_option(memory),
            click.option(
                "--rows",
                type=int,
                default=2_000_000,
                show_default=True,
                help="Rows of the master.",
            ),
        ):
            made = option(made)
        return click.command(name)(made)

    return decorate


def _clock(cpu_time: bool, io: str) -> Clock:
    if cpu_time and io != "buffered":
        raise OptionError("--cpu-time does not see waiting for direct reads", hint="leave it out")
    return ProcessorClock() if cpu_time else SystemClock()


@contextmanager
def _costs(calibration: Path | None, folder: Path) -> Iterator[tuple[UnitCosts, JoinTimer | None]]:
    """Unit costs that are kept in a file, or those of now with what measures them again."""
    if calibration is not None:
        yield Calibration.load(calibration).costs, None
        return
    render.note("unit costs of this machine")
    folder.mkdir(parents=True, exist_ok=True)
    with join_timer(folder, tell=render.note) as timer:
        yield timer.calibration(tell=render.note).costs, timer


@grid_command("cost-models", joins="all", memory="1%,5%,10%", skew="0,1")
@click.option(
    "--settle", type=float, default=30.0, show_default=True,
    help="Seconds that a cache may take to fill before a cell is measured.",
)  # fmt: skip
def run_cost_models_command(setting: Setting, settle: float, as_json: bool) -> bool:
    """Compare predicted with measured rates and c_loop of every join.

    Without --calibration the costs of each join are measured again before its cells and between
    their parts.

    Ends with code 1 if a result is not what DuckDB's join gives, if the median error is above
    15 %, or any above 40 %.
    """
    done: list[CostCell] = []
    for cell in run_cells(
        setting.grid,
        setting.folder,
        setting.costs,
        timer=setting.timer,
        settle_s=settle,
        tell=render.note,
        clock=setting.clock,
    ):
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
    return good


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


@grid_command("buffer-size", joins="meshjoin,hybridjoin", memory="5%", skew="0")
def run_buffers_command(setting: Setting, as_json: bool) -> bool:
    """Vary the size of reads: is the best where the model says?

    Sizes double from one to the next. Ends with code 1 if the two are more than one step apart, or
    a result is not what DuckDB's join gives.
    """
    done = list(
        run_buffers(
            setting.grid, setting.folder, setting.costs, tell=render.note, clock=setting.clock
        )
    )
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
    return all(one.verified and one.steps_apart <= 1 for one in done)


@grid_command("least-memory", joins="meshjoin", memory="5%", skew="0")
@click.option("--rate", type=float, default=300_000, show_default=True, help="Rows per second.")
def run_least_memory_command(setting: Setting, rate: float, as_json: bool) -> bool:
    """Offer a rate to a join with the least memory for it, and with 70 % of that.

    `--seconds 30` is the time for which it must hold. Ends with code 1 if it does not, or if 70 %
    would have been enough.
    """
    done = list(
        run_least_memory(
            setting.grid,
            setting.folder,
            setting.costs,
            rate=rate,
            seconds=setting.grid.cell_s,
            tell=render.note,
            clock=setting.clock,
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
    return all(one.held == (one.share >= 1) for one in done)
