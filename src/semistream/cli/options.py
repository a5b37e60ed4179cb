"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: _F) -> _F:
    """`--json`: one JSON document on standard output instead of a table."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document on standard output."
    )
    return option(command)


def names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Callback of an option that takes a list in one word: `a,b,c`."""
    parts = tuple(part.strip() for part in value.split(","))
    if not all(parts):
        raise click.BadParameter(f"{value!r} has an empty part; write a,b,c", ctx, param)
    return parts


def numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    """Callback of an option that takes a list of numbers in one word: `0,0.5,1`."""
    found: list[float] = []
    for part in names(ctx, param, value):
        try:
            # Whole numbers stay whole, so that a result names them as they were written.
            found.append(int(part) if part.isdigit() else float(part))
        except ValueError:
            raise click.BadParameter(f"{part!r} is not a number", ctx, param) from None
    return tuple(found)


def whole_numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Callback of an option that takes a list of whole numbers in one word: `1000,10000`."""
    parts = names(ctx, param, value)
    for part in parts:
        if not part.isdigit():
            raise click.BadParameter(f"{part!r} is not a whole number", ctx, param)
    return tuple(map(int, parts))
