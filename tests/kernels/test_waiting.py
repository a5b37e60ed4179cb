"""Waiting rows against models: slots, stacks, rings, the queue of buckets, and blocks."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.kernels.queue import ABSENT, take_oldest, withdraw
from semistream.kernels.struct import Struct
from semistream.kernels.waiting import (
    BLOCK_BYTES,
    BLOCK_CONTENT,
    BLOCKS,
    LINK,
    WAITING,
    append,
    free_blob,
    free_slot,
    get_blob,
    hang,
    has_met,
    mark_met,
    pop_oldest,
    put_blob,
    ring_word,
    set_block_limit,
    set_slot_limit,
    sign_rings,
    signature,
    take_slot,
)
from tests.examples import examples

STRIDE = 24
SLOTS = 60
BUCKETS = 5
SPAN = 2

modest = settings(deadline=None, max_examples=examples(60), stateful_step_count=60)


def link_at(memory: npt.NDArray[np.uint8], at: int) -> int:
    return int(memory[at : at + 4].view(np.int32)[0])


def waiting_rows(tail: npt.NDArray[np.generic], **more: object) -> tuple[Struct, np.ndarray]:
    memory = np.zeros(SLOTS * STRIDE, np.uint8)
    state = Struct(
        WAITING,
        rows=memory,
        stride=STRIDE,
        tail=tail,
        buckets=BUCKETS,
        blob_at=-1,
        flag_at=20,
        flag_bit=3,
        free=-1,
        fresh=1,
        limit=SLOTS,
        used=1,
        **more,
    )
    return state, memory


def buckets_of(group: int) -> range:
    return range(group * SPAN, min((group + 1) * SPAN, BUCKETS))


class Slots(RuleBasedStateMachine):
    """Slots are handed out once, stacks keep them, the limit moves."""

    @initialize()
    def begin(self) -> None:
        self.tail = np.full(BUCKETS, -1, np.int32)
        self.queue = np.full((-(-BUCKETS // SPAN), 2), ABSENT, np.int32)
        self.state, self.memory = waiting_rows(
            self.tail, queue=self.queue, span=SPAN, oldest=-1, newest=-1
        )
        self.stacks: list[list[int]] = [[] for _ in range(BUCKETS)]
        self.order: deque[int] = deque()
        self.limit = SLOTS
        self.settled = True

    @property
    def held(self) -> set[int]:
        return {slot for stack in self.stacks for slot in stack}

    @precondition(lambda self: len(self.held) + 1 < self.limit)
    @rule(bucket=st.integers(0, BUCKETS - 1), rows=st.integers(1, 8))
    def wait(self, bucket: int, rows: int) -> None:
        for _ in range(min(rows, self.limit - 1 - len(self.held))):
            slot = int(take_slot(self.state.kernel))
            assert slot not in self.held, "a slot in use was handed out"
            assert 0 < slot < self.limit, "a slot beyond the limit was handed out"
            hang(self.state.kernel, bucket, slot)
            if bucket // SPAN not in self.order:
                self.order.append(bucket // SPAN)
            self.stacks[bucket].append(slot)

    @rule(bucket=st.integers(0, BUCKETS - 1))
    def leave(self, bucket: int) -> None:
        """Take a whole stack, as joins do."""
        slot = int(self.tail[bucket])
        self.tail[bucket] = -1
        found = []
        while slot >= 0:
            found.append(slot)
            slot = link_at(self.memory, slot * STRIDE + LINK)
        assert found == self.stacks[bucket][::-1], "the youngest row is on top"
        for slot in found:
            free_slot(self.state.kernel, slot)
        self.stacks[bucket] = []

    @rule(most=st.integers(1, BUCKETS))
    def oldest_groups(self, most: int) -> None:
        out = np.full(most, -1, np.int64)
        count = int(take_oldest(self.state.kernel, out))
        expected: list[int] = []
        while self.order and len(expected) < most:
            group = self.order.popleft()
            if self.rows_of(group):
                expected.append(group)
        assert out[:count].tolist() == expected
        # What was taken and still has rows must be queued again by somebody.
        for group in expected:
            for bucket in buckets_of(group):
                self.leave(bucket)

    @rule(first=st.integers(0, BUCKETS - 1), count=st.integers(1, BUCKETS))
    def withdraw(self, first: int, count: int) -> None:
        """Groups that have no rows lose their place, wherever it is."""
        count = min(count, BUCKETS - first)
        withdraw(self.state.kernel, first, count)
        for group in range(first // SPAN, (first + count - 1) // SPAN + 1):
            if group in self.order and not self.rows_of(group):
                self.order.remove(group)

    def rows_of(self, group: int) -> int:
        return sum(len(self.stacks[bucket]) for bucket in buckets_of(group))

    @precondition(lambda self: self.settled)
    @rule(limit=st.integers(2, SLOTS))
    def set_limit(self, limit: int) -> None:
        set_slot_limit(self.state.kernel, limit)
        self.limit = limit
        self.settled = False

    @precondition(lambda self: not self.settled and max(self.held, default=0) < self.limit)
    @rule()
    def settle(self) -> None:
        """As `WaitingRows.settle`, when nothing above the limit is in use any more."""
        self.state.fresh = min(self.state.fresh, self.limit)
        self.settled = True

    @invariant()
    def counted(self) -> None:
        if hasattr(self, "state"):
            assert self.state.used == len(self.held) + 1
            assert self.state.limit == self.limit


class Rings(RuleBasedStateMachine):
    """Rings let the oldest row go first; signatures never deny a key that is there."""

    @initialize()
    def begin(self) -> None:
        self.tail = np.full(BUCKETS, -1, np.int64)
        self.state, self.memory = waiting_rows(self.tail)
        self.rings: list[deque[tuple[int, int]]] = [deque() for _ in range(BUCKETS)]
        self.free = set(range(1, SLOTS))

    @precondition(lambda self: self.free)
    @rule(bucket=st.integers(0, BUCKETS - 1), key=st.integers(-(2**63), 2**63 - 1))
    def append(self, bucket: int, key: int) -> None:
        slot = min(self.free)
        self.free.remove(slot)
        self.memory[slot * STRIDE : slot * STRIDE + 8].view(np.int64)[0] = key
        append(self.state.kernel, bucket, slot, key)
        self.rings[bucket].append((slot, key))

    @precondition(lambda self: any(self.rings))
    @rule(data=st.data(), times=st.integers(1, 9))
    def pop(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            filled = [number for number, ring in enumerate(self.rings) if ring]
            if not filled:
                break
            bucket = data.draw(st.sampled_from(filled))
            slot, _ = self.rings[bucket].popleft()
            assert int(pop_oldest(self.state.kernel, bucket)) == slot
            self.free.add(slot)

    @rule()
    def sign(self) -> None:
        sign_rings(self.state.kernel)
        for bucket, ring in enumerate(self.rings):
            bits = 0
            for _, key in ring:
                bits |= int(signature(key))
            if ring:
                assert int(ring_word(self.state.kernel, bucket)) >> 32 << 32 == bits

    @invariant()
    def rings_are_as_in_the_model(self) -> None:
        if not hasattr(self, "state"):
            return
        for bucket, ring in enumerate(self.rings):
            word = int(ring_word(self.state.kernel, bucket))
            if not ring:
                assert word == -1
                continue
            assert word >= 0
            tail = word & 0xFFFFFFFF
            assert tail == ring[-1][0]
            slot, found = tail, []
            for _ in ring:
                slot = link_at(self.memory, slot * STRIDE + LINK)
                found.append(slot)
            assert found == [slot for slot, _ in ring]
            for _, key in ring:
                assert word & int(signature(key)), "the signature denies a key that waits"


class Blobs(RuleBasedStateMachine):
    """Byte strings come out of blocks as they went in, and never more blocks than allowed."""

    capacity = 40

    @initialize()
    def begin(self) -> None:
        self.memory = np.zeros(self.capacity * BLOCK_BYTES, np.uint8)
        self.state = Struct(BLOCKS, data=self.memory, free=-1, limit=self.capacity)
        self.limit = self.capacity
        self.blobs: dict[int, bytes] = {}
        self.settled = True

    @staticmethod
    def size(blob: bytes) -> int:
        return -(-len(blob) // BLOCK_CONTENT)

    def used(self) -> int:
        return sum(self.size(blob) for blob in self.blobs.values())

    @rule(blob=st.binary(max_size=200))
    def put(self, blob: bytes) -> None:
        origin = np.frombuffer(blob + b"\0", np.uint8)
        first = int(put_blob(self.state.kernel, origin.ctypes.data, len(blob)))
        if not blob:
            assert first == -1
        elif self.used() + self.size(blob) > self.limit:
            assert first == -2
        else:
            assert 0 <= first < self.capacity
            assert first not in self.blobs
            self.blobs[first] = blob

    @precondition(lambda self: self.blobs)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.blobs)))
        free_blob(self.state.kernel, first)
        del self.blobs[first]

    @precondition(lambda self: self.settled)
    @rule(limit=st.integers(0, 40))
    def set_limit(self, limit: int) -> None:
        set_block_limit(self.state.kernel, limit)
        self.limit = limit
        self.settled = False

    def chain(self, first: int) -> list[int]:
        blocks = []
        block = first
        while block >= 0:
            blocks.append(block)
            block = link_at(self.memory, block * BLOCK_BYTES)
        return blocks

    @precondition(lambda self: not self.settled)
    @rule()
    def settle(self) -> None:
        """As `BlockHeap.settle`, when nothing above the limit is in use any more."""
        held = [block for first in self.blobs for block in self.chain(first)]
        if max(held, default=-1) < self.limit:
            self.state.fresh = min(self.state.fresh, self.limit)
            self.settled = True

    @invariant()
    def blobs_are_whole(self) -> None:
        if not hasattr(self, "state"):
            return
        assert self.state.used == self.used()
        held: list[int] = []
        for first, blob in self.blobs.items():
            chain = self.chain(first)
            assert len(chain) == self.size(blob)
            held += chain
            target = np.full(len(blob) + 8, 0xEE, np.uint8)
            get_blob(self.state.kernel, first, len(blob), target.ctypes.data)
            assert target[: len(blob)].tobytes() == blob
            assert (target[len(blob) :] == 0xEE).all(), "more was copied than asked for"
        assert len(set(held)) == len(held), "a block is in two blobs"
        assert max(held, default=0) < self.capacity


TestSlots = Slots.TestCase
TestSlots.settings = modest
TestRings = Rings.TestCase
TestRings.settings = modest
TestBlobs = Blobs.TestCase
TestBlobs.settings = modest


def test_a_row_notes_that_it_has_met_a_partner_and_nothing_else() -> None:
    state, memory = waiting_rows(np.full(BUCKETS, -1, np.int32))
    address = memory.ctypes.data + 2 * STRIDE
    before = memory.copy()
    assert not has_met(state.kernel, address)
    mark_met(state.kernel, address)
    mark_met(state.kernel, address)
    assert has_met(state.kernel, address)
    assert not has_met(state.kernel, address + STRIDE)
    changed = np.flatnonzero(memory != before)
    assert changed.tolist() == [2 * STRIDE + 20]
    assert memory[changed[0]] == 1 << 3
