"""A pipeline that is played: micro-batches as a source, a queue and a join would make them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from semistream.core.stats import LATENCY_BUCKETS, JoinStats
from semistream.dashboard.tracker import Tracker
from semistream.spark.metrics import BatchStats
from semistream.spark.recorder import MicroBatch

KEYS = {"4711": 70, "17": 35, "<script>alert(1)</script>": 23, 'a&b "c"': 18, "5": 14}


@dataclass
class HandClock:
    """Time that passes when it is told to; `real` so that a replay takes it."""

    now: int = 1_000_000_000
    real: bool = True

    def now_ns(self) -> int:
        """The time."""
        return self.now

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1e9)


@dataclass
class Feed:
    """Second by second, rows come and the join takes what it can."""

    tracker: Tracker
    clock: HandClock
    budget: int = 8_000_000
    batch: int = 0
    behind: int = 0
    keys: dict[str, int] = field(default_factory=lambda: dict(KEYS))

    def second(
        self,
        rows: int = 100_000,
        capacity: int = 150_000,
        *,
        counted: bool = True,
        over: int = 0,
        unmatched: float = 0.01,
        predicted: float = 0.0,
        shed: int = 0,
        tasks: int = 2,
    ) -> MicroBatch:
        """A second passes: so many rows come, and at most `capacity` are joined."""
        self.clock.pass_s(1)
        self.behind += rows
        taken = min(self.behind, capacity)
        self.behind -= taken
        lost = int(taken * unmatched)
        histogram = np.zeros(LATENCY_BUCKETS, np.int64)
        histogram[96:112] = taken // 64
        join = JoinStats(
            algorithm="sweepjoin",
            rows_in=taken,
            rows_out=taken - lost,
            rows_matched=taken - lost,
            rows_unmatched=lost,
            rows_shed=shed,
            hits=int(taken * 0.6),
            misses=taken - int(taken * 0.6),
            cached_rows=20_000,
            pages_read=taken // 10,
            requests=taken // 20,
            bytes_read=taken // 10 * 8192,
            bytes_by_component={
                "cache": self.budget // 2,
                "pool": self.budget // 4,
                "index": self.budget // 8,
                "output": self.budget // 16 + over,
            },
            bytes_in_use=self.budget * 15 // 16 + over,
            bytes_limit=self.budget,
            bytes_peak=self.budget * 15 // 16 + over,
            time_busy_s=taken / capacity * 1.2,
            time_io_s=taken / capacity * 0.4,
            latency_histogram=histogram,
            predicted_rows_s=predicted,
        )
        stats = BatchStats(
            batch=self.batch,
            tasks=tasks,
            version=1,
            join=join,
            pairs=taken - lost,
            dead_rows=taken // 5000,
            hot_keys=self.keys,
            sampled_rows=1000,
        )
        work_ms = int(900 * taken / capacity)
        made = MicroBatch(
            batch=self.batch,
            rows_in=taken,
            ended_ns=self.clock.now_ns(),
            durations_ms={
                "addBatch": work_ms,
                "queryPlanning": 9,
                "walCommit": 14,
                "latestOffset": 2,
                "commitOffsets": 11,
                "getBatch": 1,
                "triggerExecution": work_ms + 40,
            },
            stats=stats,
            rows_behind=self.behind if counted else None,
        )
        self.batch += 1
        self.tracker.add(made)
        return made
