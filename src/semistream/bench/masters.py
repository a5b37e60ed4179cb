"""Masters of products for benchmarks, kept between runs."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.core.errors import StoreError
from semistream.core.progress import Report
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.manifest import FORMAT, read_manifest
from semistream.store.writing import DEFAULT_PAGE_BYTES
from semistream.workloads import permute, product_rows, products
from semistream.workloads.permutation import unpermute

FILE_ROWS = 1_000_000
"""Rows of a Parquet file: several files are read by several tasks."""


def default_workdir() -> Path:
    """Where masters are kept unless told otherwise: a folder below the system's temporary one."""
    return Path(tempfile.gettempdir()) / "semistream-bench"


LAYOUTS = ("key", "frequency")
"""Orders in which a master's rows lie."""

DEMAND = "demand"
"""Column of a master in frequency order: how many products sell less."""


def master_path(
    workdir: Path,
    rows: int,
    seed: int,
    sold_by: int | None = None,
    shards: int = 1,
    page_size: int = DEFAULT_PAGE_BYTES,
) -> Path:
    """The place of a master; its name says all that it depends on."""
    order = "" if sold_by is None else f"-by-demand{sold_by}"
    order += "" if shards == 1 else f"-{shards}shards"
    store = f"format{FORMAT}-{page_size // 1024}k"
    return workdir / f"products-{rows}-seed{seed}{order}-{store}.master"


def product_master(
    workdir: Path,
    rows: int,
    *,
    seed: int = 0,
    sold_by: int | None = None,
    shards: int = 1,
    page_size: int = DEFAULT_PAGE_BYTES,
    io: str = "direct",
    report: Report | None = None,
) -> FileMaster:
    """Open the master of `rows` products, building it where it is not there or not sound.

    It lies in the order of its keys or, given the seed of a stream of sales in `sold_by`, with the
    products first that sell most in that stream; then it has a column `DEMAND` of four bytes more.
    """
    path = master_path(workdir, rows, seed, sold_by, shards, page_size)
    source = products(rows, seed=seed)
    if sold_by is not None:
        source = _with_demand(source, rows, sold_by)
    frequency = None if sold_by is None else DEMAND
    options = {"frequency": frequency, "shards": shards, "page_size": page_size}
    return kept_master(path, source, "product_id", rows, io=io, report=report, **options)


def kept_master(
    path: Path, source: pa.RecordBatchReader, key: str, rows: int, *, io: str, **options: Any
) -> FileMaster:
    """Open the master of `rows` rows at `path`, building it from `source` where it is not sound.

    Of several processes that want it one builds it, and the others wait.
    """
    if not _is_sound(path, rows, source.schema):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_sound(path, rows, source.schema):
                shutil.rmtree(path, ignore_errors=True)
                build_master(path, source, key, **options)
    return open_master(path, io=io)


def product_files(workdir: Path, rows: int, *, seed: int = 0) -> Path:
    """The same products as a folder of Parquet files, written where it is not there."""
    path = workdir / f"products-{rows}-seed{seed}.parquet"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=workdir, prefix=path.name) as beside:
            for number, begin in enumerate(range(0, rows, FILE_ROWS)):
                ids = np.arange(begin, min(begin + FILE_ROWS, rows))
                part = product_rows(permute(ids, rows, seed), seed=seed)
                pq.write_table(pa.table(part), Path(beside) / f"{number:04}.parquet")
            Path(beside).rename(path)
            Path(beside).mkdir()
    return path


def _with_demand(source: pa.RecordBatchReader, rows: int, sold_by: int) -> pa.RecordBatchReader:
    demand = pa.field(DEMAND, pa.int32(), nullable=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in source:
            ids = batch.column("product_id").to_numpy()
            less = rows - 1 - unpermute(ids, rows, sold_by)
            yield batch.append_column(demand, pa.array(less.astype(np.int32)))

    return pa.RecordBatchReader.from_batches(source.schema.append(demand), batches())


def _is_sound(path: Path, rows: int, schema: pa.Schema) -> bool:
    """Whether a complete master lies there that this release can read."""
    try:
        # By its version, as Spark's tasks do: early builds of this format cannot be opened so.
        with open_master(path, version=read_manifest(path).version) as master:
            if master.rows != rows or not master.schema.equals(schema):
                return False
            if master.manifest.record_bytes != master.layout.record_bytes:
                return False
            for page in {0, master.pages - 1} if master.pages else ():
                master.read_page(page)
    except StoreError:
        return False
    return True
