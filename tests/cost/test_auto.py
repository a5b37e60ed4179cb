"""`auto`: chooses by the models, says why, and goes over to another join without losing a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.checks import SKIPPED, Workspace, all_checks, named
from semistream.core.errors import BudgetError, SchemaError
from semistream.core.join import Snapshot
from semistream.cost import Workload, auto
from semistream.cost.auto import AutoJoin, Choice, choose
from semistream.joins.registry import DEFAULT, JOINS
from semistream.workloads.zipf import zipf_ranks
from tests.cost.typical import TYPICAL

KEYS = 30_000
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("auto") / "m"
    info = pa.array([b"x" * 100] * KEYS, pa.binary(100))
    ss.build_master(made, pa.table({"k": np.arange(KEYS), "v": np.arange(KEYS), "info": info}), "k")
    return made


def batches(rows: int, skew: float, start: int = 0) -> Iterator[pa.RecordBatch]:
    keys = zipf_ranks(KEYS, skew, rows, seed=3, start=start) - 1
    table = pa.table({"k": keys, "n": np.arange(start, start + rows)}, schema=SCHEMA)
    return iter(table.combine_chunks().to_batches(max_chunksize=5000))


CHECKS = {check.__name__: check for check in all_checks()}
HEAVY = {"check_snapshot_at_any_moment", "check_snapshots_of_other_keys"}


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - HEAVY))
def test_it_is_a_join_like_others(check: str, workspace: Workspace) -> None:
    if ("memoryjoin", check) in SKIPPED:
        pytest.skip(SKIPPED["memoryjoin", check])
    CHECKS[check](named("auto"), workspace)


def test_a_master_that_fits_is_joined_in_memory(path: Path) -> None:
    joined = ss.join(batches(20_000, 0.0), path, "k", memory="10MB")
    table = joined.read_all()
    assert table.num_rows == 20_000
    assert joined.stats.algorithm == "memoryjoin"
    assert joined.stats.plan is not None
    assert "fits" in joined.stats.plan.reason
    assert joined.stats.to_dict()["plan"]["reason"] == joined.stats.plan.reason  # type: ignore[index]


def test_one_that_does_not_is_joined_by_what_the_models_favour(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "known_costs", lambda: TYPICAL)
    joined = ss.join(batches(20_000, 1.0), path, "k", memory="1MB")
    assert joined.read_all().num_rows == 20_000
    assert joined.stats.algorithm in auto.CANDIDATES
    assert joined.stats.plan is not None
    assert "predicted" in joined.stats.plan.reason


def test_on_a_machine_that_was_never_measured_it_is_the_default(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "known_costs", lambda: None)
    joined = ss.join(batches(20_000, 1.0), path, "k", memory="1MB")
    assert joined.read_all().num_rows == 20_000
    assert joined.stats.algorithm == DEFAULT
    assert joined.stats.plan is not None
    assert "semistream tune" in joined.stats.plan.reason


def test_the_models_are_asked_again_only_when_the_stream_has_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "LOOK_ROWS", 20_000)
    monkeypatch.setattr(auto, "SAMPLE_ROWS", 5000)
    asked = []

    def chooser(workload: Workload, memory: int, now: str | None) -> Choice:
        asked.append(workload.frequencies.top(100))
        return Choice("sweepjoin", "always")

    operator = made(path, chooser)
    before = len(asked)
    for batch in batches(200_000, 0.5):
        while batch.num_rows:
            batch = batch.slice(operator.push(batch))
            operator.step()
    assert len(asked) == before + 1
    for batch in batches(100_000, 1.2):
        while batch.num_rows:
            batch = batch.slice(operator.push(batch))
            operator.step()
    assert len(asked) == before + 2
    assert asked[-1] > asked[-2]
    operator.close()


def test_too_little_memory_tells_the_least(path: Path) -> None:
    with pytest.raises(BudgetError, match="needs at least"):
        ss.make_join("auto", path, on="k", schema=SCHEMA, memory="50kB")


def made(path: Path, chooser: auto.Chooser, memory: int = 1_000_000) -> AutoJoin:
    plain = ss.make_join("auto", path, on="k", schema=SCHEMA, memory=memory)
    assert isinstance(plain, AutoJoin)
    return AutoJoin(plain.master, plain.binding, plain.budget, clock=plain.clock, chooser=chooser)


def by_skew(workload: Workload, memory: int, now: str | None) -> Choice:
    """For tests: another join where the hundred hottest keys are a third of the stream."""
    if workload.frequencies.top(100) > 1 / 3:
        return Choice("cachejoin", "skewed")
    return Choice("hybridjoin", "even")


def test_it_goes_over_when_the_stream_changes_for_good(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "LOOK_ROWS", 20_000)
    monkeypatch.setattr(auto, "SAMPLE_ROWS", 5000)
    operator = made(path, by_skew)
    seen = 0
    names: list[str] = []
    numbers = []
    for batch in (*batches(150_000, 0.0), *batches(250_000, 1.2, start=150_000)):
        rest = batch
        while rest.num_rows:
            accepted = operator.push(rest)
            rest = rest.slice(accepted)
            result = operator.step() if rest.num_rows else operator.take()
            if result is not None:
                numbers.append(result.column("n").to_numpy())
                assert (result.column("k").to_numpy() == result.column("v").to_numpy()).all()
        seen += batch.num_rows
        stats = operator.stats
        assert stats.rows_in == seen
        assert stats.rows_in == stats.rows_matched + stats.rows_unmatched + stats.rows_waiting
        assert stats.bytes_in_use <= stats.bytes_limit == 1_000_000
        if not names or names[-1] != stats.algorithm:
            names.append(stats.algorithm)
    numbers += [result.column("n").to_numpy() for result in operator.finish()]
    assert names == ["hybridjoin", "cachejoin"]
    assert operator.stats.plan is not None
    assert operator.stats.plan.reason == "instead of hybridjoin: skewed"
    assert (np.sort(np.concatenate(numbers)) == np.arange(400_000)).all()
    assert operator.stats.rows_out == 400_000
    operator.close()


def test_it_does_not_go_over_for_a_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LOOK_ROWS", 20_000)
    monkeypatch.setattr(auto, "SAMPLE_ROWS", 5000)
    operator = made(path, by_skew)
    parts = [*batches(60_000, 0.0), *batches(30_000, 1.2), *batches(60_000, 0.0)]
    for batch in parts:
        while batch.num_rows:
            batch = batch.slice(operator.push(batch))
            operator.step()
        assert operator.stats.algorithm == "hybridjoin"
    operator.close()


def test_a_snapshot_goes_on_in_the_join_that_made_it(path: Path) -> None:
    first = made(path, lambda workload, memory, now: Choice("ssij", "because"))
    accepted = first.push(next(batches(5000, 0.0)))
    assert accepted > 0
    snapshot = first.snapshot()
    assert snapshot.algorithm == "ssij"
    second = made(path, choose)
    second.restore(snapshot)
    assert second.stats.algorithm == "ssij"
    rows = sum(batch.num_rows for batch in second.finish())
    assert rows == accepted
    third = made(path, choose)
    with pytest.raises(SchemaError):
        third.restore(Snapshot("no join", snapshot.rows))
    for one in (first, second, third):
        one.close()


def test_the_choice_follows_the_models(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "known_costs", lambda: TYPICAL)
    with ss.open_master(path) as master:
        workload = Workload.of(master, SCHEMA, "k", skew=1.0)
        choice = choose(workload, 1_000_000)
        assert choice.join in JOINS
        assert choice.reason.count("rows/s") >= 1
        assert choose(workload, 100_000_000).join == "memoryjoin"
        assert choose(workload, 1000, "ssij").join == "ssij"
