"""Building a master: any source in, sorted pages out, with little memory.

Rows are packed once, sorted outside of memory as (shard, key64, bytes), and cut into pages as they
come back. Everything is written into a directory beside the target and put in place
by one rename.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import format_bytes, parse_bytes, type_of_size
from semistream.core.errors import OptionError, StoreError, unknown_name
from semistream.core.progress import Report, TerminalProgress
from semistream.kernels.hashing import checksum
from semistream.kernels.jit import read_only
from semistream.kernels.pages import (
    PAGE_KEYS,
    count_keys,
    cut_whole_keys,
    fill_pages,
    shards_of,
)
from semistream.kernels.rows import pack_records, packed_size
from semistream.store.dense import DenseIndexWriter
from semistream.store.keys import KeySpec
from semistream.store.layout import RowLayout
from semistream.store.manifest import (
    Manifest,
    ShardInfo,
    schema_to_text,
    sync_directory,
    write_manifest,
)
from semistream.store.opened import Source
from semistream.store.sorting import (
    BATCH_BYTES,
    FREQUENCY,
    PACKED,
    is_disk_full,
    rows_within,
    sort_rows,
)
from semistream.store.sources import SourceLike, open_source

DEFAULT_PAGE_BYTES = 8192
LARGEST_PAGE_BYTES = 1 << 30
MOST_SHARDS = 4096
LEAST_FILL = 0.1
WRITE_BYTES = 4 << 20
PACK_ROWS = 16_384


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

    `page_size` is a multiple of 4096 (default 8192, more where a row needs it). `shards` spreads
    the keys over that many files, for readers on several machines. `fill` is the share of a page
    that is filled, to leave room for later rows. `memory` bounds the sort, which goes to disk
    beyond it, beside the target.

    `frequency` names a numeric column that says how often rows are asked for: rows then lie in
    descending order of it, which the X-HYBRIDJOIN family needs, and are found through a dense index
    of some two bytes a key. Rows of one key stay together, at the place that the sum over them
    gives; null counts as 0. `hash_bits` below 64 makes hashes of keys collide; it is for
    tests. `report` is called with the name of the phase, rows done and rows in all (None while not
    known); without it a terminal shows a bar.

    A build that fails or is interrupted leaves nothing at `path`.
    """
    target = Path(path)
    columns = [key] if isinstance(key, str) else list(key)
    page_bytes = None if page_size is None else _page_bytes(page_size)
    if not 1 <= shards <= MOST_SHARDS:
        raise OptionError(
            f"shards={shards} is not between 1 and {MOST_SHARDS}",
            hint="use about as many as there will be readers, or leave it out",
        )
    if not LEAST_FILL <= fill <= 1:
        raise OptionError(
            f"fill={fill} is not between {LEAST_FILL} and 1",
            hint="1.0 fills pages, 0.8 leaves a fifth of each for later rows",
        )
    limit = parse_bytes(memory)
    opened = open_source(source, rejects=rejects)
    spec = KeySpec.of(opened.schema, columns, hash_bits=hash_bits)
    if frequency is not None:
        _check_frequency(opened.schema, frequency)
    with _put_in_place(target) as directory, TerminalProgress() as bar:
        told = report or bar
        _Builder(directory, opened, spec, page_bytes, shards, fill, limit, frequency, told).run()


def _check_frequency(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise unknown_name("column for frequency=", name, schema.names)
    type_ = schema.field(name).type
    if not (
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    ):
        raise OptionError(
            f"frequency={name!r} is a column of {type_}, not of numbers",
            hint="name a column that counts how often a row is asked for",
        )


def _page_bytes(page_size: type_of_size) -> int:
    size = parse_bytes(page_size, what="page_size")
    if size % 4096 or size > LARGEST_PAGE_BYTES:
        raise OptionError(
            f"page_size={page_size!r} is {size} bytes, not a multiple of 4096 up to 1 GiB",
            hint="use 8192, 16384, 65536 …: direct reads need whole blocks",
        )
    return size


@contextmanager
def _put_in_place(target: Path) -> Iterator[Path]:
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
    """One build, from the opened source to the manifest."""

    def __init__(
        self,
        directory: Path,
        source: Source,
        spec: KeySpec,
        page_bytes: int | None,
        shards: int,
        fill: float,
        memory_bytes: int,
        frequency: str | None,
        report: Report,
    ) -> None:
        self.directory = directory
        self.source = source
        self.spec = spec
        self.page_bytes = page_bytes
        self.shards = shards
        self.fill = fill
        self.memory_bytes = memory_bytes
        self.frequency = frequency
        self.report = report
        self.layout = master_layout(source.schema, spec)
        self.null_keys = 0
        self.rows = 0
        self.longest_row = 0

    def run(self) -> None:
        version = self.directory / "v1"
        version.mkdir()
        scratch = self.directory / "sort"
        scratch.mkdir()
        dense = None
        if self.frequency is not None:
            dense = DenseIndexWriter(scratch, self.memory_bytes)
        writer = PageWriter(version, "v1", self.layout, self.shards, self.fill, dense)
        with closing(writer):
            ordered = sort_rows(
                self._packed(),
                scratch,
                self.memory_bytes,
                by_row=not self.spec.is_number,
                by_frequency=dense is not None,
            )
            with closing(ordered) as batches:
                for batch in batches:
                    if writer.page_bytes == 0:
                        writer.page_bytes = self._choose_page_bytes()
                    writer.write(batch)
                    self.report("writing pages", writer.rows, self.rows - self.null_keys)
            if writer.page_bytes == 0:
                writer.page_bytes = self._choose_page_bytes()
            manifest = writer.finish(
                self.source.schema,
                self.spec,
                null_keys=self.null_keys,
                rejected_rows=self.source.rejected_rows,
                frequency=self.frequency or "",
            )
        shutil.rmtree(scratch, ignore_errors=True)
        write_manifest(self.directory, manifest)

    def _choose_page_bytes(self) -> int:
        needed = PAGE_KEYS + 8 + self.longest_row
        if needed > LARGEST_PAGE_BYTES:
            raise StoreError(
                f"a row takes {format_bytes(self.longest_row)}, and a page, which holds at least "
                f"one row, {format_bytes(LARGEST_PAGE_BYTES)} at most",
                hint="leave the column with the long values out, or keep such values in files",
            )
        if self.page_bytes is not None:
            if needed > self.page_bytes:
                raise StoreError(
                    f"a row of {self.longest_row} bytes does not fit a page of "
                    f"{self.page_bytes} bytes",
                    hint=f"leave page_size out, or give at least {-(-needed // 4096) * 4096}",
                )
            return self.page_bytes
        size = DEFAULT_PAGE_BYTES
        while size < needed:
            size *= 2
        return size

    def _packed(self) -> Iterator[pa.RecordBatch]:
        total = self.source.rows
        for batch in self.source.batches():
            step = rows_within(BATCH_BYTES, PACK_ROWS, batch)
            for start in range(0, batch.num_rows, step):
                packed = self._pack(batch.slice(start, step))
                if packed.num_rows:
                    yield packed
            self.rows += batch.num_rows
            self.report("reading and sorting", self.rows, total)

    def _pack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = self.spec.names
        key_columns = self.spec.cast([batch.column(name) for name in names], names)
        keys = self.spec.keys(key_columns)
        rows = batch.num_rows
        ordered = ordered_batch(
            batch, self.layout.schema, dict(zip(names, key_columns, strict=True))
        )
        leaves = self.layout.columns(ordered)
        columns = leaves.columns.kernel
        data = np.empty(packed_size(columns, 0, rows), np.uint8)
        starts = np.empty(rows + 1, np.int64)
        pack_records(columns, 0, rows, starts, data)
        shard = np.zeros(rows, np.int32)
        if self.shards > 1:
            shards_of(keys.key64, self.shards, shard)
        row = pa.Array.from_buffers(
            pa.large_binary(), rows, [None, pa.py_buffer(starts), pa.py_buffer(data)]
        )
        packed = pa.RecordBatch.from_arrays(
            [pa.array(shard), pa.array(keys.key64), row], schema=PACKED
        )
        if self.frequency is not None:
            packed = packed.append_column(FREQUENCY, _frequencies(batch.column(self.frequency)))
        lengths = np.diff(starts)
        if keys.nulls:
            self.null_keys += keys.nulls
            kept = keys.valid.astype(bool)
            # Here and not before: Arrow cannot filter columns of every type.
            packed, lengths = packed.filter(pa.array(kept)), lengths[kept]
        self.longest_row = max(self.longest_row, int(lengths.max(initial=0)))
        return packed


def _frequencies(column: pa.Array) -> pa.Array:
    """A column as floats; what is no number counts as 0."""
    floats = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.fill_null(pc.is_finite(floats), False), floats, 0.0)


def master_layout(schema: pa.Schema, spec: KeySpec) -> RowLayout:
    """Records of a master: key columns first, in the key's order and types, then the others."""
    others = [field for field in schema if field.name not in spec.names]
    keys = [field for field in spec.schema if field.name != spec.folded]
    return RowLayout.of(pa.schema([*keys, *others]), prefix=False)


def ordered_batch(
    batch: pa.RecordBatch, schema: pa.Schema, replaced: dict[str, pa.Array]
) -> pa.RecordBatch:
    """The columns of `batch` in the order of `schema`, some of them replaced."""
    columns = [replaced[name] if name in replaced else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


class PageWriter:
    """Cuts sorted rows into pages, shard by shard, and keeps the index.

    `page_bytes` must be set before the first row is written. With a `dense` index keys may come in
    any order, the rows of each together; they are put in the order of key64 within a page, a key's
    rows lie in one page or in pages of their own.
    """

    def __init__(
        self,
        directory: Path,
        prefix: str,
        layout: RowLayout,
        shards: int,
        fill: float,
        dense: DenseIndexWriter | None = None,
    ) -> None:
        self.directory = directory
        self.prefix = prefix
        self.layout = layout
        self.shards = shards
        self.fill = fill
        self.dense = dense
        self.page_bytes = 0
        self.rows = 0
        self._shard = 0
        self._file: int | None = None
        self._left: pa.RecordBatch | None = None
        self._infos: list[ShardInfo] = []
        self._firsts: list[npt.NDArray[np.int64]] = []
        self._continued: list[npt.NDArray[np.uint8]] = []
        self._carry = np.zeros(3, np.int64)
        self._tally = np.zeros(5, np.int64)
        self._own_pages = np.zeros(2, np.int64)
        self._indexed: int | None = None
        self._pages = 0
        self._shard_rows = 0
        self._most_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that follow, in the order (shard, key64), those written before."""
        shard = batch.column("shard").to_numpy()
        while batch.num_rows:
            end = int(np.searchsorted(shard, self._shard, side="right"))
            if end:
                self._write_shard(batch.slice(0, end), final=False)
                batch, shard = batch.slice(end), shard[end:]
            if batch.num_rows:
                self._close_shard()

    def _write_shard(self, batch: pa.RecordBatch, *, final: bool) -> None:
        self.rows += batch.num_rows
        self._shard_rows += batch.num_rows
        count_keys(read_only(batch.column("key64").to_numpy()), self._tally)
        self._left = batch if self._left is None else _joined(self._left, batch)
        self._cut(final=final)

    def _cut(self, *, final: bool) -> None:
        batch = self._left
        if batch is None:
            return
        page_bytes = self.page_bytes
        room = max(WRITE_BYTES // page_bytes, 1)
        pages = np.empty(room * page_bytes, np.uint8)
        shape = np.array(
            [
                self.layout.record_bytes,
                self.layout.blob_offset,
                page_bytes,
                int(page_bytes * self.fill),
                int(final),
            ],
            np.int64,
        )
        while batch.num_rows:
            firsts, continued = np.empty(room, np.int64), np.empty(room, np.uint8)
            part, ends = batch, np.empty(0, np.int64)
            if self.dense is not None:
                part, ends = self._whole_keys(batch, shape, room)
                if not len(ends):
                    break
            keys, starts, data = _unpacked(part)
            done = fill_pages(
                keys,
                starts,
                data,
                shape,
                ends,
                pages,
                self._pages,
                firsts,
                continued,
                self._carry,
            )
            count = int(self._carry[0])
            if count == 0:
                break
            self._write_pages(pages[: count * page_bytes])
            heads = pages.reshape(room, page_bytes)[:count, 8:12].copy().view(np.uint32)
            self._most_rows = max(self._most_rows, int(heads.max()))
            self._firsts.append(firsts[:count].copy())
            self._continued.append(continued[:count].copy())
            self._pages += count
            batch = batch.slice(done)
        self._left = batch if batch.num_rows else None

    def _whole_keys(
        self, batch: pa.RecordBatch, shape: npt.NDArray[np.int64], room: int
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The rows of up to `room` pages, within each by key, and where pages end; indexes them."""
        assert self.dense is not None
        keys, starts, _ = _unpacked(batch)
        ends = np.empty(room, np.int64)
        ends = ends[: cut_whole_keys(keys, starts, shape, self._own_pages, ends)]
        if not len(ends):
            return batch, ends
        keys = keys[: ends[-1]]
        page = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        begins = np.diff(keys, prepend=keys[0]) != 0
        begins[0] = self._indexed is None or self._indexed != keys[0]
        first = self._pages + sum(info.pages for info in self._infos)
        self.dense.add(keys[begins], first + page[begins])
        self._indexed = int(keys[-1])
        return batch.take(pa.array(np.lexsort((keys, page)))), ends

    def _write_pages(self, pages: npt.NDArray[np.uint8]) -> None:
        if self._file is None:
            self._file = self._create()
        view = pages.data
        while view:
            view = view[os.write(self._file, view) :]

    def _create(self) -> int:
        return os.open(self._path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def close(self) -> None:
        """Close what is being written, if anything is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self.dense is not None:
            self.dense.close()

    def _path(self) -> Path:
        return self.directory / f"shard-{self._shard:04d}.pages"

    def _close_shard(self) -> None:
        self._cut(final=True)
        if self._file is None:
            self._file = self._create()
        os.fsync(self._file)
        os.close(self._file)
        self._file = None
        name = f"{self.prefix}/{self._path().name}"
        self._infos.append(ShardInfo(file=name, pages=self._pages, rows=self._shard_rows))
        self._left = None
        self._pages, self._shard_rows = 0, 0
        self._carry[:] = 0
        self._own_pages[:] = 0
        self._indexed = None
        self._tally[4] = 0
        self._shard += 1

    def finish(
        self,
        schema: pa.Schema,
        spec: KeySpec,
        *,
        null_keys: int,
        rejected_rows: int,
        frequency: str = "",
    ) -> Manifest:
        """Close the files, write the index, and say what was written."""
        while self._shard < self.shards:
            self._close_shard()
        firsts = np.concatenate([np.empty(0, np.int64), *self._firsts])
        continued = np.concatenate([np.empty(0, np.uint8), *self._continued])
        unique = int(self._tally[1]) <= 1
        where, parts, width = firsts.view(np.uint8), 0, 0
        if self.dense is not None:
            where, parts, width = self.dense.finish(len(firsts))
        index = where.tobytes() + (b"" if unique else continued.tobytes())
        with (self.directory / "index").open("wb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self.directory)
        return Manifest(
            version=1,
            schema_ipc=schema_to_text(schema),
            key=tuple(spec.names),
            hash_bits=spec.hash_bits,
            page_bytes=self.page_bytes,
            record_bytes=self.layout.record_bytes,
            fill=self.fill,
            shards=tuple(self._infos),
            index_file=f"{self.prefix}/index",
            index_checksum=index_checksum(index),
            rows=self.rows,
            keys=int(self._tally[0]),
            longest_run=int(self._tally[1]),
            most_rows_per_page=self._most_rows,
            null_keys=null_keys,
            rejected_rows=rejected_rows,
            frequency=frequency,
            dense_parts=parts,
            dense_width=width,
        )


def index_checksum(index: bytes) -> str:
    """Checksum of the index file."""
    return f"{int(checksum(np.frombuffer(index, np.uint8))):016x}"


def _unpacked(
    batch: pa.RecordBatch,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Keys of packed rows, where each row begins, and their bytes."""
    row = batch.column("row")
    starts = np.frombuffer(row.buffers()[1], np.int64, len(row) + 1, row.offset * 8)
    data = np.frombuffer(row.buffers()[2], np.uint8)
    return read_only(batch.column("key64").to_numpy()), read_only(starts), read_only(data)


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]
