"""From micro-batches to moments and their state."""

from __future__ import annotations

import tracemalloc

import pytest

pytest.importorskip("pyspark")

from semistream.dashboard.judge import Facts, Judge
from semistream.dashboard.moment import (
    FALLING_BEHIND,
    KEEPING_UP,
    OVER_BUDGET,
    STARTING,
    STOPPED,
)
from semistream.dashboard.tracker import Arrivals, Tally, Tracker
from tests.dashboard.feed import Feed, HandClock


def feed(**options: object) -> Feed:
    clock = HandClock()
    return Feed(Tracker(clock, **options), clock)  # type: ignore[arg-type]


def test_before_the_first_micro_batch() -> None:
    moment = feed().tracker.moment()
    assert (moment.state, moment.input_rows_s) == (STARTING, None)
    assert moment.at > 1.7e9  # since 1970


def test_a_first_micro_batch_without_rows() -> None:
    played = feed()
    played.second(rows=0, tasks=0)
    moment = played.tracker.moment()
    assert (moment.state, moment.reason) == (STARTING, "no rows have been joined yet")
    played.second()
    assert played.tracker.moment().state == KEEPING_UP


def test_the_figures_of_a_steady_run() -> None:
    played = feed()
    for _ in range(10):
        played.second(rows=100_000, capacity=200_000, predicted=150_000.0)
    moment = played.tracker.moment()
    assert moment.state == KEEPING_UP
    assert moment.input_rows_s == pytest.approx(100_000)
    assert moment.joined_rows_s == pytest.approx(100_000)
    assert moment.output_rows_s == pytest.approx(99_000)
    assert moment.unmatched_rows_s == pytest.approx(1000)
    assert moment.dead_rows_s == pytest.approx(20)
    assert moment.shed_rows_s == 0
    # Half of the capacity: 0.6 and 0.2 s of work a second, in two tasks.
    assert moment.busy_share == pytest.approx(0.3)
    assert moment.io_share == pytest.approx(0.1)
    assert moment.idle_share == pytest.approx(0.6)
    assert moment.measured_rows_s == pytest.approx(250_000)
    assert moment.predicted_rows_s == 150_000
    assert moment.hit_share == pytest.approx(0.6)
    assert moment.pages_per_row == pytest.approx(0.1)
    assert moment.bytes_by_component["cache"] == 4_000_000
    assert moment.bytes_limit == 8_000_000
    assert moment.hot_keys[0][0] == "4711"
    assert moment.hot_keys[0][1] == pytest.approx(0.07)
    assert moment.oldest_s == 0
    assert moment.latency_p50_s is not None
    assert moment.latency_p99_s is not None
    assert 0 < moment.latency_p50_s < moment.latency_p99_s
    assert moment.totals["numRecordsIn"] == 1_000_000
    assert moment.totals["numUnmatchedProbeRecords"] == 10_000
    assert moment.totals["numDeadLetters"] == 200
    assert moment.totals["numMicroBatches"] == 10
    assert moment.totals["avgJoinFanOut"] == 1


def test_a_worker_without_a_task_still_holds_its_memory() -> None:
    played = feed()
    played.second()
    whole = played.tracker.moment()
    played.budget //= 2  # one of two workers had a task
    played.second()
    moment = played.tracker.moment()
    assert (moment.bytes_limit, moment.bytes_in_use) == (whole.bytes_limit, whole.bytes_in_use)


def test_no_prediction_unless_the_statistics_carry_one() -> None:
    played = feed()
    played.second()
    assert played.tracker.moment().predicted_rows_s is None


def test_falling_behind_and_back() -> None:
    played = feed()
    states = []
    for rows in (100_000,) * 10 + (300_000,) * 10 + (50_000,) * 20:
        played.second(rows=rows, capacity=150_000)
        states.append(played.tracker.moment().state)
    assert set(states[:10]) == {KEEPING_UP}
    assert states[19] == FALLING_BEHIND
    assert FALLING_BEHIND not in states[30:]
    moment = played.tracker.moment()
    assert "wait at the source" in moment.reason or "as fast as they come" in moment.reason


def test_the_reason_counts_and_the_oldest_row_has_waited() -> None:
    played = feed()
    for _ in range(10):
        played.second(rows=100_000, capacity=100_000)
    for _ in range(8):
        played.second(rows=200_000, capacity=100_000)
        moment = played.tracker.moment()
    assert moment.state == FALLING_BEHIND
    assert moment.rows_behind == 800_000
    assert moment.reason.startswith("800,000 rows wait at the source, and ")
    assert moment.input_rows_s == pytest.approx(200_000, rel=0.05)
    # The next row to be taken is number 1.8 M; it came when the source counted that many: 1.0 M
    # by second 10 and 0.2 M a second after it.
    assert moment.oldest_s == pytest.approx(4, abs=1.5)


def test_bursts_are_not_falling_behind() -> None:
    played = feed()
    states = set()
    for second in range(60):
        played.second(rows=250_000 if second % 6 == 0 else 50_000, capacity=150_000)
        states.add(played.tracker.moment().state)
    assert states == {KEEPING_UP}


def test_over_budget_and_stopped() -> None:
    played = feed()
    played.second(over=1_000_000)
    moment = played.tracker.moment()
    assert (moment.state, moment.reason) == (
        OVER_BUDGET,
        "8.5 MB in use, and the budget is 8.0 MB",
    )
    played.tracker.stop("the source has ended")
    played.tracker.stop("ended")
    moment = played.tracker.moment()
    assert (moment.state, moment.reason) == (STOPPED, "the source has ended")
    assert moment.joined_rows_s == 0


def test_a_source_that_does_not_count() -> None:
    played = feed(every_s=0.5)
    for _ in range(8):
        played.second(rows=150_000, counted=False)
    moment = played.tracker.moment()
    assert (moment.rows_behind, moment.oldest_s) == (None, None)
    assert moment.state == FALLING_BEHIND
    assert moment.reason == "a micro-batch takes 0.9 s, and one is due every 0.5 s"
    assert moment.input_rows_s == pytest.approx(150_000)


def test_nothing_comes() -> None:
    played = feed()
    for _ in range(5):
        played.second()
    played.clock.pass_s(20)
    moment = played.tracker.moment()
    assert (moment.input_rows_s, moment.joined_rows_s) == (0, 0)
    assert (moment.state, moment.reason) == (KEEPING_UP, "no rows came for 20 s")
    assert moment.bytes_in_use
    played.tracker.working = lambda: True
    moment = played.tracker.moment()
    assert (moment.state, moment.reason) == (
        FALLING_BEHIND,
        "the micro-batch at work has taken 20 s",
    )


def test_hidden_keys_never_leave() -> None:
    played = feed(hide_keys=True)
    played.second()
    moment = played.tracker.moment()
    assert [key for key, _ in moment.hot_keys][:2] == ["key 1", "key 2"]
    assert "4711" not in str(moment.to_dict())


def test_keys_of_long_ago_count_less() -> None:
    tally = Tally(most=4)
    tally.add({"old": 100}, 100, 0.0)
    tally.add({"new": 60, "rare": 1}, 100, 30.0)
    assert [key for key, _ in tally.top(2)] == ["new", "old"]
    assert tally.top(1)[0][1] == pytest.approx(60 / 112.5)
    for second in range(100):
        tally.add({f"key {second}": 1}, 1, 31.0 + second)
    assert len(tally.weights) == 4


def test_the_age_of_the_next_row() -> None:
    arrivals = Arrivals()
    arrivals.add(0, 100, 10.0)
    arrivals.add(100, 100, 11.0)  # rows 100 to 199 came between 10 and 11
    assert arrivals.oldest_s(12.0) == pytest.approx(2.0)
    arrivals.add(50, 150, 12.0)
    assert arrivals.oldest_s(12.0) == pytest.approx(1.5)
    arrivals.add(150, 0, 13.0)
    assert arrivals.oldest_s(20.0) == 0.0


def test_memory_does_not_grow_with_the_run() -> None:
    played = feed()

    def seconds(count: int) -> int:
        for _ in range(count):
            played.second(rows=160_000, capacity=150_000)
            played.tracker.moment()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = seconds(200)
        after = seconds(2000)
    finally:
        tracemalloc.stop()
    assert after - before < 400_000


def test_a_line_that_neither_grows_nor_shrinks() -> None:
    judge = Judge()

    def at(second: float, rows: int) -> str:
        facts = Facts(second, 1, rows_in_line=rows, input_rows_s=1000.0)
        return judge.state(facts)[0]

    assert [at(second, 10_000) for second in range(10)] == [KEEPING_UP] * 10
    grows = [at(10 + second, 10_000 + 500 * second) for second in range(10)]
    assert grows[-1] == FALLING_BEHIND
    assert [at(20 + second, 15_000) for second in range(20)][-1] == FALLING_BEHIND
    # Fewer, but they would be there for hours.
    assert [at(40 + second, 15_000 - second) for second in range(10)][-1] == FALLING_BEHIND
    assert [at(50 + second, 14_990 - 500 * second) for second in range(10)][-1] == KEEPING_UP
    assert at(61, 1000) == KEEPING_UP
