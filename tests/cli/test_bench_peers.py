"""`semistream bench peers` and `semistream bench limits`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream.bench.peers import OURS, PEERS
from semistream.bench.peers_report import write_report
from semistream.bench.results import environment
from semistream.bench.side_by_side import PeerResult, PeersOptions

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SYSTEMS = (*OURS, "sqlite", "pyarrow")
SMALL = (
    *("--rows", 5000, "--memory", "2MB", "--skew", "1,0", "--batch-rows", "2000,500"),
    *("--seconds", 0.05),
)


def test_peers(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("before\n<!-- begin peers -->\nwhat stood here\n<!-- end peers -->\nafter\n")
    where = ("--workdir", tmp_path / "work", "--out", tmp_path / "out", "--report", report)
    grid = (*SMALL, "--systems", ",".join(SYSTEMS), "--no-spark", "--growth", "3000,5000")
    ended = run("bench", "peers", *grid, *where, "--json")
    assert ended.code == 0, ended.err
    cells = ended.json
    assert len(cells) == 2 * 4 * len(SYSTEMS) + len(OURS), "4 cells warm, 4 cold, one grown"
    for cell in cells:
        assert cell["verified"] is True
        assert {"system", "memory", "skew", "batch_rows", "rows_per_s"} <= set(cell)
        if cell["system"] == OURS[0]:
            assert cell["ratio_to_semistream"] == 1.0
    written = report.read_text()
    assert written.startswith("before\n<!-- begin peers -->\n\n`semistream bench peers`")
    assert written.endswith("<!-- end peers -->\nafter\n")
    assert "what stood here" not in written
    for plot in ("peers-batch-rows.svg", "peers-growth.svg"):
        assert f"](pictures/{plot})" in written
        assert (tmp_path / "pictures" / plot).read_text().startswith("<?xml")
    (stored,) = (tmp_path / "out").glob("peers/**/result.json")
    assert json.loads(stored.read_text())["results"] == cells
    again = run("bench", "peers", "--stored", stored, "--json")
    assert (again.code, again.json) == (0, cells)
    shown = run("bench", "peers", "--stored", stored)
    assert "semistream-waiting" in shown.out


def test_growth_on_spark_is_not_among_the_plans_on_spark(tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("<!-- begin peers -->\n<!-- end peers -->\n")

    def cell(system: str, memory: str, rows: int, rate: float, where: str) -> PeerResult:
        return PeerResult(
            system, memory, 1, 1000, "warm", rate, True, (rate,), 50_000, rows, where=where
        )

    done = [
        cell(OURS[0], "5%", 10_000, 3e6, "in process"),
        cell("spark-bucketed", "5%", 10_000, 1111, "on Spark"),
        cell("spark-bucketed", "50000", 10_000, 2222, "on Spark"),
        cell("spark-bucketed", "50000", 90_000, 3333, "on Spark"),
    ]
    list(write_report(report, done, environment()))
    plans, _, grown = report.read_text().partition("### As the master grows")
    assert [rate in plans for rate in ("1.11 k", "2.22 k", "3.33 k")] == [True, False, False]
    assert "3.33 k" in grown


def test_growth_tells_what_a_miss_costs(tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("<!-- begin peers -->\n<!-- end peers -->\n")
    done = [
        PeerResult(OURS[0], "9", 1, 1000, "warm", rate, True, (rate,), 9, rows, hit_share=share)
        for rows, rate, share in ((1000, 4e6, 0.9), (9000, 2e6, 0.75))
    ]
    write_report(report, done, environment())
    written = report.read_text()
    assert "| 1,000 | 90% | 250 ns | 2.50 µs |" in written
    assert "| 9,000 | 75% | 500 ns | 2.00 µs |" in written


def test_quick_is_a_smaller_grid_of_all_systems(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from semistream.cli.bench import peers

    asked = []

    def noted(options: PeersOptions, *rest: object, **named: object) -> list[object]:
        asked.append(options)
        return []

    monkeypatch.setattr(peers, "_run", noted)
    assert run("bench", "peers", "--quick", "--json").json == []
    (options,) = asked
    assert options.systems == tuple(PEERS)
    assert options.rows < 10_000_000
    assert len(options.cells) * len(options.systems) * options.seconds < 90


def test_a_report_without_a_place_is_refused(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "performance.md"
    report.write_text("nothing here\n")
    options = ("--memory", "2MB", "--skew", 1, "--batch-rows", 500, "--cache", "warm")
    where = ("--workdir", tmp_path / "work", "--report", report, "--systems", OURS[0])
    ended = run(
        *("bench", "peers", "--rows", 5000, *options, *where, "--seconds", 0.05, "--no-spark")
    )
    assert ended.code != 0
    assert "<!-- begin peers -->" in ended.err


def test_limits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semistream.bench import limits

    monkeypatch.setattr(limits, "READ_S", 0.01)
    monkeypatch.setattr(limits, "TABLE_BYTES", 1 << 22)
    monkeypatch.setattr(limits, "PROBES", 10_000)
    report = tmp_path / "performance.md"
    report.write_text("<!-- begin limits -->\n<!-- end limits -->\n")
    where = ("--workdir", tmp_path / "work", "--out", tmp_path / "out", "--report", report)
    ended = run("bench", "limits", *SMALL, *where, "--no-spark", "--json")
    assert ended.code == 0, ended.err
    machine, cells = ended.json["machine"], ended.json["cells"]
    assert machine["one"]["lines_per_s"] > 0
    assert machine["all"]["threads"] >= machine["one"]["threads"] == 1
    assert set(machine["random_direct"]) == {"1", "4", "16", "64"}
    assert len(cells) == 2 * 2 * 4
    for cell in cells:
        assert cell["verified"] is True
        assert cell["fewest_pages"] <= cell["pages"] + 1e-9
        assert cell["binds"] in ("disk", "memory", "copies")
        assert cell["share_of_limit"] > 0
    assert "limit that binds" in report.read_text()
    assert next((tmp_path / "out").glob("limits/**/result.json")).exists()
    assert "share" in run("bench", "limits", *SMALL, *where[:2], "--no-spark").out
