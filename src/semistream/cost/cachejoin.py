"""CACHEJOIN's cost: thesis Eq. 8.1 and 8.2."""

from __future__ import annotations

from semistream.cost.probing import CachingModel


class CacheJoinModel(CachingModel):
    """Rows above a threshold are cached, and a full cache gives one up at random."""

    name = "cachejoin"


MODEL = CacheJoinModel()
