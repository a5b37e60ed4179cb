"""The MESHJOIN family: the papers' worked examples, ordered output, no row starves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.checks import Workspace, data, named, survival
from semistream.checks.cases import duplicates, mixed, null_keys
from semistream.checks.driving import Run, assert_case, cut, open_run, run_through
from semistream.checks.workspace import part
from semistream.core.errors import BudgetError, OptionError
from semistream.joins.ameshjoin import Observed, Setting, tune
from semistream.joins.operator import Operator
from semistream.joins.packets import Packets
from semistream.joins.rmeshjoin import logical_partitions
from semistream.testing import ManualClock
from tests.examples import examples

MESHES = ["meshjoin", "ameshjoin", "rmeshjoin", "cmeshjoin"]

SCHEMA = pa.schema({"k": pa.int64(), "event": pa.int64()})


def rows(keys: Any, first: int = 0) -> pa.RecordBatch:
    events = pa.array(np.arange(first, first + len(keys)))
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), events], schema=SCHEMA)


def build(path: Path, count: int, payload: int = 100) -> Path:
    table = pa.table(
        {
            "k": np.arange(count),
            "filler": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(payload), count, [None, pa.py_buffer(bytes(count * payload))]
            ),
        }
    )
    ss.build_master(path, table, "k", page_size=4096)
    return path


def pages_of(path: Path) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The keys of every page."""
    with ss.open_master(path) as master:
        pages = [master.read_page(i) for i in range(master.pages)]
    counts = [int(page[8:12].view(np.int32)[0]) for page in pages]
    return [page[32 : 32 + 8 * n].view(np.int64) for page, n in zip(pages, counts, strict=True)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("mesh") / "small", 2000)


def test_ameshjoin_example_3_1(tmp_path: Path) -> None:
    """Three pages, one row before each loop, b = 1, 1, 2: then only s2 is left, and has met p2 and
    p0."""
    path = build(tmp_path / "three", 100)
    pages = pages_of(path)
    assert len(pages) == 3
    sizes = iter([1, 1, 2, 1])
    join = ss.make_join(
        "ameshjoin",
        path,
        on="k",
        schema=SCHEMA,
        how="left",
        columns=[],
        memory="1MB",
        tuner=lambda observed: Setting(rows=1, pages=next(sizes)),
    )
    # Each row asks for a key of p1: s0 meets it in the second loop, s1 as well, s2 has not yet.
    wanted = int(pages[1][0])
    results: list[list[int]] = []
    with join:
        for event in range(3):
            assert join.push(rows([wanted], event)) == 1
            batch = join.step()
            results.append(batch.column("event").to_pylist() if batch else [])
        assert results == [[], [0, 1], []]
        assert join.stats.rows_waiting == 1
        # A loop of one page more, p1, and s2 has met all of R.
        last = join.step()
        assert last is not None
        assert last.column("event").to_pylist() == [2]
        assert join.stats.rows_waiting == 0


@settings(deadline=None, max_examples=examples(25))
@given(data_=st.data())
def test_ameshjoin_is_exact_for_any_w_and_b(small: Path, data_: st.DataObject) -> None:
    """Also for b above the number of pages, and for loops that no row enters."""
    sizes = data_.draw(st.lists(st.integers(1, 90), min_size=1, max_size=30))
    at = iter(range(10**6))
    join = ss.make_join(
        "ameshjoin",
        small,
        on="k",
        schema=SCHEMA,
        how="left",
        columns=["k"],
        memory="200kB",
        tuner=lambda observed: Setting(1, sizes[next(at) % len(sizes)]),
    )
    run = Run(join)
    rng, event = np.random.default_rng(len(sizes)), 0
    with join:
        for count in data_.draw(st.lists(st.integers(0, 40), max_size=15)):
            if count:
                run.offer(rows(rng.integers(-100, 2100, count), event))
            event += count
            run.step()
        run.finish()
    assert sorted(run.table().column("event").to_pylist()) == list(range(event))


def test_tuner_needs_less_memory_for_a_lower_rate() -> None:
    observed = Observed(
        rate=math.inf,
        master_pages=10_000,
        page_bytes=8192,
        buffer_pages=10_000,
        row_bytes=24,
        memory_bytes=8_000_000,
        request_s=8e-3,
        page_s=1e-4,
        row_s=1e-6,
    )

    def memory(setting: Setting) -> float:
        chunks = math.ceil(10_000 / setting.pages)
        return 2 * setting.pages * 8192 + setting.rows * chunks * 24

    def rate(setting: Setting) -> float:
        return setting.rows / (8e-3 + setting.pages * 1e-4 + setting.rows * 1e-6)

    fastest = tune(observed)
    assert memory(fastest) <= 8_000_000
    wanted = rate(fastest) / 4
    slow = tune(replace(observed, rate=wanted))
    assert rate(slow) >= wanted * 0.99
    assert memory(slow) < memory(fastest) / 2
    # No other size of reads would do with less.
    for pages in range(1, 10_000, 7):
        per_chunk = 8e-3 + pages * 1e-4
        need = math.ceil(wanted * per_chunk / (1 - wanted * 1e-6))
        assert memory(Setting(need, pages)) > 0.97 * memory(slow)


def test_ameshjoin_gives_memory_back_when_the_stream_slows_down(small: Path) -> None:
    clock = ManualClock()
    join = ss.make_join(
        "ameshjoin", small, on="k", schema=SCHEMA, memory="2MB", clock=clock, request_s=1e-3
    )
    run = Run(join)
    rng, event = np.random.default_rng(1), 0

    def feed(count: int, times: int) -> None:
        nonlocal event
        for _ in range(times):
            run.offer(rows(rng.integers(0, 2000, count), event))
            event += count
            run.step()
            clock.advance(0.01)

    with join:
        feed(60_000, 4)
        fast = join.stats.bytes_in_use
        assert fast > 1_500_000
        feed(10, 300)
        slow = join.stats.bytes_in_use
        assert slow < fast / 2
        feed(60_000, 6)
        assert join.stats.bytes_in_use > 1_500_000
        run.finish()
    assert sorted(run.table().column("event").to_pylist()) == list(range(event))


def test_rmeshjoin_table_4_4() -> None:
    """k·l = 8576 from 0.5 to 16 million rows: k doubles and l is halved."""
    chunks = [134 * 2**i for i in range(6)]
    partitions = [logical_partitions(k) for k in chunks]
    assert partitions == [64, 32, 16, 8, 4, 2]
    assert {k * part for k, part in zip(chunks, partitions, strict=True)} == {8576}
    assert logical_partitions(20_000) == 1


def test_rmeshjoin_takes_in_the_same_whatever_the_size(tmp_path: Path) -> None:
    entering = []
    for doubling in range(3):
        path = build(tmp_path / str(doubling), 3200 * 2**doubling)
        join: Any = ss.make_join(
            "rmeshjoin", path, on="k", schema=SCHEMA, memory="1MB", queue_partitions=44, chunk=32768
        )
        with join:
            join.push(rows([1]))
            chunks = -(-join.master.pages // join.chunk_pages)
            assert join.chunk_pages == 8
            entering.append(join.rows_to_enter())
            assert abs(chunks * join.partitions - 44) <= chunks / 2
    assert max(entering) <= 1.25 * min(entering)


def test_packets() -> None:
    packets = Packets(3)
    for count, start in ((4, 0), (2, 5), (3, 7)):
        packets.append(count, start)
    assert packets.is_full
    assert packets.starts().tolist() == [0] * 4 + [5] * 2 + [7] * 3
    assert packets.pop_youngest(1) == 1
    assert packets.pop_youngest(9) == 2
    assert packets.pop_oldest() == 4
    assert packets.oldest_start == 5
    packets.append(1, 8)
    assert packets.starts().tolist() == [5, 5, 8]


@pytest.mark.parametrize("join", ["meshjoin", "rmeshjoin", "cmeshjoin"])
@pytest.mark.parametrize("memory", [120_000, 135_000, 150_000])
def test_all_of_a_small_memory_is_used(join: str, memory: int, tmp_path: Path) -> None:
    """Though only one or two rows, and a fraction, come with each of very many chunks."""
    path = build(tmp_path / "long", 40_000)
    operator: Any = ss.make_join(
        join, path, on="k", schema=SCHEMA, memory=memory, chunk=4096, how="left"
    )
    with operator:
        operator.push(rows([1]))
        assert operator.waiting.capacity / operator.master.pages < 5
        due = 0
        while operator.loops <= 2 * operator.master.pages:
            if operator.push(rows(np.arange(64))) < 64:
                operator.step()
            due = max(due, operator.rows_waiting)
        assert due >= 0.99 * operator.waiting.capacity


# No row starves.


@pytest.mark.parametrize("join", [*MESHES, "partitionedjoin"])
def test_a_rare_row_leaves_while_hot_rows_keep_coming(join: str, small: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"max_age": 5} if join == "partitionedjoin" else {}
    operator = ss.make_join(
        join, small, on="k", schema=SCHEMA, memory="300kB", clock=clock, **options
    )
    assert _steps_until_the_first_leaves(operator, clock, 1000) is not None


def test_partitionedjoin_lets_rare_rows_wait_without_an_age_bound(small: Path) -> None:
    clock = ManualClock()
    operator = ss.make_join(
        "partitionedjoin", small, on="k", schema=SCHEMA, memory="300kB", clock=clock
    )
    assert _steps_until_the_first_leaves(operator, clock, 300) is None


def test_partitionedjoin_keeps_its_age_bound(small: Path) -> None:
    """A row leaves with the first call after its time; one second passes per call here."""
    clock = ManualClock()
    operator = ss.make_join(
        "partitionedjoin", small, on="k", schema=SCHEMA, memory="300kB", clock=clock, max_age=20
    )
    with operator:
        operator.push(rows([1999]))
        for second in range(20):
            assert operator.take() is None, f"left after {second} s"
            clock.advance(1)
        operator.push(rows([5], 1))
        batch = operator.take()
        assert batch is not None
        assert 0 in batch.column("event").to_pylist()


def _steps_until_the_first_leaves(operator: Operator, clock: ManualClock, most: int) -> int | None:
    """Push a row that nobody else's page serves, then hot ones for ever; after how many pushes it
    leaves."""
    rng = np.random.default_rng(3)
    with operator:
        assert operator.push(rows([1999])) == 1
        event = 1
        for number in range(most):
            batch = rows(rng.integers(0, 40, 400), event)
            while batch.num_rows:
                accepted = operator.push(batch)
                batch = batch.slice(accepted)
                event += accepted
                result = operator.step() if batch.num_rows else operator.take()
                if result is not None and 0 in result.column("event").to_pylist():
                    return number
            clock.advance(1)
    return None


# The cache of cmeshjoin.


def test_cmeshjoin_answers_hot_rows_from_its_cache(small: Path) -> None:
    join = ss.make_join("cmeshjoin", small, on="k", schema=SCHEMA, memory="300kB", seed=1)
    run = Run(join)
    rng = np.random.default_rng(5)
    with join:
        for number in range(30):
            keys = np.where(rng.random(4000) < 0.8, rng.integers(0, 20, 4000) * 97, 1500)
            run.offer(rows(keys, 4000 * number))
        run.finish()
        stats = join.stats
    assert stats.hit_share > 0.5
    assert stats.cached_rows >= 15
    assert run.table().num_rows == 120_000


def test_options_are_checked(small: Path) -> None:
    for name, options in (
        ("cmeshjoin", {"cache_share": 1.5}),
        ("cmeshjoin", {"threshold": 0}),
        ("rmeshjoin", {"queue_partitions": 0}),
        ("partitionedjoin", {"segment_pages": 0}),
        ("partitionedjoin", {"threshold": 0}),
        ("partitionedjoin", {"max_age": -1}),
        ("partitionedjoin", {"buffer_share": 1}),
    ):
        with pytest.raises(OptionError, match=next(iter(options))):
            ss.make_join(name, small, on="k", schema=SCHEMA, **options)


# Ordered output.


@pytest.mark.parametrize("join", MESHES)
@pytest.mark.parametrize("how", ["inner", "left", "semi"])
def test_ordered_output(join: str, how: str, workspace: Workspace) -> None:
    """Results leave in the stream's order, also when results had to be dropped and made again."""
    few = part(duplicates(), 500)
    for case, memory in ((mixed(), 400_000), (null_keys(), 400_000), (few, 120_000)):
        run = open_run(named(join, ordered=True), workspace, case, how, memory)
        table = run_through(run, cut(case.stream, 300))
        workspace.assert_exact(table, case, how, f"{join}, ordered, {case.name}, {how}")
        events = table.column("event").to_numpy()
        assert (np.diff(events) >= 0).all()
        assert run.join.stats.bytes_peak <= memory


def test_ordered_output_is_moved(workspace: Workspace) -> None:
    """Snapshots carry the results that are held."""
    survival.check_snapshots(named("meshjoin", ordered=True), workspace)
    data.check_null_keys(named("rmeshjoin", ordered=True), workspace)
    assert_case(named("ameshjoin", ordered=True), workspace, duplicates(), hows=("left",))


def test_ordered_output_of_a_row_with_too_many_results(tmp_path: Path) -> None:
    table = pa.table({"k": np.zeros(20_000, np.int64), "text": ["x" * 50] * 20_000})
    ss.build_master(tmp_path / "one", table, "k", page_size=4096)
    join = ss.make_join(
        "meshjoin", tmp_path / "one", on="k", schema=SCHEMA, memory="300kB", ordered=True
    )
    with join:
        join.push(rows([0]))
        with pytest.raises(BudgetError, match="ordered=True"):
            list(join.finish())
