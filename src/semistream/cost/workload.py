"""What a cost model must know of stream and master: sizes and frequencies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.cost.frequencies import Frequencies
from semistream.joins.binding import Binding, On
from semistream.joins.cache import TupleCache
from semistream.joins.output import OutputBuffer
from semistream.joins.waiting import WaitingRows
from semistream.kernels.pages import CLASSES
from semistream.store.file import FileMaster

_F64 = npt.NDArray[np.float64]

MOST_PLACED = 4_000_000
"""Keys that are given a page of their own; the stream's interest in all others is spread evenly."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A master, a stream, and what a row of either takes in memory.

    In the papers' symbols: n_R is `rows`, N_R `pages`, v_pg `page_bytes`, s_S = f·v_S + q
    `slot_bytes`, f·v_R of a cached row `cached_bytes`; `results` are those of one stream row.
    `key_rows` are the master's rows of one key (m); `frequencies` are of its keys.
    """

    rows: int
    pages: int
    page_bytes: int
    slot_bytes: float
    cached_bytes: float
    output_bytes: int
    frequencies: Frequencies
    index_bytes: int = 0
    page_rows: int = 0
    results: float = 1.0
    key_rows: float = 1.0
    by_frequency: bool = False
    strings: bool = False
    stream_strings: bool = False
    io: str = "buffered"
    shards: int = 1
    _masses: dict[tuple[int, int], _F64] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        master: FileMaster,
        schema: pa.Schema,
        on: On,
        *,
        skew: float = 0.0,
        frequencies: Frequencies | None = None,
        how: str = "inner",
        columns: Any = None,
    ) -> Workload:
        """The workload of a stream of `schema` and an open master."""
        return cls.bound(
            master, Binding.of(schema, master, on, how, columns), skew=skew, frequencies=frequencies
        )

    @classmethod
    def bound(
        cls,
        master: FileMaster,
        binding: Binding,
        *,
        skew: float = 0.0,
        frequencies: Frequencies | None = None,
        blob_bytes: float = 0.0,
    ) -> Workload:
        """The same from the binding of a join; `blob_bytes` are a row's byte strings on average."""
        keys = keys_of(master)
        layout = binding.master_layout
        chosen = [i for name in binding.columns for i in layout.leaf_range(name)]
        strings = binding.layout.has_bytes or any(layout.leaves[i].is_bytes for i in chosen)
        key_rows = master.rows / keys if keys else 1.0
        return cls(
            rows=master.rows,
            pages=master.pages,
            page_bytes=master.page_bytes,
            slot_bytes=WaitingRows(binding, 1, 0, blob_bytes).row_bytes,
            cached_bytes=TupleCache(binding, 0, 0).row_bytes,
            output_bytes=OutputBuffer.row_bytes(binding),
            frequencies=frequencies or Frequencies.zipf(keys, skew),
            index_bytes=master.index_bytes,
            page_rows=master.most_rows_per_page,
            results=key_rows if binding.how in ("inner", "left") else 1.0,
            key_rows=key_rows,
            by_frequency=master.by_frequency,
            strings=strings,
            stream_strings=binding.layout.has_bytes,
            io=master.io,
            shards=len(master.shards),
        )

    def asked(self, frequencies: Frequencies) -> Workload:
        """The same master and another stream."""
        return replace(self, frequencies=frequencies, _masses={})

    @property
    def rows_per_page(self) -> float:
        """Rows of a page on average."""
        return self.rows / max(self.pages, 1)

    def page_masses(self, cached: float = 0.0) -> _F64:
        """Share of the stream that asks for each page, without that for the `cached` hottest keys.

        Hot keys lie anywhere in a master in key order: each is given a page by a fixed seed. In
        frequency order they come class by class, and are scattered within a class.
        """
        return self.span_masses(1, cached)

    def span_masses(self, span: int, cached: float = 0.0) -> _F64:
        """The same for groups of `span` neighbouring pages."""
        # Of thousands of cached keys a few more or less change nothing.
        rounded = int(round(cached, -max(len(str(int(cached))) - 3, 0)))
        key = (span, rounded)
        if key not in self._masses:
            if span > 1:
                pages = self.span_masses(1, cached)
                starts = np.arange(0, max(self.pages, 1), span)
                self._masses[key] = np.add.reduceat(pages, starts)
            else:
                self._masses[key] = self._placed(rounded)
        return self._masses[key]

    def _placed(self, cached: int) -> _F64:
        pages = max(self.pages, 1)
        single, rest = self.frequencies.singly(MOST_PLACED)
        left = single.copy()
        left[: min(cached, len(left))] = 0.0
        if self.by_frequency:
            return _by_class(left, rest, self.frequencies.count, pages)
        place = _places(len(single), max(int(self.frequencies.count), 1), pages)
        masses: _F64 = np.bincount(place, weights=left, minlength=pages).astype(np.float64)
        masses += rest / pages
        return masses


def keys_of(master: FileMaster) -> int:
    """Different keys of the shards that were opened."""
    manifest = master.manifest
    return round(manifest.keys * master.rows / manifest.rows) if manifest.rows else 0


@lru_cache(maxsize=4)
def _places(count: int, keys: int, pages: int) -> npt.NDArray[np.int64]:
    """The page of each of the `count` most frequent of `keys` keys, scattered over the pages."""
    generator = np.random.default_rng(0)
    if count == keys:
        return generator.permutation(keys) * pages // keys
    return generator.integers(0, pages, count)


def _by_class(single: _F64, rest: float, keys: float, pages: int) -> _F64:
    """Page masses of a master in frequency order: classes, each half as large as the next."""
    ends = np.round(keys / 2.0 ** np.arange(CLASSES - 1, -1, -1)).astype(np.int64)
    borders = np.concatenate([[0], ends])
    firsts = np.round(borders / max(keys, 1) * pages).astype(np.int64)
    masses = np.zeros(pages)
    reach = np.concatenate([[0.0], np.cumsum(single)])
    for low, high, first, end in zip(borders, borders[1:], firsts, firsts[1:], strict=False):
        inside = reach[min(high, len(single))] - reach[min(low, len(single))]
        if high > len(single):
            inside += rest * (high - max(low, len(single))) / max(keys - len(single), 1)
        first = min(first, pages - 1)
        masses[first : max(end, first + 1)] += inside / max(end - first, 1)
    return masses
