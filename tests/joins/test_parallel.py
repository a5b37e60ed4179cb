"""Joins with several threads pass every check, and divide keys as they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.checks import Workspace, all_checks, named
from semistream.core.errors import BudgetError, CallOrderError, OptionError, SchemaError
from semistream.core.join import Snapshot
from semistream.joins import parallel
from semistream.joins.parallel import ParallelJoin, threads_for
from semistream.store.parts import MasterPart

CHECKS = {check.__name__: check for check in all_checks()}
KEYS = 60_000
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("join", "threads"), [("sweepjoin", 3)])
def test_conformance(
    join: str, threads: int, check: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Streams of the checks are small: the threads are to work nevertheless.
    monkeypatch.setattr(parallel, "LEAST_PUSHED", 2)
    monkeypatch.setattr(parallel, "LEAST_WAITING", 2)
    if "frequency_order" in check:
        pytest.skip("such a master is joined by one thread")
    CHECKS[check](named(join, threads=threads), workspace)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parallel") / "m"
    ss.build_master(made, table(1), "k")
    return made


def table(version: int) -> pa.Table:
    """Keys that are anything but even: most are small, some are far away."""
    keys = np.unique(np.concatenate([np.arange(KEYS), 3 ** np.arange(38)]))
    info = pa.array([b"x" * 100] * len(keys), pa.binary(100))
    return pa.table({"k": keys, "v": np.full(len(keys), version), "info": info})


def batch(rows: int, start: int = 0) -> pa.RecordBatch:
    keys = np.random.default_rng(start).integers(0, KEYS * 11 // 10, rows)
    return pa.record_batch([keys, np.arange(start, start + rows)], schema=SCHEMA)


def made(path: Path, threads: int = 2, memory: int = 2_000_000, how: str = "left") -> ParallelJoin:
    join = ss.make_join(
        "sweepjoin", path, on="k", schema=SCHEMA, memory=memory, how=how, threads=threads
    )
    assert isinstance(join, ParallelJoin)
    return join


def numbers(join: ParallelJoin, rows: pa.RecordBatch) -> list[int]:
    """Push all, and the numbers of the rows that came out meanwhile."""
    seen: list[int] = []
    while rows.num_rows:
        rows = rows.slice(join.push(rows))
        result = join.step() if rows.num_rows else join.take()
        seen += result.column("n").to_pylist() if result is not None else []
    return seen


def rest(join: ParallelJoin) -> list[int]:
    return [n for result in join.finish() for n in result.column("n").to_pylist()]


def test_a_part_that_is_ahead_does_not_read_for_few_rows(path: Path) -> None:
    """All rows in hand are of one part: the other only hands out what is ready."""
    with made(path, memory=4_000_000) as join:
        mixed = batch(2000)
        assert join.push(mixed) == mixed.num_rows
        part = join._masters[0]
        assert isinstance(part, MasterPart)
        own, *_ = part.own(np.arange(KEYS), np.ones(KEYS, np.uint8))
        first = np.resize(own.astype(np.int64), 400_000)
        many = pa.record_batch([first, np.arange(len(first))], schema=SCHEMA)
        busy, ahead = join._parts
        assert join.push(many) < many.num_rows
        waiting, read = ahead.rows_waiting, ahead.stats.pages_read
        assert waiting > 0
        held, given = join._held_rows, busy.stats.rows_out
        assert held > 0
        join.step()
        assert join._held_rows < held
        assert busy.stats.rows_out > given
        assert (ahead.rows_waiting, ahead.stats.pages_read) == (waiting, read)


def test_rows_come_out_once_and_counters_add_up(path: Path) -> None:
    with made(path) as join:
        seen = numbers(join, batch(50_000)) + rest(join)
        assert sorted(seen) == list(range(50_000))
        stats = join.stats
        assert stats.rows_in == stats.rows_matched + stats.rows_unmatched == 50_000
        assert stats.algorithm == "sweepjoin"
        assert stats.bytes_peak <= stats.bytes_limit == 2_000_000
        assert stats.plan is not None
        assert "2 threads" in stats.plan.reason


def test_a_snapshot_has_rows_in_hand_and_results(path: Path) -> None:
    """The output is full before all is pushed: some rows are neither in a part nor answered."""
    with made(path, memory=600_000) as join:
        rows = batch(60_000)
        pushed = 0
        seen: list[int] = []
        for _ in range(12):
            pushed += join.push(rows.slice(pushed))
            result = join.step()
            seen += result.column("n").to_pylist() if result is not None else []
        snapshot = Snapshot.from_bytes(join.snapshot().to_bytes())
        assert snapshot.arrived is not None or snapshot.pending is not None
        with made(path, memory=600_000) as other:
            other.restore(snapshot)
            seen += numbers(other, rows.slice(pushed)) + rest(other)
        assert sorted(seen) == list(range(60_000))
        with made(path, threads=3) as third, pytest.raises(SchemaError, match="of 2 threads"):
            third.restore(snapshot)


def test_all_parts_move_to_another_version(tmp_path: Path) -> None:
    where = tmp_path / "m"
    ss.build_master(where, table(1), "k")
    with made(where) as join:
        numbers(join, batch(5000))
        newer = join.master.newer()
        assert newer is None
        ss.apply_changes(where, table(2), op=None)
        newer = join.master.newer()
        assert newer is not None
        with pytest.raises(CallOrderError, match="rows wait"):
            join.move_to(newer)
        rest(join)
        join.move_to(newer)
        numbers(join, batch(5000, start=5000))
        versions = {v for result in join.finish() for v in result.column("v").to_pylist()}
        assert versions <= {2, None}


def test_the_default_depends_on_memory_and_master(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    with ss.open_master(path) as master:
        assert threads_for(None, master, 64_000_000, None) == 1, "a small master"
        monkeypatch.setattr(parallel, "LEAST_MASTER", master.data_bytes)
        assert threads_for(None, master, 96_000_000, None) == 4
        assert threads_for(None, master, 48_000_000, None) == 2
        assert threads_for(None, master, 47_000_000, None) == 1
        assert threads_for(None, master, 1_000_000, None) == 1
        assert threads_for(None, master, 64_000_000, "a join that sheds rows") == 1
        monkeypatch.setattr(parallel, "LEAST_BYTES_PER_PAGE", 64_000_000 // master.pages + 1)
        assert threads_for(None, master, 64_000_000, None) == 1, "too little for a page"
        for threads in (0, -1, 256):
            with pytest.raises(OptionError, match=f"threads={threads} "):
                threads_for(threads, master, 64_000_000, None)
        with pytest.raises(OptionError, match="sheds rows is joined by one thread"):
            threads_for(2, master, 64_000_000, "a join that sheds rows")


def test_join_uses_threads_by_default(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)))
    monkeypatch.setattr(parallel, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(parallel, "LEAST_MASTER", 1)
    rows = batch(20_000)
    for algorithm, reason in (("auto", "2 threads"), ("sweepjoin", "")):
        joined = ss.join(rows, path, "k", how="left", algorithm=algorithm, memory="2MB")
        assert joined.read_all().num_rows == 20_000
        assert joined.stats.plan is not None
        assert reason in joined.stats.plan.reason
        assert ("threads" in joined.stats.plan.reason) == bool(reason)


def test_drained_batches_of_a_large_master_mean_one_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)))
    monkeypatch.setattr(parallel, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(parallel, "LEAST_MASTER", 1)
    monkeypatch.setattr(parallel, "LEAST_DRAINED", 1000)
    rows = batch(10_000)
    for per_page, wanted in ((64, 2), (1_000_000, 1)):
        monkeypatch.setattr(parallel, "LEAST_DRAINED_PER_PAGE", per_page)
        with ss.make_join(
            "sweepjoin", path, on="k", schema=SCHEMA, memory="2MB", how="left", threads=None
        ) as join:
            assert isinstance(join, ParallelJoin)
            seen = [n for one in join.drained(rows) for n in one.column("n").to_pylist()]
            assert sorted(seen) == list(range(rows.num_rows))
            assert join.threads == wanted
            # A single part is all of the master: it has no rows of others to leave out.
            assert all(isinstance(part.master, MasterPart) == (wanted > 1) for part in join._parts)


def test_a_small_first_batch_means_one_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)))
    monkeypatch.setattr(parallel, "LEAST_BYTES", 500_000)
    monkeypatch.setattr(parallel, "LEAST_MASTER", 1)

    def fresh(threads: int | None) -> ParallelJoin:
        join = ss.make_join(
            "sweepjoin", path, on="k", schema=SCHEMA, memory="2MB", how="left", threads=threads
        )
        assert isinstance(join, ParallelJoin)
        return join

    for threads, rows, wanted in ((None, 1000, 1), (None, 20_000, 2), (2, 1000, 2)):
        with fresh(threads) as join:
            assert join.push(batch(0)) == 0
            taken = given = 0
            while taken < rows:
                taken += join.push(batch(rows).slice(taken))
                result = join.step()
                given += 0 if result is None else result.num_rows
            assert join.threads == wanted
            stats = join.stats
            assert sum(stats.bytes_by_component.values()) <= stats.bytes_limit == 2_000_000
            snapshot = join.snapshot()
            assert given + sum(one.num_rows for one in join.finish()) == rows
        with fresh(threads) as again:
            again.restore(Snapshot.from_bytes(snapshot.to_bytes()))
            assert again.threads == wanted
            assert given + sum(one.num_rows for one in again.finish()) == rows


def test_too_little_memory_for_so_many(path: Path) -> None:
    with pytest.raises(BudgetError, match=r"one of 20 threads which share 2\.0 MB") as error:
        made(path, threads=20)
    assert 'memory="' in error.value.hint
    with made(path) as join:
        join.close()
        with pytest.raises(CallOrderError):
            join.push(batch(1))
