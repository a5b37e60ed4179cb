"""Checks of snapshots: a join that goes on elsewhere gives what it would have given."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semistream.checks import cases
from semistream.checks.driving import (
    ROOMY,
    JoinFactory,
    Run,
    cut,
    open_run,
    smallest_memory,
)
from semistream.checks.workspace import Case, Workspace, part
from semistream.core.errors import CallOrderError, SemiStreamError
from semistream.core.join import HOWS, Snapshot


def _moved(make: JoinFactory, workspace: Workspace, case: Case, how: str, run: Run) -> Run:
    """A fresh join that goes on where `run` is; results taken so far come along."""
    waiting = run.join.stats.rows_waiting
    data = run.join.snapshot().to_bytes()
    assert isinstance(data, bytes)
    memory = run.join.stats.bytes_limit
    run.look()
    run.join.close()
    fresh = open_run(make, workspace, case, how, memory)
    fresh.batches = run.batches
    fresh.join.restore(Snapshot.from_bytes(data))
    fresh.look()
    now = fresh.join.stats.rows_waiting
    # Rows that were about to leave may have left while the snapshot was made.
    assert now <= waiting, f"{now} rows wait after restore, {waiting} did before"
    return fresh


def _with_moves(
    make: JoinFactory,
    workspace: Workspace,
    case: Case,
    how: str,
    memory: int,
    batches: Sequence[pa.RecordBatch],
    every: int,
) -> None:
    run = open_run(make, workspace, case, how, memory)
    calls = 0
    for batch in batches:
        while batch.num_rows:
            batch = batch.slice(run.push(batch))
            calls += 1
            if calls % every == 0:
                run = _moved(make, workspace, case, how, run)
            # Not every step follows a push, and not all results are taken at once.
            if batch.num_rows or calls % 3:
                run.step()
            calls += 1
            if calls % every == 0:
                run = _moved(make, workspace, case, how, run)
    run = _moved(make, workspace, case, how, run)
    run.finish()
    run.join.close()
    what = f"{make.name}, {case.name}, {how}, {memory} bytes, moved every {every} calls"
    workspace.assert_exact(run.table(), case, how, what)


def check_snapshots(make: JoinFactory, workspace: Workspace) -> None:
    """Results before a snapshot, in it and after its restoring are together the whole."""
    for whole in (cases.mixed(), cases.duplicates(), cases.null_keys()):
        case = part(whole, 300)
        for how in HOWS:
            least = smallest_memory(make, workspace, case, how)
            _with_moves(make, workspace, case, how, 2 * least, cut(case.stream, 100), 11)
            _with_moves(make, workspace, case, how, ROOMY, cut(case.stream, 100), 3)


def check_snapshots_of_other_keys(make: JoinFactory, workspace: Workspace) -> None:
    """The same with hashed keys, keys over many pages, several shards and keys of two types."""
    for whole in (
        cases.string_keys(),
        cases.composite_collisions(),
        cases.long_runs(),
        cases.sharded(),
        cases.wide(),
        cases.crossed_types()[2],
        cases.crossed_types()[6],
    ):
        case = part(whole, 200)
        least = smallest_memory(make, workspace, case, "left")
        for how in ("left", "semi"):
            _with_moves(make, workspace, case, how, 2 * least, cut(case.stream, 60), 7)


def check_snapshots_in_frequency_order(make: JoinFactory, workspace: Workspace) -> None:
    """The same with masters whose rows lie in frequency order."""
    for whole in (cases.mixed(), cases.string_collisions(), cases.long_runs()):
        case = part(cases.by_frequency(whole, "row"), 200)
        least = smallest_memory(make, workspace, case, "left")
        _with_moves(make, workspace, case, "left", 2 * least, cut(case.stream, 60), 7)


def check_snapshot_at_any_moment(make: JoinFactory, workspace: Workspace) -> None:
    """A snapshot between any two calls of a short run, each gone on with on its own.

    Keys reach over several pages: rows may have met a partner and still wait for another page.
    """
    for whole, rows, how in (
        (cases.long_runs(), 12, "left"),
        (cases.early_partners(), 60, "left"),
        (cases.early_partners(), 400, "semi"),
    ):
        case = part(whole, rows)
        # A little more than the least: what is left of a batch may be longer on average.
        memory = smallest_memory(make, workspace, case, how, 20) * 11 // 10
        for moment in (*range(12), *range(15, 400, 7 if workspace.thorough else 21)):
            if _moved_at(make, workspace, case, how, memory, moment) < moment:
                break


def _moved_at(
    make: JoinFactory, workspace: Workspace, case: Case, how: str, memory: int, moment: int
) -> int:
    """Join a case, moved after so many calls; how many there were."""
    run = open_run(make, workspace, case, how, memory)
    calls = 0

    def called() -> None:
        nonlocal run, calls
        if calls == moment:
            run = _moved(make, workspace, case, how, run)
        calls += 1

    for batch in cut(case.stream, 20):
        while batch.num_rows:
            batch = batch.slice(run.push(batch))
            called()
            run.step()
            called()
    while run.join.stats.rows_waiting:
        run.step()
        called()
    run.finish()
    run.join.close()
    workspace.assert_exact(run.table(), case, how, f"{make.name}, {how}, moved at call {moment}")
    return calls


def check_snapshot_of_a_full_join(make: JoinFactory, workspace: Workspace) -> None:
    """What fitted into a join fits into a new one with as much memory, whatever it has learnt."""
    for whole, factor in ((cases.uniform(), 2), (cases.uniform(), 4), (cases.skewed(True), 1.2)):
        case = part(whole, 12_000)
        memory = int(factor * smallest_memory(make, workspace, case, "inner", 4000))
        run = open_run(make, workspace, case, "inner", memory)
        batches = cut(case.stream, 4000)
        for batch in batches[:-1]:
            run.offer(batch)
        rest = batches[-1]
        for _ in range(3):
            while (accepted := run.push(rest)) > 0:
                rest = rest.slice(accepted)
            run = _moved(make, workspace, case, "inner", run)
            run.step()
        run.offer(rest)
        run.finish()
        run.join.close()
        workspace.assert_exact(run.table(), case, "inner", f"{make.name}, {case.name}, moved full")


def check_snapshot_changes_nothing(make: JoinFactory, workspace: Workspace) -> None:
    """The join goes on as if no snapshot had been made, and the snapshot stays as it was."""
    case = cases.mixed()
    memory = 3 * smallest_memory(make, workspace, case, "left")
    run = open_run(make, workspace, case, "left", memory)
    made = []
    with run.join:
        for batch in cut(case.stream, 150):
            while batch.num_rows:
                batch = batch.slice(run.push(batch))
                snapshot = run.join.snapshot()
                made.append((snapshot, snapshot.to_bytes()))
                run.look()
                if len(made) % 2:
                    run.take()
                run.step()
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name} with snapshots")
    for snapshot, data in made:
        then = Snapshot.from_bytes(data)
        for batch, before in ((snapshot.rows, then.rows), (snapshot.pending, then.pending)):
            assert (batch is None) == (before is None)
            # By value, one by one: equals() would not see memory that moved under an array.
            if batch is not None and before is not None:
                assert batch.to_pylist() == before.to_pylist(), "a snapshot changed"


def check_snapshot_of_nothing(make: JoinFactory, workspace: Workspace) -> None:
    """A join that has seen no row, or has none left, can be moved as well."""
    for case in (cases.mixed(), cases.empty_master()):
        run = open_run(make, workspace, case, "left")
        run = _moved(make, workspace, case, "left", run)
        for batch in cut(case.stream):
            run.offer(batch)
        run.finish()
        run = _moved(make, workspace, case, "left", run)
        run.finish()
        run.join.close()
        workspace.assert_exact(run.table(), case, "left", f"{make.name}, moved when empty")


def check_restore_is_refused(make: JoinFactory, workspace: Workspace) -> None:
    """Only a fresh join takes a snapshot, and only one of its own algorithm."""
    case = cases.mixed()
    run = open_run(make, workspace, case, "left")
    with run.join:
        run.push(cut(case.stream)[0])
        snapshot = run.join.snapshot()
        used = False
        try:
            run.join.restore(snapshot)
        except CallOrderError:
            used = True
        assert used, "a join that had accepted rows took a snapshot"
        run.look()
    other = Snapshot("no join", snapshot.rows, snapshot.pending, snapshot.position)
    fresh = open_run(make, workspace, case, "left")
    refused = False
    try:
        fresh.join.restore(other)
    except SemiStreamError:
        refused = True
    assert refused, "a snapshot of another algorithm was taken"
    fresh.join.restore(snapshot)
    fresh.finish()
    fresh.join.close()
    closed = False
    try:
        fresh.join.restore(snapshot)
    except CallOrderError:
        closed = True
    assert closed, "a closed join took a snapshot"
