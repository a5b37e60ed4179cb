"""Cost models of the joins: memory, c_loop, service rate; calibration and tuning.

One file per algorithm, named as in `semistream.joins`. `MODELS` has them all.
"""

from __future__ import annotations

from semistream.cost import (
    ameshjoin,
    cachejoin,
    cachejoin2,
    cmeshjoin,
    hybridjoin,
    hybridjoin2,
    inlj,
    memoryjoin,
    meshjoin,
    optimisedxhybridjoin,
    partitionedjoin,
    rmeshjoin,
    ssbj,
    sscj,
    ssij,
    sweepjoin,
    xhybridjoin,
)
from semistream.cost.frequencies import Frequencies
from semistream.cost.model import CostModel, Plan, Prediction
from semistream.cost.units import Costs, Loop, ModelledDisk, ReadCost, UnitCosts
from semistream.cost.workload import Workload

MODELS: dict[str, CostModel] = {
    module.MODEL.name: module.MODEL
    for module in (
        inlj,
        meshjoin,
        ameshjoin,
        rmeshjoin,
        cmeshjoin,
        partitionedjoin,
        hybridjoin,
        hybridjoin2,
        xhybridjoin,
        optimisedxhybridjoin,
        cachejoin,
        cachejoin2,
        sscj,
        ssij,
        ssbj,
        sweepjoin,
        memoryjoin,
    )
}

__all__ = [
    "MODELS",
    "CostModel",
    "Costs",
    "Frequencies",
    "Loop",
    "ModelledDisk",
    "Plan",
    "Prediction",
    "ReadCost",
    "UnitCosts",
    "Workload",
]
