"""`semistream master page`: the rows of one page."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.store.file import open_master
from semistream.store.inspect import page_table


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("number", type=int)
@json_option
def page(path: Path, number: int, as_json: bool) -> None:
    """Show the rows of page NUMBER of the master at PATH."""
    with open_master(path) as master:
        table = page_table(master, number)
    if as_json:
        render.document({"page": number, "rows": table.to_pylist()})
        return
    rows = [tuple(render.cell(value) for value in row.values()) for row in table.to_pylist()]
    render.table(table.column_names, rows)
    render.line(f"{table.num_rows:,} rows in page {number}")
