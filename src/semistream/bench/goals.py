"""What semistream is meant to reach beside other systems, and what a comparison has seen of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semistream.bench.side_by_side import COLD, ROW_BYTES, WARM, PeerResult

SCANS = ("duckdb", "duckdb-index", "polars")
SPARKS_OWN = ("spark-sort-merge", "spark-shuffled-hash", "spark-broadcast-stream", "spark-bucketed")
BY_HAND = ("spark-rocksdb-lookup", "spark-postgres-lookup")

DRAINED, WAITING = MODES = "drained", "waiting"
"""How semistream joins: each micro-batch completely, which is the default of `enrich` on Spark, or
so that rows may wait for each other, the default of `ss.join`."""

LEAST_MASTER = 10
"""Goals are for masters of at least so many times the memory."""


@dataclass(frozen=True)
class Goal:
    """Semistream is to have `times` the rate of these systems.

    None for a state of the cache, a skew or a number of rows means: whatever it is.
    `modes` are those in which it is to have it.
    """

    systems: tuple[str, ...]
    times: float
    batch_rows: int
    cache: str | None = WARM
    skew: float | None = None
    product_rows: int | None = None
    modes: tuple[str, ...] = MODES

    def covers(self, one: PeerResult) -> bool:
        """Whether a result is about this goal."""
        return (
            one.system in self.systems
            and one.why_not is None
            and one.batch_rows == self.batch_rows
            and self.cache in (None, one.cache)
            and self.skew in (None, one.skew)
            and self.product_rows in (None, one.product_rows)
            and is_large(one)
        )

    def __str__(self) -> str:
        parts = [f"{', '.join(self.systems)}: {self.batch_rows:,} rows"]
        parts += [f"skew {self.skew:g}"] if self.skew is not None else []
        parts += [self.cache] if self.cache is not None else []
        parts += [f"a master of {self.product_rows:,} rows"] if self.product_rows else []
        return ", ".join(parts + (list(self.modes) if self.modes != MODES else []))


GOALS = (
    Goal(SCANS, 5, 10_000, skew=1),
    Goal(SCANS, 3, 10_000, skew=0),
    Goal(SCANS, 4, 100_000, skew=1),
    Goal(SCANS, 1.5, 100_000, skew=0, modes=(DRAINED,)),
    Goal(SCANS, 4, 100_000, skew=0, modes=(WAITING,)),
    Goal(SCANS, 2, 1_000_000),
    *(Goal((name,), 4, 100_000) for name in ("rocksdb", "sqlite", "postgres", "mariadb")),
    Goal(("lmdb",), 3, 100_000),
    *(Goal((name,), 10, 100_000, COLD) for name in ("rocksdb", "sqlite", "postgres", "mariadb")),
    Goal(SPARKS_OWN, 6, 100_000, product_rows=10_000_000, modes=(DRAINED,)),
    Goal(SPARKS_OWN, 20, 100_000, product_rows=50_000_000, modes=(DRAINED,)),
    Goal(BY_HAND, 5, 100_000, modes=(DRAINED,)),
)


@dataclass(frozen=True)
class Seen:
    """How often semistream had a system's rate, at the least and at the most, over some cells."""

    least: float
    most: float

    def __str__(self) -> str:
        low, high = f"{self.least:.1f}", f"{self.most:.1f}"
        return low if low == high else f"{low} to {high}"


def is_large(one: PeerResult) -> bool:
    """Whether the master was large enough for goals to hold, whatever its rows take on disk."""
    # Memory and master are compared in the bytes of rows: ten times is then exactly ten times.
    return bool(one.product_rows * ROW_BYTES >= LEAST_MASTER * one.memory_bytes)


def seen_of(goal: Goal, done: Sequence[PeerResult]) -> dict[str, Seen]:
    """What a comparison has seen of a goal, by mode; nothing if it had no such cell."""
    seen = {mode: _seen(goal, done, mode) for mode in MODES}
    return {mode: one for mode, one in seen.items() if one is not None}


def _seen(goal: Goal, done: Sequence[PeerResult], mode: str) -> Seen | None:
    times = [_times(one, mode) for one in done if goal.covers(one)]
    found = [one for one in times if one is not None]
    return Seen(min(found), max(found)) if found else None


def not_ahead(done: Sequence[PeerResult]) -> Iterator[tuple[PeerResult, str, float]]:
    """Where a peer was as fast or faster: its result, semistream's mode, how often its rate that
    had."""
    for one in done:
        if one.system.startswith("semistream") or one.why_not is not None or not is_large(one):
            continue
        for mode in MODES:
            times = _times(one, mode)
            if times is not None and times <= 1:
                yield one, mode, times


def _times(one: PeerResult, mode: str) -> float | None:
    ratio = one.ratio_to_waiting if mode == WAITING else one.ratio_to_semistream
    return 1 / ratio if ratio else None
