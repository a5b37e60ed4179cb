"""What an experiment of a paper is: data to run, to plot and to judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from semistream.bench.papers.ground import Ground
from semistream.bench.papers.rules import Curves, Verdict

PAPERS = {
    "meshjoin": "Polyzotis et al.: Meshing Streaming Updates with Persistent Data in an Active Data"
    " Warehouse, IEEE TKDE 20(7), 2008",
    "thesis-3": "Naeem: Efficient Joins to Process Stream Data, PhD thesis, Auckland 2012, ch. 3"
    " (MESHJOIN)",
    "thesis-4": "the same thesis, ch. 4 (R-MESHJOIN)",
    "thesis-5": "the same thesis, ch. 5 (HYBRIDJOIN)",
    "thesis-6": "the same thesis, ch. 6 (X-HYBRIDJOIN)",
    "thesis-7": "the same thesis, ch. 7 (Optimised X-HYBRIDJOIN)",
    "thesis-8": "the same thesis, ch. 8 (CACHEJOIN)",
    "thesis-appendix": "the same thesis, appendices A to C (intake)",
    "lookup": "Naeem, Weber, Lutteroth, Dobbie: Optimizing Queue-based Semi-Stream Joins with"
    " Indexed Master Data",
    "ssij": "Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index Join for Near-Real Time"
    " Execution of ETL Transformations, ICDE 2011",
    "ssbj": "Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join",
}
"""The papers by the names that `bench run` takes."""

Clock = Literal["modelled", "measured", "equations", "counted"]

CLOCKS: dict[Clock, str] = {
    "modelled": "our joins run, what they read and do is counted, and the counts times the unit"
    " costs of the paper's machine are its time",
    "measured": "our joins run, and seconds are those of this machine",
    "equations": "the paper's equations with its constants, at its sizes; no join runs",
    "counted": "our code runs, and what is counted is the result; no time is involved",
}
"""Where the numbers of an experiment come from."""


@dataclass(frozen=True)
class Axis:
    """What is varied, or measured: its name, its unit, and how a plot shows it."""

    name: str
    unit: str = ""
    log: bool = False

    @property
    def label(self) -> str:
        """For plots and tables."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Measured:
    """The result of a cell: the metric, and what else there is to say of it."""

    y: float
    verified: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)


Cell = Callable[[Ground, float, str], Measured]
"""Measures one cell: a pure function of the ground (scale, seed), x and the series."""


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of a paper.

    `values` are those of the varied axis `x` in the paper's own sizes; cells scale them down.
    `series` are the curves: algorithms, or variants. `marks` are the numbers that the paper prints,
    by series and x. `rule` judges complete results. `as_claimed` is what a result would be if all
    of the claim were true; tests feed the rule with it, and with its opposite.
    """

    id: str
    paper: str
    title: str
    x: Axis
    values: tuple[float, ...]
    series: tuple[str, ...]
    y: Axis
    clock: Clock
    claim: str
    cell: Cell
    rule: Callable[[Curves], Verdict]
    as_claimed: Callable[[float, str], float]
    fixed: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    remark: str = ""
    """What a reader must know of how it is done here."""

    cost: float = 1.0
    """About how long a cell takes beside others; large ones are run last."""

    @property
    def cells(self) -> list[tuple[float, str]]:
        """All of them, value by value."""
        return [(x, series) for x in self.values for series in self.series]
