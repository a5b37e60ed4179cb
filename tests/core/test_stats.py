"""The record of counters and its derived figures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.budget import MemoryPlan
from semistream.core.stats import LATENCY_BUCKETS, JoinStats, latency_percentile_s


def bucket_of(micros: int) -> int:
    """Eight buckets to a power of two, from one microsecond on."""
    exponent = micros.bit_length() - 1
    return 8 * exponent + int((micros / 2**exponent - 1) * 8)


def histogram_of(latencies: list[int]) -> np.ndarray:
    histogram = np.zeros(LATENCY_BUCKETS, np.int64)
    for micros in latencies:
        histogram[bucket_of(micros)] += 1
    return histogram


@given(
    latencies=st.lists(st.integers(1, 2**30), min_size=1, max_size=50),
    percentile=st.floats(0.5, 100),
)
def test_a_percentile_is_the_upper_end_of_its_bucket(
    latencies: list[int], percentile: float
) -> None:
    found = latency_percentile_s(histogram_of(latencies), percentile) * 1e6
    rank = math.ceil(len(latencies) * percentile / 100)
    exact = sorted(latencies)[rank - 1]
    # A bucket is an eighth of a power of two wide.
    assert exact < found * (1 + 1e-9)
    assert found <= exact * 1.125 * (1 + 1e-9) + 1


def test_percentiles_of_a_known_distribution() -> None:
    histogram = histogram_of([1] * 50 + [1000] * 45 + [1_000_000] * 5)
    assert latency_percentile_s(histogram, 50) == pytest.approx(1.125e-6)
    assert latency_percentile_s(histogram, 95) == pytest.approx(1.024e-3)
    assert latency_percentile_s(histogram, 99) == pytest.approx(1.048576)


def test_no_rows_have_no_latency() -> None:
    assert latency_percentile_s(np.zeros(LATENCY_BUCKETS, np.int64), 99) == 0.0


def test_the_last_bucket_is_the_end() -> None:
    histogram = np.zeros(LATENCY_BUCKETS, np.int64)
    histogram[-1] = 3
    assert latency_percentile_s(histogram, 100) == pytest.approx(2**32 * 1e-6)


def test_derived_figures_without_rows_are_zero() -> None:
    stats = JoinStats()
    assert (stats.hit_share, stats.pages_per_row, stats.requests_per_row) == (0.0, 0.0, 0.0)
    assert stats.latency_s(95) == 0.0


def test_derived_figures() -> None:
    stats = JoinStats(rows_in=200, hits=30, misses=90, pages_read=50, requests=10, seeks=4)
    assert stats.hit_share == 0.25
    assert stats.pages_per_row == 0.25
    assert stats.requests_per_row == 0.05
    assert stats.modelled_disk_s(seek_s=1.0, page_s=0.1) == pytest.approx(9.0)


def test_the_record_goes_to_json() -> None:
    plan = MemoryPlan(10, {"index": 4, "pool": 6}, reason="enough")
    stats = JoinStats(algorithm="sweepjoin", rows_in=3, bytes_by_component={"pool": 6}, plan=plan)
    plain = json.loads(json.dumps(stats.to_dict()))
    assert plain["algorithm"] == "sweepjoin"
    assert plain["plan"] == {"shares": {"index": 4, "pool": 6}, "reason": "enough"}
    assert plain["bytes_by_component"] == {"pool": 6}
    assert plain["latency_p99_s"] == 0.0
    assert "latency_histogram" not in plain
    assert json.loads(json.dumps(JoinStats().to_dict()))["plan"] is None


def test_a_total_and_a_difference() -> None:
    before = JoinStats(rows_in=5, hits=2, rows_waiting=3, bytes_in_use=10)
    after = JoinStats(
        algorithm="inlj", rows_in=9, hits=2, rows_waiting=1, bytes_in_use=20, time_io_s=0.5
    )
    after.bytes_by_component = {"pool": 20}
    after.latency_histogram[3] = 4
    did = after.since(before)
    assert (did.rows_in, did.hits, did.time_io_s) == (4, 0, 0.5)
    assert (did.rows_waiting, did.bytes_in_use) == (1, 20)
    total = JoinStats.total([did, did])
    assert (total.algorithm, total.rows_in, total.rows_waiting) == ("inlj", 8, 2)
    assert total.bytes_by_component == {"pool": 40}
    assert total.latency_histogram[3] == 8
    assert did.latency_histogram[3] == 4
    assert JoinStats.total([]).rows_in == 0
