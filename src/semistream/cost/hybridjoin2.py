"""The cost of HYBRIDJOIN with a second lookup position."""

from __future__ import annotations

from semistream.cost.hybridjoin import HybridJoinModel
from semistream.cost.second_lookup import SecondLookupModel


class HybridJoin2Model(SecondLookupModel, HybridJoinModel):
    """HYBRIDJOIN's, with the intake of alternating positions."""

    name = "hybridjoin2"


MODEL = HybridJoin2Model()
