"""Benchmarks of the cost models: what they measure is verified, and records are complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semistream.bench import auto as auto_module
from semistream.bench.auto import _Stream, run_auto
from semistream.bench.core import CoreOptions
from semistream.bench.cost_models import best_runs, run_buffers, run_cells, run_least_memory
from semistream.core.errors import OptionError
from semistream.cost import Loop
from semistream.cost.calibrate import Run, Timed
from tests.cost.typical import TYPICAL

GRID = CoreOptions(
    rows=20_000,
    memories=("40%",),
    skews=(1,),
    joins=("meshjoin", "cachejoin", "memoryjoin"),
    io="buffered",
    stream_rows=50_000,
    seconds=0.2,
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def test_cells(workdir: Path) -> None:
    lines: list[str] = []
    cells = list(run_cells(GRID, workdir, TYPICAL, settle_s=0.3, tell=lines.append))
    assert [cell.join for cell in cells] == ["meshjoin", "cachejoin"]
    assert any("left out: memoryjoin needs" in line for line in lines)
    for cell in cells:
        assert cell.verified
        assert set(cell.to_dict()) >= {
            "join", "memory", "skew", "predicted_rows_per_s", "measured_rows_per_s",
            "predicted_c_loop_s", "measured_c_loop_s",
        }  # fmt: skip
        assert cell.measured_rows_per_s > 0
        assert cell.predicted_rows_per_s > 0
        # Counts do not depend on the machine: the models must be right about them.
        assert cell.predicted_pages_per_row == pytest.approx(cell.measured_pages_per_row, rel=0.4)
        assert cell.predicted_hit_share == pytest.approx(cell.measured_hit_share, abs=0.15)


def test_runs_with_other_reads_are_not_taken_for_slow_ones() -> None:
    loop = Loop(rows=1000)
    usual, other = Run("meshjoin"), Run("meshjoin", options={"chunk": 65_536})
    seconds = ((usual, (3.0, 1.0, 2.0)), (other, (8.0, 9.0, 7.0)))
    runs = [Timed(run, 1, loop, took) for run, times in seconds for took in times]
    assert {str(one.run): one.seconds for one in best_runs(runs)} == {str(usual): 1, str(other): 7}


def test_sizes_of_reads(workdir: Path) -> None:
    grid = replace(GRID, joins=("hybridjoin",))
    (result,) = run_buffers(grid, workdir, TYPICAL)
    assert result.verified
    assert result.option == "partition_pages"
    assert len(result.values) == len(result.measured_rows_per_s) > 2
    assert 0 <= result.lost < 1
    with pytest.raises(OptionError, match="no size of reads"):
        list(run_buffers(replace(GRID, joins=("sweepjoin",)), workdir, TYPICAL))


def test_the_least_memory_for_a_rate(workdir: Path) -> None:
    """A low rate is held; a rate far above what the models allow the memory is not."""
    grid = replace(GRID, joins=("meshjoin",))
    # Costs here are not this machine's, so that there is memory to spare.
    (slow,) = run_least_memory(grid, workdir, TYPICAL, rate=2000, seconds=0.5, shares=(20.0,))
    assert slow.held
    # Costs of nearly nothing promise what no machine holds.
    fast = replace(
        TYPICAL, sizes=tuple((size, replace(costs, **dict.fromkeys(vars(costs), 1e-12)))
                             for size, costs in TYPICAL.sizes),
    )  # fmt: skip
    (failed,) = run_least_memory(grid, workdir, fast, rate=50_000_000, seconds=0.5, shares=(1.0,))
    assert not failed.held
    assert failed.backlog_rows > 0


def test_auto_beside_single_joins(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_module, "STREAM_ROWS", 40_000)
    cells = list(
        run_auto(
            workdir, rows=20_000, memories=("40%", "150%"), skews=(1,), joins=("hybridjoin",),
            seconds=0.2,
        )
    )  # fmt: skip
    assert [(cell.copies, cell.memory) for cell in cells] == [
        (1, "40%"), (1, "150%"), (2, "40%"), (2, "150%"),
    ]  # fmt: skip
    for cell in cells:
        assert cell.verified
        assert cell.best == "hybridjoin"
        assert cell.reason
        assert (cell.chosen == "memoryjoin") == (cell.memory == "150%")


def test_a_wrong_row_would_be_found_out() -> None:
    stream = _Stream(100, 1.0, 1)
    total, count = stream.expected(1000, 2)
    assert count == 2000
    keys, number = stream.keys[:1000].astype(np.uint64), np.arange(1000, dtype=np.uint64)
    rows = [keys * np.uint64(2), keys * np.uint64(2) + np.uint64(1)]
    sums = sum(int(auto_module._mixed(number, row).sum(dtype=np.uint64)) for row in rows)
    assert sums % 2**64 == total
    rows[1][5] += np.uint64(1)
    sums = sum(int(auto_module._mixed(number, row).sum(dtype=np.uint64)) for row in rows)
    assert sums % 2**64 != total
