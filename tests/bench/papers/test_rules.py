"""Every rule says yes to what its paper claims, and no to the opposite and to nothing at all."""

from __future__ import annotations

import pytest

from semistream.bench.papers import EXPERIMENTS, PAPERS, Experiment
from semistream.bench.papers.rules import Curves

EVERY = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))


def claimed(experiment: Experiment) -> Curves:
    return {
        series: {x: experiment.as_claimed(x, series) for x in experiment.values}
        for series in experiment.series
    }


def flat(experiment: Experiment) -> Curves:
    return {series: dict.fromkeys(experiment.values, 1.0) for series in experiment.series}


def inverted(experiment: Experiment) -> Curves:
    """One over the claim: what was above is below, what rose falls, a peak is a dip."""
    return {
        series: {x: 1 / y if y else 1e9 for x, y in curve.items()}
        for series, curve in claimed(experiment).items()
    }


@EVERY
def test_yes_to_what_is_claimed(experiment: Experiment) -> None:
    verdict = experiment.rule(claimed(experiment))
    assert verdict.outcome == "reproduced", verdict.reason


@EVERY
def test_no_to_the_opposite(experiment: Experiment) -> None:
    verdict = experiment.rule(inverted(experiment))
    assert verdict.outcome != "reproduced", verdict.reason


@EVERY
def test_no_to_results_that_do_not_move(experiment: Experiment) -> None:
    verdict = experiment.rule(flat(experiment))
    assert verdict.outcome != "reproduced", verdict.reason


@EVERY
def test_declared_in_full(experiment: Experiment) -> None:
    assert experiment.paper in PAPERS
    assert experiment.claim
    assert not experiment.claim.endswith(".")
    assert len(set(experiment.values)) == len(experiment.values)
    assert set(experiment.marks) <= set(experiment.series)
