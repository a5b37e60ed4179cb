"""One record of counters for every join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from semistream.core.budget import MemoryPlan

LATENCY_BUCKETS = 256
"""Buckets of the latency histogram: eight to a power of two, from one microsecond on."""


def latency_percentile_s(histogram: npt.NDArray[np.int64], percentile: float) -> float:
    """The upper end, in seconds, of the bucket in which the percentile falls; 0 without rows."""
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    bucket = int(np.searchsorted(np.cumsum(histogram), np.ceil(total * percentile / 100)))
    exponent, eighth = divmod(min(bucket, LATENCY_BUCKETS - 1), 8)
    return float(2**exponent * (1 + (eighth + 1) / 8) * 1e-6)


@dataclass
class JoinStats:
    """What a join did so far.

    `rows_in` counts accepted stream rows; each of them is, at any moment, one of matched,
    unmatched or waiting: `rows_in == rows_matched + rows_unmatched + rows_waiting`; or shed
    (`rows_shed`), where that was asked for. `rows_out` counts rows of the output, which depends on
    the kind of join. `predicted_rows_s` is the rate that a cost model predicts for a join with this
    plan while it works; 0 where none was asked.
    """

    algorithm: str = ""
    rows_in: int = 0
    rows_out: int = 0
    rows_matched: int = 0
    rows_unmatched: int = 0
    rows_waiting: int = 0
    rows_shed: int = 0
    rows_null_key: int = 0
    hits: int = 0
    misses: int = 0
    cached_rows: int = 0
    pages_read: int = 0
    requests: int = 0
    bytes_read: int = 0
    seeks: int = 0
    iterations: int = 0
    bytes_by_component: dict[str, int] = field(default_factory=dict)
    bytes_in_use: int = 0
    bytes_peak: int = 0
    bytes_limit: int = 0
    time_busy_s: float = 0.0
    time_io_s: float = 0.0
    time_waiting_s: float = 0.0
    predicted_rows_s: float = 0.0
    latency_histogram: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(LATENCY_BUCKETS, np.int64)
    )
    plan: MemoryPlan | None = None

    @property
    def hit_share(self) -> float:
        """Share of the looked-up stream rows that were answered from the cache."""
        looked_up = self.hits + self.misses
        return self.hits / looked_up if looked_up else 0.0

    @property
    def pages_per_row(self) -> float:
        """Page reads per stream row: the cost that does not depend on the machine."""
        return self.pages_read / self.rows_in if self.rows_in else 0.0

    @property
    def requests_per_row(self) -> float:
        """Read requests per stream row; one request reads a run of neighbouring pages."""
        return self.requests / self.rows_in if self.rows_in else 0.0

    def latency_s(self, percentile: float) -> float:
        """Seconds from acceptance to result below which that percentage of rows stayed.

        Measured on a sample of the rows that waited; rows answered from a cache do not wait.
        """
        return latency_percentile_s(self.latency_histogram, percentile)

    def modelled_disk_s(self, seek_s: float = 8e-3, page_s: float = 1e-4) -> float:
        """Seconds that a disk with this seek and page transfer time would have spent reading."""
        return self.seeks * seek_s + self.pages_read * page_s

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON, with the derived figures."""
        plain: dict[str, object] = asdict(self)
        del plain["latency_histogram"]
        plain["plan"] = (
            None
            if self.plan is None
            else {"shares": dict(self.plan.shares), "reason": self.plan.reason}
        )
        plain["hit_share"] = self.hit_share
        plain["pages_per_row"] = self.pages_per_row
        plain["requests_per_row"] = self.requests_per_row
        plain["latency_p50_s"] = self.latency_s(50)
        plain["latency_p95_s"] = self.latency_s(95)
        plain["latency_p99_s"] = self.latency_s(99)
        return plain

    @classmethod
    def total(cls, records: Iterable[JoinStats]) -> JoinStats:
        """The sum of the records of joins that work side by side, such as one per shard.

        They share one algorithm, and differ in the plan, which the sum does not have.
        """
        total = cls()
        for one in records:
            total.algorithm = one.algorithm
            for name in _NUMBERS:
                setattr(total, name, getattr(total, name) + getattr(one, name))
            for component, size in one.bytes_by_component.items():
                held = total.bytes_by_component
                held[component] = held.get(component, 0) + size
        return total

    def since(self, before: JoinStats) -> JoinStats:
        """What happened after `before`, an earlier record of the same join.

        What a join holds now (rows that wait, cached rows, memory) is not subtracted.
        """
        counted = {name: getattr(self, name) - getattr(before, name) for name in _COUNTERS}
        return replace(self, **counted)

    def with_holdings_of(self, other: JoinStats) -> JoinStats:
        """The counters of this record with what `other` holds: rows, cache and memory."""
        held = {name: getattr(other, name) for name in _HOLDINGS}
        return replace(self, **held, bytes_by_component=dict(other.bytes_by_component))


_HOLDINGS = (
    "rows_waiting", "cached_rows", "bytes_in_use", "bytes_peak", "bytes_limit", "predicted_rows_s",
)  # fmt: skip
"""Fields that tell what a join holds, or can do, now."""

_NUMBERS = tuple(
    one.name
    for one in fields(JoinStats)
    if one.name not in ("algorithm", "plan", "bytes_by_component")
)
_COUNTERS = tuple(name for name in _NUMBERS if name not in _HOLDINGS)
"""Fields that only grow."""
