"""The part of the comparison that runs on Spark: `semistream.bench.spark` in rounds, as results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.bench.core import Told
from semistream.bench.peers import Peer
from semistream.bench.peers.postgres import Postgres
from semistream.bench.peers.rocksdb import RocksDb
from semistream.bench.side_by_side import WARM, PeerResult, PeersOptions, with_ratios
from semistream.bench.spark import IDENTITY, POSTGRES, ROCKSDB, USUAL, SparkOptions, run_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semistream.bench.spark import SparkResult

ON_SPARK = "on Spark"
GROWING = ("semistream-drained", "spark-broadcast-stream")
"""What is followed as the master grows: `enrich`, and the best of Spark's own joins."""

ROUNDS = 2
"""Each starts a query anew, which takes its time."""


def run_peers_on_spark(
    options: PeersOptions,
    workdir: Path,
    session: SparkSession,
    *,
    systems: Sequence[str] = (),
    seconds: float = 6.0,
    tell: Told = lambda line: None,
) -> Iterator[PeerResult]:
    """Spark's own joins, lookups by hand and `enrich`, in the middle of the grid, all warm.

    All that can be run here, unless `systems` are named.
    """
    systems = systems or _all_systems(tell)
    spark = SparkOptions(
        rows=options.rows,
        batch_rows=options.batch_rows[:1],
        memory=str(options.memory_bytes(options.memories[0])),
        skew=options.skews[0],
        systems=tuple(systems),
        rounds=ROUNDS,
        seconds=seconds,
        seed=options.seed,
    )
    cell = [_result(one, options) for one in run_spark(spark, workdir, session, tell=tell)]
    yield from with_ratios(cell, reference="semistream-on-spark-drained")


def _all_systems(tell: Told) -> list[str]:
    by_hand: dict[str, type[Peer]] = {ROCKSDB: RocksDb, POSTGRES: Postgres}
    systems = [name for name in USUAL if name != IDENTITY]
    for name, needed in by_hand.items():
        lack = needed.missing()
        if lack is None:
            systems.append(name)
        else:
            tell(f"left out: {name}: {lack}")
    return systems


def _result(found: SparkResult, options: PeersOptions) -> PeerResult:
    is_ours = found.system.startswith("semistream-")
    return PeerResult(
        system=found.system.replace("semistream-", "semistream-on-spark-"),
        memory=options.memories[0],
        skew=options.skews[0],
        batch_rows=found.batch_rows,
        cache=WARM,
        rows_per_s=found.rows_per_s,
        verified=found.verified,
        rounds=found.rounds,
        memory_bytes=options.memory_bytes(options.memories[0]),
        product_rows=options.rows,
        where=ON_SPARK,
        hit_share=found.hit_share if is_ours else None,
    )
