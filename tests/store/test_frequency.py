"""Masters in frequency order: classes, keys that stay together, and an index that finds them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError, SemiStreamError, StoreError, UnknownNameError
from semistream.kernels.pages import CLASSES
from semistream.store.file import FileMaster
from semistream.store.inspect import page_table
from semistream.store.sorting import LEAST_CLASS_ROWS

ROWS = 20_000


def table(keys: Any, frequency: Any, **more: Any) -> pa.Table:
    return pa.table({"k": keys, "sold": frequency, "row": np.arange(len(keys)), **more})


def unique(seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    return table(rng.permutation(ROWS) * 7 - 5000, rng.random(ROWS))


def built(path: Path, source: pa.Table, key: Any = "k", **options: Any) -> FileMaster:
    given = {"page_size": 4096, "frequency": "sold", **options}
    ss.build_master(path / "m", source, key, **given)
    return ss.open_master(path / "m")


def pages_of(master: FileMaster, keys: pa.Array) -> npt.NDArray[np.int32]:
    key64 = master.spec.keys([keys]).key64
    pages = np.empty(len(key64), np.int32)
    master.locate(key64, np.full(len(key64), -1, np.int32), pages)
    return pages


def test_classes_halve_towards_the_front(tmp_path: Path) -> None:
    source = unique()
    with built(tmp_path, source) as master:
        assert master.by_frequency
        rows = [page_table(master, page) for page in range(master.pages)]
        starts = master.index.array("segment_start").view(np.int64)
        assert len(starts) == CLASSES + 1
        sizes, lowest = [], np.inf
        for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            if first == end:
                continue
            whole = pa.concat_tables(rows[first:end])
            sold = whole["sold"].to_numpy()
            assert sold.max() <= lowest, "a row is before one that is asked for more"
            lowest = sold.min()
            keys = whole["k"].to_numpy()
            assert (np.diff(keys) > 0).all(), "a class is not in the order of its keys"
            sizes.append(len(keys))
        assert sum(sizes) == ROWS
        assert sizes[0] >= LEAST_CLASS_ROWS
        for smaller, larger in pairwise(sizes[1:]):
            assert abs(larger - 2 * smaller) <= 2


@pytest.mark.parametrize("shards", [1, 3])
def test_every_key_is_found(tmp_path: Path, shards: int) -> None:
    source = unique()
    with built(tmp_path, source, shards=shards) as master:
        pages = pages_of(master, source["k"].combine_chunks())
        for number in range(master.pages):
            held = page_table(master, number)["k"].to_numpy()
            assert set(held.tolist()) == set(source["k"].to_numpy()[pages == number].tolist())
        bits = 8 * master.index_bytes / ROWS
        assert bits < 5.2 + 8 * (4 * master.pages + 8 * CLASSES * shards + 80) / ROWS


def test_rows_of_a_key_stay_together_where_their_sum_belongs(tmp_path: Path) -> None:
    """Key 1 is asked for little by little but often in all; key 2 once, more than any row of 1."""
    keys = np.concatenate([np.arange(1000), np.full(300, 1), [2]])
    sold = np.concatenate([np.zeros(1000), np.full(300, 1.0), [100.0]])
    rng = np.random.default_rng(1)
    order = rng.permutation(len(keys))
    with built(tmp_path, table(keys[order], sold[order])) as master:
        first = page_table(master, 0)["k"].to_pylist()
        found = [page_table(master, page)["k"].to_pylist() for page in range(master.pages)]
        assert first.count(1) > 50
        pages = [number for number, held in enumerate(found) if 1 in held]
        assert pages == list(range(pages[0], pages[-1] + 1))
        assert sum(held.count(1) for held in found) == 301
        assert int(pages_of(master, pa.array([1]))[0]) == pages[0]


def test_what_is_no_number_counts_as_nothing(tmp_path: Path) -> None:
    sold = pa.array([None, float("nan"), float("inf"), 5.0, -1.0] * 200)
    source = table(np.arange(1000), sold)
    with built(tmp_path, source) as master:
        assert set(page_table(master, 0)["sold"].to_pylist()) == {5.0}
        last = page_table(master, master.pages - 1)["sold"].to_pylist()
        assert -1.0 in last


@pytest.mark.parametrize("sold", [np.arange(500, dtype=np.int16), np.arange(500, dtype=np.float32)])
@pytest.mark.parametrize("key", ["k", ["k", "row"]])
def test_kinds_of_keys_and_columns(tmp_path: Path, sold: Any, key: Any) -> None:
    source = table([f"key {i}" for i in range(500)], sold)
    with built(tmp_path, source, key) as master:
        assert master.rows == 500
        assert 499 in page_table(master, 0)["sold"].to_pylist()


def test_long_rows(tmp_path: Path) -> None:
    source = table(np.arange(200), np.arange(200), long=["x" * 5000] * 200)
    with built(tmp_path, source, page_size=None) as master:
        assert page_table(master, 0)["k"].to_pylist() == [100]
        assert set(pages_of(master, source["k"].combine_chunks()).tolist()) == set(
            range(master.pages)
        )


def test_empty_and_null_keys(tmp_path: Path) -> None:
    for name, keys in (("empty", pa.array([], pa.int64())), ("null", pa.nulls(5, pa.int64()))):
        (tmp_path / name).mkdir()
        source = table(keys, pa.array([1.0] * len(keys), pa.float64()))
        with built(tmp_path / name, source) as master:
            assert master.rows == 0
            assert pages_of(master, pa.array([1])).tolist() == [-1]


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    source = unique()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        built(tmp_path / name, source).close()
    for file in ("v1/index", "v1/shard-0000.pages", "MANIFEST.json"):
        assert (tmp_path / "a/m" / file).read_bytes() == (tmp_path / "b/m" / file).read_bytes()


@pytest.mark.parametrize(
    ("frequency", "error", "text"),
    [
        ("slod", UnknownNameError, "did you mean 'sold'"),
        ("text", OptionError, "column of string, not of numbers"),
    ],
)
def test_wrong_columns(
    tmp_path: Path, frequency: str, error: type[SemiStreamError], text: str
) -> None:
    source = table([1], [1.0], text=["a"])
    with pytest.raises(error, match=text):
        built(tmp_path, source, frequency=frequency)
    assert not list(tmp_path.iterdir())


def test_a_damaged_index_is_found_out(tmp_path: Path) -> None:
    built(tmp_path, unique()).close()
    index = tmp_path / "m/v1/index"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    with pytest.raises(StoreError, match="index"):
        ss.open_master(tmp_path / "m")
