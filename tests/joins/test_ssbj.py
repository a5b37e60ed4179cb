"""SSBJ: the cache inequality, its states, and what its paper printed wrongly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.checks.driving import Run
from semistream.core.errors import OptionError
from semistream.joins.meshjoin import MeshJoin
from semistream.joins.ssbj import SemiStreamBalancedJoin
from semistream.kernels.cache import find
from semistream.store.file import FileMaster
from tests.examples import examples

SCHEMA = pa.schema([("part", pa.int64()), ("event", pa.int64())])


def rows(parts: Any, first: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"part": parts, "event": np.arange(first, first + len(parts))}, schema=SCHEMA
    )


def build(path: Path, parts: Any) -> FileMaster:
    table = pa.table(
        {"part": parts, "record": np.arange(len(parts)), "pad": ["p" * 40] * len(parts)}
    )
    ss.build_master(path, table, "part", page_size=4096)
    return ss.open_master(path)


def make(master: FileMaster, memory: Any = "1MB", **options: Any) -> SemiStreamBalancedJoin:
    join = ss.make_join("ssbj", master, on="part", schema=SCHEMA, memory=memory, **options)
    assert isinstance(join, SemiStreamBalancedJoin)
    return join


def is_cached(join: SemiStreamBalancedJoin, part: int) -> bool:
    return bool(find(join.cache.state.kernel, part) >= 0)


def run_cycles(join: SemiStreamBalancedJoin, parts: Any, cycles: int) -> int:
    """The same rows at the beginning of each R-cycle; how many results."""
    results = 0
    for _ in range(cycles):
        batch = rows(parts)
        while batch.num_rows:
            batch = batch.slice(join.push(batch))
            if batch.num_rows:
                result = join.step()
                results += result.num_rows if result is not None else 0
        cycle, idle = join.cycle, 0
        while join.cycle == cycle and idle < 3:
            result = join.step()
            results += result.num_rows if result is not None else 0
            idle = idle + 1 if result is None and not join.stats.rows_waiting else 0
    return results


SUPPLIERS = [10, 20, 30, 10, 20, 30, 10, 20, 10, 40]
"""The master of Figure 3: supplier records by part."""

REQUESTS = [10, 30, 10, 30, 10, 30, 40]
"""The waiting rows of Figure 3, with a third request for part 10 as in the text."""


def test_figure_3(tmp_path: Path) -> None:
    """With tuples of one size: part 30 (3 rows, 2 records) is cached, part 10 (3, 4) is not."""
    with build(tmp_path / "m", SUPPLIERS) as master, make(master, ratio=1.0) as join:
        run_cycles(join, REQUESTS, 7)
        assert is_cached(join, 30)
        assert not is_cached(join, 10)
        assert not is_cached(join, 40)
        assert join.cached_rows == 2
        list(join.finish())


def test_hysteresis(tmp_path: Path) -> None:
    with build(tmp_path / "m", SUPPLIERS) as master, make(master, ratio=1.0, factor=1.6) as join:
        run_cycles(join, REQUESTS, 7)
        assert not is_cached(join, 30), "3 rows are not worth 1.6 times 2 records"
        list(join.finish())


# What was printed wrongly.


def printed(chunks: list[list[int]], stream: list[list[int]]) -> Counter[tuple[int, int]]:
    """Algorithm 1 as printed, v_S = v_R: pairs (row, record) with a batch of rows per chunk."""
    record_of, number = {}, 0
    for c, chunk in enumerate(chunks):
        for i, _ in enumerate(chunk):
            record_of[c, i] = number
            number += 1
    results: Counter[tuple[int, int]] = Counter()
    waiting: list[list[tuple[int, int]]] = []
    cached: dict[int, list[int]] = {}
    buffer: dict[int, list[int]] = {}
    counts: Counter[int] = Counter()
    cycle, event = 0, 0
    for step, batch in enumerate(stream):
        at = step % len(chunks)
        if at == 0:
            cycle += 1
            if cycle % 3 == 0:
                cached |= buffer
                buffer = {}
                counts.clear()
        new = []
        for part in batch:
            if part in cached:
                results.update((event, record) for record in cached[part])
            else:
                new.append((event, part))
            event += 1
        waiting.append(new)
        for i, part in enumerate(chunks[at]):
            here = [e for packet in waiting for e, p in packet if p == part]
            if here:
                results.update((e, record_of[at, i]) for e in here)
                if cycle % 3 == 1:
                    counts[part] += 1
                elif cycle % 3 == 2 and len(here) > counts[part]:
                    buffer.setdefault(part, []).append(record_of[at, i])
        if len(waiting) == len(chunks):
            waiting.pop(0)
    return results


def true_pairs(parts: list[int], events: list[int]) -> Counter[tuple[int, int]]:
    records: dict[int, list[int]] = {}
    for record, part in enumerate(parts):
        records.setdefault(part, []).append(record)
    return Counter((e, record) for e, part in enumerate(events) for record in records[part])


def test_all_records_of_a_value_are_switched(tmp_path: Path) -> None:
    """Rows come and go while records pass by: printed, a value is cached with some of them."""
    parts = [p for p in range(40) for _ in range(20)]
    chunks = [parts[i : i + 100] for i in range(0, len(parts), 100)]
    rng = np.random.default_rng(8)
    # Bursts: many rows of a value in one step, few in others.
    stream = [
        rng.choice([rng.integers(0, 40), rng.integers(0, 40)], rng.integers(0, 90)).tolist()
        for _ in range(12 * len(chunks))
    ]
    # The printed version on its own order of records, in which a value lies in two chunks.
    mixed = [p for _ in range(20) for p in range(40)]
    mixed_chunks = [mixed[i : i + 100] for i in range(0, len(mixed), 100)]
    wrong = printed(mixed_chunks, stream)
    events = [part for batch in stream for part in batch]
    assert wrong != true_pairs(mixed, events), "the printed version is not wrong here"

    with build(tmp_path / "m", parts) as master:
        chunk = master.page_bytes * max(master.pages // len(chunks), 1)
        with make(master, memory="2MB", chunk=chunk, ratio=0.2) as join:
            run, event = Run(join), 0
            for batch in stream:
                run.offer(rows(batch, event))
                event += len(batch)
                run.step()
            run.finish()
            table = run.table()
            assert join.stats.hits > 0
        pairs = zip(table["event"].to_pylist(), table["record"].to_pylist(), strict=True)
        assert Counter(pairs) == true_pairs(parts, events)


def test_values_without_records_are_cached_and_leave(tmp_path: Path) -> None:
    with build(tmp_path / "m", np.arange(2000)) as master, make(master) as join:
        run_cycles(join, [-5] * 60 + [7] * 60, 8)
        assert is_cached(join, -5)
        assert is_cached(join, 7)
        reads, unmatched = join.stats.pages_read, join.stats.rows_unmatched
        list(join.finish())
        reads = join.stats.pages_read
        join.push(rows([-5] * 10))
        assert join.stats.rows_waiting == 0
        assert join.stats.pages_read == reads
        assert join.stats.rows_unmatched >= unmatched + 10
        # Nobody asks for them any more.
        run_cycles(join, list(range(100, 160)) * 2, 22)
        assert not is_cached(join, -5)
        assert not is_cached(join, 7)
        list(join.finish())


def test_a_young_value_is_not_evicted_for_its_youth(tmp_path: Path) -> None:
    """Cached at cycle 9, evicted at 10 if the hits of one cycle are divided by ten."""
    with build(tmp_path / "m", np.arange(2000)) as master, make(master) as join:
        others = list(range(100, 160))
        run_cycles(join, others, 6)
        run_cycles(join, [7] * 20 + others, 6)
        assert join.cycle >= 11
        assert is_cached(join, 7)
        list(join.finish())


def test_it_becomes_a_join_in_memory(tmp_path: Path) -> None:
    """At a rate where waiting rows would take more than all of R, nothing is read any more."""
    parts = np.repeat(np.arange(50), 3)
    with build(tmp_path / "m", parts) as master, make(master, memory="4MB") as join:
        fast = np.tile(np.arange(50), 200)
        run_cycles(join, fast, 12)
        assert join.cached_rows == 150
        list(join.finish())
        reads = join.stats.pages_read
        run = Run(join)
        run.offer(rows(fast))
        assert join.stats.pages_read == reads
        assert join.stats.rows_waiting == 0
        assert run.table().num_rows == 3 * len(fast)


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> FileMaster:
    """Parts with one to nine records."""
    parts = [p for p in range(300) for _ in range(1 + p % 9)]
    return build(tmp_path_factory.mktemp("ssbj") / "m", parts)


@given(counts=st.lists(st.integers(0, 60), min_size=20, max_size=80), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=examples(15))
def test_never_more_memory_than_meshjoin_at_the_same_rate(
    counts: list[int], seed: int, varied: FileMaster
) -> None:
    """The same rows in each R-cycle, so that what is expected is what comes."""
    parts = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    if not len(parts):
        return
    with make(varied, memory="4MB") as join:
        run_cycles(join, parts, 12)
        cached = join.cache.keys and join._cached_bytes()
        row_bytes = join.waiting.row_bytes + 4
        # At the end of the cycle of the last rows nobody waits: what waited is what missed.
        missed = sum(
            count for part, count in enumerate(counts) if count and not is_cached(join, part)
        )
        mesh = ss.make_join("meshjoin", varied, on="part", schema=SCHEMA, memory="4MB")
        assert isinstance(mesh, MeshJoin)
        mesh.push(rows(parts))
        waiting = mesh.stats.rows_waiting
        mesh.close()
        assert waiting == len(parts)
        assert missed * row_bytes + cached <= waiting * row_bytes
        # Each value is where it takes less, but for those that the buffers had no room for.
        price = join._price
        for part, count in enumerate(counts):
            if is_cached(join, part):
                assert count > price * (1 + part % 9)
        list(join.finish())


def test_a_row_does_not_starve_behind_hits(tmp_path: Path) -> None:
    """An anti join gives no results for hits, so nothing else makes it go on."""
    with build(tmp_path / "m", np.arange(2000)) as master, make(master, how="anti") as join:
        run_cycles(join, [7] * 300, 8)
        assert is_cached(join, 7)
        run = Run(join)
        run.offer(rows([1999], 10**6))
        assert join.stats.rows_waiting >= 1
        for _ in range(3000):
            run.offer(rows([7] * 1000))
            if not join.stats.rows_waiting:
                break
        else:
            raise AssertionError("the row waits for ever")


@pytest.mark.parametrize("options", [{"factor": 0.5}, {"ratio": 0.0}])
def test_options_that_make_no_sense(options: dict[str, Any], varied: FileMaster) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        make(varied, **options)
