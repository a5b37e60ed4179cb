"""The tuple cache against a dictionary."""

from __future__ import annotations

import tempfile
from functools import cache as once
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.joins.binding import Binding
from semistream.joins.cache import TupleCache
from semistream.kernels.cache import (
    blocks_for,
    count_hit,
    find,
    find_all,
    first_entry,
    give_up,
    has_place,
    keep,
    least_wanted,
    next_entry,
    word_at,
)
from semistream.kernels.pages import PAGE_KEYS
from semistream.kernels.waiting import BLOCK_CONTENT, get_blob
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from tests.examples import examples

KEYS = 60
CAPACITY = {"fixed": 3000, "strings": 9000, "hashed": 9000}
"""Too little for all keys: the table gets as full as it may."""


class Run(NamedTuple):
    """All rows of one key64, where they lie in a page."""

    key: int
    page: np.ndarray
    records: int
    stride: int
    rows: list[tuple[int, str | None]]


@once
def master(kind: str) -> FileMaster:
    directory = Path(tempfile.mkdtemp(prefix="semistream-cache-"))
    # Many rows of few keys, or a key for every row, which fills the table most.
    copies = 1 if kind == "fixed" else 4
    rows = [key for key in range(KEYS) for _ in range(key % copies + 1)]
    labels = [None if i % 7 == 0 else "x" * (i * 5 % 90) for i in range(len(rows))]
    columns: dict[str, Any] = {"k": rows, "n": np.arange(len(rows))}
    if kind != "fixed":
        columns["label"] = labels
    if kind == "hashed":
        columns["k"] = [f"key {key}" for key in rows]
    # Few bits of hash: several keys share a key64, and so a chain of entries.
    bits = 5 if kind == "hashed" else 64
    build_master(directory / "m", pa.table(columns), "k", page_size=65_536, hash_bits=bits)
    return open_master(directory / "m")


@once
def runs(kind: str) -> list[Run]:
    """What is in the only page of the master, key by key."""
    opened = master(kind)
    page = opened.read_page(0).copy()
    count = int(page[8:12].view(np.uint32)[0])
    keys = page[PAGE_KEYS : PAGE_KEYS + 8 * count].view(np.int64)
    layout = opened.layout
    stride = layout.record_bytes
    base = PAGE_KEYS + 8 * count
    found = []
    for key in np.unique(keys).tolist():
        at = np.flatnonzero(keys == key)
        rows = []
        for row in at.tolist():
            record = page[base + row * stride : base + (row + 1) * stride]
            rows.append(content(opened, record, page))
        found.append(Run(key, page, base + int(at[0]) * stride, stride, rows))
    return found


def content(opened: FileMaster, record: np.ndarray, page: np.ndarray) -> tuple[int, str | None]:
    """The number and the label of a record, read without any kernel."""
    layout = opened.layout
    number = layout.leaf_range("n")[0]
    offset = layout.offsets[number]
    value = int(record[offset : offset + 8].copy().view(np.int64)[0])
    if "label" not in layout.schema.names:
        return value, None
    label = layout.leaf_range("label")[0]
    if record[layout.nulls_offset + label // 8] >> (label % 8) & 1:
        return value, None
    start = int(record[layout.blob_offset : layout.blob_offset + 4].copy().view(np.uint32)[0])
    # Byte strings lie in the order of the leaves: the key's, if it is one, comes first.
    lengths = [
        int(record[layout.offsets[i] : layout.offsets[i] + 4].copy().view(np.uint32)[0])
        for i, leaf in enumerate(layout.leaves)
        if leaf.is_bytes
    ]
    start += sum(lengths[:-1])
    return value, page[start : start + lengths[-1]].tobytes().decode()


class CacheMachine(RuleBasedStateMachine):
    """A cache of one kind; the subclass says which."""

    kind: str

    @initialize(share=st.floats(0, 1), seed=st.integers(0, 5))
    def begin(self, share: float, seed: int) -> None:
        opened = master(self.kind)
        kind = pa.string() if self.kind == "hashed" else pa.int64()
        binding = Binding.of(pa.schema([("k", kind)]), opened, "k", "inner", None)
        self.cache = TupleCache(binding, CAPACITY[self.kind], opened.page_bytes, seed=seed)
        self.cache.set_bytes(int(share * CAPACITY[self.kind]))
        self.model: dict[int, tuple[Run, int]] = {}

    @property
    def state(self) -> Any:
        return self.cache.state.kernel

    @rule(start=st.integers(0, KEYS - 1), count=st.integers(1, 25), hits=st.integers(0, 9))
    def keep_keys(self, start: int, count: int, hits: int) -> None:
        for which in range(start, start + count):
            self.keep_key(which, hits)

    def keep_key(self, which: int, hits: int) -> None:
        every = runs(self.kind)
        run = every[which % len(every)]
        address = run.page.ctypes.data
        blocks = int(blocks_for(self.state, address + run.records, run.stride, len(run.rows)))
        if run.key in self.model or not has_place(self.state, len(run.rows), blocks):
            return
        size, rows = self.cache.size_bytes, len(run.rows)
        keep(self.state, run.key, address, address + run.records, run.stride, rows, hits)
        self.model[run.key] = run, hits
        assert self.cache.size_bytes == size, "keeping a key changed what is granted"

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def give_keys_up(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=6, unique=True)
        for key in data.draw(some):
            give_up(self.state, find(self.state, key))
            del self.model[key]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), times=st.integers(1, 3))
    def hit(self, data: st.DataObject, times: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        for _ in range(times):
            count_hit(self.state, find(self.state, key))
        run, hits = self.model[key]
        self.model[key] = run, hits + times

    @rule()
    def grow_old(self) -> None:
        histogram = self.cache.age()
        counts = np.bincount([hits for _, hits in self.model.values()], minlength=1)
        assert histogram[: len(counts)].tolist() == counts.tolist()
        assert histogram.sum() == len(self.model)
        self.model = {key: (run, hits // 2) for key, (run, hits) in self.model.items()}

    @rule(share=st.floats(0, 1))
    def resize(self, share: float) -> None:
        size = int(share * CAPACITY[self.kind])
        before = dict(self.model)
        self.cache.set_bytes(size)
        assert self.cache.size_bytes <= size
        left = {key for key in self.model if find(self.state, key) >= 0}
        gone = [before[key][1] for key in before if key not in left]
        stay = [before[key][1] for key in left]
        if gone and stay:
            assert max(gone) <= min(stay), "a key was given up before one that is wanted less"
        if not self.cache.has_bytes and gone:
            assert self.cache.rows == self.cache.state.limit, "more was given up than needed"
        self.model = {key: before[key] for key in left}

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model = {}

    @precondition(lambda self: self.model)
    @rule()
    def victim(self) -> None:
        place = int(least_wanted(self.state))
        if place >= 0:
            held = {int(find(self.state, key)) for key in self.model}
            assert place in held

    @invariant()
    def cache_is_the_model(self) -> None:
        if not hasattr(self, "cache"):
            return
        state = self.state
        every = runs(self.kind)
        keys = np.array([run.key for run in every], np.int64)
        valid = np.arange(len(keys)) % 5 > 0
        places = np.empty(len(keys), np.int32)
        find_all(state, keys, valid.astype(np.uint8), places)
        assert (places[~valid] == -1).all(), "a null key was found"
        used = 0
        blocks = 0
        for run in every:
            place = int(find(state, run.key))
            assert (place >= 0) == (run.key in self.model)
            if place < 0:
                continue
            assert int(word_at(state, place)) >> 32 == self.model[run.key][1]
            assert sorted(self.entries(place), key=str) == sorted(run.rows, key=str)
            used += len(run.rows)
        assert places[valid].tolist() == [int(find(state, int(key))) for key in keys[valid]]
        assert self.cache.rows == used <= self.cache.state.limit
        assert self.cache.keys == len(self.model)
        if self.cache.has_bytes:
            for run, _ in self.model.values():
                at = run.page.ctypes.data + run.records
                blocks += int(blocks_for(state, at, run.stride, len(run.rows)))
            assert self.cache.state.blocks["used"] == blocks

    def entries(self, place: int) -> list[tuple[int, str | None]]:
        """The rows of a key as the cache has them."""
        state, cache = self.state, self.cache
        output = cache.to_output
        offsets = output.array("offset")
        found = []
        entry = int(first_entry(state, place))
        memory = cache.state.array("entries")
        label = master(self.kind).layout.leaf_range("label")[0] if cache.has_bytes else 0
        while entry >= 0:
            record = memory[entry * cache.entry_bytes : (entry + 1) * cache.entry_bytes]
            value = int(record[offsets[0] : offsets[0] + 8].copy().view(np.int64)[0])
            text = None
            if cache.has_bytes and not record[label // 8] >> (label % 8) & 1:
                first = int(record[output.blob_at : output.blob_at + 4].copy().view(np.int32)[0])
                lengths = [
                    int(record[at : at + 4].copy().view(np.uint32)[0])
                    for at in output.array("string_at").tolist()
                ]
                total = sum(lengths)
                target = np.zeros(total + BLOCK_CONTENT, np.uint8)
                get_blob(cache.state.blocks, first, total, target.ctypes.data)
                text = target[total - lengths[-1] : total].tobytes().decode()
            found.append((value, text))
            entry = int(next_entry(state, entry))
        return found


@pytest.mark.parametrize("kind", ["fixed", "strings", "hashed"])
def test_cache_is_a_dictionary(kind: str) -> None:
    machine: Any = type(f"Cache_{kind}", (CacheMachine,), {"kind": kind})
    machine = machine.TestCase
    machine.settings = settings(deadline=None, max_examples=examples(40), stateful_step_count=40)
    machine("runTest").runTest()
