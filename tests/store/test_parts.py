"""Parts of a master have each key's pages, and read what the whole master has there."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import semistream as ss
from semistream.store.file import FileMaster
from semistream.store.inspect import rows_of_pages
from semistream.store.parts import MasterPart, in_parts

KEYS = 20_000


def table(version: int, copies: int) -> pa.Table:
    """Keys that are anything but even: most are small, some are far away, one has many rows."""
    keys = np.concatenate(
        [np.arange(KEYS), 3 ** np.arange(20, 38), np.full(500 * copies, 7 * 10**6)]
    )
    keys = np.repeat(np.unique(keys), copies)
    if copies > 1:
        keys = np.sort(np.append(keys, np.full(400, KEYS // 2)))
    return pa.table({"k": keys, "v": np.full(len(keys), version), "info": ["x" * 60] * len(keys)})


@pytest.fixture(params=["unique", "copies", "shards", "changed", "changed shards"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> FileMaster:
    kind = str(request.param)
    copies, shards = (3 if kind == "copies" else 1), (3 if "shards" in kind else 1)
    ss.build_master(tmp_path / "m", table(1, copies), "k", page_size=4096, shards=shards)
    if "changed" in kind:
        changes = table(2, 1).slice(100, 3000).append_column("op", pa.array(["update"] * 3000))
        ss.apply_changes(tmp_path / "m", changes)
    return ss.open_master(tmp_path / "m")


def keys_of(master: FileMaster) -> npt.NDArray[np.int64]:
    keys: npt.NDArray[np.int64] = table(1, 1).column("k").to_numpy()
    return np.concatenate([keys, keys + 1, np.array([-5, 2**62])])


def located(master: FileMaster, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    pages = np.empty(len(keys), np.int32)
    master.locate(keys, np.full(len(keys), -1, np.int32), pages)
    return pages


def parts_of(master: FileMaster, count: int) -> list[MasterPart]:
    parts = in_parts(master, count)
    assert all(isinstance(part, MasterPart) for part in parts)
    return [part for part in parts if isinstance(part, MasterPart)]


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_a_part_finds_the_pages_that_the_whole_finds(master: FileMaster, count: int) -> None:
    keys = keys_of(master)
    whole = located(master, keys)
    ends = np.array([end for _, end in master.shard_ranges()])
    found: list[int] = []
    pages_of_parts = 0
    for part in parts_of(master, count):
        rows, own, valid = part.own(keys, np.ones(len(keys), np.uint8))
        assert own.tolist() == keys[rows].tolist()
        assert valid.all()
        assert len(own) > len(keys) / count / 2 or count > 7, "parts are to be about as large"
        pages = located(part, own)
        assert ((pages >= 0) == (whole[rows] >= 0)).all()
        there = pages >= 0
        own_ends = np.array([end for _, end in part.shard_ranges()])
        shard = np.searchsorted(ends, whole[rows][there], side="right")
        assert (np.searchsorted(own_ends, pages[there], side="right") == shard).all()
        for number, (begin, end) in enumerate(part.shard_ranges()):
            places = part.places(begin, end - begin)
            first, last = master.shard_ranges()[number]
            same = master.places(first, last - first)
            mine = shard == number
            assert (
                places[pages[there][mine] - begin] == same[whole[rows][there][mine] - first]
            ).all()
        found += rows.tolist()
        pages_of_parts += part.pages
    assert sorted(found) == list(range(len(keys)))
    shards = len(master.shard_ranges())
    assert pages_of_parts < master.pages * 1.2 + 16 * count * shards


def test_a_part_reads_what_the_whole_has_there(master: FileMaster) -> None:
    """All rows of all own keys, also of those that go on over pages."""
    stored: dict[int, list[int]] = {}
    for begin, end in master.shard_ranges():
        if begin < end:
            rows = rows_of_pages(master, begin, end - begin)
            for key, version in zip(*(rows.column(name).to_pylist() for name in "kv"), strict=True):
                stored.setdefault(key, []).append(version)
    keys = np.array(sorted(stored))
    stream = pa.record_batch({"k": keys, "n": np.arange(len(keys))})
    with ss.make_join(
        "sweepjoin", master, on="k", schema=stream.schema, memory="4MB", threads=3
    ) as join:
        results = pa.Table.from_batches(list(join.drained(stream)))
    seen: dict[int, list[int]] = {}
    for key, version in zip(*(results.column(name).to_pylist() for name in "kv"), strict=True):
        seen.setdefault(key, []).append(version)
    assert {key: sorted(versions) for key, versions in seen.items()} == {
        key: sorted(versions) for key, versions in stored.items()
    }


def test_parts_share_the_index(master: FileMaster) -> None:
    parts = parts_of(master, 2)
    firsts = master.index.array("first")
    assert all(part.index.array("first") is firsts for part in parts)
    assert sum(part.index_bytes for part in parts) < master.index_bytes / 2
    assert sum(part.pages for part in parts) < master.pages + 40 * len(master.shard_ranges())


def test_a_single_part_is_the_whole(master: FileMaster) -> None:
    assert in_parts(master, 1) == [master]


def test_a_part_outlives_what_is_forgotten_and_its_end_ends_no_other(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", table(1, 1), "k", page_size=4096)
    master = ss.open_master(tmp_path / "m")
    one, other = parts_of(master, 2)
    one.close()
    del one, master
    gc.collect()
    assert len(rows_of_pages(other, 0, 1)) > 0


def test_the_next_version_of_a_part(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", table(1, 1), "k", page_size=4096)
    _, part = parts_of(ss.open_master(tmp_path / "m"), 2)
    assert part.newer() is None
    changes = table(2, 1).slice(0, 10).append_column("op", pa.array(["update"] * 10))
    ss.apply_changes(tmp_path / "m", changes)
    newer = part.newer()
    assert isinstance(newer, MasterPart)
    assert (newer.manifest.version, newer.number, newer.parts) == (2, 1, 2)
