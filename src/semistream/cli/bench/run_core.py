"""`semistream bench run core`: every join, warm, on one master."""

from __future__ import annotations

import shutil
from itertools import groupby
from pathlib import Path

import click

from semistream.bench import results
from semistream.bench.core import CORE_JOINS, DISKS, CoreOptions, CoreResult, run_core
from semistream.bench.masters import LAYOUTS, default_workdir, master_path
from semistream.cli import render
from semistream.cli.options import (
    joins_option,
    json_option,
    memories_option,
    out_option,
    skews_option,
    workdir_option,
)
from semistream.core.budget import format_bytes
from semistream.joins.registry import DEFAULT, DISK_JOINS
from semistream.store.file import IO_MODES


@click.command("core")
@click.option("--rows", type=int, default=2_000_000, show_default=True, help="Rows of the master.")
@memories_option("1%,5%")
@skews_option("0,1")
@joins_option(",".join(CORE_JOINS))
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="key",
    show_default=True,
    help="Order of the master's rows: by key, or those first that sell most.",
)
@click.option(
    "--io", type=click.Choice(IO_MODES), default="direct", show_default=True, help="Way of reading."
)
@click.option(
    "--disk",
    type=click.Choice(DISKS),
    default="this",
    show_default=True,
    help="Disk for which sweepjoin plans: this one, or the papers' (seek 8 ms, page 0.1 ms).",
)
@click.option("--stream-rows", type=int, help="Rows of the stream before it repeats.")
@click.option("--seconds", type=float, help="Seconds of a cell. [default: 4, more beyond 4 M rows]")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the stream.")
@workdir_option
@click.option(
    "--keep/--no-keep", default=True, show_default=True, help="Keep the master for the next run."
)
@out_option
@json_option
@click.pass_context
def run_core_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    joins: tuple[str, ...],
    layout: str,
    io: str,
    disk: str,
    stream_rows: int | None,
    seconds: float | None,
    seed: int,
    workdir: Path | None,
    keep: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run every join with every memory and skew on a master of products.

    Reports rows/s of the warm join, reads per row, hits, and memory as accounted and as the
    process grew. Ends with code 1 if a result is not what DuckDB's join gives.
    """
    options = CoreOptions(
        rows=rows,
        memories=memory,
        skews=skew,
        joins=DISK_JOINS if joins == ("all",) else joins,
        layout=layout,
        io=io,
        disk=disk,
        stream_rows=stream_rows,
        seconds=seconds,
        seed=seed,
    )
    folder = default_workdir() if workdir is None else workdir
    render.note(
        f"{options.cells} cells: {len(options.joins)} joins x {len(memory)} memories x "
        f"{len(skew)} skews, {options.cell_s:g} s each"
    )
    done: list[CoreResult] = []
    try:
        for result in run_core(options, folder, tell=render.note):
            done.append(result)
            render.note(f"        {render.count(result.rows_per_s)} rows/s{_doubt(result)}")
    finally:
        if not keep:
            path = master_path(folder, rows, seed=0, sold_by=options.sold_by)
            shutil.rmtree(path, ignore_errors=True)
    plain = [result.to_dict() for result in done]
    if out is not None:
        parameters = {
            "rows": rows,
            "memory": list(memory),
            "skew": list(skew),
            "joins": list(options.joins),
            "layout": layout,
            "io": io,
            "stream_rows": options.preloaded_rows,
            "seconds": options.cell_s,
            "seed": seed,
        }
        render.note(f"stored as {results.store(out, 'core', parameters, plain)}")
    if as_json:
        render.document(plain)
    else:
        _show(done)
    ctx.exit(0 if all(result.verified for result in done) else 1)


def _doubt(result: CoreResult) -> str:
    return "" if result.verified else ", NOT what DuckDB's join gives"


def _show(done: list[CoreResult]) -> None:
    columns = (
        "memory",
        "skew",
        "join",
        "rows/s",
        f"of {DEFAULT}",
        "pages/row",
        "requests/row",
        "hits",
        "accounted",
        "resident",
        "p99 wait",
        "old disk rows/s",
        "verified",
    )
    groups = []
    for _, group in groupby(done, key=lambda result: (result.memory, result.skew)):
        cells = list(group)
        best = max(cell.rows_per_s for cell in cells)
        ours = next((cell.rows_per_s for cell in cells if cell.join == DEFAULT), None)
        groups.append([_row(cell, best, ours) for cell in cells])
    render.table(columns, *groups, right=set(columns) - {"join"})


def _row(cell: CoreResult, best: float, ours: float | None) -> tuple[render.Cell, ...]:
    rate = render.count(cell.rows_per_s)
    modelled = cell.modelled_rows_per_s
    return (
        cell.memory,
        f"{cell.skew:g}",
        cell.join,
        render.bold(rate) if cell.rows_per_s == best else rate,
        f"{cell.rows_per_s / ours:.2f}" if ours else "",
        f"{cell.pages_per_row:.4f}",
        f"{cell.requests_per_row:.4f}",
        f"{cell.hit_share:.0%}",
        format_bytes(cell.peak_accounted_bytes),
        format_bytes(cell.peak_rss_growth_bytes),
        f"{cell.latency_p99_s:.3f} s",
        "no reads" if modelled is None else render.count(modelled),
        "yes" if cell.verified else render.bold("NO"),
    )
