"""`semistream bench …`: one JSON document, codes, stored results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semistream.bench.checksum import Checksum
from semistream.joins.registry import DISK_JOINS

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SMALL = ("bench", "run", "core", "--rows", 20_000, "--stream-rows", 100_000, "--seconds", 0.2)

FIELDS = {
    "join",
    "memory",
    "skew",
    "rows_per_s",
    "pages_per_row",
    "requests_per_row",
    "hit_share",
    "peak_accounted_bytes",
    "peak_rss_growth_bytes",
    "io",
    "verified",
}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def test_core_with_every_join(run: Run, workdir: Path) -> None:
    options = ["--seconds", 0.1, "--io", "buffered", "--workdir", workdir, "--json"]
    every = run(*SMALL, *options, "--memory", "30%", "--skew", "1", "--joins", "all")
    two = ("inlj", "sweepjoin")
    grid = ["--memory", "20%,40%", "--skew", "0,1", "--joins", ",".join(two)]
    ended = run(*SMALL, *options, *grid)
    assert ended.code == every.code == 0
    assert [cell["join"] for cell in every.json] == list(DISK_JOINS)
    assert {(c["join"], c["memory"], c["skew"]) for c in ended.json} == {
        (join, memory, skew) for join in two for memory in ("20%", "40%") for skew in (0, 1)
    }
    for cell in every.json + ended.json:
        assert set(cell) >= FIELDS
        assert cell["verified"] is True
        assert cell["rows_per_s"] > 0
        assert cell["io"] == "buffered"
        assert 0 < cell["peak_accounted_bytes"] <= cell["memory_bytes"]
    assert "skew 1" in ended.err


def test_core_planned_for_the_papers_disk(run: Run, workdir: Path) -> None:
    options = ["--io", "buffered", "--workdir", workdir, "--json", "--joins", "sweepjoin"]
    cells = {}
    for disk in ("this", "papers"):
        # So little memory that few pages are wanted in a sweep, with gaps between them.
        sparse = ["--rows", 100_000, "--memory", "250kB", "--skew", "0", "--disk", disk]
        ended = run(*SMALL, *options, *sparse)
        assert ended.code == 0
        (cells[disk],) = ended.json
        assert cells[disk]["verified"] is True
    rates = {disk: cell["modelled_rows_per_s"] for disk, cell in cells.items()}
    assert rates["papers"] > 2 * rates["this"]
    assert run(*SMALL, "--disk", "floppy").code == 2


def test_the_table_and_the_stored_result(run: Run, workdir: Path, tmp_path: Path) -> None:
    options = ["--memory", "1MB", "--skew", "0.5", "--joins", "sweepjoin", "--io", "buffered"]
    ended = run(*SMALL, *options, "--workdir", workdir, "--out", tmp_path)
    assert ended.code == 0
    assert "sweepjoin" in ended.out
    assert "0.5" in ended.out
    stored = json.loads(next(tmp_path.glob("core/**/result.json")).read_text())
    assert stored["parameters"]["rows"] == 20_000
    assert stored["parameters"]["seed"] == 1
    assert stored["environment"]["cores"] > 0
    assert stored["environment"]["versions"]["pyarrow"]
    assert [cell["join"] for cell in stored["results"]] == ["sweepjoin"]


def test_the_master_is_kept_or_not(run: Run, tmp_path: Path) -> None:
    options = ["--memory", "1MB", "--skew", "0", "--joins", "sweepjoin", "--io", "buffered"]
    assert run(*SMALL, *options, "--workdir", tmp_path, "--json").code == 0
    assert len(list(tmp_path.glob("products-20000-*.master"))) == 1
    assert run(*SMALL, *options, "--workdir", tmp_path, "--no-keep", "--json").code == 0
    assert list(tmp_path.glob("products-20000-*.master")) == []


def test_a_wrong_result_ends_with_code_1(
    run: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Checksum.add
    monkeypatch.setattr(Checksum, "add", lambda self, batch: right(self, batch.slice(1)))
    options = ["--memory", "1MB", "--skew", "0", "--joins", "sweepjoin", "--io", "buffered"]
    ended = run(*SMALL, *options, "--workdir", workdir)
    assert ended.code == 1
    assert "NO" in ended.out
    assert "NOT what DuckDB's join gives" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--joins", "sweepjion"], "did you mean 'sweepjoin'?"),
        (["--memory", "much"], "not a size"),
        (["--skew", "steep"], "'steep' is not a number"),
        (["--rows", "0"], "0 rows"),
        (["--seconds", "0"], "seconds=0"),
        (["--stream-rows", "0"], "stream_rows=0"),
        (["--memory", "1kB", "--io", "buffered"], "needs at least"),
    ],
)
def test_wrong_options(run: Run, workdir: Path, arguments: list[str], message: str) -> None:
    failed = run(*SMALL, "--workdir", workdir, *arguments)
    assert failed.code == 2
    assert message in failed.err
    assert failed.out == ""


def test_list(run: Run) -> None:
    names = [one["name"] for one in run("bench", "list", "--json").json]
    assert {"core", "shedding", "spark"} <= set(names)
    assert "core" in run("bench", "list").out


def test_shedding(run: Run, tmp_path: Path) -> None:
    small = ["--rows", 20_000, "--streams", 2, "--load", 2, "--skew", 0.5, "--hot", "other"]
    ended = run("bench", "run", "shedding", *small, "--json", "--out", tmp_path)
    assert ended.code == 0
    fixed, random = sorted(ended.json, key=lambda cell: cell["draw"])
    assert fixed["load"] == random["load"] == 2
    for cell in (fixed, random):
        assert cell["verified"] is True
        assert cell["topw_share"] <= cell["optimum_share"]
    stored = json.loads(next(tmp_path.glob("shedding/**/result.json")).read_text())
    assert stored["results"] == ended.json
    assert "optimum" in run("bench", "run", "shedding", *small).out
    assert run("bench", "run", "shedding", "--draw", "often").code == 2


def test_an_experiment_of_a_paper(run: Run, tmp_path: Path) -> None:
    options = ("--results", tmp_path / "results", "--workdir", tmp_path)
    ended = run("bench", "run", "M-5a", *options, "--json")
    assert ended.code == 0
    (one,) = ended.json
    assert (one["id"], one["paper"], one["scale"]) == ("M-5a", "meshjoin", "small")
    assert one["verdict"] == "reproduced"
    assert "12 cells, of which 0 are stored" in ended.err
    assert "12 cells, of which 12 are stored" in run("bench", "run", "M-5a", *options).err
    listed = {one["id"]: one for one in run("bench", "list", *options[:2], "--json").json}
    assert listed["M-5a"]["verdict"] == "reproduced"
    assert listed["M-5a"]["claim"]
    assert listed["M-10b"]["verdict"] is None
    assert listed["M-10b"]["paper"] == "meshjoin"
    assert listed["core"]["paper"] is None


def test_plots_and_report_of_stored_results(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--results", tmp_path / "results")
    run("bench", "run", "M-5a", *options, "--workdir", tmp_path)
    drawn = run("bench", "plot", "M-5a", *options, "--to", tmp_path, "--format", "png", "--json")
    assert drawn.json == [str(tmp_path / "M-5a.png")]
    assert (tmp_path / "M-5a.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "docs" / "reproduction.md"
    told = run("bench", "report", *options, "--to", page, "--json").json
    assert told["reproduced"] == 1
    assert (page.parent / "pictures" / "papers" / "M-5a.svg").exists()
    assert "](pictures/papers/M-5a.svg)" in page.read_text()
    missing = run("bench", "plot", "T3-2", *options, "--to", tmp_path)
    assert missing.code == 2
    assert "semistream bench run T3-2" in missing.err


def test_unknown_experiments(run: Run) -> None:
    assert run("bench", "run", "M-99").code == 2
    assert run("bench", "plot", "M-99").code == 2
    assert "--scale" in run("bench", "run", "thesis-5", "--help").out
