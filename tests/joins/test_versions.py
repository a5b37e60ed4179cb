"""Joins on a master that changes: each row sees one version, and caches forget what was touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import BudgetError, CallOrderError, SchemaError
from semistream.joins.api import run
from semistream.joins.operator import Operator
from semistream.joins.registry import JOINS

KEYS = 4000


def master_rows(version: int) -> pa.Table:
    keys = np.arange(KEYS)
    return pa.table({"id": keys, "version": np.full(KEYS, version), "name": ["n" * 40] * KEYS})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ss.build_master(tmp_path / "m", master_rows(1), "id", frequency=None, fill=0.8)
    return tmp_path / "m"


def stream(seed: int, rows: int = 6000) -> pa.RecordBatch:
    """Few keys are hot; a tenth is not in the master."""
    keys = np.random.default_rng(seed).zipf(1.3, rows) % (KEYS * 11 // 10)
    return pa.record_batch({"id": keys, "number": np.arange(rows) + seed * rows})


def moved(join: Operator, path: Path) -> None:
    newer = join.master.newer()
    assert newer is not None
    join.move_to(newer)


def versions_of(results: list[pa.RecordBatch]) -> Counter[Any]:
    return Counter(v for batch in results for v in batch.column("version").to_pylist())


@pytest.mark.parametrize("name", list(JOINS))
def test_every_join_moves(name: str, tmp_path: Path) -> None:
    """Every key changes, some go, some come: no row may see what was before."""
    path = tmp_path / "m"
    first = master_rows(1)
    frequency = {"frequency": "version"} if "xhybrid" in name else {}
    ss.build_master(path, first, "id", fill=0.8, **frequency)  # type: ignore[arg-type]
    schema = stream(0).schema
    join = ss.make_join(name, path, on="id", how="left", schema=schema, memory="1MB")
    assert isinstance(join, Operator)
    with join:
        assert set(versions_of(list(run(join, [stream(1), stream(2)])))) == {1, None}
        for version in (2, 3):
            changes = master_rows(version)
            new = pa.table(
                {"id": np.arange(KEYS, KEYS + 99), "version": [version] * 99, "name": ["new"] * 99}
            )
            operations = pa.array(["delete"] * 50 + ["update"] * (KEYS - 50 + 99))
            changes = pa.concat_tables([changes, new]).append_column("op", operations)
            ss.apply_changes(path, changes)
            moved(join, path)
            batches = [stream(2 * version), stream(2 * version + 1)]
            results = list(run(join, batches))
            keys = np.concatenate([batch.column("id").to_numpy() for batch in batches])
            there = int(((keys >= 50) & (keys < KEYS + 99)).sum())
            assert versions_of(results) == {version: there, None: len(keys) - there}
        stats = join.stats
        assert stats.rows_in == 6 * 6000 == stats.rows_matched + stats.rows_unmatched
        assert stats.bytes_peak <= stats.bytes_limit
        assert stats.pages_read > 0


def test_what_was_not_touched_stays_cached(path: Path) -> None:
    schema = stream(0).schema
    with ss.make_join("sweepjoin", path, on="id", schema=schema, memory="2MB") as join:
        list(run(join, [stream(seed) for seed in range(6)]))
        cached, hits = join.stats.cached_rows, join.stats.hits
        assert cached > 100
        hot = stream(0).slice(0, 1).column("id")[0].as_py()
        ss.apply_changes(path, master_rows(2).slice(1, 40), op=None)
        moved(join, path)
        assert cached - 40 <= join.stats.cached_rows < cached
        results = list(run(join, [stream(9)]))
        assert join.stats.hits > hits
        assert hot is not None
    seen = {
        (key, version)
        for batch in results
        for key, version in zip(
            batch.column("id").to_pylist(), batch.column("version").to_pylist(), strict=True
        )
    }
    assert {version for key, version in seen if 1 <= key <= 40} == {2}
    assert {version for key, version in seen if not 1 <= key <= 40} == {1}


def test_following(path: Path) -> None:
    """Every batch sees wholly the version that was current when it came."""

    def batches() -> Iterator[pa.RecordBatch]:
        for version in range(1, 6):
            if version > 1:
                ss.apply_changes(path, master_rows(version), op=None)
            yield stream(version)

    joined = ss.join(batches(), path, on="id", how="left", memory="1MB", follow=True).read_all()
    for version in range(1, 6):
        low, high = version * 6000, (version + 1) * 6000
        of_batch = joined.filter(
            (pa.compute.field("number") >= low) & (pa.compute.field("number") < high)
        )
        assert of_batch.num_rows == 6000
        assert set(of_batch["version"].to_pylist()) == {version, None}


def test_without_following_the_version_stays(path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield stream(1)
        ss.apply_changes(path, master_rows(2), op=None)
        yield stream(2)

    joined = ss.join(batches(), path, on="id", memory="1MB").read_all()
    assert set(joined["version"].to_pylist()) == {1}


def test_a_version_too_large_for_the_memory(path: Path) -> None:
    """The join goes on with the version that it has."""
    schema = stream(0).schema
    with ss.make_join("sweepjoin", path, on="id", schema=schema, memory="195kB") as join:
        list(run(join, [stream(1)]))
        many = np.arange(KEYS, 60 * KEYS)
        rows = pa.table({"id": many, "version": many, "name": ["n" * 40] * len(many)})
        ss.apply_changes(path, rows, op=None)
        with pytest.raises(BudgetError, match="needs at least"):
            moved(join, path)
        assert set(versions_of(list(run(join, [stream(2)])))) == {1}


def test_rows_that_wait_hold_their_version(path: Path, tmp_path: Path) -> None:
    schema = stream(0).schema
    with ss.make_join("hybridjoin", path, on="id", schema=schema, memory="1MB") as join:
        join.push(stream(1).slice(0, 100))
        ss.apply_changes(path, master_rows(2), op=None)
        with pytest.raises(CallOrderError, match=r"rows wait .*finish"):
            moved(join, path)
        assert set(versions_of(list(join.finish()))) == {1}
        other = tmp_path / "other"
        ss.build_master(other, master_rows(1).select(["id", "name"]), "id")
        with pytest.raises(SchemaError, match="other columns"):
            join.move_to(ss.open_master(other))
