"""The filter for absent keys: it rules out nothing that is there, and nearly all that is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.joins.absent import AbsentFilter
from semistream.joins.api import run
from semistream.joins.sweepjoin import SweepJoin

KEYS = 20_000


def built(path: Path, **build: Any) -> Path:
    keys = np.arange(KEYS) * 10
    names = ["n" * 30] * KEYS
    ss.build_master(path, pa.table({"id": keys, "name": names}), "id", fill=0.8, **build)
    return path


def ruled_out(absent: AbsentFilter, keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which keys no page can hold, by the index and the filter."""
    pages = np.empty(len(keys), np.int32)
    absent.master.locate(keys, np.full(len(keys), -1, np.int32), pages)
    absent.rule_out(keys, pages)
    gone: np.ndarray[Any, Any] = pages < 0
    return gone


@pytest.mark.parametrize(
    "build", [{}, {"shards": 3}, {"frequency": "id"}], ids=["plain", "shards", "frequency"]
)
@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_what_it_rules_out(build: dict[str, Any], io: str, tmp_path: Path) -> None:
    path = built(tmp_path / "m", **build)
    with ss.open_master(path, io=io) as master:
        absent = AbsentFilter(master)
        assert absent.size_bytes == AbsentFilter.size_for(master) < 2 * KEYS
        assert not ruled_out(absent, np.arange(KEYS) * 10).any()
        others = np.arange(1, 10 * KEYS, 3)
        others = others[others % 10 != 0]
        assert ruled_out(absent, others).mean() > 0.9


def test_it_follows_changes(tmp_path: Path) -> None:
    path = built(tmp_path / "m", shards=2)
    first = AbsentFilter(ss.open_master(path))
    new = np.array([7, 77, 1777, 10 * KEYS + 5])
    assert ruled_out(first, new[:3]).any()
    table = pa.table({"id": new, "name": ["new"] * 4})
    ss.apply_changes(path, table, op=None)
    moved = AbsentFilter(ss.open_master(path), like=first)
    fresh = AbsentFilter(ss.open_master(path), like=None)
    assert not ruled_out(moved, np.concatenate([new, np.arange(KEYS) * 10])).any()
    if moved.words == fresh.words:
        assert (moved._blocks == fresh._blocks).all()
    ss.compact_master(path)
    again = AbsentFilter(ss.open_master(path), like=moved)
    assert not ruled_out(again, np.concatenate([new, np.arange(KEYS) * 10])).any()


def storm(seed: int, rows: int = 30_000) -> pa.RecordBatch:
    """Nine of ten keys are absent, within the range of the others."""
    random = np.random.default_rng(seed)
    keys = random.integers(0, KEYS, rows) * 10
    keys += np.where(random.random(rows) < 0.9, random.integers(1, 10, rows), 0)
    return pa.record_batch({"id": keys})


def test_a_storm_of_absent_keys(tmp_path: Path) -> None:
    """A filter is made and charged to the budget; after that pages are read for keys they have."""
    path = built(tmp_path / "m")
    schema = storm(0).schema
    join = ss.make_join("sweepjoin", path, on="id", how="left", schema=schema, memory="600kB")
    assert isinstance(join, SweepJoin)
    with join:
        rows = 0
        for seed in range(8):
            for batch in run(join, [storm(seed)]):
                rows += batch.num_rows
                matched = batch.column("name").is_valid().to_numpy(zero_copy_only=False)
                assert (matched == (batch.column("id").to_numpy() % 10 == 0)).all()
        assert rows == 8 * 30_000
        assert join.absent is not None
        stats = join.stats
        assert stats.bytes_by_component["absent filter"] == join.absent.size_bytes
        assert stats.bytes_peak <= stats.bytes_limit
        before = join.stats.pages_read
        ss.apply_changes(path, pa.table({"id": [11], "name": ["late"]}), op=None)
        newer = join.master.newer()
        assert newer is not None
        join.move_to(newer)
        found = run(join, [pa.record_batch({"id": np.array([11, 12])})])
        names = [name for batch in found for name in batch.column("name").to_pylist()]
        assert sorted(names, key=str) == [None, "late"]
        assert join.stats.pages_read <= before + 4


def test_no_filter_without_a_storm(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    stream = pa.table({"id": np.random.default_rng(1).integers(0, KEYS, 100_000) * 10})
    joined = ss.join(stream, path, on="id", memory="600kB")
    assert sum(batch.num_rows for batch in joined) == 100_000
    assert "absent filter" not in joined.stats.bytes_by_component


@pytest.mark.slow
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("memory", ["4MB", "8MB", "24MB"])
def test_what_a_storm_costs(memory: str, skew: float, tmp_path: Path) -> None:
    """Nine of ten keys absent take at most twice the time of keys that are there."""
    rows, sent = 2_000_000, 3_000_000
    random = np.random.default_rng(1)
    columns = {f"c{i}": random.integers(0, 1 << 60, rows) for i in range(6)}
    table = pa.table({"id": np.arange(rows) * 10, **columns})
    ss.build_master(tmp_path / "m", table, "id", fill=0.8)
    asked = random.integers(0, rows, sent)
    if skew:
        shares = np.cumsum(1 / np.arange(1, rows + 1))
        ranks = np.searchsorted(shares, random.random(sent) * shares[-1])
        asked = random.permutation(rows)[ranks]
    absent = np.where(random.random(sent) < 0.9, random.integers(1, 10, sent), 0)
    took = {}
    with ss.open_master(tmp_path / "m") as master:
        for name, keys in (("hits", asked * 10), ("storm", asked * 10 + absent)) * 2:
            stream = pa.table({"id": keys, "number": np.arange(sent)})
            start = time.perf_counter()
            joined = ss.join(stream, master, on="id", how="left", memory=memory)
            assert sum(batch.num_rows for batch in joined) == sent
            took[name] = time.perf_counter() - start  # the second time, with kernels loaded
    rates = {name: f"{sent / seconds / 1000:,.0f} k rows/s" for name, seconds in took.items()}
    print(memory, "skew", skew, rates)
    assert took["storm"] < 2 * took["hits"]
