"""The cost of CACHEJOIN with a second lookup position."""

from __future__ import annotations

from semistream.cost.cachejoin import CacheJoinModel
from semistream.cost.second_lookup import SecondLookupModel


class CacheJoin2Model(SecondLookupModel, CacheJoinModel):
    """CACHEJOIN's, with the intake of alternating positions."""

    name = "cachejoin2"


MODEL = CacheJoin2Model()
