"""Sections of Markdown files that commands write: between marks, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semistream.core.errors import OptionError


def replace_section(path: Path, mark: str, text: str) -> None:
    """Put text between the lines `<!-- begin MARK -->` and `<!-- end MARK -->` of a file."""
    begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
    whole = path.read_text()
    head, found, rest = whole.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise OptionError(
            f"{str(path)!r} has no place for this report",
            hint=f"write the lines {begin} and {end} where it should stand",
        )
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def human(number: float) -> str:
    """A number for people, short: `human(2_310_000)` is `2.31 M`."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def machine(environment: Mapping[str, Any]) -> str:
    """Where and when, in a sentence."""
    memory = environment["memory_bytes"] / 1e9
    return (
        f"{environment['date']}, {environment['cores']} cores of {environment['processor']}, "
        f"{memory:.0f} GB of memory, {environment['system']}."
    )
