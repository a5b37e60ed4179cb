"""`semistream bench limits`: what the machine allows, and how near the joins come."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.bench import results
from semistream.bench.limits import LimitsResult, MachineLimits, measure_machine, run_limits
from semistream.bench.masters import default_workdir, product_master
from semistream.bench.side_by_side import CACHES, PeersOptions
from semistream.cli import render
from semistream.cli.options import (
    batch_rows_option,
    json_option,
    memories_option,
    names,
    out_option,
    skews_option,
    workdir_option,
)


@click.command("limits")
@click.option("--rows", type=int, default=10_000_000, show_default=True, help="Rows of the master.")
@memories_option("5%,1%,10%")
@skews_option("1,0,0.5")
@batch_rows_option("100000,10000,1000000")
@click.option(
    "--cache",
    callback=names,
    metavar="NAME[,NAME…]",
    default=",".join(CACHES),
    show_default=True,
    help="Files in the operating system's cache (warm), or direct reads (cold).",
)
@click.option(
    "--seconds", type=float, default=5.0, show_default=True, help="Seconds of a join in a cell."
)
@click.option(
    "--spark/--no-spark", default=True, show_default=True, help="Measure Spark's identity too."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the stream.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Write the tables into this Markdown file, between its marks.",
)
@workdir_option
@out_option
@json_option
@click.pass_context
def limits_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    batch_rows: tuple[int, ...],
    cache: tuple[str, ...],
    seconds: float,
    spark: bool,
    seed: int,
    report: Path | None,
    workdir: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure the disk, the memory and Spark, bound the reads, and name the limit of each cell.

    The grid is that of `bench peers`. Ends with code 1 if a result is not what DuckDB's join gives.
    """
    options = PeersOptions(
        rows=rows,
        memories=memory,
        skews=skew,
        batch_rows=batch_rows,
        caches=cache,
        seconds=seconds,
        seed=seed,
    )
    folder = default_workdir() if workdir is None else workdir
    folder.mkdir(parents=True, exist_ok=True)
    render.note(f"the master of {rows:,} rows")
    with (
        product_master(folder, rows) as master,
        product_master(folder, rows, io="buffered") as buffered,
    ):
        machine = measure_machine(master, buffered, tell=render.note)
    done = []
    for one in run_limits(options, folder, machine, tell=render.note):
        done.append(one)
        render.note(
            f"        {one.system}: {render.count(one.rows_per_s)} rows/s, "
            f"{one.share_of_limit:.0%} of the limit ({one.binds})"
        )
    identity = _identity(options, folder) if spark else None
    plain = {
        "machine": machine.to_dict(),
        "spark_identity_rows_per_s": identity,
        "cells": [one.to_dict() for one in done],
    }
    if out is not None:
        parameters = {"rows": rows, "memory": list(memory), "skew": list(skew), "seed": seed}
        render.note(f"stored as {results.store(out, 'limits', parameters, [plain])}")
    if report is not None:
        from semistream.bench.limits_report import write_report

        write_report(report, machine, done, identity, results.environment(), rows)
        render.note(f"written: {report}")
    if as_json:
        render.document(plain)
    else:
        _show(machine, done, identity)
    ctx.exit(0 if all(one.verified for one in done) else 1)


def _identity(options: PeersOptions, folder: Path) -> float | None:
    """Rows per second of Spark's identity pipeline in the middle of the grid."""
    from semistream.cli.bench.peers import spark_session

    with spark_session(folder) as session:
        if session is None:
            return None
        from semistream.bench.spark import IDENTITY, SparkOptions, run_spark

        spark = SparkOptions(
            rows=options.rows,
            batch_rows=options.batch_rows[:1],
            skew=options.skews[0],
            systems=(IDENTITY,),
            seconds=options.seconds,
            seed=options.seed,
        )
        (found,) = run_spark(spark, folder, session, tell=render.note)
        return found.rows_per_s


def _show(machine: MachineLimits, done: list[LimitsResult], identity: float | None) -> None:
    from semistream.bench.limits_report import facts

    render.facts("This machine", facts(machine, identity))
    columns = (
        "memory",
        "skew",
        "batch rows",
        "cache",
        "join",
        "rows/s",
        "pages/row",
        "MIN on pages",
        "fewest",
        "limit",
        "rows/s at the limit",
        "share",
        "verified",
    )
    lines = [
        (
            one.memory,
            f"{one.skew:g}",
            f"{one.batch_rows:,}",
            one.cache,
            one.system,
            render.count(one.rows_per_s),
            f"{one.pages:.3f}",
            f"{one.best_page_cache:.3f}",
            f"{one.fewest_pages:.3f}",
            one.binds,
            render.count(one.rows_per_s / one.share_of_limit) if one.share_of_limit else "",
            f"{one.share_of_limit:.0%}",
            "yes" if one.verified else render.bold("NO"),
        )
        for one in done
    ]
    render.table(columns, lines, right=set(columns) - {"join", "cache", "limit"})
