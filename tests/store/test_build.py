"""Building masters: from every source, in every shape, and undone when something goes wrong."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import semistream as ss
from semistream.core.errors import BadRowError, OptionError, StoreError
from semistream.store import durable, sorting, writing
from semistream.store.file import FileMaster
from semistream.store.inspect import page_heads, page_table

ROWS = 5000
OPEN_FILES = Path("/proc/self/fd")


def table(rows: int = ROWS, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    keys = rng.permutation(rows)
    return pa.table(
        {
            "id": keys,
            "name": [f"name {k}" * (k % 4) for k in keys.tolist()],
            "price": pa.array(keys * 0.25, mask=rng.random(rows) < 0.1),
        }
    )


def stored(master: FileMaster | Path) -> pa.Table:
    """All rows of a master, page by page."""
    opened = master if isinstance(master, FileMaster) else ss.open_master(master)
    pages = [page_table(opened, number) for number in range(opened.pages)]
    return pa.concat_tables([opened.schema.empty_table(), *pages])


def check_equal(found: pa.Table, expected: pa.Table, *by: str) -> None:
    order = [(name, "ascending") for name in by or ("id",)]
    assert found.sort_by(order).combine_chunks().equals(expected.sort_by(order).combine_chunks())


# --------------------------------------------------------------------------------- from where


def write_source(folder: Path, kind: str) -> Any:
    data = table()
    path = folder / f"source.{kind}"
    match kind:
        case "parquet":
            pq.write_table(data, path, row_group_size=900)
        case "csv" | "csv.gz":
            with (
                pa.CompressedOutputStream(path, "gzip")
                if kind == "csv.gz"
                else path.open("wb") as f
            ):
                pacsv.write_csv(data, f)
        case "arrow":
            with pa.ipc.new_file(path, data.schema) as writer:
                writer.write_table(data, max_chunksize=700)
        case "feather":
            feather.write_feather(data, path)
        case "folder":
            path.mkdir()
            for part in range(3):
                pq.write_table(data.slice(part * 2000, 2000), path / f"{part}.parquet")
        case "dataset":
            pq.write_table(data, folder / "d.parquet")
            return pads.dataset(folder / "d.parquet")
        case "table":
            return data
        case "chunked table":
            return pa.concat_tables([data.slice(at, 999) for at in range(0, ROWS, 999)])
        case "batch":
            return data.combine_chunks().to_batches()[0]
        case "reader":
            return data.to_reader(max_chunksize=800)
        case "generator":
            return (batch for batch in data.to_batches(max_chunksize=800))
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "parquet", "csv", "csv.gz", "arrow", "feather", "folder", "dataset", "table",
        "chunked table", "batch", "reader", "generator",
    ],
)  # fmt: skip
def test_every_source_gives_the_same_master(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    ss.build_master(tmp_path / "m", write_source(tmp_path / "in", kind), "id")
    master = ss.open_master(tmp_path / "m")
    assert (master.rows, master.manifest.keys) == (ROWS, ROWS)
    assert master.manifest.is_unique
    found = stored(master)
    if kind.startswith("csv"):  # an empty text and a missing one are the same there
        found = found.set_column(1, "name", found.column("name").fill_null(""))
    assert found.column("id").to_pylist() == list(range(ROWS)), "pages in the order of the key"
    check_equal(found, table())


def test_bad_rows_stop_the_build_or_are_collected(tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_text("id,v\n1,a\n2,b,c\n3,d\n")
    with pytest.raises(BadRowError, match=r"source\.csv', line 3.*rejects=path"):
        ss.build_master(tmp_path / "m", source, "id")
    assert not (tmp_path / "m").exists()
    ss.build_master(tmp_path / "m", source, "id", rejects=tmp_path / "rejects.csv")
    master = ss.open_master(tmp_path / "m")
    assert (master.rows, master.manifest.rejected_rows) == (2, 1)
    assert "2,b,c" in (tmp_path / "rejects.csv").read_text()


class OwnError(Exception):
    """Of whoever provides the batches."""


def test_errors_of_the_source_come_through_as_they_are(tmp_path: Path) -> None:
    def failing(good: int) -> Iterator[pa.RecordBatch]:
        for i in range(good):
            yield pa.record_batch({"id": [i]})
        raise OwnError("the well is dry")

    for good in (1, 2, 50):
        with pytest.raises(OwnError, match=r"^the well is dry$"):
            ss.build_master(tmp_path / "m", failing(good), "id")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------- what comes


@pytest.mark.parametrize("keys", [pa.int64(), pa.string()], ids=str)
def test_an_empty_table_and_one_of_null_keys(tmp_path: Path, keys: pa.DataType) -> None:
    for name, column in (("empty", pa.nulls(0, keys)), ("nulls", pa.nulls(100, keys))):
        ss.build_master(tmp_path / name, pa.table({"id": column, "v": range(len(column))}), "id")
        master = ss.open_master(tmp_path / name)
        assert (master.rows, master.pages, master.data_bytes) == (0, 0, 0)
        assert master.manifest.null_keys == len(column)
        assert list(master.bad_pages()) == []
        stream = pa.table({"id": pa.array([1, 2, None]).cast(keys)})
        for how, rows in (("inner", 0), ("semi", 0), ("left", 3), ("anti", 3)):
            result = ss.join(stream, master, on="id", how=how, memory="1MB").read_all()
            assert result.num_rows == rows


def test_null_keys_are_counted_and_not_stored(tmp_path: Path) -> None:
    rows = 40_000
    keys = pa.array(np.arange(rows), mask=np.arange(rows) % 3 == 0)
    # A column that Arrow cannot filter, and long values where the key is null.
    names = pa.array(
        ["x" * (20_000 if i % 30_000 == 0 else 3) for i in range(rows)], pa.string_view()
    )
    ss.build_master(tmp_path / "m", pa.table({"id": keys, "name": names}), "id")
    master = ss.open_master(tmp_path / "m")
    assert master.manifest.null_keys == len(range(0, rows, 3))
    assert master.rows == rows - master.manifest.null_keys
    assert master.page_bytes == 4096, "rows that are not stored make no pages larger"
    assert stored(master).column("id").to_pylist() == [i for i in range(rows) if i % 3]


def test_a_master_of_nothing_but_keys(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", pa.table({"id": range(3000)}), "id")
    result = ss.join(pa.table({"id": [5, 3000]}), tmp_path / "m", on="id", how="semi").read_all()
    assert result.to_pylist() == [{"id": 5}]


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "texts"])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_rows_of_one_key_may_fill_many_pages(tmp_path: Path, text: bool, shards: int) -> None:
    counts = {1: 3000, 2: 1, 3: 5000, 4: 2, 7: 3000}
    keys = [key for key, count in counts.items() for _ in range(count)]
    rows = np.random.default_rng(2).permutation(len(keys))
    ids = pa.array([f"key {keys[i]}" if text else keys[i] for i in rows])
    source = pa.table({"id": ids, "row": rows, "pad": ["." * 20] * len(keys)})
    ss.build_master(tmp_path / "m", source, "id", shards=shards)
    master = ss.open_master(tmp_path / "m")
    assert (master.manifest.keys, master.manifest.longest_run) == (5, 5000)
    assert master.pages > 20
    check_equal(stored(master), source, "row")
    asked = pa.array([f"key {key}" if text else key for key in range(9)])
    result = ss.join(pa.table({"id": asked}), master, on="id", memory="1MB").read_all()
    assert sorted(result.column("row").to_pylist()) == list(range(len(keys)))


# --------------------------------------------------------------------------------- shape of it


@pytest.mark.parametrize("key", ["id", "name"])
def test_shards_divide_the_keys_among_them(tmp_path: Path, key: str) -> None:
    data = table().set_column(1, "name", pa.array([f"n{i}" for i in range(ROWS)]))
    ss.build_master(tmp_path / "m", data, key, shards=7)
    master = ss.open_master(tmp_path / "m")
    assert len(master.manifest.shards) == 7
    assert sum(shard.rows for shard in master.manifest.shards) == ROWS
    assert min(shard.rows for shard in master.manifest.shards) > ROWS / 7 / 2
    seen: set[Any] = set()
    for (first, end), shard in zip(master.shard_ranges(), master.manifest.shards, strict=True):
        pages = [page_table(master, number) for number in range(first, end)]
        keys = set(pa.concat_tables(pages).column(key).to_pylist())
        assert len(keys) == shard.rows
        assert not keys & seen, "each key lies in one shard"
        seen |= keys
    assert len(seen) == ROWS
    stream = data.select([key])
    result = ss.join(stream, master, on=key, memory="1MB").read_all()
    check_equal(result.select(data.column_names), data)


def test_more_shards_than_keys(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", pa.table({"id": [1, 2], "v": ["a", "b"]}), "id", shards=50)
    master = ss.open_master(tmp_path / "m")
    assert sum(shard.pages == 0 for shard in master.manifest.shards) >= 48
    result = ss.join(pa.table({"id": range(100)}), master, on="id", how="left").read_all()
    found = {row["id"]: row["v"] for row in result.to_pylist()}
    assert found == {i: {1: "a", 2: "b"}.get(i) for i in range(100)}


@pytest.mark.parametrize("fill", [0.1, 0.5, 0.9])
def test_pages_are_filled_up_to_their_mark(tmp_path: Path, fill: float) -> None:
    ss.build_master(tmp_path / "full", table(), "id")
    ss.build_master(tmp_path / "m", table(), "id", fill=fill)
    full, master = ss.open_master(tmp_path / "full"), ss.open_master(tmp_path / "m")
    heads = list(page_heads(master))
    assert max(head.fill for head in heads) <= fill
    assert min(head.fill for head in heads[:-1]) > fill * 0.6
    assert master.pages == pytest.approx(full.pages / fill, rel=0.2)
    check_equal(stored(master), table())


def test_a_page_takes_a_row_beyond_its_mark_rather_than_none(tmp_path: Path) -> None:
    source = pa.table({"id": range(50), "v": ["x" * 6000] * 50})
    ss.build_master(tmp_path / "m", source, "id", fill=0.1)
    master = ss.open_master(tmp_path / "m")
    assert (master.pages, master.most_rows_per_page) == (50, 1)
    check_equal(stored(master), source)


def test_pages_grow_to_hold_the_longest_row(tmp_path: Path) -> None:
    lengths = [10] * 500 + [100_000] + [10] * 500
    source = pa.table({"id": range(1001), "v": ["x" * length for length in lengths]})
    ss.build_master(tmp_path / "m", source, "id")
    master = ss.open_master(tmp_path / "m")
    assert master.page_bytes == 131_072
    check_equal(stored(master), source)
    result = ss.join(source.select(["id"]), master, on="id", memory="4MB").read_all()
    check_equal(result, source)


@pytest.mark.parametrize("key", ["id", "text"])
@pytest.mark.parametrize("first", [0, 20_000], ids=["short at first", "long at once"])
def test_long_rows_are_sorted_by_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, first: int
) -> None:
    monkeypatch.setattr(sorting, "BATCH_BYTES", 100_000)  # several batches of results
    rng = np.random.default_rng(3)
    lengths = np.concatenate([rng.integers(first, first + 100, 700), rng.integers(0, 30_000, 300)])
    keys = rng.integers(0, 400, 1000)
    source = pa.table(
        {
            "id": keys,
            "text": [f"key {key}" for key in keys.tolist()],
            "row": range(1000),
            "v": [chr(97 + i % 26) * length for i, length in enumerate(lengths.tolist())],
        }
    )
    batches = source.to_batches(max_chunksize=150)
    ss.build_master(tmp_path / "m", batches, key, shards=2)
    master = ss.open_master(tmp_path / "m")
    check_equal(stored(master), source, "row")
    for begin, end in master.shard_ranges():
        heads = list(page_heads(master, begin, end - begin))
        assert [h.first_key64 for h in heads] == sorted(h.first_key64 for h in heads)
    assert [path.name for path in (tmp_path / "m").iterdir()].count("sort") == 0


def test_a_given_page_size_must_hold_the_longest_row(tmp_path: Path) -> None:
    source = pa.table({"id": [1, 2], "v": ["x" * 10_000, "y"]})
    with pytest.raises(StoreError, match=r"row of 100\d\d bytes .* 4096 bytes.*at least 12288"):
        ss.build_master(tmp_path / "m", source, "id", page_size=4096)
    assert list(tmp_path.iterdir()) == []
    ss.build_master(tmp_path / "m", source, "id", page_size=12_288)
    assert ss.open_master(tmp_path / "m").page_bytes == 12_288
    check_equal(stored(tmp_path / "m"), source)


def test_a_row_fits_a_page_to_the_last_byte(tmp_path: Path) -> None:
    # Head of the page 32, key64 8, null bits 1, blob reference 4, length 4.
    for extra, fits in ((0, True), (1, False)):
        source = pa.table({"id": [7], "v": ["x" * (4096 - 32 - 8 - 1 - 4 - 4 + extra)]})
        path = tmp_path / f"m{extra}"
        if fits:
            ss.build_master(path, source, "id", page_size="4KiB")
            check_equal(stored(path), source)
        else:
            with pytest.raises(StoreError, match="at least 8192"):
                ss.build_master(path, source, "id", page_size="4KiB")


def test_a_row_longer_than_any_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LARGEST_PAGE_BYTES", 65_536)  # a gigabyte takes its time
    source = pa.table({"id": [1], "v": ["x" * 65_536]})
    with pytest.raises(StoreError, match=r"a row takes 65\.5 kB.*65\.5 kB at most.*Hint"):
        ss.build_master(tmp_path / "m", source, "id")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 5000}, "multiple of 4096"),
        ({"page_size": "2GiB"}, "up to 1 GiB"),
        ({"page_size": 0}, "not above zero"),
        ({"shards": 0}, "shards=0 is not between 1 and 4096"),
        ({"shards": 5000}, "shards=5000"),
        ({"fill": 0.05}, r"fill=0\.05 is not between 0\.1 and 1"),
        ({"fill": 1.1}, r"fill=1\.1"),
        ({"memory": "lots"}, "memory='lots' is not a size"),
        ({"memory": "5%"}, "no master to take it of"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        ss.build_master(tmp_path / "m", table(10), "id", **options)
    assert "Hint: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    # Arrow keeps what was there under a null; it must not get into files.
    validity = pa.py_buffer(bytes([0b0101_0101] * 625))
    images = []
    for noise in (1, 2):
        values = pa.py_buffer(np.random.default_rng(noise).integers(0, 99, ROWS))
        data = np.frombuffer(values, np.int64).copy()
        data[::2] = np.arange(0, ROWS, 2)
        column = pa.Array.from_buffers(pa.int64(), ROWS, [validity, pa.py_buffer(data)])
        offsets = pa.array(range(0, ROWS + 1, 5), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, column)
        source = pa.table({"id": range(ROWS), "v": column}).slice(0, len(lists))
        path = tmp_path / f"m{noise}"
        ss.build_master(path, source.append_column("l", lists), "id", shards=2)
        images.append({f.name: f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()})
    assert images[0] == images[1]


# -------------------------------------------------------------------------- when it goes wrong


def test_a_path_that_is_taken_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    for name in ("file", "folder", "link"):
        with pytest.raises(StoreError, match=f"{name}' exists already.*Hint: choose another"):
            ss.build_master(tmp_path / name, table(10), "id")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "precious"


def test_the_folder_must_exist_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no-such' does not exist.*Hint: create"):
        ss.build_master(tmp_path / "no-such" / "m", table(10), "id")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file': Not a directory"):
        ss.build_master(tmp_path / "file" / "m", table(10), "id")


@pytest.fixture
def without_rights() -> Iterator[None]:
    """Act as a user without rights: root may write everywhere, whatever the permissions say."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["readable", "closed"])
def test_a_folder_without_permission(
    tmp_path_factory: pytest.TempPathFactory, mode: int, request: pytest.FixtureRequest
) -> None:
    # Not under tmp_path, whose parents are closed to others: the folder itself is to be refused.
    folder = Path(f"/tmp/semistream-test-{os.getpid()}-{mode}")
    folder.mkdir()
    folder.chmod(mode & ~0o222)
    try:
        request.getfixturevalue("without_rights")
        with pytest.raises(StoreError, match=r"nothing can be written .*Permission denied.*Hint"):
            ss.build_master(folder / "m", table(10), "id")
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.rmdir()


@pytest.mark.parametrize("pages", [0, 1, 7])
def test_a_full_disk_undoes_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    written = 0

    def write(file: int, data: memoryview, offset: int) -> int:
        nonlocal written
        if written >= pages:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += 1
        return os.pwrite(file, data[:8192], offset)

    monkeypatch.setattr(durable, "os", SimpleNamespace(**{**vars(os), "pwrite": write}))
    open_files = len(list(OPEN_FILES.iterdir()))
    with pytest.raises(StoreError, match=r"the disk is full: .*m' was undone.*Hint: free space"):
        ss.build_master(tmp_path / "m", table(20_000), "id", shards=3)
    assert list(tmp_path.iterdir()) == []
    assert len(list(OPEN_FILES.iterdir())) == open_files


def test_a_disk_that_is_full_for_the_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = {
        duckdb.IOException: "Could not write file: No space left on device",
        duckdb.OutOfMemoryException: "failed to offload data block: max_temp_directory_size",
    }
    for kind, message in messages.items():

        def connect(*_: object, kind: Any = kind, message: str = message, **__: object) -> None:
            raise kind(message)

        monkeypatch.setattr(duckdb, "connect", connect)
        with pytest.raises(StoreError, match="the disk is full"):
            ss.build_master(tmp_path / "m", table(10), "id")

    def starved(*_: object, **__: object) -> None:
        raise duckdb.OutOfMemoryException("could not allocate block of size 256.0 KiB")

    monkeypatch.setattr(duckdb, "connect", starved)
    with pytest.raises(OptionError, match=r"1\.0 GB are too few to sort.*Hint: give"):
        ss.build_master(tmp_path / "m", table(10), "id")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("phase", ["reading and sorting", "writing pages"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, phase: str) -> None:
    def report(name: str, done: int, total: int | None) -> None:
        if name == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ss.build_master(tmp_path / "m", table(), "id", report=report)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
import pyarrow as pa
import semistream as ss

def report(phase, done, total):
    if phase == sys.argv[2]:
        print("here", flush=True)
        time.sleep(600)

source = pa.table({"id": range(300_000), "v": ["x" * 30] * 300_000})
ss.build_master(sys.argv[1], source, "id", report=report)
"""


@pytest.mark.parametrize("phase", ["reading and sorting", "writing pages"])
def test_a_killed_build_leaves_nothing_that_opens(tmp_path: Path, phase: str) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "m"), phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".m.building-")
    with pytest.raises(StoreError, match="interrupted build must be repeated"):
        ss.open_master(left)
    with pytest.raises(StoreError, match="there is no master"):
        ss.open_master(tmp_path / "m")
    ss.build_master(tmp_path / "m", table(100), "id")
    assert ss.open_master(tmp_path / "m").rows == 100


# ------------------------------------------------------------------------------- what it shows


def test_progress_grows_to_the_number_of_rows(tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int | None]]] = {}
    keys = pa.array(range(200_000), mask=np.arange(200_000) % 2 == 0)
    source = pa.table({"id": keys})
    ss.build_master(
        tmp_path / "m",
        source,
        "id",
        report=lambda phase, done, total: seen.setdefault(phase, []).append((done, total)),
    )
    assert list(seen) == ["reading and sorting", "writing pages"]
    for phase, rows in (("reading and sorting", 200_000), ("writing pages", 100_000)):
        done = [count for count, _ in seen[phase]]
        assert done == sorted(set(done)), "it grows"
        assert len(done) > 1
        assert seen[phase][-1] == (rows, rows)
    seen.clear()
    reader = source.to_reader()
    ss.build_master(tmp_path / "n", reader, "id", report=lambda *a: seen.setdefault(a[0], [a[1:]]))  # type: ignore[arg-type]
    assert seen["reading and sorting"][0][1] is None, "a reader does not say how much will come"


def test_nothing_is_printed_without_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ss.build_master(tmp_path / "m", table(), "id")
    assert capfd.readouterr() == ("", "")


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ss.build_master(tmp_path / "m", table(10), "id")
    finally:
        os.umask(before)
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o750
    for file in (tmp_path / "m").rglob("*"):
        assert file.stat().st_mode & 0o027 == 0


MEASURED = """
import resource, sys
import numpy as np
import pyarrow as pa
import semistream as ss

rows, width, step = map(int, sys.argv[2:])

def batches():
    rng = np.random.default_rng(3)
    keys = np.random.default_rng(4).permutation(rows)
    for at in range(0, rows, step):
        ids = keys[at : at + step]
        data = pa.py_buffer(rng.integers(97, 123, len(ids) * width, np.uint8))
        places = pa.py_buffer(np.arange(len(ids) + 1, dtype=np.int32) * width)
        text = pa.Array.from_buffers(pa.string(), len(ids), [None, places, data])
        yield pa.RecordBatch.from_arrays([pa.array(ids), text], ["id", "v"])

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

ss.build_master(sys.argv[1] + ".warm", pa.table({"id": range(100), "v": ["x"] * 100}), "id")
before = peak()
ss.build_master(sys.argv[1], batches(), "id", memory="200MB")
print(peak() - before, ss.open_master(sys.argv[1]).rows)
"""


@pytest.mark.parametrize(
    ("rows", "width", "step"),
    [(1_000_000, 112, 50_000), (3000, 100_000, 100)],
    ids=["many rows", "long rows"],
)
def test_a_build_keeps_to_its_memory(tmp_path: Path, rows: int, width: int, step: int) -> None:
    numbers = [str(number) for number in (rows, width, step)]
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "m"), *numbers]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    grown_mb, built = map(int, result.stdout.split())
    assert built == rows
    assert grown_mb < 500, "the table alone takes 120 or 300 MB, and sorting it more"
