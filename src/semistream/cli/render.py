"""All that the command line prints: results on standard output, progress on standard error.

Consoles are made when they are needed, so that they follow a standard output that was redirected
meanwhile. Rich honours NO_COLOR and leaves control codes out where the output is not a terminal.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

Cell = str | Text
Row = Sequence[Cell]

PIPE_WIDTH = 400
"""Columns where there is no terminal to ask: tables are as wide as they need."""

MOST_CELL_CHARACTERS = 40


def _console(file: TextIO) -> Console:
    width = None if file.isatty() else PIPE_WIDTH
    # Content is shown as it is: a "[" in it is no markup, ":x:" no emoji, numbers get no colour.
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def document(value: Any) -> None:
    """The one JSON document of a command."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def line(text: str) -> None:
    """A line of the result."""
    _console(sys.stdout).print(text, soft_wrap=True)


def failure(text: str) -> None:
    """A line of the result that says that a check failed."""
    _console(sys.stdout).print(Text(text, style="bold red"), soft_wrap=True)


def note(text: str) -> None:
    """A line on what is going on."""
    _console(sys.stderr).print(text, soft_wrap=True)


def error(message: str, hint: str = "") -> None:
    """What went wrong and what to do about it."""
    console = _console(sys.stderr)
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)


def table(columns: Sequence[str], *groups: Iterable[Row], right: Iterable[str] = ()) -> None:
    """A table; each group of rows is set apart. Columns in `right` hold numbers."""
    numbers = set(right)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for rows in groups:
        for row in rows:
            drawn.add_row(*row)
        drawn.add_section()
    _console(sys.stdout).print(drawn)


def facts(title: str, pairs: Iterable[tuple[str, Cell]]) -> None:
    """Names and values, one pair a line."""
    _console(sys.stdout).print(_facts(title, pairs))


def bold(text: str) -> Text:
    """A cell that stands out."""
    return Text(text, style="bold")


def count(number: float) -> str:
    """A number for people: `count(2_310_000)` is `2.31 M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f}"


def cell(value: Any) -> str:
    """A value of a table's column, cut to a readable length."""
    text = "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    if len(text) > MOST_CELL_CHARACTERS:
        text = text[: MOST_CELL_CHARACTERS - 1] + "…"
    return text


class LiveFacts:
    """Facts that change: a table drawn in place on a terminal, a line now and then in a pipe.

    Use it as a context; `show` may be called as often as there is something new.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = _console(sys.stderr)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)

    @property
    def every_s(self) -> float:
        """How often to show something new."""
        return 0.25 if self._live is not None else 1.0

    def show(self, pairs: Sequence[tuple[str, Cell]]) -> None:
        """The facts as they are now."""
        if self._live is not None:
            self._live.update(_facts(self._title, pairs), refresh=True)
        else:
            self._console.print(", ".join(f"{name} {value}" for name, value in pairs))

    def __enter__(self) -> LiveFacts:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


def _facts(title: str, pairs: Iterable[tuple[str, Cell]]) -> Group:
    drawn = Table(box=None, show_header=False, pad_edge=False)
    drawn.add_column(style="dim")
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        drawn.add_row(name, value)
    return Group(bold(title), drawn)


def _plain(value: Any) -> Any:
    """A value as JSON can say it: bytes as hexadecimal digits, no infinite numbers."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.hex() if isinstance(value, bytes) else str(value)
