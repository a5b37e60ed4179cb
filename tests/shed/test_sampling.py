"""Samples: unbiased estimates over a thousand seeds, within the bounds that are stated."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.core.errors import OptionError
from semistream.shed.cluster_sampling import ClusterSampling
from semistream.shed.estimate import estimate_sum
from semistream.shed.interval import Interval, highest
from semistream.shed.policy import Policy
from semistream.shed.sample_w import SampleW

SEEDS = 1000
ROWS, W, BATCH = 240, 60, 50

SCHEMA = pa.schema({"row": pa.int64()})


def partners() -> np.ndarray:
    """f_R of every stream row: a few have very many."""
    return np.ceil(40 / np.arange(1, ROWS + 1) ** 0.7)[np.random.default_rng(2).permutation(ROWS)]


def values(counts: np.ndarray) -> np.ndarray:
    """The sum over a row's results: up to 5 for each."""
    return counts * np.random.default_rng(3).uniform(1, 5, ROWS)


def draw(policy: Policy, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows kept of one interval, and their weights."""
    interval, shed = Interval(policy, SCHEMA), 0
    for at in range(0, ROWS, BATCH):
        numbers = np.arange(at, min(at + BATCH, ROWS))
        batch = pa.RecordBatch.from_arrays([pa.array(numbers)], schema=SCHEMA)
        shed += sum(part.num_rows for part in interval.offer(batch, counts[numbers], W))
    kept = interval.close()
    assert kept.rows.num_rows == W
    assert shed == ROWS - W
    return kept.rows["row"].to_numpy(), kept.weights


def estimates(
    policy: type[Policy], counts: np.ndarray, y: np.ndarray, seeds: int = SEEDS
) -> np.ndarray:
    """Estimated sum, its standard error, and whether the interval holds the truth; per seed."""
    found = []
    for seed in range(seeds):
        rows, weights = draw(policy(seed), counts)
        estimate = estimate_sum(y[rows], weights)
        held = estimate.low <= y.sum() <= estimate.high
        found.append((estimate.value, estimate.standard_error, held))
    return np.array(found)


def assert_unbiased(found: np.ndarray, truth: float) -> None:
    spread = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - truth) < 4 * spread


def test_sample_w_is_unbiased_and_within_its_bound() -> None:
    counts = np.ones(ROWS)
    y = values(counts)
    found = estimates(SampleW, counts, y)
    assert_unbiased(found[:, 0], y.sum())
    # Sampling theory: n·(n - w)/w times the variance of the values.
    exact = ROWS * (ROWS - W) / W * y.var(ddof=1)
    assert found[:, 0].var() == pytest.approx(exact, rel=0.2)
    # What estimate_sum states is no less than that.
    assert np.mean(found[:, 1] ** 2) > exact
    assert found[:, 2].mean() >= 0.95


def test_sample_w_of_equal_rows_is_exact() -> None:
    _, weights = draw(SampleW(5), np.ones(ROWS))
    assert weights == pytest.approx(np.full(W, ROWS / W))
    assert estimate_sum(np.ones(W), weights).value == pytest.approx(ROWS)


def test_sample_w_keeps_every_row_as_often_as_others() -> None:
    times = np.zeros(ROWS)
    for seed in range(SEEDS):
        times[draw(SampleW(seed), np.ones(ROWS))[0]] += 1
    chance = W / ROWS
    worst = np.abs(times / SEEDS - chance).max()
    assert worst < 5 * math.sqrt(chance * (1 - chance) / SEEDS)


def test_cluster_sampling_is_unbiased_and_within_its_bound() -> None:
    counts = partners()
    total = counts.sum()
    for y, largest in ((counts, 1.0), (values(counts), 5.0)):
        found = estimates(ClusterSampling, counts, y)
        assert_unbiased(found[:, 0], y.sum())
        # With at most `largest` per result, the standard error is at most that times all results
        # over the root of w - 1, whatever the values are.
        assert found[:, 0].std() < largest * total / math.sqrt(W - 1)
        # The stated standard error is the real one on average.
        assert np.mean(found[:, 1] ** 2) == pytest.approx(found[:, 0].var(), rel=0.2)
        assert found[:, 2].mean() >= 0.93


def test_cluster_sampling_beats_a_uniform_sample_where_counts_differ() -> None:
    counts = partners()
    cluster = estimates(ClusterSampling, counts, counts, 300)[:, 0]
    uniform = estimates(SampleW, counts, counts, 300)[:, 0]
    assert cluster.std() < 0.8 * uniform.std()


def test_rows_without_results_are_shed_first() -> None:
    counts = np.where(np.arange(ROWS) % 4 == 0, 1.0, 0.0)
    rows, weights = draw(ClusterSampling(1), counts)
    assert len(rows) == W == counts.sum()
    assert (rows % 4 == 0).all()
    assert weights.tolist() == [1.0] * W


def test_without_overload_every_row_stands_for_itself() -> None:
    for policy in (SampleW(1), ClusterSampling(1)):
        interval = Interval(policy, SCHEMA)
        batch = pa.RecordBatch.from_arrays([pa.array([4, 5, 6])], schema=SCHEMA)
        assert interval.offer(batch, np.array([3.0, 0.0, 9.0]), 3) == []
        kept = interval.close()
        assert kept.rows["row"].to_pylist() == [4, 5, 6]
        assert kept.weights.tolist() == [1.0, 1.0, 1.0]
        assert len(interval) == 0


def test_results_of_one_row_go_together() -> None:
    together = estimate_sum([1.0, 2.0, 4.0], [3.0, 3.0, 2.0], ["a", "a", "b"])
    assert together.value == 3 * 3 + 2 * 4
    assert together.standard_error == pytest.approx(math.sqrt(3 * 2 * 9 + 2 * 1 * 16))
    assert together.low < together.value < together.high
    apart = estimate_sum([1.0, 2.0, 4.0], [3.0, 3.0, 2.0])
    assert apart.value == together.value
    assert apart.standard_error < together.standard_error


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(OptionError, match="confidence"):
        estimate_sum([1.0], [1.0], confidence=confidence)


def test_values_and_weights_belong_together() -> None:
    with pytest.raises(OptionError, match="do not belong together"):
        estimate_sum([1.0, 2.0], [1.0])


@settings(max_examples=60, deadline=None)
@given(scores=st.lists(st.integers(0, 5), max_size=30), count=st.integers(0, 12))
def test_the_highest_scores_and_of_equal_ones_the_first(scores: list[int], count: int) -> None:
    by_score = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
    assert highest(np.array(scores, np.float64), count).tolist() == sorted(by_score)
