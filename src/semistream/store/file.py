"""Opening a master: the index in memory, the pages behind a planned reader."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import CorruptPageError, OptionError, StoreError
from semistream.kernels.changing import first_wrong_page
from semistream.kernels.pages import CLASSES, INDEX, first_bad_page, locate
from semistream.kernels.ranges import RANGES
from semistream.kernels.reading import PIECE_BYTES
from semistream.kernels.struct import Struct
from semistream.store.keys import KeySpec
from semistream.store.layout import RowLayout
from semistream.store.manifest import (
    MANIFEST,
    Manifest,
    ShardInfo,
    read_manifest,
    version_directory,
)
from semistream.store.reader import DEFAULT_DEPTH, PageReader, read_places
from semistream.store.writing import index_checksum, master_layout

IO_MODES = ("buffered", "direct")

PAGES_PER_GUIDE = 16
"""Pages for each guide of the index: as many entries as a line of the processor's cache has."""

TOUCHED = "touched"
"""The file of a version that names the keys which differ from the version before."""


@dataclass
class FileMaster:
    """A master in page files, at the version that was current when it was opened.

    Reading is safe from several threads and processes: nothing of an opened version ever changes.
    `io="direct"` bypasses the operating system's cache, so that memory is what the budget says.
    With `shard` only the pages of that shard are known, as if they were the whole master.
    """

    path: Path
    manifest: Manifest
    io: str = "buffered"
    shard: int | None = None
    spec: KeySpec = field(init=False)
    layout: RowLayout = field(init=False)
    index: Struct = field(init=False)
    _files: list[int] = field(init=False, default_factory=list)
    _shard_start: npt.NDArray[np.int64] = field(init=False)
    _classes: npt.NDArray[np.uint8] = field(init=False)
    _continued: npt.NDArray[np.uint8] = field(init=False)
    _checked: npt.NDArray[np.uint8] = field(init=False)
    _pieces: npt.NDArray[np.uint8] = field(init=False)
    _piece_start: npt.NDArray[np.int64] = field(init=False)
    _places: npt.NDArray[np.uint32] | None = field(init=False, default=None)
    _guides: npt.NDArray[np.uint32] = field(
        init=False, default_factory=lambda: np.empty(0, np.uint32)
    )
    _stamp: tuple[int, int] = field(init=False, default=(0, 0))
    _ranges: Struct = field(init=False, default_factory=lambda: Struct(RANGES))

    def __post_init__(self) -> None:
        schema = self.manifest.schema
        self.spec = KeySpec.of(schema, self.manifest.key, hash_bits=self.manifest.hash_bits)
        self.layout = master_layout(schema, self.spec)
        self.index = self._read_index()
        # Also when the master is merely forgotten: long-lived workers have few descriptors.
        self._end = weakref.finalize(self, _close_all, self._files)
        self._open_files()

    @property
    def schema(self) -> pa.Schema:
        """The table's schema."""
        return self.manifest.schema

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.manifest.page_bytes

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards that were opened."""
        all_shards = self.manifest.shards
        return all_shards if self.shard is None else (all_shards[self.shard],)

    @property
    def pages(self) -> int:
        """Pages of what was opened."""
        return int(self._shard_start[-1])

    @property
    def rows(self) -> int:
        """Rows of what was opened."""
        return sum(shard.rows for shard in self.shards)

    @property
    def data_bytes(self) -> int:
        """Bytes of the pages: what a budget of "5%" is a share of."""
        return self.pages * self.page_bytes

    @property
    def most_rows_per_page(self) -> int:
        """Rows of the fullest page."""
        return self.manifest.most_rows_per_page

    @property
    def index_bytes(self) -> int:
        """Memory of the index, charged to the budget of every join that uses it."""
        places = 0 if self._places is None else self._places.nbytes
        known = self._guides.nbytes + self._classes.nbytes
        return int(self.index.array("first").nbytes + known + places + self._marks_bytes)

    @property
    def _marks_bytes(self) -> int:
        """What is noted of every page and piece, besides where it is."""
        return self._continued.nbytes + self._checked.nbytes + self._pieces.nbytes

    @property
    def indivisible(self) -> str | None:
        """What it is that cannot be joined in parts; None if it can."""
        return "a master in the order of frequency" if self.by_frequency else None

    @property
    def by_frequency(self) -> bool:
        """Whether the rows most asked for come first, and not those with the smallest keys."""
        return bool(self.manifest.frequency)

    def shard_ranges(self) -> list[tuple[int, int]]:
        """First page and the page after the last of every shard."""
        starts = self._shard_start.tolist()
        return list(pairwise(starts))

    def borders(self, ranges: int) -> npt.NDArray[np.int64]:
        """The key64 at which each of so many ranges of pages begins, but for the first.

        Ranges go over all shards; each has about as many pages as the others.
        """
        firsts = np.sort(self.firsts())
        return firsts[np.arange(1, ranges) * len(firsts) // ranges] if len(firsts) else firsts

    def firsts(self) -> npt.NDArray[np.int64]:
        """The first key64 of every page; a copy."""
        firsts: npt.NDArray[np.int64] = self.index.array("first").astype(np.int64)
        firsts += int(self.index.base)
        return firsts

    def locate(
        self,
        keys: npt.NDArray[np.int64],
        known: npt.NDArray[np.int32],
        out: npt.NDArray[np.int32],
    ) -> None:
        """The first page that can hold each key; -1 where there is none, or where `known` >= 0."""
        locate(self.index.kernel, keys, known, out)

    def reader(
        self,
        buffer_pages: int,
        *,
        depth: int = DEFAULT_DEPTH,
        measure: bool = True,
        windows: bool = False,
        companion: bool = False,
        check: bool = True,
    ) -> PageReader:
        """A reader with buffers of its own. Pages are checked when they are read for the first
        time, unless `check` is off (for measuring what reads alone take)."""
        seen = windows and self.io == "buffered"
        return PageReader(
            str(self.path),
            self._files,
            self._shard_start,
            self.page_bytes,
            buffer_pages,
            direct=self.io == "direct",
            depth=depth,
            measure=measure,
            checked=self._checked if check else None,
            places=self._places,
            ranges=self._ranges,
            pieces=(self._pieces, self._piece_start) if seen else None,
            companion=companion,
        )

    def places(self, first: int, count: int) -> npt.NDArray[np.uint32]:
        """Where in their shard's file pages of one shard lie, in pages."""
        if self._places is not None:
            return self._places[first : first + count]
        shard = int(np.searchsorted(self._shard_start, first, side="right")) - 1
        local = first - int(self._shard_start[shard])
        return np.arange(local, local + count, dtype=np.uint32)

    def read_pages(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Pages of one shard, one after the other, checked; for whoever writes them anew."""
        shard = int(np.searchsorted(self._shard_start, first, side="right")) - 1
        places = self.places(first, count)
        pages, there = read_places(self._files[shard], places, self.page_bytes)
        wrong = int(first_wrong_page(pages, self.page_bytes, places))
        if wrong >= 0 or not there.all():
            number = first + (wrong if wrong >= 0 else int(np.flatnonzero(~there)[0]))
            raise CorruptPageError(
                f"page {number} of {str(self.path)!r} is damaged",
                hint="build the master again",
            )
        return pages

    def class_function(self) -> bytes:
        """The function from keys to classes of frequency, as it stands in the index."""
        words = CLASSES * len(self.manifest.shards) + 1
        return self._classes[8 * words :].tobytes()

    def newer(self) -> FileMaster | None:
        """The current version, opened in the same way, if it is not this one."""
        try:
            found = (self.path / MANIFEST).stat()
        except OSError:
            return None
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp == self._stamp:
            return None
        manifest = read_manifest(self.path)
        if manifest.version == self.manifest.version:
            self._stamp = stamp
            return None
        return FileMaster(self.path, manifest, self.io, self.shard)

    def touched_since(self, version: int) -> npt.NDArray[np.int64] | None:
        """key64 of all keys that may differ from those of an earlier version; None: not known."""
        keys = [np.empty(0, np.int64)]
        for number in range(version + 1, self.manifest.version + 1):
            try:
                raw = (self.path / version_directory(number) / TOUCHED).read_bytes()
            except OSError:
                return None
            keys.append(np.frombuffer(raw, np.int64))
        return np.unique(np.concatenate(keys)) if self.manifest.version >= version else None

    def read_page(self, number: int) -> npt.NDArray[np.uint8]:
        """One page, checked; for inspection, not for joins."""
        if not 0 <= number < self.pages:
            raise OptionError(
                f"there is no page {number} in {str(self.path)!r}, which has {self.pages} pages",
                hint="pages are counted from 0 over all shards",
            )
        shard = int(np.searchsorted(self._shard_start, number, side="right")) - 1
        local = int(self.places(number, 1)[0])
        with (self.path / self.shards[shard].file).open("rb") as file:
            file.seek(local * self.page_bytes)
            page = np.frombuffer(file.read(self.page_bytes), np.uint8)
        if len(page) < self.page_bytes:
            raise CorruptPageError(
                f"{str(self.path)!r} is cut short: page {number} is missing from its file",
                hint="restore the file or build the master again",
            )
        if first_bad_page(page, self.page_bytes, local) >= 0:
            raise CorruptPageError(
                f"page {number} of {str(self.path)!r} is damaged: its checksum does not fit",
                hint="build the master again",
            )
        return page

    def bad_pages(self) -> Iterator[tuple[int, int | None]]:
        """Check every page: yields (pages checked so far, number of a bad page or None).

        A page is bad if its checksum does not fit, if it stands at another page's place, or if its
        file ends before it.
        """
        chunk = max((4 << 20) // self.page_bytes, 1)
        for shard, info in enumerate(self.shards):
            base = int(self._shard_start[shard])
            with (self.path / info.file).open("rb") as file:
                for first in range(0, info.pages, chunk):
                    count = min(chunk, info.pages - first)
                    places = self.places(base + first, count)
                    data, there = read_places(file.fileno(), places, self.page_bytes)
                    at = 0
                    while at < count:
                        rest = data[at * self.page_bytes :]
                        wrong = int(first_wrong_page(rest, self.page_bytes, places[at:]))
                        missing = np.flatnonzero(~there[at:])
                        bad = [one for one in (wrong, *missing[:1].tolist()) if one >= 0]
                        if not bad:
                            break
                        at += min(bad) + 1
                        yield base + first + at, base + first + at - 1
                    yield base + first + count, None

    def close(self) -> None:
        """Close the page files; joins that still use this master must be closed before."""
        self._end()

    def __enter__(self) -> FileMaster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_index(self) -> Struct:
        file = self.path / self.manifest.index_file
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            raise StoreError(
                f"{str(self.path)!r} has lost its index {self.manifest.index_file!r}",
                hint="restore it or build the master again",
            ) from None
        except OSError as error:
            raise _unreadable(file, error) from error
        pages = self.manifest.pages
        if index_checksum(raw) != self.manifest.index_checksum:
            raise StoreError(
                f"the index of {str(self.path)!r} is damaged: the checksum of its {len(raw)} bytes "
                f"for {pages} pages does not fit",
                hint="restore it or build the master again",
            )
        first = np.frombuffer(raw, np.int64, pages)
        placed = 4 * pages if self.manifest.is_placed else 0
        rest = np.frombuffer(raw, np.uint8, len(raw) - 8 * pages - placed, 8 * pages)
        places = np.frombuffer(raw, np.uint8, placed, len(raw) - placed).copy().view(np.uint32)
        continued = rest[len(rest) - (0 if self.manifest.is_unique else pages) :]
        self._classes = rest[: len(rest) - len(continued)].copy()
        starts = np.cumsum([0, *(shard.pages for shard in self.manifest.shards)], dtype=np.int64)
        if self.shard is not None:
            pages = self.manifest.shards[self.shard].pages
            begin = int(starts[self.shard])
            first, continued = first[begin : begin + pages], continued[begin : begin + pages]
            places = places[begin : begin + pages].copy()
            starts = np.array([0, pages], np.int64)
        if placed:
            self._places = places
        self._shard_start, self._continued = starts, continued.copy()
        self._checked = np.zeros((int(starts[-1]) + 7) // 8, np.uint8)
        guides = {} if self.by_frequency else _guides(first, starts)
        self._guides = guides.get("guides", self._guides)
        least = int(first.min()) if pages else 0
        narrow = not pages or int(first.max()) - least <= 0xFFFFFFFF
        return Struct(
            INDEX,
            first=(first - least).astype(np.uint32) if narrow else first.copy(),
            narrow=narrow,
            base=least if narrow else 0,
            continued=self._continued if len(continued) else 0,
            shard_start=starts,
            shards=len(starts) - 1,
            pages=pages,
            guide_base=0 if narrow else least,
            **guides,
            **self._class_fields(),
        )

    def _class_fields(self) -> dict[str, Any]:
        """What the index has besides in a master in frequency order."""
        if not self.by_frequency:
            return {}
        words = CLASSES * len(self.manifest.shards) + 1
        starts = self._classes[: 8 * words].view(np.int64)
        if self.shard is not None:
            first = CLASSES * self.shard
            starts = starts[first : first + CLASSES + 1] - starts[first]
        return {
            "segment_start": starts,
            "class_of": self._classes[8 * words :],
            "class_parts": self.manifest.class_parts,
        }

    def _open_files(self) -> None:
        direct = self.io == "direct"
        flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
        pieces = [-(-one.places * self.page_bytes // PIECE_BYTES) for one in self.shards]
        self._piece_start = np.cumsum([0, *pieces], dtype=np.int64)
        self._pieces = np.zeros(self._piece_start[-1], np.uint8)
        for first, shard in zip(self._shard_start.tolist(), self.shards, strict=False):
            file = self.path / shard.file
            try:
                descriptor = os.open(file, flags)
            except FileNotFoundError:
                raise StoreError(
                    f"{str(self.path)!r} has lost its page file {shard.file!r}",
                    hint="restore it or build the master again",
                ) from None
            except OSError as error:
                if direct and error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise StoreError(
                        f"the file system of {str(file)!r} has no direct reads ({error.strerror})",
                        hint='use io="buffered", or move the master to another disk',
                    ) from error
                raise _unreadable(file, error) from error
            self._files.append(descriptor)
            size = os.fstat(descriptor).st_size
            if size < shard.places * self.page_bytes:
                raise CorruptPageError(
                    f"{str(file)!r} is cut short: {size} bytes where the manifest says "
                    f"{shard.places * self.page_bytes}; page {first + size // self.page_bytes} is "
                    "the first that is missing",
                    hint="restore the file or build the master again",
                )


def _guides(firsts: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Where to look for a key among the first ones of pages, see `INDEX`."""
    # Unsigned, because the distance of two keys may need all 64 bits.
    far = firsts.view(np.uint64) - np.uint64(firsts.min() if len(firsts) else 0)
    farthest = int(far.max(initial=0))
    # Two at least: a word cannot be shifted by all of its 64 bits.
    wanted = max(len(firsts) // PAGES_PER_GUIDE, 2)
    shift = max(farthest.bit_length() - (wanted.bit_length() - 1), 0)
    count = (farthest >> shift) + 1
    edges = np.arange(count, dtype=np.uint64) << np.uint64(shift)
    guides = [
        np.append(start + np.searchsorted(far[start:end], edges), end)
        for start, end in pairwise(starts.tolist())
    ]
    return {
        "guides": np.concatenate(guides).astype(np.uint32),
        "guide_count": count,
        "guide_shift": shift,
    }


def _unreadable(file: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{str(file)!r} cannot be read: {error.strerror}", hint="check its permissions and its disk"
    )


def _close_all(files: list[int]) -> None:
    while files:
        os.close(files.pop())


def open_master(
    path: str | Path,
    *,
    io: str = "buffered",
    version: int | None = None,
    shard: int | None = None,
) -> FileMaster:
    """Open the current version of a master: its index is read, its pages stay on disk.

    `io="direct"` reads past the operating system's cache, for benchmarks and for machines that have
    no memory to spare; "buffered" lets free memory help. `version` opens an earlier one that is
    still there, `shard` one shard alone, counted from 0.
    """
    if io not in IO_MODES:
        raise OptionError(
            f"io={io!r} is not a way to read pages", hint=f"use one of {', '.join(IO_MODES)}"
        )
    manifest = read_manifest(path, version)
    if shard is not None and not 0 <= shard < len(manifest.shards):
        raise OptionError(
            f"there is no shard {shard} in {str(path)!r}, which has {len(manifest.shards)}",
            hint="shards are counted from 0",
        )
    return FileMaster(Path(path), manifest, io, shard)
