"""`semistream bench run spark`: enrich beside Spark's own joins."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from semistream.bench import results
from semistream.bench.masters import default_workdir
from semistream.cli import render
from semistream.cli.options import (
    batch_rows_option,
    json_option,
    names,
    out_option,
    workdir_option,
)
from semistream.etl.pipeline import Spark

if TYPE_CHECKING:
    from semistream.bench.spark import SparkResult


@click.command("spark")
@click.option("--rows", type=int, default=10_000_000, show_default=True, help="Rows of the master.")
@batch_rows_option("10000,100000")
@click.option("--memory", default="5%", show_default=True, help="Memory of the whole join.")
@click.option("--skew", type=click.FloatRange(min=0), default=1.0, show_default=True)
@click.option(
    "--systems",
    callback=names,
    metavar="NAME[,NAME…]",
    default="all",
    show_default=True,
    help="What to compare.",
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Turns of each system.")
@click.option(
    "--seconds",
    type=float,
    default=6.0,
    show_default=True,
    help="Measured seconds of a round, after as many that are not measured.",
)
@click.option("--max-wait", default="2 seconds", show_default=True, help="Of semistream-waiting.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the stream.")
@workdir_option
@out_option
@json_option
@click.pass_context
def run_spark_command(
    ctx: click.Context,
    rows: int,
    batch_rows: tuple[int, ...],
    memory: str,
    skew: float,
    systems: tuple[str, ...],
    rounds: int,
    seconds: float,
    max_wait: str,
    seed: int,
    workdir: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure enrich and Spark's own stream-static joins in one Spark session, in turns.

    Reports rows/s of warm micro-batches and where their time goes. Ends with code 1 if a result is
    not what DuckDB's join gives.
    """
    from semistream.bench.spark import SETTINGS, USUAL, SparkOptions, run_spark
    from semistream.cli import streaming

    options = SparkOptions(
        rows=rows,
        batch_rows=batch_rows,
        memory=memory,
        skew=skew,
        systems=USUAL if systems == ("all",) else systems,
        rounds=rounds,
        seconds=seconds,
        max_wait=max_wait,
        seed=seed,
    )
    folder = default_workdir() if workdir is None else workdir
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "spark.log"
    render.note(f"{options.cells} cells; Spark's log: {log}")
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    done: list[SparkResult] = []
    with streaming.session(
        Spark(name="semistream-bench", settings={**SETTINGS, **warehouse}), log
    ) as session:
        for result in run_spark(options, folder, session, tell=render.note):
            done.append(result)
            doubt = "" if result.verified else ", NOT what DuckDB's join gives"
            render.note(f"        {render.count(result.rows_per_s)} rows/s{doubt}")
    plain = [result.to_dict() for result in done]
    if out is not None:
        parameters = {
            "rows": rows,
            "batch_rows": list(batch_rows),
            "memory": memory,
            "skew": skew,
            "systems": list(options.systems),
            "rounds": rounds,
            "seconds": seconds,
            "max_wait": max_wait.replace(" ", ""),
            "seed": seed,
        }
        render.note(f"stored as {results.store(out, 'spark', parameters, plain)}")
    if as_json:
        render.document(plain)
    else:
        _show(done)
    ctx.exit(0 if all(result.verified for result in done) else 1)


_PHASES = ("addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets")


def _show(done: list[SparkResult]) -> None:
    columns = (
        "batch rows",
        "system",
        "rows/s",
        "least",
        "most",
        "of the best of Spark's joins",
        "batch ms",
        *_PHASES,
        "other",
        "join busy ms",
        "tasks",
        "hits",
        "verified",
    )
    groups = []
    for _, group in groupby(done, key=lambda result: result.batch_rows):
        cells = list(group)
        best = max((one.rows_per_s for one in cells if _is_join_of_spark(one.system)), default=None)
        groups.append([_row(cell, best) for cell in cells])
    render.table(columns, *groups, right=set(columns) - {"system"})


def _is_join_of_spark(system: str) -> bool:
    return system.startswith("spark-") and not system.startswith("spark-identity")


def _row(cell: SparkResult, best: float | None) -> tuple[render.Cell, ...]:
    whole = cell.batch_ms.get("triggerExecution", 0.0)
    phases = [cell.batch_ms.get(name, 0.0) for name in _PHASES]
    ours = cell.join_tasks > 0
    return (
        f"{cell.batch_rows:,}",
        cell.system,
        render.count(cell.rows_per_s),
        render.count(min(cell.rounds)),
        render.count(max(cell.rounds)),
        f"{cell.rows_per_s / best:.2f}" if best else "",
        f"{whole:.0f}",
        *(f"{phase:.0f}" for phase in phases),
        f"{whole - sum(phases):.0f}",
        f"{cell.join_busy_ms:.0f}" if ours else "",
        f"{cell.join_tasks}" if ours else "",
        f"{cell.hit_share:.0%}" if ours else "",
        "yes" if cell.verified else render.bold("NO"),
    )
