"""Surrogate keys: one for each key, for ever."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

import semistream as ss
from semistream.core.errors import OptionError, SemiStreamError
from semistream.etl import SurrogateKeys, new_lookup, surrogate_keys
from semistream.etl.surrogate import FEED, highest_surrogate
from semistream.store.inspect import master_rows
from semistream.store.manifest import read_manifest

COLUMNS = {"source": pa.string(), "id": pa.int32()}


def sales(seed: int, rows: int = 3000, keys: int = 400) -> pa.Table:
    random = np.random.default_rng(seed)
    source = [None if s == 3 else "ABC"[s] for s in random.integers(0, 4, rows)]
    return pa.table(
        {
            "sale": np.arange(rows) + seed * rows,
            "source": source,
            "id": pa.array(random.zipf(1.2, rows) % keys, pa.int64()),
            "tags": [["x"]] * rows,
        }
    )


def lookup(path: Path) -> dict[tuple[str, int], int]:
    with ss.open_master(path) as master:
        rows = [row for batch in master_rows(master) for row in batch.to_pylist()]
    found = {(row["source"], row["id"]): row["surrogate"] for row in rows}
    assert len(found) == len(rows)
    assert len(set(found.values())) == len(rows)
    return found


def check(stream: pa.Table, result: pa.Table, path: Path) -> None:
    """What the join in SQL with the lookup table gives."""
    keys = lookup(path)
    given = {row["sale"]: (row["source"], row["id"]) for row in stream.to_pylist()}
    assert result.num_rows == stream.num_rows
    for row in result.to_pylist():
        source, number = given[row["sale"]]
        assert row["surrogate"] == (keys[source, number] if source is not None else None)


def test_keys_are_new_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    new_lookup(path, COLUMNS)
    before: dict[tuple[str, int], int] = {}
    for seed in range(4):
        stream = sales(seed)
        on = {"source": "source", "id": "id"}
        batches = surrogate_keys(stream.to_batches(max_chunksize=500), path, on, memory="2MB")
        result = pa.Table.from_batches(list(batches))
        assert result.column_names == ["sale", "tags", "surrogate"]
        check(stream, result, path)
        now = lookup(path)
        assert before.items() <= now.items()
        before = now
    assert sorted(before.values()) == list(range(1, len(before) + 1))
    assert read_manifest(path).feeds[FEED] == len(before)


def test_a_table_that_was_there(tmp_path: Path) -> None:
    """Numbers go on behind the highest; the key columns may stay; null keys have a number."""
    path = tmp_path / "keys"
    known = pa.table(
        {"source": ["A", "B"], "id": pa.array([1, 1], pa.int32()), "surrogate": [70, 900]}
    )
    ss.build_master(path, known, ["source", "id"])
    stream = pa.table({"source": ["A", "C", None, "B"], "id": [1, 1, 1, 1]})
    keys = ["source", "id"]
    (result,) = [
        pa.Table.from_batches(list(surrogate_keys(stream, path, keys, keep=True, unknown=-1)))
    ]
    rows = {row["source"]: row["surrogate"] for row in result.to_pylist()}
    assert rows == {"A": 70, "B": 900, "C": 901, None: -1}
    assert highest_surrogate(ss.open_master(path), "surrogate") == 901


def _assign(path: Path, seed: int, out: Path) -> None:
    stream = sales(seed, keys=300)
    batches = surrogate_keys(stream.to_batches(max_chunksize=300), path, ["source", "id"])
    feather.write_feather(pa.Table.from_batches(list(batches)), str(out))


def test_several_processes(tmp_path: Path) -> None:
    """Tasks that meet the same new keys at once give them the same surrogates."""
    path = tmp_path / "keys"
    new_lookup(path, COLUMNS, shards=2)
    context = multiprocessing.get_context("spawn")
    tasks = [
        context.Process(target=_assign, args=(path, seed, tmp_path / f"{seed}")) for seed in (1, 2)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
        assert task.exitcode == 0
    for seed in (1, 2):
        check(sales(seed, keys=300), feather.read_table(str(tmp_path / f"{seed}")), path)


def test_a_crash_between_key_and_result(tmp_path: Path) -> None:
    """What was given out and never seen stays given: the replay finds the same."""
    path = tmp_path / "keys"
    new_lookup(path, COLUMNS)
    stream = sales(1).to_batches()[0]
    keys = SurrogateKeys(stream.schema, path, ["source", "id"])
    lost = keys.assign(stream)
    next(lost)  # the process dies before the results are written
    before = lookup(path)
    keys.close()
    result = pa.Table.from_batches(list(surrogate_keys(stream, path, ["source", "id"])))
    assert lookup(path) == before
    check(pa.Table.from_batches([stream]), result, path)


def test_what_is_not_a_lookup(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, pa.table({"id": [1], "surrogate": ["a"]}), "id")
    stream = pa.table({"id": [1]})
    with pytest.raises(OptionError, match="not of int64"):
        list(surrogate_keys(stream, path, "id"))
    with pytest.raises(SemiStreamError, match="skey"):
        list(surrogate_keys(stream, path, "id", key="skey"))
