"""Calibration: the fit finds known costs, files come back, other hosts are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semistream.core.errors import OptionError
from semistream.core.stats import JoinStats
from semistream.cost import MODELS, Costs, Loop, ReadCost
from semistream.cost import calibrate as module
from semistream.cost.calibrate import (
    Calibration,
    Run,
    Timed,
    calibrated,
    fit,
    join_timer,
    nonnegative,
    seen,
    with_own,
)
from semistream.cost.units import COST_NAMES, UnitCosts, counted

READ = ReadCost(1e-6, 1e-6)


def test_least_squares_without_negative_values() -> None:
    generator = np.random.default_rng(1)
    matrix = generator.random((40, 6))
    wanted = np.array([1.0, 0.0, 3.0, 0.0, 0.5, 2.0])
    assert nonnegative(matrix, matrix @ wanted) == pytest.approx(wanted, abs=1e-9)
    below = nonnegative(matrix, matrix @ np.array([1.0, -1.0, 3.0, 0.0, 0.5, 2.0]))
    assert (below >= 0).all()
    assert below[1] == 0


def test_the_fit_explains_runs_that_are_made_of_known_costs() -> None:
    generator = np.random.default_rng(2)
    costs = Costs(*(generator.random(len(COST_NAMES)) * 1e-7))
    runs = []
    for number in range(40):
        join = ("meshjoin", "cachejoin")[number % 2]
        counts = dict.fromkeys(
            ("hits", "waits", "results", "looked_up", "probes", "pages", "requests", "calls"), 0.0
        )
        counts = {name: float(generator.integers(1, 10**6)) for name in counts}
        loop = Loop(rows=counts["hits"] + counts["waits"], **counts)
        by_index = MODELS[join].by_index
        seconds = sum(
            count * getattr(costs, name) for name, count in counted(loop, by_index=by_index).items()
        )
        seconds += loop.requests * READ.request_s + loop.pages * READ.page_s
        runs.append(Timed(Run(join), 1, loop, seconds))
    found, off = fit(runs, {"buffered": READ})
    assert off < 0.02
    check = UnitCosts(((1, found),), {"buffered": READ})
    for one in runs:
        by_index = MODELS[one.run.join].by_index
        assert check.loop_s(one.loop, 1, "buffered", by_index=by_index) == pytest.approx(
            one.seconds, rel=0.1
        )


def test_a_join_that_is_slower_in_all_gets_costs_of_its_own() -> None:
    """One factor for all of its costs, where its runs say no more than that."""
    loop = Loop(rows=1e6, waits=1e6, results=1e6, looked_up=1e6, pages=1e4, requests=1e3, calls=50)
    common = UnitCosts(((1, module.PRIOR),), {"buffered": READ})
    usual = common.busy_s(loop, 1, by_index=True)
    reading = common.io_s(loop, "buffered")
    found = with_own(common, "hybridjoin", [Timed(Run("hybridjoin"), 1, loop, 3 * usual + reading)])
    own = found.at(1, "hybridjoin")
    for name in ("append", "find", "result", "look_up"):
        assert getattr(own, name) == pytest.approx(3 * getattr(module.PRIOR, name), rel=0.05)


def test_runs_of_two_sizes_tell_pages_from_rows() -> None:
    def loop(pages: float) -> Loop:
        return Loop(
            rows=1e6, waits=1e6, results=1e6, looked_up=1e6, pages=pages, requests=1e3, calls=50
        )

    common = UnitCosts(((1, module.PRIOR), (9, module.PRIOR)), {"buffered": READ})
    dear = replace(module.PRIOR, page=5 * module.PRIOR.page)
    truth = UnitCosts(((1, dear),), {"buffered": READ})

    def took(pages: float) -> float:
        return truth.loop_s(loop(pages), 1, "buffered", by_index=True)

    runs = [
        Timed(Run("hybridjoin"), 1, loop(5e5), took(5e5)),
        Timed(Run("hybridjoin"), 9, loop(2e4), took(2e4)),
    ]
    found = with_own(common, "hybridjoin", runs)
    for size in (1, 9):
        own = found.loop_s(loop(2e5), size, "buffered", by_index=True, join="hybridjoin")
        assert own == pytest.approx(took(2e5), rel=0.15)


def test_costs_of_one_join_can_be_measured_again() -> None:
    loop = Loop(rows=1e6, waits=1e6, results=1e6, looked_up=1e6, pages=1e4, requests=1e3, calls=50)
    before = UnitCosts(((1, module.PRIOR), (9, module.PRIOR)), {"buffered": READ})
    took = before.loop_s(loop, 9, "buffered", by_index=True)
    runs = [Timed(Run("hybridjoin"), 1, loop, took), Timed(Run("hybridjoin"), 9, loop, 2 * took)]
    after = with_own(before, "hybridjoin", runs)
    for size, factor in ((1, 1), (9, 2)):
        own = after.loop_s(loop, size, "buffered", by_index=True, join="hybridjoin")
        assert own == pytest.approx(factor * took, rel=0.02)
    assert after.loop_s(loop, 9, "buffered", by_index=True, join="cachejoin") == took
    assert with_own(before, "hybridjoin", []) == before


def test_counts_of_a_run_follow_what_was_seen() -> None:
    said = Loop(
        rows=100, hits=50, waits=50, results=100, looked_up=60, cache_looked_up=110, pages=10,
        requests=2, calls=1,
    )  # fmt: skip
    did = JoinStats(rows_in=1000, rows_out=1000, hits=800, misses=200, pages_read=30, requests=7)
    loop = seen(said, did, 1000.0)
    assert (loop.rows, loop.hits, loop.waits, loop.results) == (1000, 800, 200, 1000)
    assert (loop.pages, loop.requests, loop.calls) == (30, 7, 10)
    assert loop.looked_up == pytest.approx(60 * 200 / 50)
    assert loop.cache_looked_up == pytest.approx(1100)


@pytest.fixture(scope="module", autouse=True)
def little_to_measure() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", 20_000)
        patch.setattr(module, "STREAM_ROWS", 20_000)
        patch.setattr(module, "RUN_S", 0.03)
        patch.setattr(module, "SIZES", (1_000_000,))
        patch.setattr(module, "USUAL_JOINS", ("meshjoin", "hybridjoin", "memoryjoin"))
        patch.setattr(module, "OTHER_SIZES", {"partition_pages": 2})
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    with join_timer(tmp_path_factory.mktemp("calibration")) as timer:
        return timer.calibration()


def test_this_machine_is_measured(small: Calibration) -> None:
    for way in ("buffered", "direct"):
        cost = small.costs.read[way]
        assert cost.request_s >= 0
        assert cost.page_s >= 0
        assert 1e-7 < cost(8) < 1
    ((size, costs),) = small.costs.sizes
    assert size == 1_000_000
    assert all(getattr(costs, name) > 0 for name in COST_NAMES)
    assert 0 < costs.call < 0.1
    one = Loop(rows=1, waits=1, results=1, looked_up=1, pages=1, requests=1)
    assert 1e-8 < small.costs.busy_s(one, size, by_index=True, join="hybridjoin") < 0.1
    assert set(small.costs.joins) == {"meshjoin", "hybridjoin", "memoryjoin"}
    assert small.host["cores"]


def test_joins_are_timed_with_reads_of_two_sizes_too(tmp_path: Path) -> None:
    """And for as long as they do different things in turn."""
    with join_timer(tmp_path, read={"buffered": READ, "seen": READ}) as timer:
        size = module.SIZES[0]
        runs = timer.own_times("hybridjoin", size)
        assert [dict(one.run.options) for one in runs] == [{}, {}, {"partition_pages": 2}]
        requests = [one.loop.requests / one.loop.pages for one in runs]
        assert requests[2] != pytest.approx(requests[0], rel=0.2)
        assert [one.run.options for one in timer.own_times("inlj", size)] == [{}, {}]
        workload = timer._streams[0.0].workload
        ssbj = timer.own_times("ssbj", size)[0]
        assert ssbj.loop.pages > 2.9 * workload.pages


def test_it_is_kept_and_comes_back(small: Calibration, tmp_path: Path) -> None:
    small.save(tmp_path / "kept" / "c.json")
    assert Calibration.load(tmp_path / "kept" / "c.json") == small


def test_it_is_measured_once_and_more_joins_when_they_are_wanted(tmp_path: Path) -> None:
    path, heard = tmp_path / "kept" / "c.json", list[str]()
    usual = ("meshjoin", "hybridjoin")
    first = calibrated(path, joins=usual, folder=tmp_path, tell=heard.append)
    assert heard[0] == "measuring this machine, once"
    heard.clear()
    assert calibrated(path, joins=usual, tell=heard.append) == first
    assert not heard
    more = calibrated(path, joins=("meshjoin", "cachejoin"), tell=heard.append)
    assert heard[:2] == ["measuring more joins, once", "costs of cachejoin"]
    assert set(more.costs.joins) - set(first.costs.joins) == {"cachejoin"}
    assert replace(more, costs=replace(more.costs, joins=first.costs.joins)) == first
    assert Calibration.load(path) == more
    assert not [left for left in tmp_path.iterdir() if left.name != "kept"]
    heard.clear()
    calibrated(path, joins=usual, anew=True, tell=heard.append)
    assert heard[0] == "measuring this machine, once"


def test_that_of_another_host_lacks_what_it_lacks(small: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    replace(small, host={**small.host, "cores": 1000}).save(path)
    with pytest.warns(UserWarning, match="another host"):
        found = calibrated(path, joins=("cachejoin",))
    assert found.costs == small.costs


def test_that_of_another_host_is_used_with_a_warning(small: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    small.save(path)
    plain = json.loads(path.read_text())
    plain["host"]["processor"] = "Abacus"
    path.write_text(json.dumps(plain))
    with pytest.warns(UserWarning, match="another host.*Abacus"):
        assert Calibration.load(path).costs == small.costs


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"costs": 3}'])
def test_files_that_are_no_calibration(content: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(OptionError, match="is not a calibration"):
        Calibration.load(path)
    with pytest.raises(OptionError, match="there is no calibration"):
        Calibration.load(tmp_path / "nothing.json")
