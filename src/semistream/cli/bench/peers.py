"""`semistream bench peers`: semistream beside other systems, in one run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from semistream.bench import results
from semistream.bench.masters import default_workdir
from semistream.bench.peers import PEERS
from semistream.bench.side_by_side import (
    CACHES,
    ROW_BYTES,
    WARM,
    PeerResult,
    PeersOptions,
    growth_options,
    run_peers,
)
from semistream.cli import render
from semistream.cli.options import (
    batch_rows_option,
    json_option,
    memories_option,
    names,
    out_option,
    skews_option,
    whole_numbers,
    workdir_option,
)
from semistream.core.budget import parse_bytes
from semistream.etl.pipeline import Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = PeersOptions(
    rows=2_000_000,
    memories=("10%",),
    skews=(1, 0),
    batch_rows=(100_000, 10_000),
    caches=(WARM,),
    seconds=1.5,
    stream_rows=1_000_000,
)
"""A small grid for a first look: everything is built and measured within three minutes."""

GROWTH = "1000000,10000000,50000000"


@click.command("peers")
@click.option("--rows", type=int, default=10_000_000, show_default=True, help="Rows of the master.")
@memories_option("5%,1%,10%")
@skews_option("1,0,0.5")
@batch_rows_option("100000,1000,10000,1000000")
@click.option(
    "--cache",
    callback=names,
    metavar="NAME[,NAME…]",
    default=",".join(CACHES),
    show_default=True,
    help="Files in the operating system's cache (warm), or dropped from it and direct (cold).",
)
@click.option(
    "--systems",
    callback=names,
    metavar="NAME[,NAME…]",
    default="all",
    show_default=True,
    help=f"What to compare, of {', '.join(PEERS)}.",
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Turns of each system.")
@click.option(
    "--seconds", type=float, default=4.0, show_default=True, help="Seconds of a system in a cell."
)
@click.option("--quick", is_flag=True, help="A small grid on two million rows, without Spark.")
@click.option(
    "--spark/--no-spark", default=True, show_default=True, help="Run the comparison on Spark too."
)
@click.option(
    "--growth",
    callback=lambda ctx, param, value: whole_numbers(ctx, param, value) if value else (),
    metavar="ROWS[,ROWS…]",
    is_flag=False,
    flag_value=GROWTH,
    default="",
    help=f"Also run masters of these sizes with one memory. [{GROWTH} if no sizes are given]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the stream.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Write tables and plots into this Markdown file, between its marks.",
)
@click.option(
    "--stored",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="Show (and report) results that --out stored, and run nothing; may be given repeatedly.",
)
@workdir_option
@out_option
@json_option
@click.pass_context
def peers_command(
    ctx: click.Context,
    rows: int,
    memory: tuple[str, ...],
    skew: tuple[float, ...],
    batch_rows: tuple[int, ...],
    cache: tuple[str, ...],
    systems: tuple[str, ...],
    rounds: int,
    seconds: float,
    quick: bool,
    spark: bool,
    growth: tuple[int, ...],
    seed: int,
    report: Path | None,
    stored: tuple[Path, ...],
    workdir: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare semistream with DuckDB, Polars, RocksDB, LMDB, SQLite, PostgreSQL, MariaDB, Spark.

    All get the same products, stream and memory, and take turns in one run; every result is
    verified. The first memory, skew and size of micro-batches are the middle of the grid, around
    which one of them varies at a time (the sizes also at the second skew). Ends with code 1 if a
    result is not what DuckDB's join gives.
    """
    chosen = tuple(PEERS) if systems == ("all",) else systems
    if quick:
        options = PeersOptions(
            **{**vars(QUICK), "systems": chosen, "rounds": rounds, "seed": seed},
        )
    else:
        options = PeersOptions(
            rows=rows,
            memories=memory,
            skews=skew,
            batch_rows=batch_rows,
            caches=cache,
            systems=chosen,
            rounds=rounds,
            seconds=seconds,
            seed=seed,
        )
    failure: Exception | None = None
    if not stored:
        folder = default_workdir() if workdir is None else workdir
        folder.mkdir(parents=True, exist_ok=True)
        done, failure = _gathered(_run(options, folder, growth, spark=spark and not quick))
        environment = results.environment()
    else:
        documents = [json.loads(path.read_text()) for path in stored]
        environment = documents[0]["environment"]
        done = [_result(plain) for document in documents for plain in document["results"]]
    if out is not None:
        parameters = {
            "rows": options.rows,
            "memory": list(options.memories),
            "skew": list(options.skews),
            "batch_rows": list(options.batch_rows),
            "cache": list(options.caches),
            "rounds": rounds,
            "seconds": options.seconds,
            "seed": seed,
        }
        path = results.store(out, "peers", parameters, [_plain(one) for one in done])
        render.note(f"stored as {path}")
    if report is not None:
        from semistream.bench.peers_report import write_report

        for written in write_report(report, done, environment):
            render.note(f"written: {written}")
    if failure is not None:
        raise failure
    measured = [one for one in done if one.why_not is None]
    if as_json:
        render.document([_plain(one) for one in measured])
    else:
        _show(done)
    ctx.exit(0 if all(one.verified for one in measured) else 1)


def _gathered(
    results: Iterator[PeerResult],
) -> tuple[list[PeerResult], Exception | None]:
    """All results, or those before a failure, and that: half an hour of them must not be lost."""
    done: list[PeerResult] = []
    try:
        done.extend(results)
    except Exception as failure:
        return done, failure
    return done, None


def _run(
    options: PeersOptions, folder: Path, growth: Sequence[int], *, spark: bool
) -> Iterator[PeerResult]:
    cells = options.cells
    render.note(
        f"{len(cells)} cells, {len(options.systems)} systems, {options.seconds:g} s for each in "
        f"each: about {len(cells) * len(options.systems) * options.seconds / 60:.0f} minutes"
    )
    for one in run_peers(options, folder, tell=render.note):
        _tell(one)
        yield one
    if spark:
        yield from _on_spark(options, folder)
    fixed = parse_bytes(options.memories[0], of=options.rows * ROW_BYTES)
    for rows in growth:
        if rows != options.rows:
            grown = growth_options(options, rows, fixed)
            for one in run_peers(grown, folder, tell=render.note):
                _tell(one)
                yield one
            if spark:
                yield from _on_spark(grown, folder, growing=True)


def _on_spark(
    options: PeersOptions, folder: Path, *, growing: bool = False
) -> Iterator[PeerResult]:
    with spark_session(folder) as session:
        if session is None:
            return
        from semistream.bench.peers_on_spark import GROWING, run_peers_on_spark

        systems = GROWING if growing else ()
        for one in run_peers_on_spark(options, folder, session, systems=systems, tell=render.note):
            _tell(one)
            yield one


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession | None]:
    """A session as the benchmark on Spark has it; None, with a note, where there is no Spark."""
    if importlib.util.find_spec("pyspark") is None:
        render.note("left out: Spark: pip install 'semistream[spark]'")
        yield None
        return
    from semistream.bench.spark import SETTINGS
    from semistream.cli import streaming

    log = folder / "spark.log"
    render.note(f"on Spark; its log: {log}")
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = Spark(name="semistream-bench", settings={**SETTINGS, **warehouse})
    with streaming.session(spark, log) as session:
        yield session


def _tell(one: PeerResult) -> None:
    doubt = "" if one.verified else ", NOT what DuckDB's join gives"
    said = one.why_not or f"{render.count(one.rows_per_s)} rows/s{doubt}"
    render.note(f"        {one.system}: {said}")


def _plain(one: PeerResult) -> dict[str, object]:
    return one.to_dict()


def _result(plain: dict[str, object]) -> PeerResult:
    known = {name: value for name, value in plain.items() if name != "spread"}
    known["rounds"] = tuple(known["rounds"])  # type: ignore[arg-type]
    return PeerResult(**known)  # type: ignore[arg-type]


def _show(done: Sequence[PeerResult]) -> None:
    columns = (
        "rows of R",
        "memory",
        "skew",
        "batch rows",
        "cache",
        "system",
        "rows/s",
        "spread",
        "drained is",
        "waiting is",
        "verified",
    )
    groups = []
    for _, group in groupby(done, key=_cell):
        cells = list(group)
        best = max(one.rows_per_s for one in cells)
        groups.append([_row(one, best) for one in cells])
    render.table(columns, *groups, right=set(columns) - {"system", "cache"})


def _cell(one: PeerResult) -> tuple[object, ...]:
    return one.product_rows, one.where, one.memory, one.skew, one.batch_rows, one.cache


def _row(one: PeerResult, best: float) -> tuple[render.Cell, ...]:
    rate = render.count(one.rows_per_s)
    head = (
        f"{one.product_rows:,}",
        one.memory,
        f"{one.skew:g}",
        f"{one.batch_rows:,}",
        one.cache,
        one.system,
    )
    if one.why_not is not None:
        return (*head, "", "", "", "", one.why_not)
    return (
        *head,
        render.bold(rate) if one.rows_per_s == best else rate,
        f"{one.spread:.0%}",
        _times(one.ratio_to_semistream),
        _times(one.ratio_to_waiting),
        "yes" if one.verified else render.bold("NO"),
    )


def _times(ratio: float | None) -> str:
    return f"{1 / ratio:.1f} x" if ratio else ""
