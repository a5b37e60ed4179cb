"""`semistream master build`: from files to a master."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.master.info import described, show
from semistream.cli.options import json_option, names
from semistream.store.build import build_master
from semistream.store.file import open_master
from semistream.store.sources import SourceLike
from semistream.store.sql import read_table


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("source", nargs=-1, required=True)
@click.option(
    "--key",
    required=True,
    callback=names,
    metavar="COLUMN[,COLUMN…]",
    help="Key column, or several.",
)
@click.option("--page-size", help="Bytes of a page, a multiple of 4096. [default: 4096 or more]")
@click.option("--shards", type=int, default=1, show_default=True, help="Number of page files.")
@click.option("--fill", type=float, default=1.0, show_default=True, help="Share of a page to fill.")
@click.option("--frequency", metavar="COLUMN", help="Put rows first that this column says most of.")
@click.option("--memory", default="1GB", show_default=True, help="Memory of the sort.")
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write CSV rows that do not parse to this file instead of stopping at the first.",
)
@click.option(
    "--table",
    help="SOURCE is postgresql:// or mariadb://user@host/database: the table to read there.",
)
@json_option
def build(
    path: Path,
    source: tuple[str, ...],
    key: tuple[str, ...],
    page_size: str | None,
    shards: int,
    fill: float,
    frequency: str | None,
    memory: str,
    rejects: Path | None,
    table: str | None,
    as_json: bool,
) -> None:
    """Sort, index and store SOURCE as a master at PATH, which must not exist yet.

    SOURCE is a Parquet, CSV or Arrow file, a folder or a glob pattern of them, or several files.
    """
    what: SourceLike = source[0] if len(source) == 1 else list(source)
    build_master(
        path,
        what if table is None else read_table(source[0], table),
        list(key),
        page_size=page_size,
        shards=shards,
        fill=fill,
        frequency=frequency,
        memory=memory,
        rejects=rejects,
    )
    with open_master(path) as built:
        facts = described(built)
    if as_json:
        render.document(facts)
    else:
        show(facts)
