"""SSCJ's cost: CACHEJOIN's, with a cache that holds nearly the hottest rows."""

from __future__ import annotations

from semistream.cost.cachejoin import CacheJoinModel


class SscjModel(CacheJoinModel):
    """The least frequent row gives way, so that those that stay are the most frequent."""

    name = "sscj"


MODEL = SscjModel()
