"""Shedding: what to do when the stream is faster than the join."""

from semistream.shed.cluster_sampling import ClusterSampling
from semistream.shed.estimate import Estimate, estimate_sum
from semistream.shed.keep_w import KeepW
from semistream.shed.optimal_offline import optimal_loss, topw_loss
from semistream.shed.policy import Policy
from semistream.shed.sample_w import SampleW
from semistream.shed.topw import TopW

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (KeepW, SampleW, TopW, ClusterSampling)
}
"""What can follow `shed:` in `overload=`."""

__all__ = [
    "POLICIES",
    "ClusterSampling",
    "Estimate",
    "KeepW",
    "Policy",
    "SampleW",
    "TopW",
    "estimate_sum",
    "optimal_loss",
    "topw_loss",
]
