"""AMESHJOIN: MESHJOIN whose batches and reads change size while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.join import Traits
from semistream.joins.scanning import RUN_BYTES, ScanJoin
from semistream.kernels.mesh import P_GIVEN, P_SUBMITTED

MOST_PACKETS = 4096
"""Packets that wait at most; a queue for every page of R would take a large part of the memory."""

REQUEST_S = 1e-3
"""Seconds that an iteration costs besides its pages and rows: a seek, and our own calls."""

PAGE_S, ROW_S = 4e-6, 2e-7
"""Seconds per page probed and per row that comes and goes, until they are measured."""

SMOOTHING = 0.2
"""Weight of the last iteration in the averages of rate and costs."""

HYSTERESIS = 0.1
"""Shares of the memory move when they are off by more than this."""


class Setting(NamedTuple):
    """What a tuner decides: rows per iteration (w), and pages per iteration (b)."""

    rows: int
    pages: int


@dataclass(frozen=True)
class Observed:
    """What a tuner decides by.

    `rate` is in rows per second, infinite while more rows are offered than find room.
    `memory_bytes` is what the read buffer (two chunks, `buffer_pages` at most) and the waiting rows
    may take together.
    """

    rate: float
    master_pages: int
    page_bytes: int
    buffer_pages: int
    row_bytes: float
    memory_bytes: int
    request_s: float
    page_s: float
    row_s: float


Tuner = Callable[[Observed], Setting]


def tune(observed: Observed) -> Setting:
    """The least memory that keeps up with the rate (Eq. 1 with w = λ·c_loop, minimised over b).

    Where none does, the greatest rate that the memory allows (Eq. 3.3 and 3 of the specification,
    maximised over b).
    """
    o = observed
    steps = np.arange(0, 2 * math.log2(max(o.master_pages, 1)) + 1)
    b = np.unique(np.minimum(np.ceil(2 ** (steps / 2)), max(o.master_pages, 1)))
    b = b[np.minimum(2 * b, o.buffer_pages) * o.page_bytes <= o.memory_bytes / 2]
    b = b if len(b) else np.ones(1)
    buffer = np.minimum(2 * b, o.buffer_pages) * o.page_bytes
    per_chunk = o.request_s + b * o.page_s
    chunks = np.ceil(o.master_pages / b)
    if o.rate * o.row_s < 1:
        w = o.rate * per_chunk / (1 - o.rate * o.row_s)
        memory = buffer + w * chunks * o.row_bytes
        best = int(np.argmin(memory))
        if memory[best] <= o.memory_bytes:
            return Setting(max(math.ceil(w[best]), 1), int(b[best]))
    w = np.maximum((o.memory_bytes - buffer) / (chunks * o.row_bytes), 1)
    best = int(np.argmax(w / (per_chunk + w * o.row_s)))
    return Setting(max(int(w[best]), 1), int(b[best]))


class AMeshJoin(ScanJoin):
    """AMESHJOIN (Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell, TKDE 2008, §3.3).

    As MESHJOIN, with w and b chosen anew for every iteration. Q holds packets: the rows that
    entered together and the page that came next, their start page. One iteration (`step`): obtain
    b from the tuner, let the rows that were pushed enter H and Q, then join b pages; after each
    page the oldest packet leaves if that page comes before its start page.

    The tuner watches the rate of the stream and chooses the least memory that keeps up with it; it
    gives memory back when the stream slows down. A tuner of your own is a function from `Observed`
    to `Setting`.

    Names: currPage is `_page`, w is `Setting.rows`, b is `Setting.pages`.

    Departures. The paper does not say how the rate is found: here an exponential average over the
    last iterations; while rows find no room the memory is used in full, until a pass goes by
    without that. w is what has come, at most what the memory granted has room for; only while that
    is more than can be kept up with, it is the tuner's. Shares of the
    memory move when they are off by more than a tenth, rows' memory at moments when their circle of
    slots does not go over its end, and not at all for streams with byte strings. An iteration may
    have more pages than the buffer holds, which then is filled several times. At most 4096
    packets wait; until one leaves no row enters. No empty packet is queued. 1 <= b <= N_R. Theorem
    3.2 needs μ >= λ, not μ <= λ as printed. Otherwise as `MeshJoin`.
    """

    name = "ameshjoin"
    traits = Traits(
        paper="Polyzotis et al., TKDE 2008, §3.3",
        idea="as meshjoin, with batches and reads that follow the stream's rate",
        needs_index=False,
    )
    takes_conditions = True

    def __init__(
        self, *args: Any, tuner: Tuner = tune, request_s: float = REQUEST_S, **options: Any
    ) -> None:
        self.tuner = tuner
        self.request_s = request_s
        super().__init__(*args, **options)

    def most_packets(self, chunk_pages: int) -> int:
        return min(max(self.master.pages, 1), MOST_PACKETS)

    def allocate_more(self, blob_bytes: float) -> None:
        super().allocate_more(blob_bytes)
        self._shared = self.budget.in_use()["read buffer"] + self.budget.in_use()["waiting rows"]
        self._page_s, self._row_s, self._rate = PAGE_S, ROW_S, math.inf
        self._rows_then, self._time_then = 0, self.clock.now_ns()
        self._passed_since_refusal = 0
        self._refused = False
        self._wanted_buffer = self.buffer_pages
        chunks = max(-(-self.master.pages // self.chunk_pages), 1)
        self._setting = Setting(max(self.waiting.capacity // chunks, 1), self.chunk_pages)

    def reserve_waiting(self, size_bytes: int) -> int:
        # The buffer may shrink to two pages; what it gives is the rows'.
        return size_bytes + self.plan["read buffer"]

    def rows_to_enter(self) -> int:
        # While there is more than enough, even steps keep rows from waiting for the next pass.
        return self._setting.rows if math.isinf(self._rate) else self.waiting.capacity

    def pages_to_probe(self) -> int:
        self._setting = setting = self.tuner(self._observe())
        self.chunk_pages = min(max(setting.pages, 1), self.master.pages)
        self._share(setting)
        return self.chunk_pages

    def accept(self, batch: pa.RecordBatch) -> int:
        start = self.clock.now_ns()
        accepted = super().accept(batch)
        if accepted:
            self._row_s = _smoothed(self._row_s, (self.clock.now_ns() - start) / 1e9 / accepted)
        is_full = self.waiting.rows >= self.waiting.capacity
        if accepted < batch.num_rows and (is_full or math.isinf(self._rate)):
            self._refused = True
        return accepted

    def probe_wanted(self) -> int:
        start, before = self.clock.now_ns(), self.pages_wanted
        status = super().probe_wanted()
        done = before - self.pages_wanted
        if done:
            self._page_s = _smoothed(self._page_s, (self.clock.now_ns() - start) / 1e9 / done)
        return status

    def _observe(self) -> Observed:
        now, rows = self.clock.now_ns(), self._rows_in
        elapsed_s = (now - self._time_then) / 1e9
        if self._refused:
            self._passed_since_refusal, self._rate = 0, math.inf
        else:
            self._passed_since_refusal += self.chunk_pages
        if elapsed_s > 0 and self._passed_since_refusal >= self.master.pages:
            rate = (rows - self._rows_then) / elapsed_s
            # The first rate after a refusal is not averaged with what came before.
            self._rate = rate if math.isinf(self._rate) else _smoothed(self._rate, rate)
        self._time_then, self._rows_then, self._refused = now, rows, False
        return Observed(
            rate=self._rate,
            master_pages=self.master.pages,
            page_bytes=self.master.page_bytes,
            buffer_pages=self.plan["read buffer"] // self.master.page_bytes,
            row_bytes=self.waiting.row_bytes + 4,
            memory_bytes=self._shared,
            request_s=self.request_s,
            page_s=self._page_s,
            row_s=self._row_s,
        )

    # The memory.

    def _share(self, setting: Setting) -> None:
        """Move the shares of read buffer and waiting rows to what the setting needs."""
        most = self.plan["read buffer"] // self.master.page_bytes
        pages = min(max(2 * self.chunk_pages, 2), most)
        if abs(pages - self.buffer_pages) > HYSTERESIS * self.buffer_pages:
            self._wanted_buffer = pages
            self._forget_plan()
        if self.waiting.heap is None:
            chunks = -(-self.master.pages // self.chunk_pages)
            self._grant(setting.rows * (chunks + 1) + 2)

    def _forget_plan(self) -> None:
        """What is planned and not yet submitted is planned anew, when the buffer is empty."""
        submitted, given = int(self._progress[P_SUBMITTED]), int(self._progress[P_GIVEN])
        if submitted < given:
            self._read_page = int(self._runs[submitted, 0])
        self._progress[P_SUBMITTED] = self._progress[P_GIVEN] = 0

    def plan_runs(self) -> None:
        # Nothing is in flight: a moment at which the buffer can change.
        assert self._reader is not None
        if self._wanted_buffer != self.buffer_pages:
            page = self.master.page_bytes
            free = self._shared - self.budget.in_use()["waiting rows"]
            self.buffer_pages = max(min(self._wanted_buffer, free // page), 2)
            self._wanted_buffer = self.buffer_pages
            self._reader.resize(self.buffer_pages)
            self.budget.set("read buffer", self.buffer_pages * page)
            self._run_pages = max(min(RUN_BYTES // page, self.buffer_pages // 4), 1)
        super().plan_runs()

    def _grant(self, slots: int) -> None:
        """Let this many rows wait, as far as memory allows; a circle grows and shrinks at its end.

        While rows lie over the end of the circle it stays as it is.
        """
        state = self.waiting.state
        held = max(self.buffer_pages, self._wanted_buffer) * self.master.page_bytes
        room = self._shared - held - self._ring_bytes - self.waiting.fixed_bytes
        slots = min(max(slots, 64), room // self.waiting.stride, self.waiting.most_slots)
        if self.waiting.rows == 0:
            state.free = state.fresh = 1
        if state.fresh < state.free or (state.fresh == state.free and self.waiting.rows):
            return
        # Cut right behind the youngest row, the circle goes on at its begin and can shrink further.
        slots = max(slots, min(state.fresh + 2, state.limit))
        if abs(slots - state.limit) > HYSTERESIS * state.limit:
            self.waiting.set_circle(slots)
            self.budget.set("waiting rows", self.waiting.size_bytes + self._ring_bytes)

    def must_agree(self) -> dict[str, int]:
        return {"version": self.master.manifest.version}

    def before_restore(self) -> None:
        # The buffer may have been as small as it gets, and the rows as many.
        self._wanted_buffer = 2
        self.plan_runs()
        self._forget_plan()
        if self.waiting.heap is None:
            self._grant(self.waiting.most_slots)


def _smoothed(average: float, value: float) -> float:
    return average + SMOOTHING * (value - average)
