"""The experiments of the papers, declared: one module per paper.

Each figure and table is an `Experiment`: what is varied, what is fixed, which algorithms, what is
measured and by which clock, what the paper reports, and the rule that judges our results.
`running` runs and stores them cell by cell, `plots` draws stored results, `reporting` writes
docs/reproduction.md from them.
"""

from __future__ import annotations

from semistream.bench.papers import (
    lookup,
    meshjoin,
    ssbj,
    ssij,
    thesis_3,
    thesis_4,
    thesis_5,
    thesis_6,
    thesis_7,
    thesis_8,
    thesis_appendix,
)
from semistream.bench.papers.experiment import PAPERS, Experiment
from semistream.core.errors import unknown_name

__all__ = ["ALL", "EXPERIMENTS", "PAPERS", "Experiment", "chosen"]

_MODULES = (
    meshjoin,
    thesis_3,
    thesis_4,
    thesis_5,
    thesis_6,
    thesis_7,
    thesis_8,
    thesis_appendix,
    lookup,
    ssij,
    ssbj,
)

EXPERIMENTS: dict[str, Experiment] = {
    one.id: one for module in _MODULES for one in module.EXPERIMENTS
}
"""All of them by id, in the order of the papers."""

ALL = ("papers", "all")
"""Names for all of them."""


def chosen(name: str) -> list[Experiment]:
    """The experiments that a name stands for: an id, a paper, or all."""
    if name in ALL:
        return list(EXPERIMENTS.values())
    if name in PAPERS:
        return [one for one in EXPERIMENTS.values() if one.paper == name]
    if name in EXPERIMENTS:
        return [EXPERIMENTS[name]]
    raise unknown_name("experiment", name, (*ALL, *PAPERS, *EXPERIMENTS))
