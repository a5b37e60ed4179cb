"""Changing a master: a new version that shares all pages with the old one but those that changed.

`apply_changes` reads the pages that changed keys belong to, merges the changes into their rows and
appends the pages that result to the page files, behind everything that any version refers to. Then
it writes the new version's index and publishes it by the rename of the manifest. Until that rename
nothing of the old version has changed; after it the new one is whole. What a crash leaves behind is
overwritten or removed by the next writer. Only one writer works at a time; readers take no notice.

Inserts find room on the page where they belong if the master was built with a fill factor below 1
(the SSIJ paper takes 0.8); else the page is split, and its parts are filled to that factor.

Pages that no version needs any more stay in the files until `compact_master` writes all rows anew,
in order and with the fill factor restored. `apply_changes` does so by itself when a page file has
more such pages than live ones, and 4 MiB of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import format_bytes, parse_bytes, type_of_size
from semistream.core.errors import OptionError, StoreError
from semistream.kernels.changing import (
    first_wrong_page,
    group_changes,
    measure_pages,
    merge_changes,
    refill_pages,
    segments_of,
    settle,
    unpack_pages,
)
from semistream.kernels.jit import read_only
from semistream.kernels.pages import CLASSES, PAGE_KEYS, PAGE_ROWS
from semistream.kernels.struct import Struct
from semistream.store import durable
from semistream.store.changes import DELETE, INSERT, ChangeCounts, ChangeReader
from semistream.store.file import TOUCHED, FileMaster, open_master
from semistream.store.layout import RowLayout
from semistream.store.manifest import (
    MANIFEST,
    PINS,
    Manifest,
    ShardInfo,
    read_manifest,
    version_directory,
    write_manifest,
)
from semistream.store.reader import read_places
from semistream.store.sorting import PACKED
from semistream.store.sources import SourceLike
from semistream.store.writing import BuildPlan, ShardWriter, index_checksum, shard_name

LOCK = "LOCK"

KEPT_VERSIONS = 16
"""Earlier versions that stay, for readers that move from one to the next."""

KEPT_PINS = 2
"""Of each stream, the micro-batches whose versions stay: Spark repeats at most the last one."""

CHUNK_BYTES = 32 << 20
"""Pages that are changed at a time."""

LEAST_DEAD_BYTES = 4 << 20
"""Pages that nobody needs do not matter before they are so many."""

INSERTS = ("replace", "add")

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Applied:
    """What became of a feed: the version that has it, and what was counted on the way.

    `version` is the one that was there if nothing had to change. `rows_removed` and `rows_added`
    count rows of the master, an update both.
    """

    version: int
    rows: int
    changes: ChangeCounts
    rows_removed: int = 0
    rows_added: int = 0
    keys_touched: int = 0
    pages_written: int = 0
    pages: int = 0
    compacted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return asdict(self)


def apply_changes(
    path: str | Path,
    changes: SourceLike,
    *,
    op: str | None = "op",
    sequence: str | None = None,
    inserts: str | None = None,
    bad: str = "raise",
    memory: type_of_size = "1GB",
    keep: int = KEPT_VERSIONS,
    compaction: bool = True,
    feed: str | None = None,
    batch: int | None = None,
) -> Applied:
    """Apply inserts, updates and deletes to a master, as a new version.

    `changes` is anything that a master can be built from, with the master's columns and a column
    `op` that says what happened: insert, update or delete, or what Debezium, Delta and Flink call
    them (None: all rows are updates). Changes of one key are applied in the order in which they
    come. An update puts its row in the place of all rows of its key, and inserts it where there are
    none; a delete removes all rows of its key. An insert does what an update does where keys are
    unique, so that a feed may come twice (`inserts="replace"`); in a master with several rows to a
    key it adds one (`inserts="add"`). Either can be asked for.

    `sequence` names a column of numbers that never fall, such as a log's positions: the master
    remembers the highest, and leaves out changes that it has seen. `feed` and `batch` do the same
    for batches that are counted, such as Spark's.

    `bad="skip"` leaves changes with an unknown operation or a null key out and counts them, instead
    of raising. `memory` bounds the changes, which are held in memory. `keep` earlier versions stay,
    besides those that streams may ask for again. `compaction=False` leaves it to `compact_master`.

    Readers never wait, and see the old version or the new one; a crash leaves one of the two.
    """
    if inserts is not None and inserts not in INSERTS:
        raise OptionError(f"inserts={inserts!r} is not known", hint=f"use {' or '.join(INSERTS)}")
    if (feed is None) != (batch is None):
        raise OptionError("feed and batch go together", hint="give both or none")
    limit = parse_bytes(memory)
    directory = Path(path)
    read_manifest(directory)  # so that a wrong path is an error before a lock is made
    with writing(directory), open_master(directory) as master:
        manifest = master.manifest
        plan = plan_of(manifest)
        if feed is not None and batch is not None and batch <= manifest.feeds.get(feed, -1):
            return Applied(manifest.version, manifest.rows, ChangeCounts(), pages=master.pages)
        reader = ChangeReader(
            changes, plan, op=op, sequence=sequence, after=manifest.sequence, bad=bad
        )
        if inserts is None:
            inserts = "replace" if manifest.is_unique else "add"
        settled = _settled(reader, master, plan, limit, adds=inserts == "add")
        feeds = dict(manifest.feeds)
        if feed is not None and batch is not None:
            feeds[feed] = batch
        if settled is None and feeds == manifest.feeds and reader.sequence == manifest.sequence:
            return Applied(manifest.version, manifest.rows, reader.counts, pages=master.pages)
        new = _NewVersion(directory, master, plan)
        if settled is not None:
            new.change(settled)
        result = new.publish(sequence=reader.sequence, feeds=feeds)
        compacted = compaction and any(
            one.stored - one.pages > max(one.pages, LEAST_DEAD_BYTES // manifest.page_bytes)
            for one in result.shards
        )
        if compacted:
            with open_master(directory) as changed:
                result = _compacted(directory, changed)
        remove_old(directory, keep)
    return Applied(
        version=result.version,
        rows=result.rows,
        changes=reader.counts,
        rows_removed=int(new.tally[0]),
        rows_added=int(new.tally[1]),
        keys_touched=len(new.touched),
        pages_written=new.pages_written,
        pages=result.pages,
        compacted=compacted,
    )


def compact_master(path: str | Path, *, keep: int = KEPT_VERSIONS) -> Manifest:
    """Write all rows of a master anew, in order and pages filled as when it was built.

    It is a new version with the same rows; the files of the old one go when nobody needs them.
    """
    directory = Path(path)
    read_manifest(directory)
    with writing(directory), open_master(directory) as master:
        manifest = _compacted(directory, master)
        remove_old(directory, keep)
    return manifest


def plan_of(manifest: Manifest) -> BuildPlan:
    """How the rows of a master are packed and cut into pages."""
    return BuildPlan(
        schema=manifest.schema,
        key=manifest.key,
        page_bytes=manifest.page_bytes,
        shards=len(manifest.shards),
        fill=manifest.fill,
        hash_bits=manifest.hash_bits,
    )


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """The right to write a new version, which one process has at a time; it goes with its end."""
    try:
        file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError(
            f"{str(directory)!r} cannot be changed: {error.strerror}",
            hint="check the permissions of the master's directory",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


# ------------------------------------------------------------------------------------ changes


@dataclass(frozen=True)
class _Settled:
    """Changes that matter, by segment and key64: packed, with what each does."""

    keys: _I64
    segments: _I64
    starts: _I64
    data: _U8
    adds: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]


def _settled(
    reader: ChangeReader, master: FileMaster, plan: BuildPlan, limit_bytes: int, *, adds: bool
) -> _Settled | None:
    """All changes of a feed, sorted, without those that a later one makes void."""
    parts: list[pa.RecordBatch] = []
    operations: list[npt.NDArray[np.uint8]] = []
    size = longest = 0
    for change in reader.batches():
        operations.append(change.operation)
        for packed in plan.pack(change.rows):
            parts.append(packed.rows)
            size += packed.rows.nbytes
            longest = max(longest, packed.longest_row)
        if size > limit_bytes:
            raise StoreError(
                f"the changes take more than {format_bytes(limit_bytes)} of memory",
                hint="apply them in parts, raise memory, or build the master again",
            )
    if not parts:
        return None
    plan.page_bytes_for(longest)  # raises for a row that no page can hold
    table = pa.Table.from_batches(parts).combine_chunks()
    keys = table.column("key64").combine_chunks().to_numpy()
    segments = np.empty(len(keys), np.int64)
    segments_of(master.index.kernel, read_only(keys), segments)
    order = np.lexsort((keys, segments))
    keys, segments = keys[order], segments[order]
    operation = np.concatenate(operations)[order]
    starts, data = _packed_rows(table.column("row").combine_chunks().take(pa.array(order)))
    resets = operation != INSERT if adds else np.ones(len(keys), bool)
    stays, last = np.empty(len(keys), bool), np.empty(len(keys), bool)
    key = key_fields(master)
    settle(key.kernel, keys, starts, data, resets, stays, last, np.empty(len(keys), np.int64))
    if not stays.all():
        kept = np.flatnonzero(stays)
        rows = pa.Array.from_buffers(
            pa.large_binary(), len(keys), [None, pa.py_buffer(starts), pa.py_buffer(data)]
        )
        starts, data = _packed_rows(rows.take(pa.array(kept)))
        keys, segments, operation, last = (
            keys[kept], segments[kept], operation[kept], last[kept],
        )  # fmt: skip
    return _Settled(keys, segments, starts, data, operation != DELETE, last)


def _packed_rows(rows: pa.Array) -> tuple[_I64, _U8]:
    """Where packed rows begin, and their bytes; both may be written to, as kernels expect."""
    starts = np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, rows.offset * 8)
    data = np.frombuffer(rows.buffers()[2], np.uint8)
    return (starts - starts[0]).copy(), data[starts[0] : starts[-1]].copy()


def key_fields(master: FileMaster) -> Struct:
    """How to read the key from packed rows; nothing where key64 is the key."""
    layout: RowLayout = master.layout
    if master.spec.is_number:
        fields = layout.fields(())
        fields.strings = 0
        return fields
    return layout.fields(list(master.spec.names))


# ------------------------------------------------------------------------------------ versions


class _NewVersion:
    """The version after an opened one, while it is written."""

    def __init__(self, directory: Path, master: FileMaster, plan: BuildPlan) -> None:
        self.directory = directory
        self.master = master
        self.plan = plan
        manifest = master.manifest
        self.number = manifest.version + 1
        self.tally = np.zeros(5, np.int64)
        self.pages_written = 0
        self.touched = np.empty(0, np.int64)
        self._folder = begin_version(directory, self.number)
        self._fields = master.layout.fields()
        self._key = key_fields(master)
        index = master.index
        self._firsts = index.array("first").astype(np.int64) + int(index.base)
        self._continued = (
            index.array("continued").copy() if index.continued else np.zeros(master.pages, np.uint8)
        )
        self._places = np.concatenate(
            [
                np.empty(0, np.uint32),
                *(master.places(a, b - a) for a, b in master.shard_ranges() if b > a),
            ]
        )
        self._segment_start = (
            index.array("segment_start") if master.by_frequency else index.array("shard_start")
        ).astype(np.int64)
        self._stored = [shard.places for shard in manifest.shards]
        self._shard_rows = [shard.rows for shard in manifest.shards]
        self._most_rows = manifest.most_rows_per_page

    def change(self, changes: _Settled) -> None:
        """Write the pages that changes make, and put them in the index."""
        count = len(changes.keys)
        groups = np.empty((count, 4), np.int64)
        index = self.master.index.kernel
        used = group_changes(
            index, changes.keys, changes.segments, self._segment_start, self._firsts, groups
        )
        groups = groups[:used].copy()
        change_ends = np.append(groups[1:, 2], count)
        self.touched = np.unique(changes.keys)
        per_shard = CLASSES if self.master.by_frequency else 1
        shards = groups[:, 3] // per_shard
        written: list[_Pages] = []
        for shard in np.unique(shards).tolist():
            begin, end = np.searchsorted(shards, [shard, shard + 1]).tolist()
            file = os.open(self.directory / self.master.manifest.shards[shard].file, os.O_RDWR)
            try:
                while begin < end:
                    stop = self._chunk(groups, changes.starts, change_ends, begin, end)
                    some = slice(begin, stop)
                    written.append(
                        self._rewrite(file, shard, groups[some], change_ends[some], changes)
                    )
                    begin = stop
                durable.sync(file)
            finally:
                os.close(file)
        self._put_in_index(groups, written)

    def _chunk(self, groups: _I64, starts: _I64, change_ends: _I64, begin: int, end: int) -> int:
        """Up to which group pages and changes fit the memory of a chunk; at least one does."""
        size = self.master.page_bytes
        old = np.cumsum(groups[begin:end, 1] - groups[begin:end, 0]) * size
        new = starts[change_ends[begin:end]] - starts[groups[begin, 2]]
        return begin + max(int(np.searchsorted(old + new, CHUNK_BYTES, side="right")), 1)

    def _rewrite(
        self, file: int, shard: int, groups: _I64, change_ends: _I64, changes: _Settled
    ) -> _Pages:
        """Merge changes into groups of pages of one shard, and append what comes out."""
        size = self.master.page_bytes
        counts = groups[:, 1] - groups[:, 0]
        numbers = np.repeat(groups[:, 0] - np.append(0, np.cumsum(counts)[:-1]), counts)
        numbers += np.arange(len(numbers))
        pages = self._read(file, self._places[numbers], numbers)
        page_rows = np.zeros(len(numbers), np.int64)
        old_bytes = int(measure_pages(self._fields.kernel, pages, size, page_rows))
        rows = int(page_rows.sum())
        old, old_starts = np.empty(rows, np.int64), np.zeros(rows + 1, np.int64)
        old_data = np.empty(old_bytes, np.uint8)
        unpack_pages(self._fields.kernel, pages, size, len(numbers), old, old_starts, old_data)
        old_ends = np.append(0, np.cumsum(page_rows))[np.cumsum(counts)]
        first, last = int(groups[0, 2]), int(change_ends[-1])
        starts = changes.starts[first : last + 1]
        out_rows = rows + last - first
        out, out_starts = np.empty(out_rows, np.int64), np.zeros(out_rows + 1, np.int64)
        out_data = np.empty(old_bytes + int(starts[-1] - starts[0]), np.uint8)
        out_ends = np.empty(len(groups), np.int64)
        before = self.tally.copy()
        self.tally[4] = 0
        merge_changes(
            self._key.kernel, old_ends, old, old_starts, old_data, change_ends - first,
            changes.keys[first:last], starts, changes.data, changes.adds[first:last],
            changes.last[first:last], out_ends, out, out_starts, out_data, self.tally,
        )  # fmt: skip
        self._shard_rows[shard] += int((self.tally - before)[1] - (self.tally - before)[0])
        self.tally[4] = max(self.tally[4], before[4])
        return self._append(file, shard, groups, out_ends, out, out_starts, out_data)

    def _read(self, file: int, places: npt.NDArray[np.uint32], numbers: _I64) -> _U8:
        pages, there = read_places(file, places, self.master.page_bytes)
        wrong = int(first_wrong_page(pages, self.master.page_bytes, places))
        if wrong >= 0 or not there.all():
            page = int(numbers[wrong if wrong >= 0 else np.flatnonzero(~there)[0]])
            raise StoreError(
                f"page {page} of {str(self.directory)!r} is damaged, and a change needs it",
                hint=f"run `semistream master check {self.directory}`, then build it again",
            )
        return pages

    def _append(
        self,
        file: int,
        shard: int,
        groups: _I64,
        ends: _I64,
        keys: _I64,
        starts: _I64,
        data: _U8,
    ) -> _Pages:
        size = self.master.page_bytes
        fill = int(size * self.plan.fill)
        shape = np.array(
            [self.plan.layout.record_bytes, self.plan.layout.blob_offset, size, fill, 1], np.int64
        )
        begins = np.append(0, ends[:-1])
        group_bytes = starts[ends] - starts[begins] + 8 * (ends - begins)
        longest = int(np.diff(starts[: ends[-1] + 1]).max(initial=0)) + 8
        least = max(fill - PAGE_KEYS - longest, 1)
        room = int(np.minimum(ends - begins, 1 + group_bytes // least).sum())
        pages = np.empty(max(room, 1) * size, np.uint8)
        firsts, continued = np.empty(max(room, 1), np.int64), np.empty(max(room, 1), np.uint8)
        page_ends = np.empty(len(groups), np.int64)
        some = groups[:, 0] < groups[:, 1]
        was_continued = np.zeros(len(groups), np.uint8)
        was_continued[some] = self._continued[groups[some, 0]]
        place = self._stored[shard]
        count = int(
            refill_pages(
                ends, keys, starts, data, shape, was_continued, place, pages, firsts, continued,
                page_ends,
            )
        )  # fmt: skip
        if place + count > np.iinfo(np.uint32).max:
            raise StoreError(
                f"a page file of {str(self.directory)!r} is full",
                hint="run `semistream master compact`",
            )
        used = pages[: count * size]
        if count:
            durable.write_at(file, used.data, place * size)
            heads = used.reshape(count, size)[:, PAGE_ROWS : PAGE_ROWS + 4].copy().view(np.uint32)
            self._most_rows = max(self._most_rows, int(heads.max()))
        self._stored[shard] = place + count
        self.pages_written += count
        return _Pages(
            np.diff(page_ends, prepend=0),
            firsts[:count].copy(),
            continued[:count].copy(),
            np.arange(place, place + count, dtype=np.uint32),
        )

    def _put_in_index(self, groups: _I64, written: list[_Pages]) -> None:
        """Replace the pages of every group by those that were written for it."""
        gone = np.zeros(len(self._firsts) + 1, np.int64)
        np.add.at(gone, groups[:, 0], 1)
        np.add.at(gone, groups[:, 1], -1)
        kept = np.flatnonzero(np.cumsum(gone[:-1]) == 0)
        counts = np.concatenate([one.counts for one in written])
        segments = np.concatenate(
            [
                np.searchsorted(self._segment_start, kept, side="right") - 1,
                np.repeat(groups[:, 3], counts),
            ]
        )
        # New pages stand before the old page that came after theirs; empty segments keep order.
        anchors = np.concatenate([2 * kept + 1, 2 * np.repeat(groups[:, 0], counts)])
        order = np.lexsort((anchors, segments))

        def merged(old: npt.NDArray[Any], new: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate([old[kept], *new])[order]

        self._firsts = merged(self._firsts, [one.firsts for one in written])
        self._continued = merged(self._continued, [one.continued for one in written])
        self._places = merged(self._places, [one.places for one in written])
        sizes = np.bincount(segments, minlength=len(self._segment_start) - 1)
        self._segment_start = np.append(0, np.cumsum(sizes))

    def publish(self, *, sequence: int | None, feeds: dict[str, int]) -> Manifest:
        """Write the index and make this version the current one."""
        old = self.master.manifest
        longest_run = max(old.longest_run, int(self.tally[4]))
        parts = [self._firsts.tobytes()]
        if self.master.by_frequency:
            parts += [self._segment_start.tobytes(), self.master.class_function()]
        if longest_run > 1:
            parts.append(self._continued.tobytes())
        parts.append(self._places.tobytes())
        per_shard = CLASSES if self.master.by_frequency else 1
        pages = np.diff(self._segment_start[::per_shard]).tolist()
        shards = tuple(
            ShardInfo(file=shard.file, pages=count, rows=rows, stored=stored)
            for shard, count, rows, stored in zip(
                old.shards, pages, self._shard_rows, self._stored, strict=True
            )
        )
        return publish_version(
            self.directory,
            self._folder,
            b"".join(parts),
            self.touched,
            replace(
                old,
                version=self.number,
                shards=shards,
                rows=sum(self._shard_rows),
                keys=old.keys + int(self.tally[3] - self.tally[2]),
                longest_run=longest_run,
                most_rows_per_page=self._most_rows,
                is_placed=True,
                sequence=sequence,
                feeds=feeds,
            ),
        )


@dataclass(frozen=True)
class _Pages:
    """Pages that were written: how many for each group, and what the index says of them."""

    counts: _I64
    firsts: _I64
    continued: _U8
    places: npt.NDArray[np.uint32]


def begin_version(directory: Path, number: int) -> Path:
    """An empty directory for a new version; what an interrupted writer left there goes."""
    folder = directory / version_directory(number)
    if folder.exists():
        shutil.rmtree(folder)
    durable.make_directory(folder)
    return folder


def publish_version(
    directory: Path, folder: Path, index: bytes, touched: _I64, manifest: Manifest
) -> Manifest:
    """Write what a version has besides pages, then its manifest: after that it is the current."""
    durable.write_file(folder / "index", index)
    durable.write_file(folder / TOUCHED, touched.tobytes())
    durable.sync_directory(folder)
    durable.sync_directory(directory)
    manifest = replace(
        manifest,
        index_file=f"{folder.name}/index",
        index_checksum=index_checksum(index),
        touched=len(touched),
        format=Manifest.format,
    )
    write_manifest(directory, manifest)
    return manifest


# ---------------------------------------------------------------------------------- compaction


def _compacted(directory: Path, master: FileMaster) -> Manifest:
    """The version after `master` with the same rows in fresh files."""
    manifest, plan = master.manifest, plan_of(master.manifest)
    number = manifest.version + 1
    folder = begin_version(directory, number)
    parts: list[bytes] = []
    continued: list[bytes] = []
    starts = [0]
    shards = []
    per_shard = CLASSES if master.by_frequency else 1
    segment_start = master.index.array(
        "segment_start" if master.by_frequency else "shard_start"
    ).tolist()
    most_rows = 0
    for shard in range(len(manifest.shards)):
        file = folder / shard_name(shard)
        writer = ShardWriter(file, plan, manifest.page_bytes)
        base = starts[-1]
        try:
            for segment in range(shard * per_shard, (shard + 1) * per_shard):
                for batch in _rows_of(master, segment_start[segment], segment_start[segment + 1]):
                    writer.write(batch)
                writer.end_segment()
                starts.append(base + writer.pages)
            done = writer.finish()
        finally:
            writer.close()
        shards.append(ShardInfo(f"{folder.name}/{file.name}", done.pages, done.rows))
        parts.append(done.firsts.tobytes())
        continued.append(done.continued.tobytes())
        most_rows = max(most_rows, done.most_rows_per_page)
    if master.by_frequency:
        parts += [np.array(starts, np.int64).tobytes(), master.class_function()]
    if manifest.longest_run > 1:
        parts += continued
    return publish_version(
        directory,
        folder,
        b"".join(parts),
        np.empty(0, np.int64),
        replace(
            manifest,
            version=number,
            shards=tuple(shards),
            most_rows_per_page=max(most_rows, 0),
            is_placed=False,
        ),
    )


def _rows_of(master: FileMaster, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The packed rows of pages of one shard, in their order."""
    size, fields = master.page_bytes, master.layout.fields()
    chunk = max((8 << 20) // size, 1)
    for at in range(first, end, chunk):
        count = min(chunk, end - at)
        pages = master.read_pages(at, count)
        page_rows = np.zeros(count, np.int64)
        data = np.empty(int(measure_pages(fields.kernel, pages, size, page_rows)), np.uint8)
        rows = int(page_rows.sum())
        keys, starts = np.empty(rows, np.int64), np.zeros(rows + 1, np.int64)
        unpack_pages(fields.kernel, pages, size, count, keys, starts, data)
        row = pa.Array.from_buffers(
            pa.large_binary(), rows, [None, pa.py_buffer(starts), pa.py_buffer(data)]
        )
        columns = [pa.array(np.zeros(rows, np.int32)), pa.array(keys), row]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


# ----------------------------------------------------------------------------------- retention


def remove_old(directory: Path, keep: int) -> None:
    """Remove versions that nobody can ask for any more, and page files that none refers to.

    The last `keep` stay, and those that micro-batches of streams were pinned to. Whoever has a
    version open keeps it: its files go when they are closed.
    """
    current = read_manifest(directory).version
    kept = {*range(current - max(keep, 0), current + 1), *_pinned(directory)}
    found = {int(path.name[1:]): path for path in directory.glob("v*") if path.name[1:].isdigit()}
    used = set()
    for number in kept & found.keys():
        with suppress(StoreError):
            used |= {shard.file for shard in read_manifest(directory, number).shards}
    for number, folder in found.items():
        if number in kept:
            continue
        # Without its manifest a version cannot be opened, so it goes first.
        files = sorted(folder.iterdir(), key=lambda file: file.name != MANIFEST)
        for file in files:
            if f"{folder.name}/{file.name}" not in used:
                durable.remove(file)
        with suppress(OSError):
            folder.rmdir()


def _pinned(directory: Path) -> set[int]:
    """Versions of the latest micro-batches of every stream."""
    pinned = set()
    for query in (directory / PINS).glob("*"):
        notes = [note for note in query.glob("*") if note.name.isdigit()]
        for note in sorted(notes, key=lambda note: int(note.name))[-KEPT_PINS:]:
            with suppress(OSError, ValueError):
                pinned.add(int(note.read_text()))
    return pinned
