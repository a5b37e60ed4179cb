"""Moments: as records, merged, kept in bounded memory."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.dashboard.history import History, WholeRun
from semistream.dashboard.moment import (
    FALLING_BEHIND,
    KEEPING_UP,
    OVER_BUDGET,
    STOPPED,
    Moment,
)


def test_a_moment_survives_json() -> None:
    moment = Moment(
        1_763_000_000.123,
        KEEPING_UP,
        "well",
        input_rows_s=1234.5,
        bytes_by_component={"cache": 5},
        hot_keys=[("<b>", 0.5)],
        totals={"hitCount": 7},
    )
    record = json.loads(json.dumps(moment.to_dict()))
    assert Moment.from_dict({**record, "of a later version": 1}) == moment
    assert "oldest_s" not in record  # what is not known takes no room


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"at": "now"},
        {"at": None},
        {"at": True},
        {"at": 1, "state": "fine"},
        {"at": 1, "reason": 5},
        {"at": 1, "hot_keys": [["a"]]},
        {"at": 1, "hot_keys": {"a": 1}},
        {"at": 1, "totals": {"hitCount": "7"}},
        {"at": 1, "batch_ms": [1]},
        {"at": 1, "input_rows_s": "many"},
    ],
)
def test_what_is_no_moment(record: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Moment.from_dict(record)


def test_infinite_numbers_are_left_out_of_json() -> None:
    text = json.dumps(Moment(1.0, input_rows_s=float("inf")).to_dict(), allow_nan=False)
    assert Moment.from_dict(json.loads(text)).input_rows_s is None


def test_two_moments_become_one() -> None:
    early = Moment(1.0, OVER_BUDGET, "too much", input_rows_s=10.0, oldest_s=9.0, hit_share=0.5)
    late = Moment(2.0, KEEPING_UP, "well", input_rows_s=30.0, oldest_s=1.0, totals={"hitCount": 3})
    merged = early.merged(late)
    assert (merged.at, merged.state, merged.reason) == (2.0, OVER_BUDGET, "too much")
    assert (merged.input_rows_s, merged.oldest_s, merged.hit_share) == (20.0, 9.0, 0.5)
    assert merged.totals == {"hitCount": 3}


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 1000), st.integers(2, 40))
def test_a_run_of_any_length_fits(count: int, most: int) -> None:
    whole = WholeRun(most)
    for number in range(count):
        whole.add(Moment(float(number), KEEPING_UP, input_rows_s=100.0))
    moments = whole.moments
    assert 1 <= len(moments) <= most
    assert moments[-1].at == count - 1
    times = [moment.at for moment in moments]
    assert times == sorted(set(times))
    assert all(moment.input_rows_s == pytest.approx(100.0) for moment in moments)


def test_a_short_trouble_stays_visible() -> None:
    whole = WholeRun(10)
    for number in range(1000):
        whole.add(Moment(float(number), FALLING_BEHIND if number == 300 else KEEPING_UP))
    assert FALLING_BEHIND in {moment.state for moment in whole.moments}


def test_those_who_wait_are_told() -> None:
    history = History(recent=3)
    assert history.after(0, 0.0) == []
    assert history.latest is None
    heard: list[int] = []
    waiter = threading.Thread(
        target=lambda: heard.extend(one.number for one in history.after(0, 20.0))
    )
    waiter.start()
    history.add(Moment(1.0))
    waiter.join(20)
    assert heard == [1]
    for second in range(2, 10):
        history.add(Moment(float(second), STOPPED))
    assert [one.number for one in history.after(0, 0.0)] == [7, 8, 9]
    assert [one.number for one in history.after(8, 0.0)] == [9]
    assert len(history.whole) == 9
    history.close()
    assert history.after(9, 60.0) == []  # does not wait: nothing will come
