"""Running experiments cell by cell; each result is stored at once, and what is stored is not run
again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semistream.bench import results
from semistream.bench.papers.experiment import Experiment, Measured
from semistream.bench.papers.ground import SCALES, Ground, ScaleName
from semistream.bench.papers.rules import Curves, Verdict
from semistream.core.clock import ProcessorClock, SystemClock
from semistream.core.errors import SemiStreamError
from semistream.core.progress import Report

BENCH = "papers"
CELLS = "cells"
"""The phase that is reported."""


@dataclass(frozen=True)
class Stored:
    """The stored cells of an experiment at one scale."""

    experiment: Experiment
    scale: ScaleName
    seed: int
    cells: dict[tuple[float, str], dict[str, Any]]

    @property
    def is_complete(self) -> bool:
        """Whether all cells are there."""
        return all(cell in self.cells for cell in self.experiment.cells)

    @property
    def is_verified(self) -> bool:
        """Whether all joins gave what they must."""
        return all(cell["verified"] for cell in self.cells.values())

    @property
    def curves(self) -> Curves:
        """The metric, by series and value."""
        found: dict[str, dict[float, float]] = {name: {} for name in self.experiment.series}
        for (x, series), cell in self.cells.items():
            found[series][x] = cell["y"]
        return found

    @property
    def verdict(self) -> Verdict | None:
        """What the rule says; None as long as cells are missing."""
        if not self.is_complete:
            return None
        if not self.is_verified:
            return Verdict("not reproduced", "a join did not give what it must")
        return self.experiment.rule(self.curves)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        verdict = self.verdict
        return {
            "id": self.experiment.id,
            "paper": self.experiment.paper,
            "claim": self.experiment.claim,
            "scale": self.scale,
            "verdict": None if verdict is None else verdict.outcome,
            "reason": None if verdict is None else verdict.reason,
            "verified": self.is_verified,
            "cells": [
                {"x": x, "series": series, **cell} for (x, series), cell in self.cells.items()
            ],
        }


def place(
    folder: Path, experiment: Experiment, scale: ScaleName, seed: int, x: float, series: str
) -> Path:
    """Where a cell is stored: a path made from its parameters."""
    name = series.replace(" ", "-").replace("/", "-")
    return folder / BENCH / scale / experiment.id / f"seed={seed}" / name / f"{x:.10g}.json"


def stored(folder: Path, experiment: Experiment, scale: ScaleName, seed: int = 1) -> Stored:
    """What is stored of an experiment at a scale."""
    cells = {}
    for x, series in experiment.cells:
        path = place(folder, experiment, scale, seed, x, series)
        if path.exists():
            cells[x, series] = json.loads(path.read_text())["result"]
    return Stored(experiment, scale, seed, cells)


def best_stored(folder: Path, experiment: Experiment, seed: int = 1) -> Stored | None:
    """What is stored at the largest scale that is complete."""
    for scale in reversed(SCALES):
        found = stored(folder, experiment, scale, seed)
        if found.is_complete:
            return found
    return None


@dataclass(frozen=True)
class Failed:
    """A cell that could not be run."""

    experiment: Experiment
    x: float
    series: str
    error: SemiStreamError


def run_experiments(
    experiments: Iterable[Experiment],
    folder: Path,
    ground: Ground,
    *,
    again: bool = False,
    report: Report = lambda phase, done, total: None,
) -> Iterator[Stored | Failed]:
    """Run what is not stored yet (all, with `again`); yield each experiment when it is done."""
    chosen = sorted(experiments, key=lambda one: one.cost)
    total, done = sum(len(one.cells) for one in chosen), 0
    for experiment in chosen:
        for x, series in experiment.cells:
            path = place(folder, experiment, ground.scale, ground.seed, x, series)
            report(CELLS, done, total)
            done += 1
            if path.exists() and not again:
                continue
            begin, busy = SystemClock().now_ns(), ProcessorClock().now_ns()
            try:
                measured = experiment.cell(ground, x, series)
            except SemiStreamError as error:
                yield Failed(experiment, x, series, error)
                continue
            took = {
                "took_s": (SystemClock().now_ns() - begin) / 1e9,
                "took_processor_s": (ProcessorClock().now_ns() - busy) / 1e9,
            }
            _store(path, experiment, ground, x, series, measured, took)
        yield stored(folder, experiment, ground.scale, ground.seed)
    report(CELLS, total, total)


def _store(
    path: Path,
    experiment: Experiment,
    ground: Ground,
    x: float,
    series: str,
    measured: Measured,
    took: dict[str, float],
) -> None:
    results.write(
        path,
        BENCH,
        {
            "experiment": experiment.id,
            "scale": ground.scale,
            "seed": ground.seed,
            "x": x,
            "series": series,
        },
        result={"y": measured.y, "verified": measured.verified, **measured.more, **took},
    )
