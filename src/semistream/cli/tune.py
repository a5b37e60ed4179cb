"""`semistream tune`: which join, with which plan, for a memory or for a rate."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from semistream.bench.plots import pyplot
from semistream.cli import render
from semistream.cli.options import json_option, names
from semistream.core.budget import format_bytes, parse_bytes
from semistream.core.errors import OptionError
from semistream.cost import MODELS
from semistream.cost.calibrate import USUAL_JOINS, calibrated
from semistream.cost.frequencies import Frequencies
from semistream.cost.tuner import Tuned, ranked
from semistream.cost.units import PAPER_SYMBOLS, ModelledDisk, UnitCosts, counted
from semistream.cost.workload import Workload, keys_of
from semistream.store.file import IO_MODES, FileMaster, open_master
from semistream.store.sources import open_source

BAR = 40


@click.command()
@click.argument("master", type=click.Path(path_type=Path))
@click.option("--memory", help="A budget: the plan with the highest rate. 64MB, or 5%.")
@click.option("--rate", type=float, help="Rows per second: the plan with the least memory.")
@click.option(
    "--joins", callback=names, metavar="NAME[,NAME…]", default="usual", show_default=True,
    help="Joins to choose from: some, the usual ones (with all that `auto` knows), or all.",
)  # fmt: skip
@click.option(
    "--skew", type=click.FloatRange(min=0), default=1.0, show_default=True,
    help="Zipf exponent of the stream's keys.",
)  # fmt: skip
@click.option(
    "--stream", type=click.Path(path_type=Path),
    help="Some of the stream, as Parquet, CSV or Arrow: its keys' frequencies are used.",
)  # fmt: skip
@click.option(
    "--stream-bytes", type=int, default=12, show_default=True,
    help="Bytes of a stream row besides its key, without --stream.",
)  # fmt: skip
@click.option(
    "--io", type=click.Choice(IO_MODES), default="buffered", show_default=True,
    help="Way of reading.",
)  # fmt: skip
@click.option(
    "--disk", metavar="SEEK_MS,PAGE_MS",
    help="A modelled disk in the place of the measured one, such as 8,0.1 of the papers' time.",
)  # fmt: skip
@click.option(
    "--calibration", type=click.Path(path_type=Path, dir_okay=False),
    help="Where unit costs are kept. [default: in the user's cache]",
)  # fmt: skip
@click.option("--calibrate", "anew", is_flag=True, help="Measure this machine again.")
@click.option(
    "--explain", is_flag=True, help="Show every join asked for, and where the time of a loop goes."
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the curve: .svg or .png."
)
@json_option
def tune(
    master: Path,
    memory: str | None,
    rate: float | None,
    joins: tuple[str, ...],
    skew: float,
    stream: Path | None,
    stream_bytes: int,
    io: str,
    disk: str | None,
    calibration: Path | None,
    anew: bool,
    explain: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Find a join and its plan: the highest rate for a memory, the least memory for a rate.

    With both, the plan for the memory is shown, and whether it reaches the rate.
    """
    if memory is None and rate is None:
        raise OptionError("neither --memory nor --rate is given", hint="give one of them")
    if joins in (("usual",), ("all",)):
        joins = USUAL_JOINS if joins == ("usual",) else tuple(MODELS)
    costs = _costs(calibration, anew, joins, master.parent)
    if disk is not None:
        costs = costs.with_disk(_disk(disk))
    with open_master(master, io=io) as opened:
        workload = _workload(opened, skew, stream, stream_bytes)
        size = None if memory is None else parse_bytes(memory, of=opened.data_bytes)
    found = ranked(
        workload,
        costs,
        memory_bytes=size,
        rate=rate if size is None else None,
        joins=joins,
    )
    best = found[0]
    if plot is not None:
        _draw(best, plot)
    if as_json:
        render.document(_plain(best, found, rate))
        return
    _show(best, rate)
    if explain:
        _explain(found, workload, costs)


def _costs(path: Path | None, anew: bool, joins: Sequence[str], folder: Path) -> UnitCosts:
    disk = folder if folder.is_dir() else None
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = calibrated(path, joins=joins, anew=anew, folder=disk, tell=render.note)
    for one in heard:
        render.note(f"warning: {one.message}")
    return found.costs


def _disk(text: str) -> ModelledDisk:
    try:
        seek, page = (float(part) / 1e3 for part in text.split(","))
    except ValueError:
        raise OptionError(
            f"--disk {text} is not a seek and a page in milliseconds", hint="write 8,0.1"
        ) from None
    if not (seek >= 0 and page > 0):
        raise OptionError(f"--disk {text} has times below zero", hint="write 8,0.1")
    return ModelledDisk(seek, page)


def _workload(master: FileMaster, skew: float, stream: Path | None, other_bytes: int) -> Workload:
    names = list(master.spec.names)
    if stream is None:
        fields = [master.schema.field(name) for name in names]
        if other_bytes > 0:
            fields.append(pa.field("\0other", pa.binary(other_bytes), nullable=False))
        return Workload.of(master, pa.schema(fields), names, skew=skew)
    source = open_source(stream)
    batch = next(iter(source.batches()), None)
    if batch is None or not batch.num_rows:
        raise OptionError(f"{str(stream)!r} has no rows", hint="give some rows of the stream")
    plain = Workload.of(master, batch.schema, names)
    from semistream.joins.binding import Binding

    keys = Binding.of(batch.schema, master, names, "inner", None).keys(batch)[0]
    return plain.asked(Frequencies.seen(keys.key64[keys.valid != 0], keys_of(master)))


def _show(best: Tuned, rate: float | None) -> None:
    said = best.prediction
    plan = said.plan
    options = ", ".join(f"{name}={value}" for name, value in plan.settings.items()) or "none"
    pairs: list[tuple[str, render.Cell]] = [
        ("join", render.bold(best.join)),
        ("options", options),
        ("memory", format_bytes(plan.memory_bytes)),
        ("predicted", f"{said.rows_per_s:,.0f} rows/s"),
    ]
    if rate is not None:
        pairs.append(("reaches the rate", "yes" if said.rows_per_s >= rate else "NO"))
    pairs += [
        ("c_loop", f"{said.c_loop_s * 1e3:.3f} ms, {said.loop.rows:,.0f} rows"),
        ("hits", f"{said.loop.hit_share:.0%}"),
        ("reads", f"{said.loop.pages / said.loop.rows:.4f} pages a row"),
    ]
    pairs += [(f"memory: {name}", format_bytes(size)) for name, size in plan.shares.items()]
    render.facts("plan", pairs)
    _curve(best)


def _curve(best: Tuned) -> None:
    if not best.curve:
        return
    top = max(point.rows_per_s for point in best.curve) or 1.0
    columns = (best.over, "rows/s", "curve")
    rows = [
        (
            format_bytes(point.value) if best.over in ("memory", "chunk") else f"{point.value:g}",
            render.count(point.rows_per_s),
            "#" * max(round(BAR * point.rows_per_s / top), 1),
        )
        for point in best.curve
    ]
    render.table(columns, rows, right=set(columns) - {"curve"})


def _explain(found: list[Tuned], workload: Workload, costs: UnitCosts) -> None:
    columns = ("join", "memory", "rows/s", "rows a loop", "c_loop ms", "hits", "pages/row")
    render.table(
        columns,
        [
            (
                one.join,
                format_bytes(one.prediction.plan.memory_bytes),
                render.count(one.rows_per_s),
                f"{one.prediction.loop.rows:,.0f}",
                f"{one.prediction.c_loop_s * 1e3:.3f}",
                f"{one.prediction.loop.hit_share:.0%}",
                f"{one.prediction.loop.pages / one.prediction.loop.rows:.4f}",
            )
            for one in found
        ],
        right=set(columns) - {"join"},
    )
    from semistream.cost import MODELS

    best = found[0].prediction
    cost = costs.at(best.plan.memory_bytes)
    parts = counted(best.loop, by_index=MODELS[best.join].by_index)
    seconds = {name: count * getattr(cost, name) for name, count in parts.items()}
    seconds["c_IO"] = costs.io_s(best.loop, workload.io)
    total = sum(seconds.values()) or 1.0
    render.table(
        ("cost", "symbol", "of the loop"),
        [
            (name, PAPER_SYMBOLS.get(name, ""), f"{part / total:.0%}")
            for name, part in sorted(seconds.items(), key=lambda one: -one[1])
            if part
        ],
        right={"of the loop"},
    )


def _plain(best: Tuned, found: list[Tuned], rate: float | None) -> dict[str, Any]:
    said = best.prediction
    return {
        "join": best.join,
        "options": best.options,
        "memory_bytes": said.plan.memory_bytes,
        "shares": dict(said.plan.shares),
        "predicted_rows_per_s": said.rows_per_s,
        "predicted_c_loop_s": said.c_loop_s,
        "reaches_rate": None if rate is None else said.rows_per_s >= rate,
        "loop": asdict(said.loop),
        "curve": {"over": best.over, "points": [asdict(point) for point in best.curve]},
        "others": [
            {
                "join": one.join,
                "memory_bytes": one.prediction.plan.memory_bytes,
                "predicted_rows_per_s": one.rows_per_s,
            }
            for one in found[1:]
        ],
    }


def _draw(best: Tuned, path: Path) -> None:
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise OptionError(f"--plot {path} is no picture", hint="end it in .svg or .png")
    plots = pyplot("--plot")
    figure, axes = plots.subplots(figsize=(6, 4))
    axes.plot([point.value for point in best.curve], [point.rows_per_s for point in best.curve],
              marker="o")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(f"{best.over} (bytes)" if best.over in ("memory", "chunk") else best.over)
    axes.set_ylabel("predicted rows/s")
    axes.set_ylim(bottom=0)
    axes.set_title(best.join)
    figure.tight_layout()
    figure.savefig(path)
    plots.close(figure)
    render.note(f"drawn into {path}")
