"""The ways of reading ahead: each gives the same pages, and tells what is wrong with one."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.core.errors import CorruptPageError
from semistream.joins import parallel
from semistream.joins.api import run
from semistream.kernels.jit import kernel
from semistream.kernels.reading import (
    ADVISED,
    ASYNC,
    DONE,
    DOUBTS,
    OFTEN,
    OPEN,
    PIECE_BYTES,
    REQ_BUFFER,
    REQ_COUNT,
    REQ_FIRST,
    REQ_STATUS,
    REQUEST_WORDS,
    TRIES,
    TRY,
    UNKNOWN,
    WARY,
    WHOLE,
    WORKERS,
    submit,
)
from semistream.kernels.region import HUGE_BYTES, Region
from semistream.kernels.timing import read_only_runs
from semistream.store import reader
from semistream.store.file import FileMaster
from semistream.store.parts import in_parts
from semistream.store.reader import (
    COPYING_NS,
    MENDING_NS,
    MENDING_SHARE,
    MOST_WINDOW_BYTES,
    SHOWING_NS,
    TRIED_AGAIN,
)

ROWS = 20_000
WAYS = {"asynchronous": ASYNC, "advised": ADVISED, "accompanied": ADVISED, "workers": WORKERS}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "workers":
        monkeypatch.setattr(reader, "_CALLS", {})
    if request.param == "accompanied":
        have_companions(monkeypatch)
    return str(request.param)


def have_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread joins, however small the master, and has a companion if none is said."""
    monkeypatch.setattr(parallel, "LEAST_MASTER", 0)
    monkeypatch.setattr(parallel, "LEAST_BYTES", 1 << 40)
    monkeypatch.setattr(parallel, "default_threads", lambda: 2)


@pytest.fixture
def master(way: str, tmp_path: Path) -> Iterator[FileMaster]:
    rows = pa.table({"id": range(ROWS), "v": [3 * i for i in range(ROWS)]})
    ss.build_master(tmp_path / "m", rows, "id", page_size=4096, shards=2)
    io = "buffered" if WAYS[way] == ADVISED else "direct"
    with ss.open_master(tmp_path / "m", io=io) as opened:
        yield opened


def flip(master: FileMaster, page: int) -> None:
    with (master.path / master.manifest.shards[0].file).open("r+b") as file:
        file.seek((page + 1) * master.page_bytes - 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin", "sweepjoin"])
def test_all_ways_read_the_same(master: FileMaster, way: str, algorithm: str) -> None:
    stream = pa.table({"id": [i % (ROWS + 7) for i in range(0, 3 * ROWS, 2)]})
    operator = ss.make_join(
        algorithm, master, on="id", schema=stream.schema, memory="200kB", threads=None
    )
    values: list[int] = []
    with operator:
        for batch in stream.to_batches(max_chunksize=1000):
            while batch.num_rows:
                batch = batch.slice(operator.push(batch))
                result = operator.step()
                if result is not None:
                    values += result["v"].to_pylist()
        for result in operator.finish():
            values += result["v"].to_pylist()
        assert operator._reader is not None
        assert operator._reader.ring.way == WAYS[way]
        assert (operator._reader.ring.companion != 0) == (way == "accompanied")
    assert sorted(values) == sorted(3 * key for key in stream["id"].to_pylist() if key < ROWS)


def test_a_damaged_page_is_named(master: FileMaster) -> None:
    flip(master, 3)
    stream = pa.table({"id": range(ROWS)})
    with pytest.raises(CorruptPageError, match="page 3 of"):
        list(ss.join(stream, master, "id"))


def test_a_missing_page_is_named(master: FileMaster) -> None:
    file = master.path / master.manifest.shards[0].file
    with file.open("r+b") as opened:
        opened.truncate(5 * master.page_bytes)
    stream = pa.table({"id": range(ROWS)})
    with pytest.raises(CorruptPageError, match=r"page \d+ is missing"):
        list(ss.join(stream, master, "id"))


def test_a_page_is_checked_once(master: FileMaster) -> None:
    """What was published does not change: only the first read of an opened master pays for it."""
    stream = pa.table({"id": range(ROWS)})
    assert sum(batch.num_rows for batch in ss.join(stream, master, "id")) == ROWS
    flip(master, 3)
    assert sum(batch.num_rows for batch in ss.join(stream, master, "id")) == ROWS
    with (
        ss.open_master(master.path, io=master.io) as again,
        pytest.raises(CorruptPageError, match="page 3 of"),
    ):
        list(ss.join(stream, again, "id"))


# Windows: pages seen where the operating system has them.

WIDE_ROWS, RUN = 40_000, 64


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[FileMaster]:
    """About 2,200 pages in two shards, all in the operating system's cache."""
    text = pa.array([f"{i:>200}" for i in range(WIDE_ROWS)])
    rows = pa.table({"id": range(WIDE_ROWS), "text": text})
    ss.build_master(tmp_path / "wide", rows, "id", page_size=4096, shards=2)
    with ss.open_master(tmp_path / "wide") as opened:
        yield opened


def runs_of(master: FileMaster, step: int = RUN) -> list[tuple[int, int]]:
    return [
        (at, min(RUN, end - at))
        for first, end in master.shard_ranges()
        for at in range(first, end, step)
    ]


def read(found: reader.PageReader, runs: list[tuple[int, int]]) -> bool:
    return bool(read_only_runs(found.ring.kernel, np.array(runs, np.int64).reshape(-1, 2)))


def mapped_kib(path: Path) -> int:
    """Memory of this process that shows files of a folder."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = str(path) in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.parametrize("changed", [False, True])
def test_dense_pages_are_seen_and_not_copied(wide: FileMaster, changed: bool) -> None:
    """Twice through the whole master, which fills no more memory than the reader was given."""
    if changed:
        row = pa.table({"id": [70], "text": ["new"]})
        ss.apply_changes(wide.path, row.append_column("op", pa.array(["update"])))
        wide = ss.open_master(wide.path)
    buffer_pages = 1024
    found = wide.reader(buffer_pages, windows=True)
    assert found.buffer_bytes < buffer_pages * wide.page_bytes
    assert read(found, 2 * runs_of(wide))
    assert found.looks
    windows = buffer_pages * wide.page_bytes - found.buffer_bytes
    assert 0 < mapped_kib(wide.path) * 1024 <= windows
    assert found.pages == 2 * wide.pages
    found.close()


def test_dense_stretches_far_apart_leave_nothing_in_memory(wide: FileMaster) -> None:
    """Windows that begin in the middle of a block, with others far from them."""
    buffer_pages = 1024
    found = wide.reader(buffer_pages, windows=True)
    window, length = int(found.ring.window_bytes) // wide.page_bytes, 7
    starts = [
        at
        for first, end in wide.shard_ranges()
        for at in range(first + 5, end - window, window + 53)
    ]
    assert len(starts) >= 3
    runs = [(at + i, length) for at in starts for i in range(0, window - length, length)]
    assert read(found, 4 * runs)
    assert found.ring.view_end > 0
    windows = buffer_pages * wide.page_bytes - found.buffer_bytes
    assert 0 < mapped_kib(wide.path) * 1024 <= windows
    found.close()


def test_a_run_over_the_end_of_a_window_is_seen_through_two(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    window = int(found.ring.window_bytes) // wide.page_bytes
    first, end = next(iter(wide.shard_ranges()))
    assert end - first > 2 * window
    length = 48
    runs = [(at, length) for at in range(first, end - length, length)]
    assert window % length, "runs lie over the ends of windows"
    assert read(found, runs)
    assert found.looks
    assert found.pages == length * len(runs)
    assert found.requests > len(runs)
    found.close()


def test_pieces_that_come_page_by_page_are_seen_for_half_of_the_pages(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    few, half = ([(at, min(most, count)) for at, count in runs_of(wide)] for most in (16, 32))
    wide._pieces[:] = TRIES
    assert not found.in_pieces
    assert read(found, few)
    assert found.ring.view_end == 0
    assert read(found, half)
    assert found.ring.view_end > 0
    wide._pieces[:] = WHOLE
    assert found.in_pieces
    assert read(found, few)
    assert found.looks
    found.close()


def test_what_is_found_out_about_a_piece_is_known_to_all_readers(wide: FileMaster) -> None:
    """How the operating system keeps a file is up to it: either is right."""
    found = wide.reader(1024, windows=True)
    assert read(found, 2 * runs_of(wide))
    assert set(wide._pieces.tolist()) <= {TRIES, WHOLE}
    other = wide.reader(1024, windows=True)
    assert other.in_pieces == found.in_pieces
    found.close()
    other.close()


def test_pieces_that_came_page_by_page_are_tried_again_some_time(wide: FileMaster) -> None:
    """Not all at once: the operating system may have put some of them together meanwhile."""
    found = wide.reader(1024, windows=True)
    found.ring.pagewise = OFTEN
    few = [(at, 1) for at, _ in runs_of(wide, step=20)]
    assert read(found, few)
    known = wide._pieces.copy()
    assert known.min() > UNKNOWN
    assert len(set(known.tolist())) > 1, "at different times"
    for _ in range(2 * TRIES):
        if mapped_kib(wide.path):
            break
        assert read(found, [(at, 16) for at, _ in runs_of(wide)])
    assert mapped_kib(wide.path)
    found.close()


def test_of_pieces_of_both_kinds_each_is_seen_or_copied(wide: FileMaster) -> None:
    """Also if pages are to be seen wherever that pays."""
    found = wide.reader(1024, windows=True)
    found.borrow(10**12)
    wide._pieces[:] = TRIES
    wide._pieces[1::2] = WHOLE
    before = found.ring.copied
    assert found.decide(wide.pages, wide.pages)
    assert read(found, [(at, 1) for at, _ in runs_of(wide, step=20)])
    assert found.ring.opened > 0
    assert found.ring.copied > before
    assert (wide._pieces[::2] < TRIES).all(), "no window was opened there"
    found.close()


def fetched_anew(found: reader.PageReader) -> int:
    return int(found.ring.mended + found.ring.unmended)


def lose_time(found: reader.PageReader, master: FileMaster, pieces: int) -> None:
    """Decide for batches that want all pages, until some pieces were fetched anew for that."""
    before = fetched_anew(found)
    for _ in range(100_000):
        if fetched_anew(found) >= before + pieces:
            return
        found.decide(master.pages, master.pages)
        found.undecided()
    pytest.fail("nothing is fetched anew")


def test_pieces_that_come_page_by_page_are_fetched_anew(wide: FileMaster) -> None:
    """In the time that was lost to them, and no more memory than the window's."""
    found = wide.reader(1024, windows=True)
    wide._pieces[:] = TRIES
    found.decide(wide.pages, wide.pages)
    found.undecided()
    assert fetched_anew(found) == 0, "not much was lost yet"
    lose_time(found, wide, len(wide._pieces))
    mended = int(found.ring.mended)
    assert found.ring.pages_read == fetched_anew(found) * PIECE_BYTES // wide.page_bytes
    assert set(wide._pieces.tolist()) <= {TRIES, WHOLE}
    assert (wide._pieces == WHOLE).sum() <= mended
    assert mapped_kib(wide.path) == 0
    assert read(found, runs_of(wide))
    found.close()


def fetch_page_by_page(master: FileMaster) -> None:
    """Have the operating system keep the files in small pieces."""
    for first, file in zip(master.shard_ranges(), master._files, strict=True):
        os.fdatasync(file)  # what is not on the disk yet cannot be forgotten
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(first[1] - first[0]):
            os.pread(file, master.page_bytes, page * master.page_bytes)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_NORMAL)


def test_what_was_fetched_page_by_page_comes_as_one_when_it_is_mended(wide: FileMaster) -> None:
    fetch_page_by_page(wide)
    found = wide.reader(1024, windows=True)
    assert read(found, runs_of(wide))
    small = np.flatnonzero(wide._pieces == TRIES)
    if not len(small):
        pytest.skip("this file system keeps what is read page by page in larger pieces")
    lose_time(found, wide, len(wide._pieces))
    if not found.ring.mended:
        pytest.skip("this file system has no pieces of that size")
    whole = np.flatnonzero(wide._pieces == WHOLE)
    wide._pieces[:] = UNKNOWN
    found.ring.pagewise = 0
    assert read(found, runs_of(wide))
    assert (wide._pieces[whole] == WHOLE).all()
    found.close()


def test_pieces_that_are_no_longer_whole_are_found_out_one_by_one(wide: FileMaster) -> None:
    """Those that were whole are brought in together, and then each by itself."""
    fetch_page_by_page(wide)
    wide._pieces[:] = WHOLE
    found = wide.reader(1024, windows=True)
    found.borrow(10**12)
    assert found.decide(wide.pages, wide.pages)
    assert read(found, runs_of(wide))
    if (wide._pieces == WHOLE).all():
        pytest.skip("this file system keeps what is read page by page in larger pieces")
    assert (wide._pieces == TRY).all(), "those of a window came together"
    found.borrow(0)
    found.borrow(10**12)
    assert read(found, runs_of(wide))
    assert set(wide._pieces.tolist()) <= {TRIES, WHOLE, TRY}
    assert (wide._pieces == TRIES).sum() > 0
    found.close()


def test_nothing_is_fetched_anew_in_vain(wide: FileMaster) -> None:
    """Not what comes whole, not while the cache lacks pages, not where it never helped, and not
    after a file could not be mapped, which ends the windows."""
    found = wide.reader(1024, windows=True)

    def mended(pieces: int) -> int:
        wide._pieces[:] = pieces
        before = fetched_anew(found)
        for _ in range(100):
            found.decide(wide.pages, wide.pages)
            found.undecided()
        return fetched_anew(found) - before

    assert mended(WHOLE) == mended(UNKNOWN) == 0
    found.ring.wary = WARY
    assert mended(TRIES) == 0
    found.ring.wary, found.ring.unmended = 0, DOUBTS
    assert mended(TRIES) == 0
    found.ring.unmended, window = 0, found.ring.window_bytes
    found.ring.window_bytes = 0
    assert mended(TRIES) == 0
    found.ring.window_bytes = window
    assert mended(TRIES) > 0
    found.close()


def test_mending_takes_its_part_of_the_time_that_is_lost(
    wide: FileMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a piece takes: after slow ones there are none for a while."""
    calls: list[int] = []

    def mend_slowly(ring: object, shards: int, most_ns: int) -> int:
        calls.append(most_ns)
        return 50 * MENDING_NS

    monkeypatch.setattr(reader, "mend", mend_slowly)
    found = wide.reader(1024, windows=True)
    wide._pieces[:] = TRIES
    batch_ns = wide.pages * (COPYING_NS - SHOWING_NS)
    most = 1000
    for _ in range(most):
        found.decide(wide.pages, wide.pages)
        found.undecided()
    assert min(calls) >= MENDING_NS
    spent, lost = 50 * MENDING_NS * len(calls), most * batch_ns
    assert 0 < spent <= lost / MENDING_SHARE + 50 * MENDING_NS
    found.close()


def test_sweeps_have_pieces_mended_too(wide: FileMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their part of what the sweep took that pieces come page by page, and for no other time."""
    calls: list[int] = []

    def mend_at_once(ring: object, shards: int, most_ns: int) -> int:
        calls.append(most_ns)
        return 0

    monkeypatch.setattr(reader, "mend", mend_at_once)
    found = wide.reader(1024, windows=True)
    wide._pieces[:] = WHOLE
    found.ring.copying_ns = 10**9
    found.swept(wide.pages)
    assert not calls, "pieces that come whole cost nothing"
    wide._pieces[:] = TRIES
    found.swept(wide.pages)
    assert not calls, "what an earlier sweep took does not count"
    found.ring.copying_ns += 10**9
    found.ring.opening_ns += 10**9
    found.swept(wide.pages)
    assert calls == [(2 * 10**9 - wide.pages * SHOWING_NS) // MENDING_SHARE]
    found.close()


def test_windows_are_opened_for_dense_stretches_only(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    few = [(at, 1) for at, _ in runs_of(wide, step=20)]
    assert read(found, few)
    assert not found.looks
    assert mapped_kib(wide.path) == 0
    found.close()


def test_a_cold_cache_is_read_and_not_waited_for(wide: FileMaster) -> None:
    """While requests are not in the operating system's cache, windows would have to wait."""
    found = wide.reader(1024, windows=True)
    found.ring.wary = WARY
    runs = runs_of(wide)
    assert read(found, runs[: WARY // 4])
    assert not found.looks
    assert 0 < found.ring.wary < WARY
    found.close()


def test_whoever_asks_may_decide_that_pages_are_seen_or_copied(wide: FileMaster) -> None:
    few = [(at, 1) for at, _ in runs_of(wide, step=20)]
    found = wide.reader(1024, windows=True)
    assert found.decide(wide.pages, wide.pages)
    assert read(found, few)
    assert found.looks
    assert found.ring.opened > 0
    assert found.ring.copied == 0
    found.undecided()
    # Both were timed, and windows are taken to have cost more than all copies together.
    found.ring.opened, found.ring.opening_ns = 1, 10**9
    assert not found.decide(wide.pages, wide.pages)
    shown = int(found.ring.view_end - found.ring.view_start)
    assert read(found, runs_of(wide))
    assert wide.pages - shown <= found.ring.copied < wide.pages
    found.close()


def test_windows_that_came_late_get_another_chance(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    found.ring.opened, found.ring.opening_ns = 1, 10**12
    decided = []
    for _ in range(TRIED_AGAIN + 1):
        decided.append(found.decide(wide.pages, wide.pages))
        found.undecided()
    assert decided == [False] * (TRIED_AGAIN - 1) + [True, True]
    # Where few pages are wanted, windows would not pay even if they came at once.
    found.ring.opened, found.ring.opening_ns = 1, 10**12
    for _ in range(2 * TRIED_AGAIN):
        assert not found.decide(wide.pages, 1)
        found.undecided()
    found.close()


def test_a_cold_cache_ends_the_seeing(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    assert found.decide(wide.pages, wide.pages)
    found.ring.wary = WARY
    assert not found.decide(wide.pages, wide.pages)
    found.close()


def test_a_window_grows_by_what_it_borrows_and_gives_it_back(wide: FileMaster) -> None:
    found = wide.reader(1024, windows=True)
    own = int(found.ring.window_bytes)
    found.borrow(PIECE_BYTES + 5)
    assert found.ring.window_bytes == own + PIECE_BYTES
    assert found.decide(wide.pages, wide.pages)
    assert read(found, [(0, 10)])
    assert own < mapped_kib(wide.path) * 1024 <= own + PIECE_BYTES
    found.borrow(0)
    assert found.ring.window_bytes == own
    assert mapped_kib(wide.path) == 0
    assert read(found, runs_of(wide))
    found.borrow(10**12)
    assert found.ring.window_bytes == MOST_WINDOW_BYTES
    found.close()


@pytest.mark.parametrize("length", [5, 30, 48])
def test_runs_of_more_than_half_of_the_ring_find_room(wide: FileMaster, length: int) -> None:
    """A run lies in the ring in one piece."""
    found = wide.reader(67)
    runs = [(at, length if at % 3 else 30) for at in range(0, 1000, 97)]
    assert read(found, runs)
    assert found.requests == len(runs)
    found.close()


def test_a_run_longer_than_the_ring_is_read_in_parts(wide: FileMaster) -> None:
    """As long as a window is, in case it is not seen."""
    found = wide.reader(67)
    assert read(found, [(5, 200), (300, 67)])
    assert (found.requests, found.pages) == (4, 267)
    found.close()


def test_what_is_seen_is_checked_too(wide: FileMaster) -> None:
    flip(wide, 3)
    found = wide.reader(1024, windows=True)
    assert not read(found, runs_of(wide))
    assert "page 3 of" in str(found.error())
    assert found.looks
    found.close()


def test_a_file_cut_short_is_named_through_windows(wide: FileMaster) -> None:
    """Touching a mapped page that the file no longer has would end the process."""
    with (wide.path / wide.manifest.shards[0].file).open("r+b") as opened:
        opened.truncate(5 * wide.page_bytes)
    found = wide.reader(1024, windows=True)
    assert not read(found, runs_of(wide))
    assert "page 5 is missing" in str(found.error())
    found.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_join_through_windows_is_exact(wide: FileMaster, threads: int) -> None:
    """With gaps between wanted pages, keys that are absent, and more rows than the pool holds."""
    keys = np.random.default_rng(5).integers(0, WIDE_ROWS + 500, 200_000)
    stream = pa.table({"id": keys, "n": np.arange(len(keys))})
    operator = ss.make_join(
        "sweepjoin",
        wide,
        on="id",
        schema=stream.schema,
        memory=f"{12 * threads}MB",
        threads=threads,
    )
    with operator:
        parts = list(run(operator, stream.to_batches(max_chunksize=50_000)))
        if threads == 1:
            assert operator._reader is not None
            assert operator._reader.ring.view_end > 0
    results = pa.Table.from_batches(parts)
    assert sorted(results["n"].to_pylist()) == np.flatnonzero(keys < WIDE_ROWS).tolist()
    expected = pc.utf8_lpad(results["id"].cast(pa.string()), 200)
    assert results["text"].equals(expected)


# The companion: a second thread that copies.


@kernel
def submitted(ring: Any, runs: npt.NDArray[np.int64]) -> int:
    """Submit runs and leave them alone; how many found room."""
    for i in range(runs.shape[0]):
        if not submit(ring, runs[i, 0], runs[i, 1]):
            return i
    return int(runs.shape[0])


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_companion_copies_while_nobody_else_does(wide: FileMaster, rounds: int) -> None:
    """Also after it slept for a while."""
    found = wide.reader(512, companion=True)
    runs = np.array([(at, 1 + at % 3) for at in range(0, 40 * 11, 11)], np.int64)
    for _ in range(rounds):
        assert submitted(found.ring.kernel, runs) == len(runs)
        requests = found.ring.array("requests").reshape(-1, REQUEST_WORDS)
        numbers = np.arange(found.requests - len(runs), found.requests) % len(requests)
        end = time.monotonic() + 20
        while (requests[numbers, REQ_STATUS // 8] != DONE).any():
            assert time.monotonic() < end, "requests stay open"
            time.sleep(0.001)
        for first, count, buffer in requests[numbers][
            :, [REQ_FIRST // 8, REQ_COUNT // 8, REQ_BUFFER // 8]
        ].tolist():
            copied = ctypes.string_at(buffer, count * wide.page_bytes)
            assert copied == wide.read_pages(first, count).tobytes()
        assert read(found, [])
        time.sleep(0.01)
    found.close()


def test_a_companion_leaves_a_cold_cache_to_the_disk(wide: FileMaster) -> None:
    """Pages that are fetched come in the order in which they were asked for, many at a time."""
    found = wide.reader(512, companion=True)
    found.ring.wary = WARY
    runs = np.array([(at, 1) for at in range(0, 440, 11)], np.int64)
    assert submitted(found.ring.kernel, runs) == reader.DEFAULT_DEPTH
    requests = found.ring.array("requests").reshape(-1, REQUEST_WORDS)
    assert OPEN not in requests[:, REQ_STATUS // 8]
    assert read(found, [])
    found.close()


def test_a_join_with_a_companion_is_exact(
    wide: FileMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches that are drained: it falls asleep and wakes up all the time."""
    have_companions(monkeypatch)
    keys = np.random.default_rng(5).integers(0, WIDE_ROWS + 500, 60_000)
    stream = pa.table({"id": keys, "n": np.arange(len(keys))})
    operator = ss.make_join(
        "sweepjoin", wide, on="id", schema=stream.schema, memory="2MB", threads=None
    )
    parts = []
    with operator:
        for batch in stream.to_batches(max_chunksize=300):
            assert operator.push(batch) == batch.num_rows
            parts += list(operator.finish())
        assert operator._reader is not None
        assert operator._reader.ring.companion != 0
        assert operator.processors == 2
    results = pa.Table.from_batches(parts)
    assert sorted(results["n"].to_pylist()) == np.flatnonzero(keys < WIDE_ROWS).tolist()
    assert results["text"].equals(pc.utf8_lpad(results["id"].cast(pa.string()), 200))


def test_a_join_that_is_told_its_threads_has_no_companion(wide: FileMaster) -> None:
    assert not parallel.has_companion(1, wide)
    assert not parallel.has_companion(None, wide), "a small master"
    (whole,) = in_parts(wide, 1)
    one, _ = in_parts(wide, 2)
    with pytest.MonkeyPatch.context() as patched:
        have_companions(patched)
        assert parallel.has_companion(None, wide)
        assert parallel.has_companion(None, whole)
        assert not parallel.has_companion(None, one)
        assert not parallel.has_companion(1, wide)
        patched.setattr(parallel, "default_threads", lambda: 4)
        assert parallel.has_companion(None, one)
        patched.setattr(parallel, "default_threads", lambda: 1)
        assert not parallel.has_companion(None, wide), "one processor"


@pytest.mark.parametrize("pieces", [False, True])
def test_released_memory_is_gone(pieces: bool) -> None:
    region = Region(5 << 20, pieces=pieces)
    assert len(region.bytes) == 5 << 20
    region.bytes[:] = 7
    region.release(4096)
    assert region.bytes[:4096].all()
    assert not region.bytes[4096:].any()


def test_a_region_of_pieces_lies_where_pieces_can_be() -> None:
    """Each is one piece of memory if the operating system has any; the rest is as small as ever."""
    region = Region(2 * HUGE_BYTES + 4096, pieces=True)
    assert region.bytes.ctypes.data % HUGE_BYTES == 0
    region.bytes[:] = 1
    if "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert huge_kib(region.bytes.ctypes.data) == 2 * HUGE_BYTES // 1024


def huge_kib(address: int) -> int:
    """Memory in pieces of the mapping that has an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head:
            start, end = (int(word, 16) for word in head.split("-"))
            inside = start <= address < end
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    return 0
