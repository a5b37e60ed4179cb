"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: _F) -> _F:
    """`--json`: one JSON document on standard output instead of a table."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document on standard output."
    )
    return option(command)


def workdir_option(command: _F) -> _F:
    """`--workdir`: where a benchmark keeps its masters."""
    option = click.option(
        "--workdir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where masters are kept. [default: a folder below the system's temporary one]",
    )
    return option(command)


def out_option(command: _F) -> _F:
    """`--out`: where a benchmark's results are stored."""
    option = click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Store the results with the machine's description below this folder.",
    )
    return option(command)


def results_option(command: _F) -> _F:
    """`--results`: where results of the papers' experiments are stored."""
    option = click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("results"),
        show_default=True,
        help="Folder of stored results.",
    )
    return option(command)


def memories_option(default: str) -> Callable[[_F], _F]:
    """`--memory` of a grid: several in one word."""
    return click.option(
        "--memory",
        callback=names,
        metavar="SIZE[,SIZE…]",
        default=default,
        show_default=True,
        help="Memories of a join: 64MB, or 5% of the master.",
    )


def batch_rows_option(default: str) -> Callable[[_F], _F]:
    """`--batch-rows` of a grid: several in one word."""
    return click.option(
        "--batch-rows",
        callback=whole_numbers,
        metavar="NUMBER[,NUMBER…]",
        default=default,
        show_default=True,
        help="Rows of a micro-batch.",
    )


def skews_option(default: str, of: str = "the stream's keys") -> Callable[[_F], _F]:
    """`--skew` of a grid: several in one word."""
    return click.option(
        "--skew",
        callback=numbers,
        metavar="NUMBER[,NUMBER…]",
        default=default,
        show_default=True,
        help=f"Zipf exponents of {of}.",
    )


def joins_option(default: str) -> Callable[[_F], _F]:
    """`--joins` of a grid: several in one word."""
    return click.option(
        "--joins",
        callback=names,
        metavar="NAME[,NAME…]",
        default=default,
        show_default=True,
        help="Joins to run, or all.",
    )


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
