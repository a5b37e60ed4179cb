"""MESHJOIN's cost: Eq. 1 to 3 of its paper, Eq. 3.3 of the thesis."""

from __future__ import annotations

from semistream.cost.scanning import ScanModel


class MeshJoinModel(ScanModel):
    """A chunk of b pages per loop; w = h_S / k rows, with k chunks in the master."""

    name = "meshjoin"


MODEL = MeshJoinModel()
