"""Joins on tables whose keys repeat: memory as given, results checked, time by the disk."""

from __future__ import annotations

from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.bench.papers.ground import Ground
from semistream.bench.papers.machine import PLAIN
from semistream.bench.papers.tables import (
    DiskClock,
    Overflow,
    PairCheck,
    Table,
    held_rate,
    overflow,
    play_table,
)
from semistream.joins.registry import make_join
from semistream.workloads import make_workload, sale_schema

ROWS = 4000


def table(**options: Any) -> Table:
    workload = make_workload("many-to-many", master_rows=ROWS, values=500, **options)
    return Table("test", workload, "stock", 64, ("stock",))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground("small", tmp_path)


@pytest.mark.parametrize("join", ["meshjoin", "ssij", "ssbj", "hybridjoin"])
def test_a_join_is_played_and_verified(ground: Ground, join: str) -> None:
    played = play_table(ground, join, table(), 60_000, rounds=(1, 2))
    assert played.verified
    assert played.rows > 500
    assert 60_000 < played.memory_bytes < 1_000_000
    assert played.rate(PLAIN) > 0
    ground.close()


def test_a_whole_stream_counts_from_its_first_row(ground: Ground) -> None:
    played = play_table(ground, "ssij", table(), 60_000, whole=3000)
    assert played.verified
    assert played.rows == 3000
    assert played.did.pages_read > 0
    ground.close()


def test_a_cache_settles_before_it_is_counted(ground: Ground) -> None:
    one = table(skew=1.0)
    cold = play_table(ground, "ssbj", one, 60_000, rounds=(0, 2))
    warm = play_table(ground, "ssbj", one, 60_000, rounds=(0, 2), settle=True)
    assert warm.verified
    assert warm.did.hit_share > cold.did.hit_share + 0.05
    ground.close()


def test_memory_overflows_if_rows_come_too_fast(ground: Ground) -> None:
    def at(rate: float) -> Overflow:
        arrived = partial(mul, rate)
        return overflow(ground, table(), 60_000, 3000, arrived, PLAIN)

    slow, fast = at(100), at(4_000)
    assert slow == Overflow(happened=False, rows=3000, verified=True)
    assert fast.happened
    assert fast.verified
    assert 0 < fast.rows < 3000
    rate, verified = held_rate(ground, table(), 60_000, 3000, 4_000, PLAIN)
    assert verified
    assert 100 < rate < 2_000, "neither end of the search"
    assert not at(rate).happened
    assert at(2 * rate).happened
    ground.close()


def pairs(one: Table, rows: int) -> tuple[PairCheck, pa.RecordBatch]:
    """A check that was fed `rows` rows, and all their pairs."""
    check = PairCheck(one, 0)
    _, stream = one.stream()
    fed = next(check.watch(stream)).slice(0, rows)
    master = one.workload.master().read_all().select(["product_id", "stock"])
    joined = pa.table(fed).join(master, "product_id", join_type="inner").combine_chunks()
    return check, joined.to_batches()[0]


def test_pairs_must_be_all_and_each_once() -> None:
    def verdict(change: Any) -> bool:
        check, joined = pairs(table(), 300)
        for batch in change(joined):
            check.add(batch)
        return check.agrees(300)

    assert verdict(lambda joined: [joined])
    assert verdict(lambda joined: [joined.slice(0, 10), joined.slice(10)])
    assert not verdict(lambda joined: [joined.slice(1)])
    assert not verdict(lambda joined: [joined, joined.slice(5, 1)])
    assert not verdict(lambda joined: [joined.slice(1), joined.slice(7, 1)])
    stock = pa.array([0] * 300).cast(pa.int64())
    wrong = 3  # rows of the first batch get another product's stock
    assert not verdict(
        lambda joined: [
            joined.slice(wrong),
            joined.slice(0, wrong).set_column(
                joined.schema.get_field_index("stock"), "stock", stock.slice(0, wrong)
            ),
        ]
    )


def test_stream_rows_have_the_bytes_that_are_asked_for() -> None:
    schema, stream = table().stream()
    assert sum(field.type.byte_width for field in schema) == 64
    assert next(stream).schema.equals(schema)


def test_the_disks_clock_runs_with_reads(ground: Ground) -> None:
    one, clock = table(), DiskClock(PLAIN)
    assert clock.now_ns() == 0
    with make_join(
        "meshjoin",
        one.master(ground),
        on="product_id",
        schema=sale_schema(),
        memory=200_000,
        clock=clock,
    ) as join:
        clock.follow(join)
        join.push(next(iter(one.workload.stream(100))))
        for _ in join.finish():
            pass
        pages = join.stats.pages_read
        assert pages >= one.master(ground).pages
        assert clock.now_ns() == round((pages * 1e-4 + join.stats.seeks * 8e-3) * 1e9)
    ground.close()
