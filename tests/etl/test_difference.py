"""Snapshot differences, against SQL, and applied: the master is then what the snapshot is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError, SchemaError
from semistream.etl import snapshot_difference
from semistream.store.inspect import master_rows
from semistream.store.manifest import read_manifest


def table(seed: int, keys: np.ndarray[Any, Any]) -> pa.Table:
    random = np.random.default_rng(seed)
    price = np.where(random.random(len(keys)) < 0.1, np.nan, keys % 11)
    names = [f"n{key + (seed if key % 7 == 0 else 0)}" if key % 5 else None for key in keys]
    return pa.table(
        {
            "id": [f"k{key}" for key in keys],
            "price": pa.array(price, mask=keys % 13 == 0, from_pandas=False),
            "name": names,
            "tags": [[f"t{key % 3}"] for key in keys],
        }
    )


def rows_of(path: Path) -> Counter[str]:
    with ss.open_master(path) as master:
        return Counter(str(row) for batch in master_rows(master) for row in batch.to_pylist())


@pytest.mark.parametrize("shards", [1, 3])
def test_a_snapshot_becomes_changes(shards: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    old = table(1, np.arange(0, 3000))
    new = table(2, np.arange(500, 3600))
    ss.build_master(path, old, "id", shards=shards, fill=0.8)
    found = snapshot_difference(new.to_batches(max_chunksize=700), path, memory="2MB")
    changes = found.read_all()
    with duckdb.connect() as connection:
        connection.register("old", old)
        connection.register("new", new)
        wanted = connection.sql(
            """select 'insert', id from new anti join old using (id)
            union all select 'update', new.id from new join old using (id) where
                (new.price, new.name, new.tags) is distinct from (old.price, old.name, old.tags)
            union all select 'delete', id from old anti join new using (id)"""
        ).fetchall()
    pairs = zip(changes["op"].to_pylist(), changes["id"].to_pylist(), strict=True)
    assert Counter(pairs) == Counter(wanted)
    counts = found.counts
    assert (counts.rows_in, counts.inserted, counts.deleted) == (3100, 600, 500)
    assert counts.updated + counts.same == 2500
    assert counts.updated > 100
    ss.apply_changes(path, changes)
    assert rows_of(path) == Counter(str(row) for row in new.to_pylist())
    again = snapshot_difference(new, path)
    assert again.read_all().num_rows == 0
    ss.apply_changes(path, snapshot_difference(new, path).reader())
    assert read_manifest(path).version == 2
    assert again.counts.same == 3100


def test_some_changes_only(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, table(1, np.arange(100)), "id")
    snapshot = table(2, np.arange(50, 150))
    for change in ("insert", "update", "delete"):
        found = snapshot_difference(snapshot, path, changes=[change]).read_all()
        assert set(found["op"].to_pylist()) == {change}
    everything_gone = snapshot_difference([], path).read_all()
    assert everything_gone.num_rows == 100


def test_keys_alone_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, pa.table({"id": [1, 2, 3]}), "id")
    found = snapshot_difference(pa.table({"id": [2, None, 4]}), path)
    changes = found.read_all()
    assert sorted(zip(changes["op"].to_pylist(), changes["id"].to_pylist(), strict=True)) == [
        ("delete", 1),
        ("delete", 3),
        ("insert", 4),
    ]
    assert (found.counts.null_keys, found.counts.same) == (1, 1)


def test_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, table(1, np.arange(10)), "id")
    with pytest.raises(SchemaError, match="no column 'price'"):
        snapshot_difference(pa.table({"id": ["k1"]}), path)
    with pytest.raises(OptionError, match="upsert"):
        snapshot_difference(table(1, np.arange(10)), path, changes=["upsert"])
