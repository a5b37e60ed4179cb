"""Masters of products for benchmarks, kept between runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from semistream.core.errors import StoreError
from semistream.core.progress import Report
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.manifest import FORMAT
from semistream.workloads import product_schema, products


def default_workdir() -> Path:
    """Where masters are kept unless told otherwise: a folder below the system's temporary one."""
    return Path(tempfile.gettempdir()) / "semistream-bench"


def master_path(workdir: Path, rows: int, seed: int) -> Path:
    """The place of a master; its name says all that it depends on."""
    return workdir / f"products-{rows}-seed{seed}-format{FORMAT}.master"


def product_master(
    workdir: Path, rows: int, *, seed: int = 0, io: str = "direct", report: Report | None = None
) -> FileMaster:
    """Open the master of `rows` products, building it where it is not there or not sound."""
    path = master_path(workdir, rows, seed)
    if not _is_sound(path, rows):
        workdir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        source = products(rows, seed=seed)
        try:
            build_master(path, source, "product_id", report=report)
        except StoreError:
            # Another run may have put the same master in place meanwhile.
            if not _is_sound(path, rows):
                raise
    return open_master(path, io=io)


def _is_sound(path: Path, rows: int) -> bool:
    """Whether a complete master lies there that this release can read."""
    try:
        with open_master(path) as master:
            if master.rows != rows or not master.schema.equals(product_schema()):
                return False
            if master.manifest.record_bytes != master.layout.record_bytes:
                return False
            for page in {0, master.pages - 1} if master.pages else ():
                master.read_page(page)
    except StoreError:
        return False
    return True
