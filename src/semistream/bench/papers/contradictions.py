"""Where the papers contradict themselves or each other, and what is done here."""

from __future__ import annotations

from typing import NamedTuple


class Contradiction(NamedTuple):
    """What the papers say, and what is done here."""

    finding: str
    here: str


CONTRADICTIONS: tuple[Contradiction, ...] = ()
