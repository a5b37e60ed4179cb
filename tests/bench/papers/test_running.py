"""Cells are stored one by one, skipped when they are there, and judged when they are complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.bench.papers import EXPERIMENTS, chosen
from semistream.bench.papers.experiment import Axis, Experiment, Measured
from semistream.bench.papers.ground import Ground, Held, SaleCheck
from semistream.bench.papers.machine import THESIS
from semistream.bench.papers.plots import draw
from semistream.bench.papers.reporting import report_text
from semistream.bench.papers.rules import judge, rises
from semistream.bench.papers.running import (
    Failed,
    Stored,
    best_stored,
    place,
    run_experiments,
    stored,
)
from semistream.core.errors import OptionError, UnknownNameError

RUN: list[tuple[float, str]] = []
"""Cells that were run."""


def _cell(ground: Ground, x: float, series: str) -> Measured:
    RUN.append((x, series))
    return Measured(x, more={"scale": ground.scale})


EXAMPLE = Experiment(
    id="X-1",
    paper="meshjoin",
    title="An example",
    x=Axis("x"),
    values=(1, 2.5, 4),
    series=("a", "b with space"),
    y=Axis("y", "rows/s"),
    clock="counted",
    claim="y rises",
    cell=_cell,
    rule=lambda c: judge([rises(c["a"], "a", by=2)]),
    as_claimed=lambda x, series: x,
    marks={"a": {2.5: 3}},
)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    RUN.clear()
    opened = Ground("small", tmp_path / "work")
    yield opened
    opened.close()


def only(results: Iterator[Stored | Failed]) -> Stored:
    (one,) = results
    assert isinstance(one, Stored)
    return one


def test_what_is_stored_is_not_run_again(ground: Ground, tmp_path: Path) -> None:
    first = only(run_experiments([EXAMPLE], tmp_path, ground))
    assert len(RUN) == 6
    assert first.verdict is not None
    assert first.verdict.outcome == "reproduced"
    place(tmp_path, EXAMPLE, "small", 1, 2.5, "a").unlink()
    assert stored(tmp_path, EXAMPLE, "small").verdict is None
    assert best_stored(tmp_path, EXAMPLE) is None
    again = only(run_experiments([EXAMPLE], tmp_path, ground))
    assert RUN[6:] == [(2.5, "a")]
    assert again.curves == first.curves
    only(run_experiments([EXAMPLE], tmp_path, ground, again=True))
    assert len(RUN) == 13


def test_an_interrupted_run_keeps_what_it_has(ground: Ground, tmp_path: Path) -> None:
    def interrupted(ground: Ground, x: float, series: str) -> Measured:
        if x == 4:
            raise KeyboardInterrupt
        return _cell(ground, x, series)

    with pytest.raises(KeyboardInterrupt):
        list(run_experiments([replace(EXAMPLE, cell=interrupted)], tmp_path, ground))
    assert len(stored(tmp_path, EXAMPLE, "small").cells) == 4
    assert only(run_experiments([EXAMPLE], tmp_path, ground)).is_complete


def test_a_stored_cell_says_how_it_was_made(ground: Ground, tmp_path: Path) -> None:
    only(run_experiments([EXAMPLE], tmp_path, ground))
    path = tmp_path / "papers" / "small" / "X-1" / "seed=1" / "b-with-space" / "2.5.json"
    document = json.loads(path.read_text())
    assert document["parameters"] == {
        "experiment": "X-1", "scale": "small", "seed": 1, "x": 2.5, "series": "b with space",
    }  # fmt: skip
    result = document["result"]
    assert result.pop("took_s") >= 0
    assert result.pop("took_processor_s") >= 0
    assert result == {"y": 2.5, "verified": True, "scale": "small"}
    assert {"commit", "cores", "memory_bytes", "versions", "date"} <= set(document["environment"])


def test_a_join_that_gave_something_else_reproduces_nothing(ground: Ground, tmp_path: Path) -> None:
    wrong = replace(EXAMPLE, cell=lambda ground, x, series: Measured(x, verified=False))
    verdict = only(run_experiments([wrong], tmp_path, ground)).verdict
    assert verdict is not None
    assert verdict.outcome == "not reproduced"


def test_a_cell_that_cannot_run_does_not_stop_the_others(ground: Ground, tmp_path: Path) -> None:
    def refused(ground: Ground, x: float, series: str) -> Measured:
        raise OptionError("no")

    results = list(run_experiments([replace(EXAMPLE, cell=refused)], tmp_path, ground))
    assert sum(isinstance(one, Failed) for one in results) == 6
    assert isinstance(results[-1], Stored)
    assert results[-1].verdict is None


def test_report_and_plot(ground: Ground, tmp_path: Path) -> None:
    done = only(run_experiments([EXAMPLE], tmp_path, ground))
    text = report_text([EXAMPLE, *EXPERIMENTS.values()], {"X-1": done})
    assert "*Verdict: **reproduced**.* a goes from 1 to 4." in text
    assert "| 2.5 | 2.5 | 2.5 | 3 |" in text
    assert "No results are stored." in text
    assert "| 43 |" in text
    pytest.importorskip("matplotlib")
    draw(done, tmp_path / "plot.svg")
    again = tmp_path / "again.svg"
    draw(done, again)
    assert again.read_bytes() == (tmp_path / "plot.svg").read_bytes()
    assert "as the paper reports" in again.read_text()


def test_names() -> None:
    assert len(chosen("all")) == len(chosen("papers")) == len(EXPERIMENTS)
    assert [one.id for one in chosen("M-10b")] == ["M-10b"]
    assert {one.paper for one in chosen("thesis-5")} == {"thesis-5"}
    with pytest.raises(UnknownNameError, match="M-10b"):
        chosen("M-10z")


@pytest.mark.parametrize("join", ["inlj", "meshjoin", "hybridjoin", "cachejoin"])
def test_played_joins_hold_what_they_shall_and_are_verified(ground: Ground, join: str) -> None:
    held = Held(pool_pages=40) if join == "inlj" else Held(waiting=4_000)
    if join == "cachejoin":
        held = replace(held, cached=500)
    played = ground.play_sales(join, rows=20_000, held=held, skew=1.0, rounds=(1, 2))
    assert played.verified
    if join != "inlj":
        assert 3_000 <= played.waiting <= 4_800
    if join == "cachejoin":
        assert 450 <= played.did.cached_rows <= 600
    # A machine whose every step is slower is slower; the same run on it again is as fast.
    free = replace(THESIS, read=0, append=0, expire=0, probe=0, result=0)
    assert 0 < played.rate(THESIS) < played.rate(free)
    again = ground.play_sales(join, rows=20_000, held=held, skew=1.0, rounds=(1, 2))
    assert again.rate(THESIS) == played.rate(THESIS)


def test_results_that_are_not_right_are_noticed() -> None:
    prices = np.array([5.0, 7.0])

    def verified(sales: list[int], products: list[int], paid: list[float]) -> bool:
        check = SaleCheck(prices)
        columns = {"sale_id": sales, "product_id": products, "price": paid}
        check.add(pa.RecordBatch.from_pydict(columns))
        return check.agrees(3)

    assert verified([2, 0, 1], [0, 1, 0], [5.0, 7.0, 5.0])
    assert not verified([2, 0, 1], [0, 1, 0], [5.0, 7.0, 7.0])
    assert not verified([2, 1, 1], [0, 1, 0], [5.0, 7.0, 5.0])
    assert not verified([0, 1], [0, 1], [5.0, 7.0])
    assert not verified([0, 1, 2, 2], [0, 1, 0, 0], [5.0, 7.0, 5.0, 5.0])
