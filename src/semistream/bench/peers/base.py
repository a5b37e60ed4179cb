"""What every system in the comparison is: a store built once, opened with a memory, fed batches."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.bench.oracle import PAYLOAD
from semistream.core.errors import SemiStreamError
from semistream.core.stats import JoinStats
from semistream.workloads import product_schema, products
from semistream.workloads.products import INFO_BYTES

KEY = "product_id"
THREADS = 2
"""Threads that a system may use, where it lets itself be told."""

CACHESTAT = 451
"""The number of the system call that tells what of a file is in the operating system's cache."""

BUILD_ROWS = 1_000_000
"""Rows that are handed to a store at once when it is built."""

RECORD = np.dtype(
    [
        (KEY, "<i8"),
        ("price", "<f8"),
        ("stock", "<i8"),
        ("supplier_id", "<i8"),
        ("info", f"V{INFO_BYTES}"),
    ]
)
"""A product as the 120 bytes that stores of keys and values hold."""


class PeerError(SemiStreamError):
    """A system could not do what a cell of the comparison asks, for example in so little memory."""


class Peer(ABC):
    """A system that joins micro-batches of sales with products, one after the other.

    Call order: `build` once for a number of products, which is kept for other runs; then `open`,
    `join` any number of times, `drain`, `close`; then it may be opened again. Only `join` and
    `drain` are timed.
    """

    name: ClassVar[str]

    package: ClassVar[str | None] = None
    """The Python package it needs beyond those of the core."""

    memory_is: ClassVar[str]
    """What the given memory bounds in this system, for whoever reads the table."""

    def __init__(self, workdir: Path, rows: int) -> None:
        self.workdir = workdir
        self.rows = rows

    @classmethod
    def missing(cls) -> str | None:
        """How to install what this system needs and is not there; None if all is."""
        if cls.package is None or importlib.util.find_spec(cls.package) is not None:
            return None
        return f"{cls.name} needs the package {cls.package}: pip install 'semistream[peers]'"

    @property
    def store(self) -> Path:
        """Where its products lie."""
        return self.workdir / f"products-{self.rows}-seed0.{self.name}"

    @property
    def stats(self) -> JoinStats | None:
        """The counters of a join that is open; None for systems that are not ours."""
        return None

    @abstractmethod
    def build(self) -> None:
        """Store the products, unless they are there."""

    @abstractmethod
    def open(self, memory_bytes: int, *, cold: bool) -> None:
        """Make ready. If `cold` reads must not be served by the operating system's cache."""

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> pa.Table:
        """Results of this micro-batch (of all of it, unless the system lets rows wait)."""

    def drain(self) -> pa.Table | None:
        """Results of rows that still wait."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free memory, files and processes; the store stays. May be called twice."""

    def drop_cache(self) -> None:
        """Have the operating system forget the files, so that what comes next reads the disk."""
        drop_from_cache(self.store)


class Lookup(Peer):
    """A system that is asked for the rows of keys: it gets each distinct key of a batch once."""

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        keys, place = np.unique(batch.column(KEY).to_numpy(), return_inverse=True)
        return with_products(batch, keys, place, self.look_up(keys))

    @abstractmethod
    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.Table | pa.RecordBatch:
        """The products of these keys, which ascend; keys without one are left out."""


def with_products(
    batch: pa.RecordBatch,
    keys: npt.NDArray[np.int64],
    place: npt.NDArray[np.int64],
    found: pa.Table | pa.RecordBatch,
) -> pa.Table:
    """The sales of a batch with their products; sale i has keys[place[i]]."""
    ids = found.column(KEY).to_numpy()
    if not np.array_equal(ids, keys):
        order = np.argsort(ids)
        at = np.minimum(np.searchsorted(ids, keys, sorter=order), max(len(ids) - 1, 0))
        partner = order[at][place] if len(ids) else np.zeros(0, np.int64)
        has = ids[partner] == keys[place] if len(ids) else np.zeros(len(place), bool)
        batch = batch.filter(pa.array(has))
        place = partner[has] if len(ids) else partner
    payload = found.select(PAYLOAD).take(pa.array(place))
    return pa.table(
        [*batch.columns, *payload.columns], names=[*batch.schema.names, *payload.schema.names]
    )


def records_of(batch: pa.RecordBatch) -> npt.NDArray[np.void]:
    """Products as packed records."""
    records = np.empty(batch.num_rows, RECORD)
    for name in RECORD.names or ():
        column = batch.column(name)
        data = np.frombuffer(column.buffers()[1], RECORD[name], len(column) + column.offset)
        records[name] = data[column.offset :]
    return records


def batch_of(records: npt.NDArray[np.void]) -> pa.RecordBatch:
    """Products from packed records."""
    columns = []
    for field in product_schema():
        data = np.ascontiguousarray(records[field.name])
        columns.append(
            pa.Array.from_buffers(
                field.type, len(records), [None, pa.py_buffer(data.view(np.uint8))]
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=product_schema())


def product_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """All products by ascending key: the order that every store takes fastest."""
    return iter(products(rows, batch_rows=BUILD_ROWS, shuffled=False))


@contextmanager
def built(path: Path) -> Iterator[Path]:
    """A folder to build in, which gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    try:
        yield beside
        shutil.rmtree(path, ignore_errors=True)
        beside.rename(path)
        write_out(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def files_of(path: Path) -> list[Path]:
    """A file, or all files below a folder."""
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]


def write_out(path: Path) -> None:
    """Have files on disk: what is not yet written cannot be dropped from the cache."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def drop_from_cache(path: Path) -> None:
    """Have the operating system forget what it holds of a file or of a folder's files."""
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_cache(path: Path) -> None:
    """Have the operating system hold a file or a folder's files, as after reading them in order."""
    room = bytearray(1 << 20)
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            if is_cached(opened.fileno()):
                continue
            # Parts that are fetched by themselves come in small pieces.
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while opened.readinto(room):
                pass


def is_cached(file: int) -> bool:
    """Whether the operating system says that it holds all of a file; older ones do not tell."""
    pages = -(-os.fstat(file).st_size // mmap.PAGESIZE)
    everything, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    system_call = ctypes.CDLL(None).syscall
    failed = system_call(CACHESTAT, file, everything, counts, 0)
    return not failed and int(counts[0]) >= pages
