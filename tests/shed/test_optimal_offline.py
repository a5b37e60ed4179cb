"""The offline optimum against brute force, TOPW against the optimum, and the printed example."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.bench.shedding import SheddingOptions, master_counts, run_shedding
from semistream.core.errors import OptionError, UnknownNameError
from semistream.shed.optimal_offline import optimal_loss, topw_loss

CLUSTERED = [2, 2, 2, 2, 3, 3, 3, 3]
"""Eight rows, productive ones together in time, with the losses that Fig. 8 prints for w = 2 and
c_loop = 4. (The figure's own numbers of partners are not known to us.)"""


def brute_force(results: list[int], w: int, c_loop: int) -> int:
    """Try every set of rows to keep, and let the join ask as the model says."""
    least = sum(results)
    for keep in product([False, True], repeat=len(results)):
        buffered, next_request, lost = 0, 0, 0
        for i, (kept, count) in enumerate(zip(keep, results, strict=True)):
            if buffered == w and i >= next_request:
                buffered, next_request = 0, i + c_loop
            if not kept:
                lost += count
            elif buffered < w:
                buffered += 1
            else:
                break  # there is no room for it
        else:
            least = min(least, lost)
    return least


def test_the_printed_example() -> None:
    assert topw_loss(CLUSTERED, 2, 4) == 10
    assert optimal_loss(CLUSTERED, 2, 4) == brute_force(CLUSTERED, 2, 4) == 4


@settings(max_examples=150, deadline=None)
@given(
    results=st.lists(st.integers(0, 9), max_size=9),
    w=st.integers(1, 4),
    c_loop=st.integers(1, 6),
)
def test_the_optimum_is_that_of_brute_force(results: list[int], w: int, c_loop: int) -> None:
    assert optimal_loss(results, w, c_loop) == brute_force(results, w, c_loop)


@settings(max_examples=50, deadline=None)
@given(
    results=st.lists(st.integers(0, 9), max_size=60),
    w=st.integers(0, 5),
    c_loop=st.integers(1, 9),
)
def test_topw_loses_what_it_must_and_never_less_than_the_optimum(
    results: list[int], w: int, c_loop: int
) -> None:
    parts = [sorted(results[i : i + c_loop]) for i in range(0, len(results), c_loop)]
    expected = sum(sum(part[: max(len(part) - w, 0)]) for part in parts)
    assert topw_loss(results, w, c_loop) == expected
    assert optimal_loss(results, w, c_loop) <= expected


def test_without_overload_nothing_is_lost() -> None:
    results = np.random.default_rng(1).integers(0, 100, 500)
    assert optimal_loss(results, 5, 5) == topw_loss(results, 5, 5) == 0
    assert optimal_loss(results, 0, 5) == topw_loss(results, 0, 5) == results.sum()
    assert optimal_loss([], 3, 2) == topw_loss([], 3, 2) == 0


@pytest.mark.parametrize(("w", "c_loop"), [(-1, 4), (2, 0)])
def test_a_join_that_cannot_be(w: int, c_loop: int) -> None:
    with pytest.raises(OptionError, match=f"w={w}, c_loop={c_loop}"):
        optimal_loss([1], w, c_loop)


def test_counts_must_be_counts() -> None:
    with pytest.raises(OptionError, match="one number >= 0 per stream row"):
        topw_loss([1, -1], 2, 4)


# The paper's setting, smaller: a tenth of R, fewer streams.


@pytest.mark.parametrize("draw", ["random", "fixed"])
def test_all_rows_of_the_master_have_a_key(draw: str) -> None:
    for skew in (0.0, 0.5, 1.0):
        counts = master_counts(10_000, skew, draw, 7)
        assert counts.sum() == len(counts) == 10_000
        assert counts.min() >= 0
    assert counts[0] > counts[-1]


def test_topw_is_within_two_percent_of_the_optimum() -> None:
    options = SheddingOptions(
        loads=(1.1, 2.0), skews=(0.5,), hot=("other",), rows=350_000, streams=2
    )
    cells = {(cell.draw, cell.load): cell for cell in run_shedding(options)}
    assert len(cells) == 4
    for cell in cells.values():
        assert cell.verified
        assert cell.behind_optimum < 0.02
        assert cell.topw_share <= cell.optimum_share <= 1
    # Keys drawn at random differ in how often they occur, and so there is more to gain.
    assert cells["random", 2.0].topw_share > 0.8
    assert cells["fixed", 2.0].topw_share < cells["random", 2.0].topw_share


def test_with_equal_counts_half_of_the_results_is_left_at_twice_the_rate() -> None:
    options = SheddingOptions(loads=(2.0,), skews=(0.0,), hot=("same",), rows=350_000, streams=2)
    fixed, random = sorted(run_shedding(options), key=lambda cell: cell.draw)
    assert fixed.draw == "fixed"
    assert fixed.topw_share == pytest.approx(0.5)
    assert random.topw_share == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draws": ("often",)}, UnknownNameError),
        ({"loads": (0.5,)}, OptionError),
        ({"w": 0}, OptionError),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        SheddingOptions(**options)  # type: ignore[arg-type]
