"""`semistream algorithms`: which joins there are."""

from __future__ import annotations

from dataclasses import asdict

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.joins.registry import DEFAULT, JOINS


@click.command()
@json_option
def algorithms(as_json: bool) -> None:
    """List the joins and what each of them needs and can do."""
    if as_json:
        render.document(
            [
                {"name": name, "default": name == DEFAULT, **asdict(kind.traits)}
                for name, kind in JOINS.items()
            ]
        )
        return
    columns = ("name", "idea", "index", "many-to-many", "uses skew", "from")
    rows = []
    for name, kind in JOINS.items():
        traits = kind.traits
        rows.append(
            (
                render.bold(name) if name == DEFAULT else name,
                traits.idea,
                "needed" if traits.needs_index else "not needed",
                "yes" if traits.many_to_many else "no",
                traits.skew,
                traits.paper,
            )
        )
    render.table(columns, rows)
    render.line(
        f'algorithm="auto" is {DEFAULT}, memoryjoin where the master fits the memory, or another '
        "join that the cost models clearly favour."
    )
