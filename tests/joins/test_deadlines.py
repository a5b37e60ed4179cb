"""`max_wait`: no accepted row waits longer, on any join; what cannot be kept is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import DeadlineError, OptionError
from semistream.core.join import SemiStreamJoin
from semistream.joins.deadlines import MOST_LATE, SURE, Durations, parse_wait
from semistream.joins.registry import JOINS
from semistream.joins.scanning import ScanJoin
from semistream.testing import ManualClock
from semistream.workloads import zipf_ranks

ROWS = 4000
SCHEMA = pa.schema({"k": pa.int64(), "event": pa.int64()})

SCANS = [name for name, kind in JOINS.items() if issubclass(kind, ScanJoin)]
LOOKUPS = [name for name in JOINS if name not in SCANS]


class DiskClock(ManualClock):
    """Stands still but while the disk of old reads, which takes its time."""

    join: SemiStreamJoin | None = None

    def now_ns(self) -> int:
        spent = self.join.stats.modelled_disk_s() if self.join is not None else 0.0
        return super().now_ns() + int(spent * 1e9)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ss.FileMaster]:
    path = tmp_path_factory.mktemp("deadlines") / "m"
    table = pa.table({"k": np.arange(ROWS), "payload": ["p" * 80] * ROWS})
    ss.build_master(path, table, "k", page_size=4096)
    with ss.open_master(path) as opened:
        yield opened


def batches(rows: int, size: int) -> list[pa.RecordBatch]:
    keys = (zipf_ranks(ROWS, 0.5, rows, 3) * 7919) % ROWS
    table = pa.table({"k": keys, "event": np.arange(rows)}, schema=SCHEMA)
    return list(table.to_batches(max_chunksize=size))


def make(name: str, master: ss.FileMaster, clock: ManualClock, **options: Any) -> Any:
    arguments: dict[str, Any] = {"memory": "500kB", "on": "k", "schema": SCHEMA, **options}
    if name == "memoryjoin":
        arguments["memory"] = "1MB"  # it needs all of the master
    if name == "ssij":
        arguments |= {"seek_s": 8e-3, "page_s": 1e-4}
    return ss.make_join(name, master, clock=clock, **arguments)


def tend(join: Any) -> None:
    while join.is_due:
        join.step()


def waits(
    name: str, master: ss.FileMaster, max_wait: float, every: float
) -> tuple[list[float], Any]:
    """Seconds from acceptance to result of every row; 20 rows come every so many seconds."""
    clock = DiskClock()
    came: dict[int, int] = {}
    late: list[float] = []
    with make(name, master, clock, max_wait=max_wait) as join:

        def keep(result: pa.RecordBatch | None) -> None:
            if result is not None:
                now = clock.now_ns()
                late.extend((now - came.pop(e)) / 1e9 for e in result["event"].to_pylist())

        def tend() -> None:
            # As `ss.join` does it.
            while join.is_due:
                keep(join.step())
            keep(join.take())

        for batch in batches(6000, 20):
            clock.advance(every)
            rest = batch
            while rest.num_rows:
                now = clock.now_ns()
                accepted = join.push(rest)
                clock.join = join
                came.update((e, now) for e in rest["event"].to_pylist()[:accepted])
                rest = rest.slice(accepted)
                if rest.num_rows:
                    keep(join.step())
            tend()
        while join.stats.rows_waiting:
            clock.advance(every)
            tend()
        stats = join.stats
    assert not came
    assert len(late) == 6000
    return late, stats


@pytest.mark.parametrize("join", JOINS)
def test_no_row_waits_longer(join: str, master: ss.FileMaster) -> None:
    late, _ = waits(join, master, 4.0, 0.1)
    assert max(late) <= 4.0


@pytest.mark.parametrize("join", ["sweepjoin", "hybridjoin", "cachejoin"])
def test_rows_wait_for_others_as_long_as_they_may(join: str, master: ss.FileMaster) -> None:
    late, stats = waits(join, master, 8.0, 0.1)
    hurried, more = waits(join, master, 1.0, 0.1)
    assert max(hurried) <= 1.0
    assert np.mean(late) > 2 * np.mean(hurried)
    # Waiting is worth it: one read serves more rows.
    assert stats.requests < more.requests / 1.5


def test_without_a_bound_rows_wait_until_the_pool_is_full(master: ss.FileMaster) -> None:
    clock = ManualClock()
    with make("sweepjoin", master, clock, max_wait=None) as join:
        join.push(batches(20, 20)[0])
        clock.advance(1e6)
        assert not join.is_due
    with make("sweepjoin", master, clock, max_wait=1000.0) as join:
        assert not join.is_due
        join.push(batches(20, 20)[0])
        assert not join.is_due
        clock.advance(1000.0)
        assert join.is_due
        # Nothing is taken in before those that are late are answered.
        results = []
        while join.is_due:
            assert join.push(batches(20, 20)[0]) in (0, 20)
            results.append(join.step())
        assert sum(result.num_rows for result in results if result is not None) >= 20
        assert not join.is_due


@pytest.mark.parametrize("join", SCANS)
def test_a_pass_that_takes_too_long_is_an_error(join: str, master: ss.FileMaster) -> None:
    """About a hundred pages, each a tenth of a millisecond: no pass is over in five."""
    clock = DiskClock()
    with make(join, master, clock, max_wait="5 ms") as made:
        clock.join = made
        made.push(batches(20, 20)[0])
        with pytest.raises(
            DeadlineError, match=rf"{join} cannot keep max_wait=0.005 s: .* a pass over the master"
        ) as error:
            tend(made)
        assert "sweepjoin" in error.value.hint
        assert made.stats.rows_waiting + made.stats.rows_matched == 20


@pytest.mark.parametrize("join", SCANS)
def test_what_no_disk_can_do_is_refused_at_once(join: str, master: ss.FileMaster) -> None:
    assert master.data_bytes > 300_000
    with pytest.raises(DeadlineError, match="a pass over the master, which takes at least"):
        make(join, master, ManualClock(), max_wait=1e-5)


@pytest.mark.parametrize("join", LOOKUPS)
def test_a_bound_below_a_single_read_is_refused(join: str, master: ss.FileMaster) -> None:
    with pytest.raises(DeadlineError, match="a single read"):
        make(join, master, ManualClock(), max_wait=1e-6)


def test_a_disk_that_is_always_too_slow_is_an_error(master: ss.FileMaster) -> None:
    """A seek of eight milliseconds for every row: five cannot be kept, and that is said."""
    clock = DiskClock()
    with make("sweepjoin", master, clock, max_wait="5 ms") as join:
        clock.join = join
        for batch in batches(20 * (MOST_LATE - 1), 20):
            join.push(batch)
            assert join.is_due
            tend(join)
        join.push(batch)
        with pytest.raises(DeadlineError, match=f"{MOST_LATE} times in a row"):
            tend(join)


@pytest.mark.parametrize("max_wait", [0, -1.0, float("nan"), float("inf"), "soon", "0 s", None])
def test_times_that_are_none(max_wait: Any, master: ss.FileMaster) -> None:
    if max_wait is None:
        assert parse_wait(max_wait) is None
        return
    with pytest.raises(OptionError, match="max_wait"):
        make("sweepjoin", master, ManualClock(), max_wait=max_wait)


def test_seconds_and_words_are_the_same() -> None:
    assert parse_wait(2) == parse_wait(2.0) == parse_wait("2 seconds") == 2_000_000_000
    assert parse_wait("500 ms") == 500_000_000


def test_ordered_results_have_no_bound(master: ss.FileMaster) -> None:
    with pytest.raises(OptionError, match="ordered"):
        make("meshjoin", master, ManualClock(), max_wait=10.0, ordered=True)


def test_join_answers_rows_of_a_stream_that_is_slow(master: ss.FileMaster) -> None:
    """Empty batches stand for "nothing now"; rows are answered meanwhile, not at the end."""
    clock = ManualClock()
    (batch,) = batches(20, 20)

    def stream() -> Iterator[pa.RecordBatch]:
        yield batch
        for _ in range(10):
            clock.advance(0.5)
            yield batch.slice(0, 0)

    joined = ss.join(stream(), master, on="k", memory="300kB", max_wait="3 seconds", clock=clock)
    first = next(joined)
    assert first.num_rows == 20
    assert clock.now_ns() <= 3_000_000_000
    assert list(joined) == []


def test_durations_are_reckoned_until_they_are_known() -> None:
    durations = Durations()
    assert durations.expected_ns(100, 7e9) == 7e9
    for _ in range(SURE):
        durations.note(100, 5_000)
    assert durations.expected_ns(100, 7e9) == 5_000
    assert durations.expected_ns(127, 7e9) == 5_000
    assert durations.expected_ns(128, 7e9) == 7e9
    durations.note(3, 9_000)
    assert durations.expected_ns(100, 7e9) == 9_000  # more pages do not take less
