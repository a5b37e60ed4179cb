"""Building a master: any source in, sorted pages out, with little memory.

Rows are packed once, sorted outside of memory as (shard, key64, bytes), and cut into pages as they
come back. Everything is written into a directory beside the target and put in place
by one rename.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import pyarrow as pa

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.errors import StoreError
from semistream.core.progress import Report, TerminalProgress
from semistream.store.classes import ClassWriter
from semistream.store.durable import sync_directory
from semistream.store.opened import Source
from semistream.store.sorting import is_disk_full, sort_rows
from semistream.store.sources import SourceLike, open_source
from semistream.store.writing import VERSION, BuildPlan, publish, write_shards


def build_master(
    path: str | Path,
    source: SourceLike,
    key: str | Sequence[str],
    *,
    page_size: type_of_size | None = None,
    shards: int = 1,
    fill: float = 1.0,
    memory: type_of_size = "1GB",
    rejects: str | Path | None = None,
    frequency: str | None = None,
    hash_bits: int = 64,
    report: Report | None = None,
) -> None:
    """Sort, index and store a table as the master of joins, at a path that does not exist yet.

    `source` is a path to Parquet, CSV or Arrow files, a pyarrow table, a reader or an iterable of
    batches; `key` names its key column or columns, whose values need not be unique. Rows with a
    null in the key are counted and not stored, since they match nothing. CSV rows that do not parse
    stop the build, or go to the file `rejects`.

    `page_size` is a multiple of 4096 (default 4096, more where rows are long). `shards` spreads
    the keys over that many files, for readers on several machines. `fill` is the share of a page
    that is filled, to leave room for later rows. `memory` bounds the sort, which goes to disk
    beyond it, beside the target.

    `frequency` names a numeric column that says how often rows are asked for, and puts those first
    that are asked for most, which the X-HYBRIDJOIN family needs: in up to 16 classes, each half as
    large as the next, and by key within a class. Rows of one key stay together, where the sum over
    them belongs; null counts as 0. The index takes 5 bits a key more.

    `hash_bits` below 64 makes hashes of keys collide; it is for tests. `report` is called with the
    name of the phase, rows done and rows in all (None while not known); without it a terminal shows
    a bar.

    A build that fails or is interrupted leaves nothing at `path`.
    """
    opened = open_source(source, rejects=rejects)
    plan = BuildPlan.of(
        opened.schema,
        key,
        page_size=page_size,
        shards=shards,
        fill=fill,
        hash_bits=hash_bits,
        frequency=frequency,
    )
    limit = parse_bytes(memory)
    with put_in_place(Path(path)) as directory, TerminalProgress() as bar:
        _Builder(directory, opened, plan, limit, report or bar).run()


@contextmanager
def put_in_place(target: Path) -> Iterator[Path]:
    """A fresh directory beside `target` that becomes it when all went well."""
    try:
        parent = target.resolve().parent
        if target.exists() or target.is_symlink():
            raise StoreError(
                f"{str(target)!r} exists already", hint="choose another path, or remove it first"
            )
        directory = parent / f".{target.name}.building-{secrets.token_hex(4)}"
        directory.mkdir()
    except FileNotFoundError:
        raise StoreError(
            f"the directory {str(target.parent)!r} does not exist", hint="create it first"
        ) from None
    except OSError as error:
        raise StoreError(
            f"nothing can be written in {str(target.parent)!r}: {error.strerror}",
            hint="choose another directory, or change its permissions",
        ) from error
    try:
        yield directory
        directory.rename(target)
        sync_directory(parent)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if is_disk_full(error):
            raise StoreError(
                f"the disk is full: the build of {str(target)!r} was undone",
                hint=f"free space in {str(parent)!r}; a build needs about twice the table's size",
            ) from error
        raise


class _Builder:
    """One build in this process, from the opened source to the manifest."""

    def __init__(
        self, directory: Path, source: Source, plan: BuildPlan, memory_bytes: int, report: Report
    ) -> None:
        self.directory = directory
        self.source = source
        self.plan = plan
        self.memory_bytes = memory_bytes
        self.report = report
        self.null_keys = 0
        self.rows = 0
        self.longest_row = 0

    def run(self) -> None:
        version = self.directory / VERSION
        version.mkdir()
        scratch = self.directory / "sort"
        scratch.mkdir()
        frequency = self.plan.frequency is not None
        classes = ClassWriter(scratch, self.memory_bytes) if frequency else None
        ordered = sort_rows(
            self._packed(),
            scratch,
            self.memory_bytes,
            by_row=self.plan.sorts_by_row,
            by_frequency=frequency,
        )
        with closing(ordered), closing(classes) if classes is not None else nullcontext():
            batches = self._reported(begun(ordered))
            page_bytes = self.plan.page_bytes_for(self.longest_row)
            written = dict(write_shards(batches, version, self.plan, page_bytes, classes))
            publish(
                self.directory,
                self.plan,
                page_bytes,
                written,
                null_keys=self.null_keys,
                rejected_rows=self.source.rejected_rows,
                classes=classes,
            )
        shutil.rmtree(scratch, ignore_errors=True)

    def _packed(self) -> Iterator[pa.RecordBatch]:
        total = self.source.rows
        for batch in self.source.batches():
            for packed in self.plan.pack(batch):
                self.null_keys += packed.null_keys
                self.longest_row = max(self.longest_row, packed.longest_row)
                if packed.rows.num_rows:
                    yield packed.rows
            self.rows += batch.num_rows
            self.report("reading and sorting", self.rows, total)

    def _reported(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in batches:
            yield batch
            done += batch.num_rows
            self.report("writing pages", done, self.rows - self.null_keys)


def begun(batches: Generator[pa.RecordBatch, None, None]) -> Iterator[pa.RecordBatch]:
    """The same batches after the first was asked for: what feeds a sort has then been read."""
    first = next(batches, None)
    return batches if first is None else chain([first], batches)
