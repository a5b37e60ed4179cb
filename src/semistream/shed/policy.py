"""Which of the rows that arrived between two requests of a join are kept: those with the highest
scores. What a policy decides is the score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Policy(ABC):
    """Gives each arriving row a score; of an interval's rows the w with the highest are kept.

    An interval is what arrives between two requests of the join. A policy is made for one join and
    keeps its state between intervals. A policy with `weighs` keeps a sample from which sums over
    the whole join can be estimated: `weights` says for how many rows each kept one stands.
    """

    name: ClassVar[str]
    idea: ClassVar[str]
    needs_results: ClassVar[bool] = False
    """Whether a row's score depends on how many results it will have."""

    weighs: ClassVar[bool] = False
    """Whether the kept rows are a sample."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(np.random.SeedSequence([seed % 2**64, 0x5EED]))

    @abstractmethod
    def scores(self, results: Numbers) -> Numbers:
        """Scores of the next rows, given how many results each will have (zeros where unknown)."""

    def weights(self, results: Numbers, offered: int, threshold: float) -> Numbers:
        """Rows for which each kept row stands, at the end of an interval.

        `results` are those of the kept rows, `offered` counts all rows of the interval, `threshold`
        is the highest score among the others, -inf if there are none.
        """
        return np.ones(len(results))
