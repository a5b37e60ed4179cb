"""What `sweepjoin` does beyond the contract: gaps, full outputs, a cache that earns its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError
from semistream.joins.sweepjoin import OFFERED, SweepJoin
from semistream.testing import ManualClock
from semistream.workloads.zipf import zipf_ranks

KEYS = 40_000
MEMORY = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sweep") / "m"
    info = pa.array([b"x" * 100] * KEYS, pa.binary(100))
    ss.build_master(made, pa.table({"k": np.arange(KEYS), "v": np.arange(KEYS), "info": info}), "k")
    return made


def made(path: Path, **options: Any) -> SweepJoin:
    join = ss.make_join("sweepjoin", path, on="k", schema=SCHEMA, memory=MEMORY, **options)
    assert isinstance(join, SweepJoin)
    return join


def rows(count: int, skew: float, start: int = 0) -> pa.RecordBatch:
    ranks = zipf_ranks(KEYS, skew, count, seed=5, start=start) - 1
    keys = ranks * 7919 % KEYS  # hot keys are spread over the pages
    return pa.record_batch([keys, np.arange(start, start + count)], schema=SCHEMA)


def joined(join: SweepJoin, batch: pa.RecordBatch, *, drained: bool = False) -> list[int]:
    """Sizes of the results; every row must come with its partner."""
    sizes = []

    def note(result: pa.RecordBatch | None) -> None:
        if result is not None:
            assert (result.column("k").to_numpy() == result.column("v").to_numpy()).all()
            sizes.append(result.num_rows)

    while batch.num_rows:
        batch = batch.slice(join.push(batch))
        note(join.step())
    if drained:
        for result in join.finish():
            note(result)
    return sizes


@pytest.mark.parametrize("gap", [-1, -100])
def test_a_gap_below_zero_is_refused(path: Path, gap: int) -> None:
    with pytest.raises(OptionError, match=f"gap_pages={gap}"):
        made(path, gap_pages=gap)


def test_gaps_are_read_through_where_a_seek_costs_more(path: Path) -> None:
    seeks, pages = [], []
    for gap in (0, 2, 10_000):
        with made(path, gap_pages=gap) as join:
            assert sum(joined(join, rows(300, 0.0), drained=True)) == 300
            seeks.append(join.stats.seeks)
            pages.append(join.stats.pages_read)
    assert seeks[0] > 1.3 * seeks[1] > 10 * seeks[2]
    assert pages[0] < pages[1] < pages[2]


def test_a_step_fills_the_output(path: Path) -> None:
    with made(path) as join:
        sizes = joined(join, rows(60_000, 0.0), drained=True)
    assert sum(sizes) == 60_000
    # Results of one page after the other would come a few dozen rows at a time.
    assert np.mean(sizes) > 500


def test_results_have_memory_that_stays_with_the_process(path: Path) -> None:
    """jemalloc keeps for a while what is let go of; Arrow's wheels have it."""
    pool = pa.jemalloc_memory_pool()
    with made(path) as join:
        joined(join, rows(2000, 0.0), drained=True)
        before = pool.bytes_allocated()
        batch = rows(1000, 0.0, start=2000)
        assert join.push(batch) == batch.num_rows
        held = list(join.finish())
        assert pool.bytes_allocated() - before >= sum(result.nbytes for result in held) > 0


def test_a_cache_that_earns_nothing_gives_its_memory_to_the_pool(path: Path) -> None:
    # The disk is the bottleneck by decree: measured times would have a say in it otherwise.
    with made(path, gap_pages=1) as join:
        joined(join, rows(1, 0.0))
        at_first = join.cache.size_bytes
        joined(join, rows(400_000, 0.0))
        assert join.cache.size_bytes < at_first / 4
    with made(path) as join:
        joined(join, rows(400_000, 1.0))
        assert join.stats.hit_share > 0.4


def test_keys_that_come_once_displace_nobody(path: Path) -> None:
    """Drained, with all spare memory in the cache: it holds what is asked for again."""
    with made(path) as join:
        for start in range(0, 200_000, 5000):
            joined(join, rows(5000, 1.0, start), drained=True)
        before, cached = int(join.cache.state.given_up), join.cache.rows
        assert cached > 3000
        # All others pass once each, as in a report over the whole master.
        hits = join.stats.hits
        for start in range(0, KEYS, 5000):
            once = pa.record_batch([np.arange(start, start + 5000)] * 2, schema=SCHEMA)
            joined(join, once, drained=True)
        # Some share their counters with others and are taken for old acquaintances.
        assert join.cache.state.given_up - before < KEYS / 10
        assert join.stats.hits - hits > 0.75 * cached


def test_batches_of_one_size_leave_the_border_where_it_is(path: Path) -> None:
    """Drained, each nearly fills the pool; the sweeps after that are for its last rows."""
    with made(path, gap_pages=1) as join:
        sizes = []
        for start in range(0, 2_400_000, 60_000):
            joined(join, rows(60_000, 1.0, start), drained=True)
            sizes.append(join.cache.size_bytes)
        assert join.stats.hit_share > 0.6
    assert np.count_nonzero(np.diff(sizes[20:])) <= 2


def test_a_cache_without_merit_is_offered_fewer_rows_until_it_has_some(path: Path) -> None:
    with made(path) as join:
        for i in range(30):
            joined(join, rows(5000, 0.0, start=5000 * i), drained=True)
        assert join.match.one_in == OFFERED
        hot = rows(5000, 0.0).column("k").to_numpy()[:200].repeat(25)
        for i in range(30):
            if i == 20:
                learnt = join.stats
            batch = pa.record_batch([hot, np.arange(5000) + 5000 * i], schema=SCHEMA)
            joined(join, batch, drained=True)
        assert join.match.one_in == 1
        assert join.stats.since(learnt).hit_share > 0.99


@pytest.mark.parametrize(
    ("hits", "miss_ns", "options", "offered"),
    [
        (3000, 100, {}, OFFERED),  # 30 ns a row are saved, and asking takes 50
        (3000, 1000, {}, 1),
        (6000, 1, {}, 1),  # hardly any row was missed: what that takes is not known
        (3000, 100, {"gap_pages": 1}, 1),  # the disk binds by decree
        (3000, 100, {"clock": ManualClock()}, 1),  # no time was measured
    ],
)
def test_a_cache_that_takes_more_time_than_it_saves_is_offered_fewer_rows(
    path: Path, hits: int, miss_ns: float, options: dict[str, Any], offered: int
) -> None:
    with made(path, **options) as join:
        for i in range(8):
            joined(join, rows(5000, 1.0, start=5000 * i), drained=True)
        assert 2 * join.cache.rows < 0.5 * KEYS, "hits would be those of chance"
        join.cache.state.limit = join.cache.rows  # it is full
        join._offer(hits, 10_000, miss_ns)
        assert join.match.one_in == offered


def test_hot_keys_are_cached_whatever_the_rows_of_pages(path: Path) -> None:
    """The last page has fewer rows than others: what it asked for must not be left to them."""
    with made(path) as join:
        last = np.arange(KEYS - 12, KEYS).repeat(100)
        joined(join, pa.record_batch([last, np.arange(len(last))], schema=SCHEMA), drained=True)
        hot = np.arange(0, 2000, dtype=np.int64)
        for i in range(4):
            learnt = join.stats
            batch = pa.record_batch([hot, hot + 2000 * i], schema=SCHEMA)
            joined(join, batch, drained=True)
        assert join.stats.since(learnt).hit_share == 1.0


def test_where_all_slots_are_free_they_are_used_in_the_order_of_memory(path: Path) -> None:
    with made(path) as join:
        for i in range(3):
            joined(join, rows(1000, 0.0, start=1000 * i), drained=True)
        assert join.rows_waiting == 0
        assert join.push(rows(10, 0.0, start=9000)) == 10
        waiting = join.waiting.state
        assert (waiting.free, waiting.fresh) == (-1, 1 + join.rows_waiting)
        list(join.finish())
