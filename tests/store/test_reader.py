"""The ways of reading ahead: each gives the same pages, and tells what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import CorruptPageError
from semistream.kernels.reading import ADVISED, ASYNC, WORKERS
from semistream.store import reader
from semistream.store.file import FileMaster

ROWS = 20_000
WAYS = {"asynchronous": ASYNC, "advised": ADVISED, "workers": WORKERS}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "workers":
        monkeypatch.setattr(reader, "_CALLS", {})
    return str(request.param)


@pytest.fixture
def master(way: str, tmp_path: Path) -> Iterator[FileMaster]:
    rows = pa.table({"id": range(ROWS), "v": [3 * i for i in range(ROWS)]})
    ss.build_master(tmp_path / "m", rows, "id", page_size=4096, shards=2)
    with ss.open_master(tmp_path / "m", io="buffered" if way == "advised" else "direct") as opened:
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
    operator = ss.make_join(algorithm, master, on="id", schema=stream.schema, memory="200kB")
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
