"""The parts of a build: packing rows, cutting sorted rows into the pages of shards, publishing.

A build is packed rows, sorted, in pages. Every part works alone, so that one process can do all
of it (`store/build.py`) and a cluster can share it: rows are packed anywhere, each shard is sorted
and written by whoever has its rows, and one process publishes what the others wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import format_bytes, parse_bytes, type_of_size
from semistream.core.errors import OptionError, StoreError, unknown_name
from semistream.kernels.hashing import checksum
from semistream.kernels.jit import read_only
from semistream.kernels.pages import CLASSES, PAGE_KEYS, count_keys, fill_pages, shards_of
from semistream.kernels.rows import pack_records, packed_size
from semistream.store import durable
from semistream.store.classes import ClassWriter
from semistream.store.keys import KeySpec
from semistream.store.layout import RowLayout
from semistream.store.manifest import (
    Manifest,
    ShardInfo,
    schema_to_text,
    write_manifest,
)
from semistream.store.sorting import BATCH_BYTES, FREQUENCY, PACKED, rows_within

DEFAULT_PAGE_BYTES = 4096
"""What a disk gives at least, and the least to copy for a row that is needed alone."""

LEAST_ROWS_PER_PAGE = 16
"""Where rows are so long that fewer would fit, pages are larger: their ends would stay empty."""

LARGEST_PAGE_BYTES = 1 << 30
MOST_SHARDS = 4096
LEAST_FILL = 0.1
WRITE_BYTES = 4 << 20
PACK_ROWS = 16_384
VERSION = "v1"


@dataclass(frozen=True)
class BuildPlan:
    """What is built, the same for all who take part. It can be pickled.

    `page_bytes` is None while the longest row decides. `frequency` is the column by which rows are
    classified, None for key order.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    page_bytes: int | None
    shards: int
    fill: float
    hash_bits: int
    frequency: str | None = None

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        key: str | Sequence[str],
        *,
        page_size: type_of_size | None,
        shards: int,
        fill: float,
        hash_bits: int,
        frequency: str | None = None,
    ) -> BuildPlan:
        """The plan that a caller's options describe, checked."""
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
        columns = (key,) if isinstance(key, str) else tuple(key)
        page_bytes = None if page_size is None else _page_bytes(page_size)
        if frequency is not None:
            _check_frequency(schema, frequency)
        plan = cls(schema, columns, page_bytes, shards, fill, hash_bits, frequency)
        assert plan.layout is not None  # so that what cannot be stored is an error now
        return plan

    @cached_property
    def spec(self) -> KeySpec:
        """The key and how it becomes key64."""
        return KeySpec.of(self.schema, self.key, hash_bits=self.hash_bits)

    @cached_property
    def layout(self) -> RowLayout:
        """How a row is packed."""
        return master_layout(self.schema, self.spec)

    @property
    def sorts_by_row(self) -> bool:
        """Whether rows of one key64 are ordered too, which makes those of one key neighbours."""
        return not self.spec.is_number

    def page_bytes_for(self, longest_row: int) -> int:
        """The size of pages when the longest of all packed rows has this many bytes."""
        needed = _page_need(longest_row)
        if needed > LARGEST_PAGE_BYTES:
            raise StoreError(
                f"a row takes {format_bytes(longest_row)}, and a page, which holds at least "
                f"one row, {format_bytes(LARGEST_PAGE_BYTES)} at most",
                hint="leave the column with the long values out, or keep such values in files",
            )
        if self.page_bytes is not None:
            if needed > self.page_bytes:
                raise StoreError(
                    f"a row of {longest_row} bytes does not fit a page of {self.page_bytes} bytes",
                    hint=f"leave page_size out, or give at least {-(-needed // 4096) * 4096}",
                )
            return self.page_bytes
        size = DEFAULT_PAGE_BYTES
        while size < max(needed, LEAST_ROWS_PER_PAGE * self.layout.record_bytes):
            size *= 2
        return size

    @staticmethod
    def fits(longest_row: int, page_bytes: int) -> bool:
        """Whether a packed row of this length has room in a page."""
        return _page_need(longest_row) <= page_bytes

    def pack(self, batch: pa.RecordBatch) -> Iterator[Packed]:
        """The rows of a batch of `schema`, packed, in parts of bounded size."""
        step = rows_within(BATCH_BYTES, PACK_ROWS, batch)
        for start in range(0, batch.num_rows, step):
            yield self._pack(batch.slice(start, step))

    def _pack(self, batch: pa.RecordBatch) -> Packed:
        names = self.spec.names
        key_columns = self.spec.cast([batch.column(name) for name in names], names)
        keys = self.spec.keys(key_columns)
        rows = batch.num_rows
        ordered = ordered_batch(
            batch, self.layout.schema, dict(zip(names, key_columns, strict=True))
        )
        leaves = self.layout.columns(ordered.columns)
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
        arrays = [pa.array(shard), pa.array(keys.key64), row]
        packed = pa.RecordBatch.from_arrays(arrays, schema=PACKED)
        if self.frequency is not None:
            packed = packed.append_column(FREQUENCY, _frequencies(batch.column(self.frequency)))
        lengths = np.diff(starts)
        if keys.nulls:
            kept = keys.valid.astype(bool)
            # Here and not before: Arrow cannot filter columns of every type.
            packed, lengths = packed.filter(pa.array(kept)), lengths[kept]
        return Packed(packed, keys.nulls, int(lengths.max(initial=0)))


@dataclass(frozen=True)
class Packed:
    """Packed rows (`PACKED`), the number of rows left out for a null key, the longest row."""

    rows: pa.RecordBatch
    null_keys: int
    longest_row: int


def _check_frequency(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise unknown_name("column for frequency=", name, schema.names)
    type_ = schema.field(name).type
    kinds = pa.types
    if not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)):
        raise OptionError(
            f"frequency={name!r} is a column of {type_}, not of numbers",
            hint="name a column that counts how often a row is asked for",
        )


def _frequencies(column: pa.Array) -> pa.Array:
    """A column as floats; what is no number counts as 0."""
    floats = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.fill_null(pc.is_finite(floats), False), floats, 0.0)


def _page_bytes(page_size: type_of_size) -> int:
    size = parse_bytes(page_size, what="page_size")
    if size % 4096 or size > LARGEST_PAGE_BYTES:
        raise OptionError(
            f"page_size={page_size!r} is {size} bytes, not a multiple of 4096 up to 1 GiB",
            hint="use 8192, 16384, 65536 …: direct reads need whole blocks",
        )
    return size


def _page_need(row_bytes: int) -> int:
    return PAGE_KEYS + 8 + row_bytes


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


# ------------------------------------------------------------------------------------- shards


@dataclass(frozen=True)
class WrittenShard:
    """What a page file holds: counts, and its part of the index.

    In frequency order `class_ends` says after how many pages each class ends.
    """

    pages: int
    rows: int
    keys: int
    longest_run: int
    most_rows_per_page: int
    firsts: npt.NDArray[np.int64]
    continued: npt.NDArray[np.uint8]
    class_ends: tuple[int, ...] = ()


def shard_name(shard: int) -> str:
    """The name of a shard's page file."""
    return f"shard-{shard:04d}.pages"


def write_shards(
    batches: Iterable[pa.RecordBatch],
    directory: Path,
    plan: BuildPlan,
    page_bytes: int,
    classes: ClassWriter | None = None,
) -> Iterator[tuple[int, WrittenShard]]:
    """Write rows that come in the order (shard, key64) to one file a shard; each when it is done.

    Shards without rows are left out. With `classes` rows come in the order (shard, class, key64),
    and it is told the class of every key.
    """
    number, writer = -1, None
    try:
        for batch in batches:
            shard = batch.column("shard").to_numpy()
            begin = 0
            while begin < len(shard):
                if writer is None or shard[begin] != number:
                    if writer is not None:
                        yield number, writer.finish()
                    number = int(shard[begin])
                    writer = ShardWriter(directory / shard_name(number), plan, page_bytes, classes)
                end = int(np.searchsorted(shard, number, side="right"))
                writer.write(batch.slice(begin, end - begin))
                begin = end
        if writer is not None:
            yield number, writer.finish()
    finally:
        if writer is not None:
            writer.close()


class ShardWriter:
    """Cuts the sorted rows of one shard into pages; a class of frequency begins with a new page."""

    def __init__(
        self, path: Path, plan: BuildPlan, page_bytes: int, classes: ClassWriter | None = None
    ) -> None:
        self.classes = classes
        self._class_ends: list[int] = []
        self.layout = plan.layout
        self.fill = plan.fill
        self.page_bytes = page_bytes
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._left: pa.RecordBatch | None = None
        self._firsts: list[npt.NDArray[np.int64]] = []
        self._continued: list[npt.NDArray[np.uint8]] = []
        self._carry = np.zeros(3, np.int64)
        self._tally = np.zeros(5, np.int64)
        self._pages = 0
        self._rows = 0
        self._most_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that follow, in the order (class, key64), those written before."""
        if self.classes is None:
            self._write(batch)
            return
        class_ = batch.column("class").to_numpy()
        while batch.num_rows:
            while len(self._class_ends) < class_[0]:
                self._end_class()
            end = int(np.searchsorted(class_, class_[0], side="right"))
            part = batch.slice(0, end)
            keys = part.column("key64").to_numpy()
            begins = np.diff(keys, prepend=keys[0]) != 0
            begins[0] = self._tally[4] == 0 or self._tally[3] != keys[0]
            self.classes.add(keys[begins], int(class_[0]))
            self._write(part)
            batch, class_ = batch.slice(end), class_[end:]

    @property
    def pages(self) -> int:
        """Pages written."""
        return self._pages

    def end_segment(self) -> None:
        """Keys that follow are in an order of their own, and begin with a new page."""
        self._cut(final=True)
        self._left = None
        self._carry[:] = 0
        self._tally[4] = 0

    def _end_class(self) -> None:
        self.end_segment()
        self._class_ends.append(self._pages)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        count_keys(read_only(batch.column("key64").to_numpy()), self._tally)
        self._left = batch if self._left is None else _joined(self._left, batch)
        self._cut(final=False)

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
            row = batch.column("row")
            starts = np.frombuffer(row.buffers()[1], np.int64, len(row) + 1, row.offset * 8)
            data = np.frombuffer(row.buffers()[2], np.uint8)
            done = fill_pages(
                read_only(batch.column("key64").to_numpy()),
                read_only(starts),
                read_only(data),
                shape,
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

    def _write_pages(self, pages: npt.NDArray[np.uint8]) -> None:
        assert self._file is not None
        durable.write_at(self._file, pages.data, self._pages * self.page_bytes)

    def finish(self) -> WrittenShard:
        """Write what is left, make it survive a crash, and say what was written."""
        assert self._file is not None
        self._cut(final=True)
        while self.classes is not None and len(self._class_ends) < CLASSES:
            self._end_class()
        durable.sync(self._file)
        self.close()
        return WrittenShard(
            pages=self._pages,
            rows=self._rows,
            keys=int(self._tally[0]),
            longest_run=int(self._tally[1]),
            most_rows_per_page=self._most_rows,
            firsts=np.concatenate([np.empty(0, np.int64), *self._firsts]),
            continued=np.concatenate([np.empty(0, np.uint8), *self._continued]),
            class_ends=tuple(self._class_ends),
        )

    def close(self) -> None:
        """Close the file, also when it is not finished."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def publish(
    directory: Path,
    plan: BuildPlan,
    page_bytes: int,
    written: dict[int, WrittenShard],
    *,
    null_keys: int,
    rejected_rows: int,
    classes: ClassWriter | None = None,
) -> None:
    """Write the index and the manifest of shards whose files lie in the version's directory.

    Shards that are not among the written ones have no rows, and get an empty file.
    """
    version = directory / VERSION
    for shard in range(plan.shards):
        if shard not in written:
            path = version / shard_name(shard)
            written[shard] = ShardWriter(path, plan, page_bytes, classes).finish()
    shards = [written[shard] for shard in range(plan.shards)]
    longest_run = max(shard.longest_run for shard in shards)
    parts = [shard.firsts.tobytes() for shard in shards]
    class_parts = 0
    if classes is not None:
        starts = np.cumsum([0, *(shard.pages for shard in shards)])
        ends = [start + np.array(s.class_ends) for start, s in zip(starts, shards, strict=False)]
        function, class_parts = classes.finish()
        parts += [np.concatenate([[0], *ends]).astype(np.int64).tobytes(), function.tobytes()]
    if longest_run > 1:
        parts += [shard.continued.tobytes() for shard in shards]
    index = b"".join(parts)
    durable.write_file(version / "index", index)
    durable.sync_directory(version)
    manifest = Manifest(
        version=1,
        schema_ipc=schema_to_text(plan.schema),
        key=plan.key,
        hash_bits=plan.hash_bits,
        page_bytes=page_bytes,
        record_bytes=plan.layout.record_bytes,
        fill=plan.fill,
        shards=tuple(
            ShardInfo(file=f"{VERSION}/{shard_name(number)}", pages=shard.pages, rows=shard.rows)
            for number, shard in enumerate(shards)
        ),
        index_file=f"{VERSION}/index",
        index_checksum=index_checksum(index),
        rows=sum(shard.rows for shard in shards),
        keys=sum(shard.keys for shard in shards),
        longest_run=longest_run,
        most_rows_per_page=max(shard.most_rows_per_page for shard in shards),
        null_keys=null_keys,
        rejected_rows=rejected_rows,
        frequency=plan.frequency or "",
        class_parts=class_parts,
    )
    write_manifest(directory, manifest)


def index_checksum(index: bytes) -> str:
    """Checksum of the index file."""
    return f"{int(checksum(np.frombuffer(index, np.uint8))):016x}"


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]
