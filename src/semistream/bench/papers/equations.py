"""The papers' equations, at any sizes, with the costs of a paper's machine.

`semistream.cost` has the same for our joins, with terms that these equations lack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from semistream.bench.papers.machine import CACHED, PAGE_BYTES, Machine
from semistream.cost import Frequencies, intake
from semistream.cost.probing import CACHE_SHARE
from semistream.joins.rmeshjoin import logical_partitions

MB = 1 << 20
ROW_BYTES, STREAM_BYTES, POINTER_BYTES, NODE_BYTES = 120, 20, 4, 12
"""v_R, v_S, and a queue's entry: a pointer, or a node of a doubly linked list."""

Rate = Callable[["Setting", float, Machine], float]
"""A rate by the pages of a buffer."""

THESIS_FUDGE = 8
MESHJOIN_FUDGE = 4.8


@dataclass(frozen=True)
class Setting:
    """Sizes of a paper: M, n_R, f and the skew, in its own units."""

    memory_bytes: float
    rows: float = 2e6
    fudge: float = THESIS_FUDGE
    queue_bytes: int = NODE_BYTES
    skew: float = 1.0

    @property
    def pages(self) -> int:
        """N_R."""
        return max(round(self.rows * ROW_BYTES / PAGE_BYTES), 1)

    @property
    def slot_bytes(self) -> float:
        """s_S = f·v_S + q: a stream row that waits."""
        return self.fudge * STREAM_BYTES + self.queue_bytes

    def waiting(self, buffer_pages: float = 0.0, other_bytes: float = 0.0) -> float:
        """h_S: rows that wait in what buffers and others leave of the memory."""
        return (self.memory_bytes - buffer_pages * PAGE_BYTES - other_bytes) / self.slot_bytes


def mesh_w(setting: Setting, pages: float) -> float:
    """w of MESHJOIN with a buffer of b pages (Eq. 3.3, from Eq. 1)."""
    chunks = setting.pages / pages
    left = setting.memory_bytes - pages * PAGE_BYTES
    return left / (STREAM_BYTES + chunks * setting.slot_bytes)


def mesh_c_loop(setting: Setting, pages: float, machine: Machine) -> float:
    """c_loop of MESHJOIN in seconds (Eq. 2), for unique keys: every row that waits has a result."""
    w = mesh_w(setting, pages)
    probes = pages * PAGE_BYTES / ROW_BYTES
    return machine.disk(pages) + w * (machine.row + machine.result) + probes * machine.probe


def mesh_rate(setting: Setting, pages: float, machine: Machine) -> float:
    """μ of MESHJOIN (Eq. 3)."""
    return mesh_w(setting, pages) / mesh_c_loop(setting, pages, machine)


def best_pages(setting: Setting, machine: Machine, rate: Rate | None = None) -> int:
    """The buffer with the highest rate, among all whole numbers of pages up to half the memory."""
    of_pages = mesh_rate if rate is None else rate
    most = int(setting.memory_bytes / PAGE_BYTES / 2)
    low, high = 1, max(most, 2)
    while high - low > 2:  # the rate has one maximum
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if of_pages(setting, left, machine) < of_pages(setting, right, machine):
            low = left + 1
        else:
            high = right
    return max(range(low, high + 1), key=lambda pages: of_pages(setting, pages, machine))


def mesh_memory(setting: Setting, pages: float, rate: float, machine: Machine) -> float:
    """M with which MESHJOIN holds a rate: w = λ·A(b) / (1 - λ·B), then Eq. 1."""
    a = machine.disk(pages) + pages * PAGE_BYTES / ROW_BYTES * machine.probe
    w = rate * a / (1 - rate * (machine.row + machine.result))
    return pages * PAGE_BYTES + w * (STREAM_BYTES + setting.pages / pages * setting.slot_bytes)


class ReducedMesh(NamedTuple):
    """R-MESHJOIN by Eq. 4.1 to 4.5."""

    chunks: float
    partitions: int
    w: float
    c_loop_s: float

    @property
    def rate(self) -> float:
        """μ."""
        return self.w / self.c_loop_s


def reduced_mesh(
    setting: Setting, pages: float, machine: Machine, partitions: int | None = None
) -> ReducedMesh:
    """R-MESHJOIN with a buffer of b pages in l partitions; without l, so many that k·l is that of
    Table 4.4."""
    chunks = setting.pages / pages
    parts = logical_partitions(round(chunks)) if partitions is None else partitions
    w = setting.waiting(pages) / (chunks * parts)
    probes = pages / parts * PAGE_BYTES / ROW_BYTES
    seconds = (
        machine.disk(pages) / parts + w * machine.row + probes * (machine.probe + machine.result)
    )
    return ReducedMesh(chunks, parts, w, seconds)


def reduced_mesh_rate(setting: Setting, pages: float, machine: Machine) -> float:
    """μ of R-MESHJOIN (Eq. 4.5), in which l cancels."""
    return reduced_mesh(setting, pages, machine).rate


class Family(NamedTuple):
    """A join of the HYBRIDJOIN family by its equations: w_N and w_S rows, c_loop, h_S."""

    held: float
    waited: float
    c_loop_s: float
    waiting: float

    @property
    def w(self) -> float:
        """Rows per iteration."""
        return self.held + self.waited

    @property
    def rate(self) -> float:
        """μ."""
        return self.w / self.c_loop_s


def family(
    join: str,
    setting: Setting,
    pages: float,
    machine: Machine,
    held_rows: float = 0.0,
    *,
    waiting: float | None = None,
    probed_rows: float | None = None,
) -> Family:
    """HYBRIDJOIN (Eq. 5.1 to 5.4), X-HYBRIDJOIN (6.4, 6.5), Optimised X-HYBRIDJOIN and CACHEJOIN
    (7.1 to 7.3, 8.1), with R in frequency order but for CACHEJOIN.

    `pages` are loaded in an iteration, the `held_rows` most frequent rows of R stay in memory. The
    intake is that of the repaired model (`semistream.cost.intake.hybrid`) on what is left of the
    stream, not the printed one; misses of a cache are charged for their look-up, and a cache that
    is filled by a threshold answers less than one of the most frequent rows. `waiting` and
    `probed_rows` are h_S and the rows that X-HYBRIDJOIN probes with, unless the memory says them.
    """
    if waiting is None:
        waiting = max(setting.waiting(pages, held_rows * ROW_BYTES), 1.0)
    probed = held_rows if probed_rows is None else probed_rows
    rows = pages * PAGE_BYTES / ROW_BYTES
    asked = Frequencies.zipf(round(setting.rows), setting.skew)
    share = asked.top(held_rows)
    if join == "cachejoin":
        share *= CACHE_SHARE
    edges = np.append(np.arange(asked.reach(share), setting.rows, rows), setting.rows)
    masses = np.diff([asked.top(edge) for edge in edges])
    if join == "cachejoin":  # R lies in any order
        masses[:] = 1 / len(masses)
    waited = intake.hybrid(masses, waiting).rows
    held = waited * share / max(1 - share, 1e-9)
    seconds = machine.disk(pages) + rows * machine.probe + (held + waited) * machine.result
    if join in CACHED:
        seconds += waited * machine.row + held * machine.read + (held + waited) * machine.probe
    else:
        seconds += (held + waited) * machine.row + probed * machine.probe
    return Family(held, waited, seconds, waiting)


def printed_hybrid(setting: Setting, pages: float, machine: Machine) -> Family:
    """HYBRIDJOIN with the printed intake, κ = 1.36 (Eq. 5.2)."""
    waiting, rows = setting.waiting(pages), pages * PAGE_BYTES / ROW_BYTES
    w = intake.printed_hybrid(waiting, rows, setting.rows)
    seconds = machine.disk(pages) + rows * machine.probe + w * (machine.row + machine.result)
    return Family(0.0, w, seconds, waiting)


@cache
def best_held(join: str, setting: Setting, pages: float, machine: Machine) -> float:
    """How many rows of R held in memory give the highest rate: the thesis's tuning."""
    most = setting.memory_bytes / ROW_BYTES * 0.9
    sizes = np.geomspace(16, min(most, setting.rows / 2), 40)
    return float(max(sizes, key=lambda rows: family(join, setting, pages, machine, rows).rate))
