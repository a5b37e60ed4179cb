"""`semistream master pages`: the heads of pages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.store.file import open_master
from semistream.store.inspect import page_heads


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="First page to show.")
@click.option(
    "--count", type=click.IntRange(min=1), default=20, show_default=True, help="Pages to show."
)
@json_option
def pages(path: Path, first: int, count: int, as_json: bool) -> None:
    """List pages of the master at PATH: rows, first and last key64, how full they are."""
    with open_master(path) as master:
        heads = list(page_heads(master, first, count))
        total = master.pages
    if as_json:
        render.document([asdict(head) for head in heads])
        return
    rows = []
    for head in heads:
        place = (str(head.number), str(head.shard))
        if head.damaged:
            rows.append((*place, "damaged", "", "", ""))
        else:
            keys = (str(head.first_key64), str(head.last_key64))
            rows.append((*place, str(head.rows), *keys, f"{head.fill:.0%}"))
    columns = ("page", "shard", "rows", "first key64", "last key64", "filled")
    render.table(columns, rows, right=set(columns))
    if heads:
        render.line(f"pages {heads[0].number} to {heads[-1].number} of {total:,}")
    else:
        render.line(f"no page from {first} on: the master has {total:,} pages")
