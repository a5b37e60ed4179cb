"""Goals beside other systems: which cells they cover, what was seen, and who is ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semistream.bench.goals import (
    DRAINED,
    GOALS,
    WAITING,
    Goal,
    is_large,
    not_ahead,
    seen_of,
)
from semistream.bench.peers import PEERS
from semistream.bench.peers_report import write_report
from semistream.bench.results import environment
from semistream.bench.side_by_side import COLD, ROW_BYTES, WARM, PeerResult
from semistream.bench.spark import SYSTEMS

ROWS = 1_000_000


def cell(system: str, drained: float, waiting: float = 0.1, **other: object) -> PeerResult:
    """A peer's result; the numbers are its rate over semistream's."""
    one = PeerResult(
        system,
        "5%",
        1,
        100_000,
        WARM,
        drained * 1e6,
        True,
        (drained * 1e6,),
        ROWS * ROW_BYTES // 20,
        ROWS,
        ratio_to_semistream=drained,
        ratio_to_waiting=waiting,
    )
    return replace(one, **other)  # type: ignore[arg-type]


def test_goals_name_systems_that_there_are() -> None:
    named = {name for goal in GOALS for name in goal.systems}
    assert named <= {*PEERS, *SYSTEMS}


@pytest.mark.parametrize(
    "other",
    [
        {"system": "sqlite"},
        {"batch_rows": 1000},
        {"cache": COLD},
        {"skew": 0},
        {"product_rows": 2 * ROWS},
        {"why_not": "out of memory"},
        {"memory_bytes": ROWS * ROW_BYTES // 10 + 1},
    ],
)
def test_a_goal_covers_its_cells_only(other: dict[str, object]) -> None:
    goal = Goal(("lmdb",), 3, 100_000, skew=1, product_rows=ROWS)
    assert goal.covers(cell("lmdb", 0.5))
    assert not goal.covers(replace(cell("lmdb", 0.5), **other))  # type: ignore[arg-type]


def test_the_least_and_the_most_of_all_cells_are_seen() -> None:
    goal = Goal(("lmdb", "sqlite"), 3, 100_000)
    done = [cell("lmdb", 0.5, 0.2), cell("sqlite", 0.25, skew=0), cell("duckdb", 0.01)]
    assert str(seen_of(goal, done)[DRAINED]) == "2.0 to 4.0"
    assert str(seen_of(goal, done[:1])[WAITING]) == "5.0"
    assert seen_of(goal, done[2:]) == {}


def test_peers_that_are_as_fast_are_told_if_the_master_is_large() -> None:
    small = cell("lmdb", 2.0, memory_bytes=ROWS * ROW_BYTES // 5)
    done = [cell("lmdb", 0.9), cell("duckdb", 1.25, 1.0), cell("semistream-drained", 1.0), small]
    assert not is_large(small)
    found = [(one.system, mode, times) for one, mode, times in not_ahead(done)]
    assert found == [("duckdb", DRAINED, 0.8), ("duckdb", WAITING, 1.0)]


def test_the_report_tells_goals_and_who_is_ahead(tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("<!-- begin peers -->\n<!-- end peers -->\n")
    write_report(report, [cell("lmdb", 0.5), cell("sqlite", 0.2)], environment())
    written = report.read_text()
    assert "semistream is ahead of every system in every cell" in written
    assert "| lmdb: 100,000 rows, warm | 3 | 2.0 | 10.0 | waiting only |" in written
    assert "| sqlite: 100,000 rows, warm | 4 | 5.0 | 10.0 | yes |" in written
    by_hand = cell("spark-rocksdb-lookup", 0.5)
    write_report(report, [cell("lmdb", 1.25, 0.5), by_hand], environment())
    written = report.read_text()
    assert "| lmdb | warm | 5%, skew 1, 100 k | drained | 0.80 |" in written
    assert "| lmdb: 100,000 rows, warm | 3 | 0.8 | 2.0 | **no** |" in written
    assert "100,000 rows, warm, drained | 5 | 2.0 | 10.0 | **no** |" in written


def test_the_report_tells_whether_rates_fall_by_more_than_hits(tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("<!-- begin peers -->\n<!-- end peers -->\n")

    def grown(system: str, rows: int, rate: float, hits: float | None) -> PeerResult:
        return cell(
            system, 1.0, product_rows=rows, rows_per_s=rate, hit_share=hits, memory_bytes=10**6
        )

    done = [
        grown(system, rows, rate, hits)
        for system, hits_and_rates in {
            "semistream-drained": ((0.9, 9e6), (0.6, 5e6)),
            "semistream-waiting": ((0.9, 9e6), (0.6, 6.1e6)),
            "duckdb": ((None, 9e6), (None, 1e6)),
        }.items()
        for rows, (hits, rate) in zip((ROWS, 5 * ROWS), hits_and_rates, strict=True)
    ]
    write_report(report, done, environment())
    written = report.read_text()
    assert "| semistream-drained | 9 M | 5 M | 0.56 | 0.67 | **no** |" in written
    assert "| semistream-waiting | 9 M | 6.1 M | 0.68 | 0.67 | yes |" in written
    assert "| duckdb | 9 M | 1 M | 0.11 |  |  |" in written
