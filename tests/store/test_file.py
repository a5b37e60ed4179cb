"""Opening and reading masters: damage is found and named, nothing is lost, nothing is left open."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.core.errors import CorruptPageError, OptionError, StoreError
from semistream.kernels.pages import PAGE_KEYS, shards_of
from semistream.kernels.timing import read_only_runs
from semistream.store.file import FileMaster
from semistream.store.manifest import FORMAT
from tests.examples import examples

ROWS = 6000
PAGE = 4096
OPEN_FILES = Path("/proc/self/fd")


def table() -> pa.Table:
    return pa.table({"id": range(ROWS), "v": [f"value {i}" for i in range(ROWS)]})


@pytest.fixture(scope="module", params=[1, 3], ids=["1 shard", "3 shards"])
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "m"
    ss.build_master(path, table(), "id", shards=request.param, page_size=PAGE, fill=0.9)
    return path


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    """A master to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "m"))


def place_of(master: FileMaster, number: int) -> tuple[Path, int]:
    """The file of a page and its offset there."""
    for shard, (first, end) in zip(master.manifest.shards, master.shard_ranges(), strict=True):
        if first <= number < end:
            return master.path / shard.file, (number - first) * PAGE
    raise AssertionError(number)


def flip(file: Path, offset: int, bits: int = 1) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ bits]))


def bad_pages(master: FileMaster) -> list[int]:
    steps = list(master.bad_pages())
    done = [checked for checked, _ in steps]
    assert done == sorted(done)
    assert done[-1] == master.pages, "all of them are checked"
    return [bad for _, bad in steps if bad is not None]


def read_everything(master: FileMaster | Path) -> pa.Table:
    stream = table().select(["id"])
    return ss.join(stream, master, on="id", how="left", memory="1MB").read_all()


# ------------------------------------------------------------------------------------- damage

POSITIONS = [
    0, 7, 8, 11, 12, 15, 16, 24, 31, PAGE_KEYS, PAGE_KEYS + 9, 500, 1000, 1777, 2500, 3333,
    PAGE - 400, PAGE - 32, PAGE - 1,
]  # fmt: skip


@pytest.mark.parametrize("position", POSITIONS)
def test_one_changed_bit_in_a_page_is_found(path: Path, position: int) -> None:
    master = ss.open_master(path)
    number = (master.pages * (position + 1)) // (PAGE + 1)
    file, offset = place_of(master, number)
    flip(file, offset + position, 1 << position % 8)
    assert bad_pages(master) == [number]
    with pytest.raises(CorruptPageError, match=rf"page {number} of .* checksum.*Hint: "):
        master.read_page(number)
    with pytest.raises(CorruptPageError, match=rf"page {number} of '.*/m' is damaged.*Hint: run"):
        read_everything(path)
    flip(file, offset + position, 1 << position % 8)
    assert bad_pages(master) == []
    assert read_everything(path).num_rows == ROWS


def test_readers_check_pages_unless_told_not_to(path: Path) -> None:
    """And a reader that does not check leaves no page marked as checked."""
    master = ss.open_master(path)
    file, offset = place_of(master, 1)
    flip(file, offset + 100)
    runs = np.array([[0, 1], [1, 1]], np.int64)
    for check in (False, True):
        reader = master.reader(8, check=check)
        assert bool(read_only_runs(reader.ring.kernel, runs)) is not check
        reader.close()


def test_all_bad_pages_are_found_also_neighbours_and_the_last(path: Path) -> None:
    master = ss.open_master(path)
    wrong = [0, 1, 2, 7, 9, master.pages // 2, master.pages - 2, master.pages - 1]
    for number in wrong:
        file, offset = place_of(master, number)
        flip(file, offset + 100)
    assert bad_pages(master) == wrong


def test_pages_that_changed_places_are_found(path: Path) -> None:
    master = ss.open_master(path)
    file, _ = place_of(master, 3)
    data = bytearray(file.read_bytes())
    data[3 * PAGE : 4 * PAGE], data[5 * PAGE : 6 * PAGE] = (
        data[5 * PAGE : 6 * PAGE],
        data[3 * PAGE : 4 * PAGE],
    )
    file.write_bytes(data)
    assert bad_pages(master) == [3, 5], "whole pages with a fitting checksum, but not these"
    with pytest.raises(CorruptPageError, match=r"page [35] of"):
        read_everything(path)


def test_a_page_of_zeros_is_found(path: Path) -> None:
    master = ss.open_master(path)
    file, offset = place_of(master, 4)
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(bytes(PAGE))
    assert bad_pages(master) == [4]


def test_a_join_that_needs_no_bad_page_goes_on(path: Path) -> None:
    master = ss.open_master(path)
    file, offset = place_of(master, master.pages - 1)
    flip(file, offset + 50)
    rows = pa.table({"id": range(9)})
    first = ss.join(rows, path, on="id", memory="1MB", algorithm="sweepjoin").read_all()
    assert first.num_rows == 9


@pytest.mark.parametrize("missing", [1, PAGE - 1, PAGE, 3 * PAGE + 1])
def test_a_file_cut_short_is_found_when_it_is_opened(path: Path, missing: int) -> None:
    master = ss.open_master(path)
    file, _ = place_of(master, master.pages - 1)
    first, end = master.shard_ranges()[-1]
    with ss.open_master(path) as before:
        os.truncate(file, (end - first) * PAGE - missing)
        lost = -(-missing // PAGE)
        assert bad_pages(before) == list(range(end - lost, end))
        with pytest.raises(CorruptPageError, match=f"cut short: page {end - 1} is missing"):
            before.read_page(end - 1)
        with pytest.raises(CorruptPageError, match=r"cut short: page \d+ is missing"):
            read_everything(before)
    with pytest.raises(
        CorruptPageError,
        match=rf"{file.name}' is cut short: \d+ bytes .*page {end - lost} is the first.*Hint",
    ):
        ss.open_master(path)


def test_a_lost_file_is_named(path: Path) -> None:
    master = ss.open_master(path)
    file, _ = place_of(master, 0)
    file.unlink()
    with pytest.raises(StoreError, match=r"has lost its page file 'v1/shard-0000\.pages'.*Hint"):
        ss.open_master(path)


def test_a_damaged_index_is_found(path: Path) -> None:
    index = path / ss.open_master(path).manifest.index_file
    good = index.read_bytes()
    for position in range(0, len(good), len(good) // 37):
        flip(index, position)
        with pytest.raises(StoreError, match=r"index of .* is damaged.*Hint"):
            ss.open_master(path)
        index.write_bytes(good)
    for bad in (good[:-1], good[:-8], good + b"\0", b""):
        index.write_bytes(bad)
        with pytest.raises(StoreError, match=r"index of .* is damaged"):
            ss.open_master(path)
    index.unlink()
    with pytest.raises(StoreError, match="has lost its index"):
        ss.open_master(path)
    index.mkdir()
    with pytest.raises(StoreError, match="cannot be read: Is a directory"):
        ss.open_master(path)


def test_a_damaged_manifest_is_found(path: Path) -> None:
    manifest = path / "MANIFEST.json"
    good = manifest.read_bytes()
    for position in range(len(good)):
        manifest.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(StoreError, match=r"MANIFEST\.json' is damaged|store format"):
            ss.open_master(path)
    for length in range(0, len(good), 41):
        manifest.write_bytes(good[:length])
        with pytest.raises(StoreError, match="is damaged"):
            ss.open_master(path)
    for other in (b"[]", b"5", b'{"format": %d}' % FORMAT, b"\xff\xfe", b"null"):
        manifest.write_bytes(other)
        with pytest.raises(StoreError, match="is damaged"):
            ss.open_master(path)
    manifest.write_bytes(json.dumps({**json.loads(good), "format": 7}).encode())
    with pytest.raises(StoreError, match=rf"store format 7, this release reads {FORMAT}.*Hint"):
        ss.open_master(path)


def test_what_is_not_a_master(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no master at .*nowhere'.*Hint: build one"):
        ss.open_master(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for name in ("file", "."):
        with pytest.raises(StoreError, match=r"is not a master: it has no MANIFEST.*Hint"):
            ss.open_master(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_files_without_permission_are_named(pristine: Path) -> None:
    # Not under tmp_path, whose parents are closed to others.
    copy = Path(shutil.copytree(pristine, f"/tmp/semistream-test-{os.getpid()}"))
    try:
        for file in sorted(p for p in copy.rglob("*") if p.is_file()):
            file.chmod(0o600)
            os.seteuid(65_534)
            # A version's own manifest is read only when that version is asked for.
            version = 1 if file == copy / "v1" / "MANIFEST.json" else None
            with pytest.raises(StoreError, match=f"{file.name}' cannot be read: Permission denied"):
                ss.open_master(copy, version=version)
            os.seteuid(0)
            file.chmod(0o644)
        assert ss.open_master(copy).rows == ROWS
    finally:
        os.seteuid(0)
        shutil.rmtree(copy)


# ------------------------------------------------------------------------------------- reading


def test_direct_reads_give_the_same_rows(pristine: Path) -> None:
    try:
        os.close(os.open(pristine / "MANIFEST.json", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no direct reads (tmpfs of an older kernel?)")
    direct = ss.open_master(pristine, io="direct")
    order = [("id", "ascending")]
    found = read_everything(direct).sort_by(order).combine_chunks()
    assert found.equals(read_everything(pristine).sort_by(order).combine_chunks())
    assert found.equals(table())


def test_a_file_system_without_direct_reads_is_named(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(file: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(file))
        return real(file, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(StoreError, match=r'has no direct reads \(Invalid.*Hint: use io="buffered"'):
        ss.open_master(pristine, io="direct")
    assert ss.open_master(pristine).rows == ROWS


def test_other_ways_to_read_do_not_exist(pristine: Path) -> None:
    with pytest.raises(OptionError, match=r"io='mmap'.*Hint: use one of buffered, direct"):
        ss.open_master(pristine, io="mmap")
    master = ss.open_master(pristine)
    for number in (-1, master.pages):
        with pytest.raises(OptionError, match=f"no page {number} in .* has {master.pages} pages"):
            master.read_page(number)


def test_a_master_says_what_it_is(pristine: Path) -> None:
    master = ss.open_master(pristine)
    assert (master.rows, master.page_bytes) == (ROWS, PAGE)
    assert master.schema.equals(table().schema)
    assert master.data_bytes == master.pages * PAGE
    files = [pristine / shard.file for shard in master.manifest.shards]
    assert sum(file.stat().st_size for file in files) == master.data_bytes
    marks = (master.pages + 7) // 8  # a bit per page that was checked
    guides = master.index_bytes - 4 * master.pages - marks
    assert 0 < guides <= 4 * len(files) * (master.pages // 8 + 3), "close keys take 32 bits a page"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shape", ["even", "clusters", "far", "hashed"])
def test_keys_are_found_whatever_their_distance(tmp_path: Path, shape: str, shards: int) -> None:
    """By the guides of the index: the page of a key is the last that does not begin behind it."""
    random = np.random.default_rng(5)
    keys = {
        "even": np.arange(-4000, 4000) * 7,
        "clusters": (random.integers(0, 6, 8000) * 10**8 + random.integers(0, 3000, 8000)),
        "far": np.concatenate([np.arange(7900), -(2**63) + np.arange(50), 2**62 + np.arange(50)]),
        "hashed": random.integers(-(2**63), 2**63 - 1, 8000),
    }[shape]
    keys = np.unique(keys)
    rows = pa.table({"id": keys, "info": pa.array([b"x" * 60] * len(keys), pa.binary(60))})
    ss.build_master(tmp_path / "m", rows, "id", shards=shards)
    with ss.open_master(tmp_path / "m") as master:
        asked = np.concatenate([keys, keys + 1, random.integers(-(2**63), 2**63 - 1, 2000)])
        pages = np.empty(len(asked), np.int32)
        master.locate(asked, np.full(len(asked), -1, np.int32), pages)
        index = master.index
        firsts = index.array("first").astype(np.int64) + int(index.base)
        shard_of = np.empty(len(asked), np.int32)
        shards_of(asked, shards, shard_of)
        for number, (begin, end) in enumerate(master.shard_ranges()):
            mine = shard_of == number
            wanted = np.searchsorted(firsts[begin:end], asked[mine], side="right") - 1
            expected = np.where(wanted < 0, -1, wanted + begin)
            assert (pages[mine] == expected).all()


def test_threads_can_share_a_master(pristine: Path) -> None:
    master = ss.open_master(pristine)

    def work(begin: int) -> list[int]:
        stream = pa.table({"id": range(begin, ROWS, 4)})
        result = ss.join(stream, master, on="id", memory="1MB").read_all()
        return sorted(result.column("id").to_pylist())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [list(range(b, ROWS, 4)) for b in range(4)]


def test_files_are_closed(pristine: Path, path: Path) -> None:
    gc.collect()
    before = len(list(OPEN_FILES.iterdir()))
    with ss.open_master(pristine) as master:
        assert len(list(OPEN_FILES.iterdir())) == before + len(master.manifest.shards)
        master.read_page(0)
    assert len(list(OPEN_FILES.iterdir())) == before
    master.close()  # twice is fine
    forgotten = ss.open_master(pristine)
    del forgotten
    gc.collect()
    assert len(list(OPEN_FILES.iterdir())) == before
    read_everything(pristine)
    gc.collect()
    assert len(list(OPEN_FILES.iterdir())) == before
    os.truncate(path / ss.open_master(path).manifest.shards[-1].file, 0)
    with pytest.raises(CorruptPageError):
        ss.open_master(path)
    gc.collect()
    assert len(list(OPEN_FILES.iterdir())) == before, "also when opening fails half-way"


# --------------------------------------------------------------------------------- finding keys

SPANS = [1, 100, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1]


def located(master: FileMaster, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    out = np.empty(len(keys), np.int32)
    master.locate(keys, np.full(len(keys), -1, np.int32), out)
    return out


def page_keys(master: FileMaster) -> Iterator[npt.NDArray[np.int64]]:
    for number in range(master.pages):
        page = master.read_page(number)
        rows = int(page[8:12].view(np.uint32)[0])
        yield page[PAGE_KEYS : PAGE_KEYS + 8 * rows].view(np.int64)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32),
    span=st.sampled_from(SPANS),
    low=st.sampled_from([0, -5, -(2**63), 2**62, -(2**31)]),
    count=st.integers(1, 3000),
    repeats=st.sampled_from([1, 3, 700]),
    shards=st.sampled_from([1, 4]),
)
def test_the_first_page_of_every_key_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    span: int,
    low: int,
    count: int,
    repeats: int,
    shards: int,
) -> None:
    rng = np.random.default_rng(seed)
    high = min(low + span, 2**63 - 1)
    keys = rng.integers(low, high, -(-count // repeats), endpoint=True).repeat(repeats)
    path = tmp_path_factory.mktemp("keys") / "m"
    ss.build_master(path, pa.table({"id": keys}), "id", page_size=PAGE, shards=shards)
    with ss.open_master(path) as master:
        pages = list(page_keys(master))
        assert sum(map(len, pages)) == len(keys)
        first_page: dict[int, int] = {}
        for number, found in enumerate(pages):
            assert np.all(np.diff(found) >= 0)
            for key in np.unique(found).tolist():
                first_page.setdefault(key, number)
        distinct = np.array(sorted(first_page), np.int64)
        assert located(master, distinct).tolist() == [first_page[k] for k in distinct.tolist()]
        # Keys that may not be there: some page, or none.
        edges = [low, high, low - 1, high + 1, 0, -(2**63), 2**63 - 1]
        asked = np.array([e for e in set(edges) if -(2**63) <= e < 2**63], np.int64)
        assert np.all(located(master, asked) >= -1)
        assert np.all(located(master, asked) < master.pages)
        stream = pa.table({"id": np.concatenate([distinct, asked])})
        result = ss.join(stream, master, on="id", memory="1MB").read_all()
        assert result.num_rows == len(keys) + np.isin(keys, asked).sum()


@pytest.mark.parametrize("base", [1_700_000_000_000_000_000, -(2**63), 2**63 - 2000])
@pytest.mark.parametrize("width", [5, 700])
def test_large_keys_next_to_each_other_are_told_apart(
    tmp_path: Path, base: int, width: int
) -> None:
    # As floats such neighbours are equal: a guess by their share of the way must not use them.
    source = pa.table({"id": [base + i for i in range(2000)], "v": ["x" * width] * 2000})
    ss.build_master(tmp_path / "m", source, "id", page_size=PAGE)
    result = ss.join(source.select(["id"]), tmp_path / "m", on="id", memory="1MB").read_all()
    assert sorted(result.column("id").to_pylist()) == source.column("id").to_pylist()
