"""Beats: when they come, what they mean, and that a replay has the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from semistream.spark.heartbeat import BEAT, LAST_RUN, _source
from semistream.spark.waiting import beat_ms


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in a list to be changed."""
    seconds = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    return seconds


def reader() -> Any:
    source = _source()({"parts": "3,5", "every_ms": "2000"})
    return source.streamReader(None)  # type: ignore[arg-type]


def rows(beats: Any, start: Any, end: Any) -> list[Any]:
    return [row for part in beats.partitions(start, end) for row in beats.read(part)]


def test_a_run_that_goes_on_beats_at_once_and_then_now_and_then(now: list[float]) -> None:
    beats, limit = reader(), ReadAllAvailable()
    start = beats.initialOffset()
    first = beats.latestOffset(start, limit)
    assert rows(beats, start, first) == [(3, 0, BEAT, b""), (5, 0, BEAT, b"")]
    now[0] += 1.9
    assert beats.latestOffset(first, limit) == first
    assert rows(beats, first, first) == [], "a micro-batch without a beat"
    now[0] += 0.2
    second = beats.latestOffset(first, limit)
    assert second["beat"] == 2
    assert rows(reader(), first, second) == rows(beats, first, second), "a replay has the same"


def test_a_run_that_ends_beats_once(now: list[float]) -> None:
    beats, limit = reader(), ReadAllAvailable()
    beats.prepareForTriggerAvailableNow()
    start = {"beat": 7, "ends": False}
    first = beats.latestOffset(start, limit)
    assert rows(beats, start, first) == [(3, 0, LAST_RUN, b""), (5, 0, LAST_RUN, b"")]
    now[0] += 1000
    assert beats.latestOffset(first, limit) == first
    # The next run may be one that goes on.
    after = reader().latestOffset(first, limit)
    assert rows(reader(), first, after)[0][2] == BEAT


def test_beats_leave_time_to_be_idle() -> None:
    assert [beat_ms(wait_ms) for wait_ms in (1, 1000, 10_000)] == [1000, 1000, 2500]
