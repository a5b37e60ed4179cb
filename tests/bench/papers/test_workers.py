"""Experiments in several processes: the same results, no process left behind, clear errors."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from semistream.bench.papers import EXPERIMENTS, chosen
from semistream.bench.papers.ground import Ground
from semistream.bench.papers.running import CELLS, Stored, run_experiments
from semistream.bench.papers.workers import groups_of, run_in_processes
from semistream.core.errors import SemiStreamError

CHEAP = [EXPERIMENTS[id_] for id_ in ("M-5a", "M-5b", "T3-2", "T4-T3")]
"""Equations alone, of three papers."""


def started(folder: Path, workdir: Path, **options: Any) -> Any:
    return run_in_processes(CHEAP, folder, "small", workdir, processes=2, **options)


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    found = list(
        started(tmp_path / "two", tmp_path, report=lambda *call: calls.append(call)),
    )
    assert sorted(one.experiment.id for one in found) == sorted(one.id for one in CHEAP)
    alone = {}
    for one in run_experiments(CHEAP, tmp_path / "one", Ground("small", tmp_path)):
        assert isinstance(one, Stored)
        alone[one.experiment.id] = one
    for one in found:
        assert one.is_complete
        assert one.curves == alone[one.experiment.id].curves
    total = sum(len(one.cells) for one in CHEAP)
    assert calls == [(CELLS, done, total) for done in range(total + 1)]
    assert multiprocessing.active_children() == []


def test_processes_end_with_the_run(tmp_path: Path) -> None:
    running = started(tmp_path, tmp_path)
    next(running)
    assert len(multiprocessing.active_children()) == 2
    running.close()
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_noticed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "file"
    folder.write_text("in the way")
    with pytest.raises(SemiStreamError, match="ended with code 1"):
        list(started(folder, tmp_path))
    assert str(folder) in capfd.readouterr().err
    assert multiprocessing.active_children() == []


def test_groups() -> None:
    together, alone = groups_of(chosen("all"))
    assert sorted(id_ for group in together + alone for id_ in group) == sorted(EXPERIMENTS)
    for group in together:
        assert len({EXPERIMENTS[id_].paper for id_ in group}) == 1
        assert all(EXPERIMENTS[id_].clock != "measured" for id_ in group)
    (measured,) = alone
    assert {EXPERIMENTS[id_].clock for id_ in measured} == {"measured"}
    assert groups_of(CHEAP)[1] == []
