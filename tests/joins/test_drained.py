"""`drained` of joins that list a batch's rows: every way that rows can take through a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import semistream.cost.auto as auto_module
import semistream.joins.sweepjoin as sweepjoin_module
import semistream.joins.waiting as waiting_module
from semistream.checks import Workspace, cases, named
from semistream.checks.driving import ROOMY, cut, open_run
from semistream.checks.workspace import Case
from semistream.core.errors import CallOrderError
from semistream.core.join import HOWS
from semistream.joins.registry import make_join
from semistream.joins.sweepjoin import WAITING_NS, SweepJoin
from semistream.store.reader import PageReader

CASES = (
    cases.numbers,
    cases.mixed,
    cases.duplicates,
    cases.null_keys,
    cases.only_null_keys,
    cases.string_keys,
    cases.composite_collisions,
    cases.one_row,
    cases.hot_key,
    cases.hot_string,
    cases.long_runs,
    cases.one_long_run,
    cases.sharded_strings,
    cases.half_filled,
    cases.wide,
    cases.only_keys,
    cases.uneven_strings,
    cases.large_pages,
    cases.long_stream_rows,
    cases.many_results,
    cases.uniform,
)

FEW_SLOTS = 3
"""So few that rows whose key goes on in the next page take all of them."""


@pytest.fixture(params=[FEW_SLOTS, waiting_module.LISTED_SLOTS], ids=["few slots", "many slots"])
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (sweepjoin_module, waiting_module):
        monkeypatch.setattr(module, "LISTED_SLOTS", request.param)
    monkeypatch.setattr(sweepjoin_module, "LEAST_LISTED", 4)
    return int(request.param)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_lists_are_exact(
    case: Callable[[], Case], threads: int, slots: int, workspace: Workspace
) -> None:
    one, listed = case(), []
    begin = SweepJoin._list

    def counted(self: SweepJoin, *args: object) -> int:
        listed.append(1)
        return begin(self, *args)  # type: ignore[arg-type]

    for how in HOWS if workspace.thorough else ("inner", "left", "anti"):
        for rows in (700, 10**6):
            run = open_run(named("sweepjoin", threads=threads), workspace, one, how, 3 * ROOMY)
            with run.join, pytest.MonkeyPatch.context() as patch:
                patch.setattr(SweepJoin, "_list", counted)
                for batch in cut(one.stream, rows):
                    run.drained(batch)
                table = run.table()
            workspace.assert_exact(table, one, how, f"{one.name}, {how}, {rows} rows drained")
    assert listed


def test_a_list_that_is_too_short_is_used_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweepjoin_module, "LEAST_LISTED", 4)
    monkeypatch.setattr(SweepJoin, "_list_room", property(lambda self: 40_000))
    case = cases.skewed(False)
    run = open_run(named("sweepjoin"), workspace, case, "left")
    loops = 0
    with run.join:
        for batch in cut(case.stream, 10**6):
            run.drained(batch)
        loops = run.join.loops  # type: ignore[attr-defined]
        table = run.table()
    workspace.assert_exact(table, case, "left", "a short list")
    assert loops > 2


def test_until_all_results_are_taken_nothing_else_may_be_called(workspace: Workspace) -> None:
    case = cases.many_results()
    (batch,) = cut(case.stream, 10**6)
    run = open_run(named("sweepjoin"), workspace, case, "inner")
    with run.join as join:
        results = join.drained(batch)
        next(results)
        for call in (join.step, join.take, join.snapshot, lambda: join.push(batch)):
            with pytest.raises(CallOrderError, match=r"draining a batch.*drained\(\)"):
                call()
        for _ in results:
            pass
        assert join.push(batch.slice(0, 1)) == 1


def test_memory_lent_to_a_list_is_the_pools_again(workspace: Workspace) -> None:
    case = cases.uniform()
    run = open_run(named("sweepjoin"), workspace, case, "left")
    whole = case.stream.combine_chunks().to_batches()[0]
    with run.join:
        run.drained(whole.slice(0, 10_000))
        for start in range(10_000, whole.num_rows, 9000):
            run.offer(whole.slice(start, 9000))
        run.drained(pa.RecordBatch.from_pylist([], schema=whole.schema))
        table = run.table()
    workspace.assert_exact(table, case, "left", "first drained, then waiting")


LARGE = 16_000_000
"""Memory in which pages are seen through a window, also by one of two threads."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", ["sweepjoin", "auto"])
def test_batches_that_gain_nothing_by_waiting_are_drained(
    algorithm: str, threads: int, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The master fits the memory: `auto` must not see that.
    monkeypatch.setattr(auto_module, "fits", lambda workload, memory: False)
    case = cases.uniform()
    # From some thousand rows on it pays to look through all pages.
    page_ns = 2000 * WAITING_NS / workspace.opened(case).pages
    monkeypatch.setattr(PageReader, "seeing_ns", page_ns)
    run = open_run(named(algorithm, threads=threads), workspace, case, "left", 2 * LARGE)
    (whole,) = case.stream.combine_chunks().to_batches()
    waited = []
    with run.join as join:
        start = 0
        for rows in (100, 20_000, 100, 100, 10**6):
            batch = whole.slice(start, rows)
            start += batch.num_rows
            run.pushed(batch)
            waited.append(join.stats.rows_waiting)
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", "small and large batches")
    assert waited[0] > 0
    assert waited[1] == 0
    assert 0 < waited[2] < waited[3]
    assert waited[4] == 0


def test_a_large_batch_is_drained_from_where_its_rows_would_wait(workspace: Workspace) -> None:
    case = cases.uniform()
    run = open_run(named("sweepjoin"), workspace, case, "left", LARGE)
    (whole,) = case.stream.combine_chunks().to_batches()
    with run.join as join:
        # Nothing is known before the first row.
        assert not join.drains(whole.num_rows)
        run.push(whole.slice(0, 1))
        assert join.drains(whole.num_rows)
        assert not join.drains(1)


def test_a_pool_that_fills_when_the_head_is_at_the_end_is_swept(workspace: Workspace) -> None:
    case = cases.uniform()
    run = open_run(named("sweepjoin"), workspace, case, "anti", 600_000)
    (whole,) = case.stream.combine_chunks().to_batches()
    with run.join as join:
        run.drained(whole.slice(0, 7000))
        assert isinstance(join, SweepJoin)
        # As a batch that was drained may leave it: a sweep is over before anything is read.
        join._position = join.master.pages
        run.offer(whole.slice(7000, 20_000))
        run.drained(whole.slice(27_000))
        table = run.table()
    workspace.assert_exact(table, case, "anti", "a sweep without reads")


@pytest.mark.parametrize("option", [{"io": "direct"}, {"max_wait": "1 second"}], ids=str)
def test_rows_wait_where_the_disk_binds_or_a_bound_was_asked_for(
    option: dict[str, Any], workspace: Workspace
) -> None:
    case = cases.uniform()
    path = workspace.master(case)
    (whole,) = case.stream.combine_chunks().to_batches()
    on, schema = case.on, case.stream.schema
    with make_join("sweepjoin", path, on=on, schema=schema, memory=LARGE, **option) as join:
        join.push(whole.slice(0, 1))
        assert not join.drains(10**9)
