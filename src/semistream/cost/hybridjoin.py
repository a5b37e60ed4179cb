"""HYBRIDJOIN's cost: thesis Eq. 5.1 to 5.4."""

from __future__ import annotations

from semistream.cost.probing import ProbingModel


class HybridJoinModel(ProbingModel):
    """A load of b pages answers about 2·h_S·d/n_R rows, at every skew."""

    name = "hybridjoin"


MODEL = HybridJoinModel()
