"""`semistream bench run shedding`: how many results shedding leaves."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import click

from semistream.bench import results
from semistream.bench.shedding import DRAWS, HOT, SheddingOptions, SheddingResult, run_shedding
from semistream.cli import render
from semistream.cli.options import json_option, names, numbers, out_option, skews_option


@click.command("shedding")
@click.option(
    "--load",
    callback=numbers,
    metavar="NUMBER[,NUMBER…]",
    default="1.1,1.5,2",
    show_default=True,
    help="How many times as fast the stream is as the join.",
)
@skews_option("0.1,0.5,1", of="the master's keys")
@click.option(
    "--draw",
    callback=names,
    metavar="NAME[,NAME]",
    default=",".join(DRAWS),
    show_default=True,
    help="Keys of the master drawn at random, or fixed counts.",
)
@click.option(
    "--hot",
    callback=names,
    metavar="NAME[,NAME]",
    default=",".join(HOT),
    show_default=True,
    help="Whether hot keys of the stream are those of the master.",
)
@click.option("--rows", type=int, default=3_500_000, show_default=True, help="Rows of the master.")
@click.option("--streams", type=int, default=10, show_default=True, help="Streams per cell.")
@click.option("--w", type=int, default=50, show_default=True, help="Rows the join takes at once.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of master and streams.")
@out_option
@json_option
@click.pass_context
def run_shedding_command(
    ctx: click.Context,
    load: tuple[float, ...],
    skew: tuple[float, ...],
    draw: tuple[str, ...],
    hot: tuple[str, ...],
    rows: int,
    streams: int,
    w: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare TOPW with the offline optimum, as in Fig. 11 of the MESHJOIN paper.

    Reports the share of the join's results that is left under overload. Ends with code 1 if the
    optimum loses more than TOPW.
    """
    options = SheddingOptions(load, skew, draw, hot, rows, streams=streams, w=w, seed=seed)
    done = list(run_shedding(options, tell=render.note))
    plain = [result.to_dict() for result in done]
    if out is not None:
        parameters = {
            "load": list(load),
            "skew": list(skew),
            "draw": list(draw),
            "hot": list(hot),
            "rows": rows,
            "streams": streams,
            "w": w,
            "seed": seed,
        }
        render.note(f"stored as {results.store(out, 'shedding', parameters, plain)}")
    if as_json:
        render.document(plain)
    else:
        _show(done)
    ctx.exit(0 if all(result.verified for result in done) else 1)


def _show(done: list[SheddingResult]) -> None:
    columns = ("z_R", "counts", "hot keys", "load", "topw", "optimum", "behind it at most")
    groups = [
        [
            (
                f"{cell.skew:g}",
                cell.draw,
                cell.hot,
                f"{cell.load:g}",
                f"{cell.topw_share:.1%}",
                f"{cell.optimum_share:.1%}",
                f"{cell.behind_optimum:.2%}",
            )
            for cell in group
        ]
        for _, group in groupby(done, key=lambda cell: (cell.skew, cell.draw, cell.hot))
    ]
    render.table(columns, *groups, right={"load", "topw", "optimum", "behind it at most"})
